//! The variants of the kernel that adds up the sources of each element of a scatter (`shaders/index/scatter.wgsl`): an invocation each, or,
//! on hardware, workgroups where few elements have many sources.

use crate::device::gpu::{AnyFamily, Caps, Family, Gpu, Grid, Kernel, KernelBuilder, Suits, Variant, params, shader};
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::inputs::{SCALAR_HEADERS, scalar_header};
use crate::ops::linalg::matmul_variants::numbers;

params! {
    #[derive(Default)]
    pub(super) struct Params {
        count: usize,
        inner: usize,
        size: usize,
        picks: usize,
        row: usize,
        base_offset: usize,
        src_offset: usize,
        first: usize,
        last: usize,
        lanes: usize,
        across: usize,
    }
}
shader!(pub(super) SHADER: Params = "index/scatter", headers || SCALAR_HEADERS.to_vec());

/// Invocations of a workgroup; `WIDE` in the shader.
const WIDE: usize = 256;

/// The fewest sources of an element, on average, that are worth several invocations.
const MANY: usize = 16;

/// Elements from which on an invocation each keeps a large card busy.
const ENOUGH: usize = 1 << 16;

impl Params {
    /// Returns the params with neighbours along B for neighbouring invocations, if they have the same indices.
    pub fn shared(self, shared: bool) -> Params {
        let lanes = if shared { self.inner.next_power_of_two().min(32) } else { 1 };
        Params { lanes, across: self.inner.div_ceil(lanes), ..self }
    }

    fn has_few_elements(&self) -> bool {
        self.picks >= MANY * self.size && self.count < ENOUGH
    }

    fn workgroups(&self) -> usize {
        self.count / self.inner.max(1) * self.across
    }
}

/// A variant of the kernel. Variants with other entry points than the plain one do not replace elements.
pub(super) type ScatterVariant = Variant<Params>;

const SHARED: ScatterVariant = Variant {
    name: "shared",
    way: (),
    shader: SHADER,
    entry: "segment_shared",
    fits: |caps| caps.max_invocations as usize >= WIDE && caps.workgroup_memory >= 1024,
    suits: Suits::Some(Params::has_few_elements),
    grid: Grid::Workgroups(Params::workgroups),
};

pub(super) static ALONE: ScatterVariant = Variant {
    name: "alone",
    way: (),
    shader: SHADER,
    entry: "segment",
    fits: |_| true,
    suits: Suits::All,
    grid: Grid::Each(|p| p.count),
};

static ON_HARDWARE: [&ScatterVariant; 2] = [&SHARED, &ALONE];
/// Barriers are slow on software adapters.
static ON_SOFTWARE: [&ScatterVariant; 2] = [&Variant { suits: Suits::OnDemand, ..SHARED }, &ALONE];

pub(super) static FAMILY: Family<Params> = Family { name: "scatter", order, attempt };
inventory::submit! { &FAMILY as &'static dyn AnyFamily }

fn order(caps: &Caps) -> &'static [&'static ScatterVariant] {
    if caps.software { &ON_SOFTWARE } else { &ON_HARDWARE }
}

/// Returns the kernel of a variant for elements of a type, with the operation of the shader's `OP`.
pub(super) fn kernel(
    variant: &ScatterVariant,
    params: Params,
    (dtype, shared, op): (DType, bool, u8),
    buffers: impl FnOnce(KernelBuilder) -> KernelBuilder,
) -> Kernel {
    variant.kernel(params, |kernel| {
        buffers(kernel.header(scalar_header(dtype)).constant("SHARED", shared).constant("OP", op))
    })
}

/// Adds up sources with a variant: some elements have none, one has more than a workgroup has invocations, and a second kernel goes on
/// with the sums of a first. Describes the first wrong element.
fn attempt(gpu: &Gpu, variant: &'static ScatterVariant) -> Result<Option<String>> {
    const SOURCES: [usize; 5] = [0, 9, 300, 1, 0];
    let (size, inner, picks) = (SOURCES.len(), 5, SOURCES.iter().sum::<usize>());
    // The source at place j of the sorted ones is 7 · j, modulo their number.
    let order: Vec<u32> = (0..picks).map(|j| (j * 7 % picks) as u32).collect();
    let starts: Vec<u32> = (0..=size).map(|r| SOURCES[..r].iter().sum::<usize>() as u32).collect();
    let (base, src) = (numbers(size * inner, 1), numbers(picks * inner, 2));
    let [base_buffer, src_buffer] = [&base, &src].map(|values| gpu.upload(bytemuck::cast_slice(values)));
    let (base_buffer, src_buffer, starts_buffer, order_buffer) =
        (base_buffer?, src_buffer?, gpu.upload(&starts)?, gpu.upload(&order)?);
    let out = gpu.alloc(size * inner)?;
    for (first, last) in [(0, 200), (200, picks)] {
        let params = Params { count: size * inner, inner, size, picks, first, last, ..Params::default() };
        gpu.run(kernel(variant, params.shared(true), (DType::F32, true, 0), |kernel| {
            kernel.input(&base_buffer).input(&starts_buffer).input(&order_buffer).input(&src_buffer).output(&out)
        }))?;
    }
    for (i, got) in gpu.download(&out, 0, size * inner)?.into_iter().map(f32::from_bits).enumerate() {
        let (r, b) = (i / inner, i % inner);
        let sources = &order[starts[r] as usize..starts[r + 1] as usize];
        let expected = base[i] + sources.iter().map(|&source| src[source as usize * inner + b]).sum::<f32>();
        // False for NaN.
        let close = (got - expected).abs() <= 1e-4;
        if !close {
            return Ok(Some(format!("element [{r}, {b}] of [{size}, {inner}]: got {got}, expected {expected}")));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::variants::Adapter;
    use crate::ops::variants::classes::{HARDWARE, LAVAPIPE};

    #[test]
    fn workgroups_add_up_what_few_elements_have_of_many() -> Result<()> {
        let chosen = |device: &Caps, [size, inner, picks]: [usize; 3]| -> Result<&str> {
            let params = Params { count: size * inner, inner, size, picks, last: picks, ..Params::default() };
            Ok(device.chosen(&FAMILY, &params.shared(true))?.name)
        };
        for (sizes, expected) in [
            ([10, 64, 60_000], "shared"),   // sums by class
            ([10, 1, 60_000], "shared"),    // their numbers
            ([50_257, 256, 1024], "alone"), // the gradient of an embedding
            ([1000, 256, 60_000], "alone"), // enough elements
            ([1000, 10, 10_000], "alone"),
        ] {
            assert_eq!(chosen(&HARDWARE, sizes)?, expected, "{sizes:?}");
            assert_eq!(chosen(&LAVAPIPE, sizes)?, "alone", "{sizes:?}");
        }
        Ok(())
    }
}
