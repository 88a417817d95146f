//! Products that read the operands where they are, instead of from panels: the variants, and the trial of a variant before its
//! first use on a device.

use crate::device::gpu::{
    AnyFamily, Buffer, Caps, Family, Gpu, Grid, Kernel, KernelBuilder, PUT, Suits, Variant, params, shader, wgsl,
};
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::linalg::matmul_variants::{
    OF_64, OF_64_IN_SLICES, PRODUCT, SUBGROUP_SUMS, SUBGROUP_TILES, TILE_PRODUCT, numbers, workgroups_that_share,
};
use crate::ops::linalg::panels::{INDEX_MAP, MAX_SOFTWARE_DEPTH, row_tiles};
use crate::ops::linalg::plan::FEW;
use crate::ops::stored::{HALVES, Stored, words};
use crate::ops::tiling::Sizes;
use crate::ops::variants::{self, Adapter};

params! {
    /// The parameters of `shaders/linalg/matmul_unpacked.wgsl`.
    #[derive(Default)]
    pub(super) struct UnpackedParams {
        count: usize,
        m: usize,
        n: usize,
        k: usize,
        parts: usize,
        length: usize,
        a_offset: usize,
        a_row: usize,
        a_column: usize,
        a_z: [usize; 4],
        b_offset: usize,
        b_row: usize,
        b_column: usize,
        b_z: [usize; 4],
    }
}

const TEXT: &str = wgsl!("linalg/matmul_unpacked");
const TILE_PLACES: &str = wgsl!("linalg/unpacked_places");
shader!(DIRECT_SHADER: UnpackedParams = "linalg/matmul_direct", after [INDEX_MAP, HALVES, TEXT, PUT]);
shader!(DOTS_SHADER: UnpackedParams = "linalg/matmul_dots", after [INDEX_MAP, HALVES, TEXT, PUT]);
shader!(STRIDED_SHADER: UnpackedParams = "linalg/matmul_strided", after [INDEX_MAP, HALVES, TEXT, PRODUCT, PUT, TILE_PLACES, OF_64, TILE_PRODUCT]);
shader!(SLICES_SHADER: UnpackedParams = "linalg/matmul_strided" named "matmul_slices", after [INDEX_MAP, HALVES, TEXT, PRODUCT, PUT, TILE_PLACES, OF_64_IN_SLICES, TILE_PRODUCT]);
shader!(SHARED_SHADER: UnpackedParams = "linalg/matmul_shared", after [INDEX_MAP, HALVES, TEXT, PRODUCT, PUT, TILE_PLACES, SUBGROUP_SUMS, SUBGROUP_TILES, wgsl!("linalg/fours_anywhere")]);

impl UnpackedParams {
    pub fn sizes(&self) -> Sizes {
        Sizes { m: self.m, n: self.n, batch: self.count / (self.m * self.n * self.parts).max(1) }
    }

    /// Returns whether the left operand is the matrix: the right one has few columns, and the left one more than few rows.
    fn left(&self) -> bool {
        self.m > FEW
    }

    /// Returns the columns of the right operand, or the rows of the left one, if the other is the matrix.
    fn few(&self) -> usize {
        if self.left() { self.n } else { self.m }
    }

    /// Returns whether neighbouring steps of k lie side by side in the matrix, and lines of it do not.
    fn steps_are_neighbours(&self) -> bool {
        let (step, line) = if self.left() { (self.a_column, self.a_row) } else { (self.b_row, self.b_column) };
        step == 1 && (line != 1 || self.m.max(self.n) == 1)
    }

    /// Returns for each operand whether its steps of k lie side by side, and whether its rows of a, or columns of b, do.
    fn neighbours(&self) -> [[bool; 2]; 2] {
        [[self.a_column, self.a_row], [self.b_row, self.b_column]].map(|steps| steps.map(|step| step == 1))
    }

    /// Returns whether each operand has neighbours side by side in one direction.
    fn has_neighbours(&self) -> bool {
        self.neighbours().iter().all(|either| either.contains(&true))
    }

    /// Returns whether operands can be read in vectors of four, and sums are short enough for one invocation each.
    fn suits_fours(&self) -> bool {
        self.length <= MAX_SOFTWARE_DEPTH && self.has_neighbours()
    }

    /// Returns whether vectors of four along the neighbours of an operand may begin in the middle of the buffer's
    /// vectors, or whether the steps of a sum are not a multiple of four.
    fn shifted(&self) -> bool {
        let [[deep_a, _], [deep_b, _]] = self.neighbours();
        let lines = [(deep_a, self.a_row, self.a_column), (deep_b, self.b_column, self.b_row)];
        let ([_, a_step, a_outer, _], [_, b_step, b_outer, _]) = (self.a_z, self.b_z);
        [self.a_offset, self.b_offset, a_step, a_outer, b_step, b_outer, self.k, self.length]
            .into_iter()
            .chain(lines.map(|(deep, line, step)| if deep { line } else { step }))
            .any(|place| !place.is_multiple_of(4))
    }

    /// Returns the params with sums in this many parts.
    pub fn in_parts(self, parts: usize) -> UnpackedParams {
        let length = self.k.div_ceil(parts.max(1)).max(1);
        let parts = self.k.div_ceil(length).max(1);
        UnpackedParams { count: self.count / self.parts * parts, parts, length, ..self }
    }

    /// Returns the kernel of a variant. The params have the operands' offsets.
    pub fn kernel(self, variant: &UnpackedVariant, [a, b]: [Stored; 2], out: &Buffer) -> Kernel {
        let shifted = self.shifted();
        variant.kernel(self, |kernel| {
            let [deep_a, deep_b] = self.neighbours().map(|[deep, _]| deep);
            let tiled = |kernel: KernelBuilder| kernel.constant("DEEP_A", deep_a).constant("DEEP_B", deep_b).input(&a);
            let halves =
                |kernel: KernelBuilder| kernel.constant("A_HALVES", a.halves()).constant("B_HALVES", b.halves());
            let kernel = kernel.input(&a).input(&b);
            let kernel = match variant.way {
                Way::Direct => halves(kernel),
                Way::Dots => halves(kernel).constant("LEFT", self.left()).constant("FEW", self.few()),
                Way::Strided => halves(tiled(kernel)),
                Way::Shared => {
                    let (panels, _) = row_tiles(self.m);
                    tiled(kernel).constant("PANELS", panels).constant("SHIFTED", shifted)
                }
            };
            kernel.output(out)
        })
    }
}

/// Who computes which elements: the variants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// An invocation each of them.
    Direct,
    /// A workgroup each of them: products with few rows or columns.
    Dots,
    /// A workgroup a tile of them.
    Strided,
    /// A subgroup a tile of them, and its invocations share loads. Operands are f32, and
    /// [can be read in vectors of four](UnpackedParams::suits_fours).
    Shared,
}

impl Way {
    /// Returns whether it is used for many rows and columns too, in the place of panels.
    pub fn suits_many(self) -> bool {
        match self {
            Way::Direct | Way::Dots => false,
            Way::Strided | Way::Shared => true,
        }
    }
}

/// A variant of the product without panels.
pub(super) type UnpackedVariant = Variant<UnpackedParams, Way>;

/// A workgroup for each row or column of the operand that has many, and its invocations along k.
const DOTS: UnpackedVariant = Variant {
    name: "dots",
    way: Way::Dots,
    shader: DOTS_SHADER,
    entry: "matmul_dots",
    fits: |caps| caps.max_invocations >= 64 && caps.workgroup_memory >= 1024,
    suits: Suits::Some(|p| p.sizes().suit_dots(p.k) && p.steps_are_neighbours()),
    grid: Grid::Workgroups(|p| p.count / p.few().max(1)),
};

/// Tiles of 64 × 64 elements, with 8 × 8 for each invocation.
const STRIDED: UnpackedVariant = Variant {
    name: "strided",
    way: Way::Strided,
    shader: STRIDED_SHADER,
    entry: "matmul_strided",
    fits: |caps| caps.max_invocations >= 64 && caps.workgroup_memory >= 4224,
    suits: Suits::Some(|p| p.sizes().suit_strided() && p.has_neighbours()),
    grid: Grid::Workgroups(|p| p.sizes().tiles(64, 64).saturating_mul(p.parts)),
};

/// Such tiles with 256 invocations each, of which four have a sum together.
const SLICES: UnpackedVariant = Variant {
    name: "slices",
    shader: SLICES_SHADER,
    fits: |caps| caps.max_invocations >= 256 && caps.workgroup_memory >= 8448,
    suits: Suits::Some(|p| p.sizes().suit_slices(p.k) && p.has_neighbours()),
    ..STRIDED
};

/// Tiles of up to 32 × 32 elements for each subgroup, which shares the loads of the left operand.
const SHARED: UnpackedVariant = Variant {
    name: "shared",
    way: Way::Shared,
    shader: SHARED_SHADER,
    entry: "matmul_shared",
    fits: |caps| caps.software && caps.subgroup == Some(8),
    suits: Suits::Some(|p| p.sizes().suit_shared() && p.suits_fours()),
    grid: Grid::Workgroups(|p| {
        let Sizes { m, n, batch } = p.sizes();
        workgroups_that_share(Sizes { m, n, batch: batch.saturating_mul(p.parts) })
    }),
};

/// An invocation for each element.
const DIRECT: UnpackedVariant = Variant {
    name: "direct",
    way: Way::Direct,
    shader: DIRECT_SHADER,
    entry: "matmul_direct",
    fits: |_| true,
    suits: Suits::All,
    grid: Grid::Each(|p| p.count),
};

/// Returns the variant that a device uses.
pub(super) fn chosen(
    device: &impl Adapter,
    params: &UnpackedParams,
    dtypes: [DType; 2],
) -> Result<&'static UnpackedVariant> {
    let floats = dtypes == [DType::F32; 2];
    if device.caps().software && !floats && !variants::asked_for(&FAMILY) {
        return Ok(&DIRECT);
    }
    let variant = device.chosen(&FAMILY, params)?;
    // The op table may ask for one that does not read such operands.
    let fit = match variant.way {
        Way::Direct | Way::Strided => true,
        Way::Dots => params.m.min(params.n) <= FEW,
        Way::Shared => floats && params.suits_fours(),
    };
    Ok(if fit { variant } else { &DIRECT })
}

static FAMILY: Family<UnpackedParams, Way> = Family { name: "matmul_unpacked", order, attempt };
inventory::submit! { &FAMILY as &'static dyn AnyFamily }

static ON_HARDWARE: [&UnpackedVariant; 4] = [&DOTS, &SLICES, &STRIDED, &DIRECT];
/// Barriers are slow on software adapters: variants with barriers run there where the op table asks for them.
static ON_SOFTWARE: [&UnpackedVariant; 5] = [
    &SHARED,
    &Variant { suits: Suits::OnDemand, ..DOTS },
    &Variant { suits: Suits::OnDemand, ..SLICES },
    &Variant { suits: Suits::OnDemand, ..STRIDED },
    &DIRECT,
];

fn order(caps: &Caps) -> &'static [&'static UnpackedVariant] {
    if caps.software { &ON_SOFTWARE } else { &ON_HARDWARE }
}

/// Returns the steps of the lines and of k of a dense operand, whose steps of k lie side by side if it is `deep`.
fn steps(deep: bool, lines: usize, k: usize) -> [usize; 2] {
    if deep { [k, 1] } else { [1, lines] }
}

fn attempt(gpu: &Gpu, variant: &'static UnpackedVariant) -> Result<Option<String>> {
    compare(gpu, variant, [DType::F32; 2])
}

/// Multiplies a batch of two in two parts, with sizes that are for the variant, and compares the results with the host.
fn compare(gpu: &Gpu, variant: &'static UnpackedVariant, dtypes: [DType; 2]) -> Result<Option<String>> {
    // Few rows or columns; then more, whose steps of k lie side by side in one operand, or in none.
    let examples = [
        ([3, 205, 70], [true; 2]),
        ([70, 205, 2], [true; 2]),
        ([4, 205, 1], [true; 2]),
        ([70, 205, 130], [true, false]),
        ([130, 205, 70], [false, true]),
        ([40, 205, 70], [false, false]),
    ];
    // The first from vectors of the buffers, the second from others. Together they read each operand in either way.
    let of_shared = [([61, 208, 68], [true, false]), ([91, 205, 37], [false, true])];
    let examples = if variant.way == Way::Shared { &of_shared[..] } else { &examples[..] };
    let is_for = |[m, _, n]: [usize; 3]| m.min(n) <= FEW || variant.way != Way::Dots;
    for &([m, k, n], [deep_a, deep_b]) in examples.iter().filter(|(sizes, _)| is_for(*sizes)) {
        let (mut a, mut b) = (numbers(2 * m * k, 1), numbers(2 * n * k, 2));
        let [left, right] = [gpu.upload(&words(&mut a, dtypes[0]))?, gpu.upload(&words(&mut b, dtypes[1]))?];
        let ([a_row, a_column], [b_column, b_row]) = (steps(deep_a, m, k), steps(deep_b, n, k));
        let whole = UnpackedParams {
            count: 2 * m * n,
            m,
            n,
            k,
            parts: 1,
            a_row,
            a_column,
            a_z: [2, m * k, 0, 0],
            b_row,
            b_column,
            b_z: [2, n * k, 0, 0],
            ..UnpackedParams::default()
        };
        let params = whole.in_parts(2);
        let out = gpu.upload(&vec![f32::NAN.to_bits(); params.count])?;
        let operands = [(&left, dtypes[0]), (&right, dtypes[1])];
        let operands = operands.map(|(buffer, dtype)| Stored { dtype, ..Stored::words(buffer) });
        gpu.run(params.kernel(variant, operands, &out))?;
        for (at, got) in gpu.download(&out, 0, params.count)?.into_iter().map(f32::from_bits).enumerate() {
            let (j, i, part, z) = (at % n, at / n % m, at / (n * m) % 2, at / (2 * n * m));
            let range = part * params.length..((part + 1) * params.length).min(k);
            let expected: f32 = range
                .map(|at_k| a[z * m * k + i * a_row + at_k * a_column] * b[z * n * k + j * b_column + at_k * b_row])
                .sum();
            // False for NaN.
            let close = (got - expected).abs() <= 1e-4;
            if !close {
                let index = [z, part, i, j];
                return Ok(Some(format!("element {index:?} of [2, 2, {m}, {n}]: got {got}, expected {expected}")));
            }
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{Backend, Device};

    /// Compiling takes most of the time: with several adapters, each has every second case.
    #[test]
    fn every_variant_reads_halves() -> Result<()> {
        let adapters: Vec<Device> = Device::all().into_iter().filter(|device| !device.is_cpu()).collect();
        for (at, device) in adapters.iter().enumerate() {
            let Backend::Gpu(gpu) = device.backend()? else { continue };
            let variants = order(gpu.caps())
                .iter()
                .enumerate()
                .filter(|(_, variant)| (variant.fits)(gpu.caps()) && variant.way != Way::Shared);
            for (number, variant) in variants {
                for (kind, dtypes) in [[DType::F16; 2], [DType::F32, DType::BF16]].into_iter().enumerate() {
                    if adapters.len() > 1 && (at + number + kind) % 2 == 1 {
                        continue;
                    }
                    assert_eq!(compare(gpu, variant, dtypes)?, None, "{} on {device}", variant.name);
                }
            }
        }
        Ok(())
    }
}
