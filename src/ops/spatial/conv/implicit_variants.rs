//! The variants of a convolution without columns in memory, and the trial of a variant before its first use on a device.

use anygpu_host::conv::{self, by_columns};
use anygpu_host::window::{Window, WindowParams};

use super::geometry::Geometry;
use super::implicit::Tiles;
use crate::device::cpu::host_error;
use crate::device::gpu::{
    AnyFamily, Buffer, Caps, Family, Gpu, Grid, Kernel, PUT, Suits, Variant, params, shader, wgsl,
};
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::linalg::matmul_variants::{OF_64, OF_128, PRODUCT, TILE_PRODUCT, UNTOUCHED, numbers};
use crate::ops::spatial::window::WINDOW;
use crate::ops::stored::{HALVES, Stored, words};
use crate::ops::tiling::Sizes;

params! {
    /// The parameters of `shaders/spatial/conv/conv_implicit.wgsl`.
    #[derive(Default)]
    pub(super) struct ImplicitParams {
        m: usize,
        n: usize,
        k: usize,
        tiles_split: usize,
        splits: usize,
        z_count: usize,
        offset: usize,
        batch: usize,
        row: usize,
        outer: usize,
        line: usize,
        step: usize,
        bias_offset: usize,
        a_depth: usize,
        a_first: usize,
        a_y: usize,
        a_x: usize,
        image_offset: usize,
        image_step: usize,
        channels: usize,
        height: usize,
        width: usize,
        taps_y: usize,
        taps_x: usize,
        out_y: usize,
        out_x: usize,
        stride_y: usize,
        stride_x: usize,
        dilation_y: u32,
        dilation_x: u32,
        pad_y: u32,
        pad_x: u32,
        tap_step_y: usize,
        tap_step_x: usize,
    }
}

const PLACES: &str = wgsl!("spatial/conv/conv_implicit_places");
const STEPS: &str = wgsl!("spatial/conv/conv_implicit_steps");

macro_rules! implicit {
    ($id:ident, $name:literal, $tile:expr) => {
        shader!($id: ImplicitParams = "spatial/conv/conv_implicit" named $name, after [WINDOW, HALVES, PLACES, PRODUCT, PUT, $tile, TILE_PRODUCT, STEPS]);
    };
}
implicit!(SHADER_32, "conv_implicit_32", "const ROWS = 4u;\nconst COLUMNS = 16u;\nconst SLICES = 1u;\n");
implicit!(SHADER_64, "conv_implicit_64", OF_64);
implicit!(SHADER_128, "conv_implicit_128", OF_128);
const ENTRY: &str = "conv_implicit";

/// What a variant multiplies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// Tiles that its kernel reads from the image.
    Implicit,
    /// No kernel: columns in memory, and products of their panels, whose variants have trials of their own.
    Columns,
}

/// A variant of the convolution.
pub(super) type ImplicitVariant = Variant<ImplicitParams, Way>;

/// Tiles of 32 × 128. [`plan`](super::plan) says for which sizes this and the next variants are.
const IMPLICIT_32: ImplicitVariant = Variant {
    name: "implicit_32",
    shader: SHADER_32,
    way: Way::Implicit,
    entry: ENTRY,
    fits: |caps| caps.max_invocations >= 64 && caps.workgroup_memory >= 5248,
    suits: Suits::Some(|p| p.sizes().suit_half()),
    grid: Grid::Workgroups(|p| p.sizes().tiles(32, 128)),
};

/// Tiles of 128 × 128.
const IMPLICIT_128: ImplicitVariant = Variant {
    name: "implicit_128",
    shader: SHADER_128,
    way: Way::Implicit,
    entry: ENTRY,
    fits: |caps| caps.max_invocations >= 256 && caps.workgroup_memory >= 8448,
    suits: Suits::Some(|p| p.sizes().suit_128()),
    grid: Grid::Workgroups(|p| p.sizes().tiles(128, 128)),
};

/// Tiles of 64 × 64.
const IMPLICIT_64: ImplicitVariant = Variant {
    name: "implicit_64",
    shader: SHADER_64,
    way: Way::Implicit,
    entry: ENTRY,
    fits: |caps| caps.max_invocations >= 64 && caps.workgroup_memory >= 4224,
    suits: Suits::All,
    grid: Grid::Workgroups(|p| p.sizes().tiles(64, 64)),
};

/// The last choice on hardware, and the first on software adapters, where barriers are slow.
pub(super) const COLUMNS: ImplicitVariant =
    Variant { name: "columns", way: Way::Columns, fits: |_| true, ..IMPLICIT_64 };

/// Returns a variant that runs only where the op table asks for it.
const fn on_demand(variant: ImplicitVariant) -> ImplicitVariant {
    Variant { suits: Suits::OnDemand, ..variant }
}

static ON_HARDWARE: [&ImplicitVariant; 4] = [&IMPLICIT_32, &IMPLICIT_128, &IMPLICIT_64, &COLUMNS];
static ON_SOFTWARE: [&ImplicitVariant; 4] =
    [&on_demand(IMPLICIT_32), &on_demand(IMPLICIT_128), &on_demand(IMPLICIT_64), &COLUMNS];

pub(super) static FAMILY: Family<ImplicitParams, Way> = Family { name: "conv2d", order, attempt };
inventory::submit! { &FAMILY as &'static dyn AnyFamily }

pub(super) fn order(caps: &Caps) -> &'static [&'static ImplicitVariant] {
    if caps.software { &ON_SOFTWARE } else { &ON_HARDWARE }
}

impl ImplicitParams {
    pub fn sizes(&self) -> Sizes {
        Sizes { m: self.m, n: self.n, batch: self.z_count }
    }

    /// Returns the params of a sum over the windows of an image that is read at `stride`, `dilation` and `padding`.
    pub fn over(window: &Window) -> ImplicitParams {
        let WindowParams { kernel, stride, padding, dilation } = window.params;
        let word = |size: usize| size as u32; // sizes of windows are at most 2³⁰
        ImplicitParams {
            height: window.size[0],
            width: window.size[1],
            taps_y: kernel[0],
            taps_x: kernel[1],
            out_y: window.out[0],
            out_x: window.out[1],
            stride_y: stride[0],
            stride_x: stride[1],
            dilation_y: word(dilation[0]),
            dilation_x: word(dilation[1]),
            pad_y: word(padding[0]),
            pad_x: word(padding[1]),
            ..ImplicitParams::default()
        }
    }

    /// Returns the kernel. `a` is in panels of 64 rows, `x` is the image.
    pub fn kernel(
        self,
        variant: &ImplicitVariant,
        [flat, weight_grad]: [bool; 2],
        (a, x): (&Buffer, Stored),
        bias: Option<&Buffer>,
        out: &Buffer,
    ) -> Kernel {
        variant.kernel(self, |kernel| {
            let kernel = kernel.constant("FLAT", flat).constant("WEIGHT_GRAD", weight_grad);
            let kernel = kernel.constant("X_HALVES", x.halves());
            kernel.constant("HAS_BIAS", bias.is_some()).input(a).input(&x).input(bias.unwrap_or(a)).output(out)
        })
    }
}

/// Returns convolutions whose sums have tiles of single positions, and of any steps; each with several tiles, strides, and
/// sums that are split.
pub(super) fn examples() -> [Geometry; 2] {
    let geometry = |images, [channels, out_channels]: [usize; 2], groups, size: [usize; 2], params: WindowParams| {
        let out = [0, 1].map(|d| (size[d] + 2 * params.padding[d] - params.span(d)) / params.stride[d] + 1);
        Geometry(conv::Sizes { images, channels, out_channels, groups, window: Window { params, size, out } })
    };
    let params = |kernel, stride, padding, dilation| WindowParams { kernel, stride, padding, dilation };
    [
        geometry(2, [60, 35], 1, [11, 14], params([3, 3], [2, 1], [1, 2], [1, 2])),
        geometry(3, [6, 40], 2, [19, 13], params([2, 3], [1, 2], [1, 0], [1, 1])),
    ]
}

/// Tries a variant on the examples.
fn attempt(gpu: &Gpu, variant: &'static ImplicitVariant) -> Result<Option<String>> {
    match variant.way {
        Way::Implicit => {}
        Way::Columns => return Ok(None),
    }
    for g in examples() {
        if let Some(wrong) = compare(gpu, variant, &g, &numbers, DType::F32)? {
            return Ok(Some(wrong));
        }
    }
    Ok(None)
}

/// Computes a convolution and its gradients with a variant, and compares them with the host.
fn compare(
    gpu: &Gpu,
    variant: &'static ImplicitVariant,
    g: &Geometry,
    numbers: &dyn Fn(usize, u32) -> Vec<f32>,
    dtype: DType,
) -> Result<Option<String>> {
    compare_with_host(gpu, g, (numbers, dtype, 1e-4), &|what, [x, w, dy, bias], out| {
        let work = match what {
            Computed::Forward => Some(g.forward_work()),
            Computed::InputGrad => g.input_grad_work(),
            Computed::WeightGrad => g.weight_grad_work(LONGEST),
        };
        let Some(work) = work else { return Ok(None) };
        let Some(tiles) = Tiles::of(&work, |_| Ok(variant))? else { return Ok(None) };
        let kernels = match what {
            Computed::Forward => g.forward_implicit(gpu, tiles, [x, w], Some(bias), out),
            Computed::InputGrad => g.input_grad_implicit(gpu, tiles, [dy, w], out),
            Computed::WeightGrad => g.weight_grad_implicit(gpu, tiles, [dy, x], out),
        };
        kernels.map(Some)
    })
}

/// What a trial compares.
#[derive(Clone, Copy, Debug)]
pub(super) enum Computed {
    Forward,
    InputGrad,
    WeightGrad,
}

/// Returns the kernels of what is computed from x, w, dy and the bias, or `None` where they are not for the sizes.
pub(super) type Kernels<'a> = &'a dyn Fn(Computed, [Stored; 4], &Buffer) -> Result<Option<Vec<Kernel>>>;

/// Computes a convolution and its gradients, of operands of a type after an odd offset, and compares them with the host.
/// Describes the first wrong element.
pub(super) fn compare_with_host(
    gpu: &Gpu,
    g: &Geometry,
    (numbers, dtype, tolerance): (&dyn Fn(usize, u32) -> Vec<f32>, DType, f32),
    kernels: Kernels,
) -> Result<Option<String>> {
    const BEFORE: usize = 3;
    let sizes = [g.images * g.image(), g.groups * g.group_weights(), g.images * g.out_image(), g.out_channels];
    let before = [f32::NAN; BEFORE];
    let mut all = [0, 1, 2, 3].map(|i| [&before[..], &numbers(sizes[i], i as u32 + 1)].concat());
    // The bias is always of f32.
    let types = [dtype, dtype, dtype, DType::F32];
    let mut buffers = Vec::new();
    for (numbers, dtype) in all.iter_mut().zip(types) {
        buffers.push((gpu.upload(&words(numbers, dtype))?, dtype));
    }
    let [x, w, dy, bias] = all.each_ref().map(|numbers| &numbers[BEFORE..]);
    let mut expected = [vec![0.0; dy.len()], vec![0.0; x.len()], vec![0.0; w.len()]];
    by_columns::forward(g, x, w, Some(bias), &mut expected[0]).map_err(host_error)?;
    by_columns::input_grad(g, dy, w, &mut expected[1]).map_err(host_error)?;
    by_columns::weight_grad(g, dy, x, &mut expected[2]).map_err(host_error)?;
    let operand = |i: usize| Stored { buffer: &buffers[i].0, offset: BEFORE, dtype: buffers[i].1 };
    let operands = [0, 1, 2, 3].map(operand);
    for (what, expected) in [Computed::Forward, Computed::InputGrad, Computed::WeightGrad].into_iter().zip(&expected) {
        let out = gpu.upload(bytemuck::cast_slice(&vec![UNTOUCHED; expected.len()]))?;
        let Some(kernels) = kernels(what, operands, &out)? else { continue };
        kernels.into_iter().try_for_each(|kernel| gpu.run(kernel))?;
        let got = gpu.download(&out, 0, expected.len())?;
        let right = |got: u32, expected: f32| close(f32::from_bits(got), expected, tolerance);
        if let Some(i) = got.iter().zip(expected).position(|(&got, &expected)| !right(got, expected)) {
            let (got, expected) = (f32::from_bits(got[i]), expected[i]);
            return Ok(Some(format!("element {i} of {what:?} of {g:?}: got {got}, expected {expected}")));
        }
    }
    Ok(None)
}

/// The most windows of a part of the weight's gradient in a trial.
pub(super) const LONGEST: usize = 256;

fn close(got: f32, expected: f32, tolerance: f32) -> bool {
    (got.is_nan() && expected.is_nan())
        || got == expected
        || (got - expected).abs() <= tolerance + 1e-5 * expected.abs()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::device::{Backend, Device};
    use crate::ops::spatial::conv::Conv;

    /// x `[N, C, H, W]`, w `[OC, C / groups, KH, KW]` and options, at the extremes of sizes.
    pub fn extremes() -> Vec<Geometry> {
        let conv = Conv::<2>::new;
        let all = [
            ([1, 1, 1, 1], [1, 1, 1, 1], conv()),
            ([1, 16, 1, 1], [1, 16, 1, 1], conv()),
            ([3, 16, 4, 5], [8, 16, 1, 1], conv()),
            ([2, 17, 6, 7], [33, 17, 1, 1], conv().padding([2, 3])),
            // Steps of the sum that are no multiple of a tile, of one position and of any.
            ([2, 7, 6, 5], [8, 7, 3, 3], conv()),
            ([2, 20, 6, 5], [65, 20, 2, 3], conv().padding(1)),
            ([2, 9, 6, 5], [4, 9, 3, 3], conv()),
            // Strides greater than the kernel, dilations, and padding greater than the kernel.
            ([1, 16, 9, 10], [5, 16, 1, 1], conv().stride(3)),
            ([2, 18, 9, 10], [6, 18, 2, 2], conv().stride([3, 2])),
            ([2, 16, 12, 9], [7, 16, 3, 2], conv().stride([2, 4]).dilation([2, 3]).padding([1, 2])),
            ([2, 16, 5, 6], [9, 16, 3, 3], conv().dilation(2).padding(5)),
            ([1, 16, 2, 2], [2, 16, 2, 2], conv().stride(5).padding(4)),
            ([1, 16, 7, 6], [12, 16, 7, 6], conv()),
            // Groups, and columns of one line.
            ([2, 48, 5, 4], [39, 16, 3, 3], conv().groups(3).padding(1)),
            ([3, 10, 5, 4], [6, 5, 3, 3], conv().groups(2).stride(2)),
            ([2, 16, 1, 300], [3, 16, 1, 5], conv().padding([0, 2])),
            // Long sums, which are split.
            ([1, 100, 3, 3], [20, 100, 3, 3], conv().padding(1)),
            ([2, 16, 30, 29], [16, 16, 3, 3], conv().padding(1)),
        ];
        all.iter().map(|(x, w, conv)| conv.geometry(x, w).expect("a convolution")).collect()
    }

    /// Compares the geometries with the host: each adapter has a part of them, and all adapters together have all.
    fn compare_all(
        numbers: &dyn Fn(usize, u32) -> Vec<f32>,
        dtype: DType,
        wanted: impl Fn(&str) -> bool,
    ) -> Result<()> {
        let adapters: Vec<Device> = Device::all().into_iter().filter(|device| !device.is_cpu()).collect();
        for (at, device) in adapters.iter().enumerate() {
            let Backend::Gpu(gpu) = device.backend()? else { continue };
            let fits = |variant: &&&'static ImplicitVariant| (variant.fits)(gpu.caps());
            for variant in order(gpu.caps()).iter().filter(fits).filter(|v| v.way == Way::Implicit && wanted(v.name)) {
                for g in extremes().iter().skip(at).step_by(adapters.len()) {
                    assert_eq!(compare(gpu, variant, g, numbers, dtype)?, None, "{} on {device}", variant.name);
                }
            }
        }
        Ok(())
    }

    #[test]
    fn every_variant_is_right_at_the_extremes() -> Result<()> {
        compare_all(&numbers, DType::F32, |_| true)
    }

    #[test]
    fn halves_are_read_as_they_are_stored() -> Result<()> {
        compare_all(&numbers, DType::F16, |name| name == IMPLICIT_64.name)
    }

    /// NaN and ∞ of images and gradients are in the sums of the windows that hold them, and in no others.
    #[test]
    fn what_is_not_finite_stays_within_its_windows() -> Result<()> {
        let spoiled = |count: usize, seed: u32| {
            let mut all = numbers(count, seed);
            if seed == 2 {
                return all; // a weight: products with padding are defined by the op
            }
            all.iter_mut().skip(1).step_by(97).for_each(|v| *v = f32::NAN);
            all.iter_mut().skip(40).step_by(113).for_each(|v| *v = f32::INFINITY);
            all
        };
        compare_all(&spoiled, DType::F32, |name| name == IMPLICIT_64.name)
    }
}
