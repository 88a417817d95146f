//! The kernels of packed matrices.

use super::Form;
use super::plan::Way;
use crate::device::gpu::{Buffer, Gpu, Kernel, KernelBuilder, params, shader, wgsl};
use crate::dtype::DType;
use crate::ops::reduction::softmax::{BY_FOUR, BY_ONE};
use crate::ops::stored::{HALVES, Stored};
use crate::ops::{Dense, GpuIn};

params! {
    /// The parameters of `shaders/linalg/packed_weights.wgsl`.
    pub(super) struct Params {
        m: usize, n: usize, k: usize, blocks: usize, block: usize, x_offset: usize, word_offset: usize, scale_offset: usize,
        zero_offset: usize, zero_row: usize,
    }
}

const WEIGHTS: &str = wgsl!("linalg/packed_weights");
const FACTOR: &str = wgsl!("linalg/packed_factor");
shader!(pub(super) SHARED: Params = "linalg/packed_shared", after [HALVES, WEIGHTS, BY_ONE, FACTOR]);
shader!(SHARED_IN_FOURS: Params = "linalg/packed_shared" named "packed_shared_4", after [HALVES, WEIGHTS, BY_FOUR, FACTOR]);
shader!(pub(super) ALONE: Params = "linalg/packed_alone", after [HALVES, WEIGHTS, BY_ONE, FACTOR]);
shader!(ALONE_IN_FOURS: Params = "linalg/packed_alone" named "packed_alone_4", after [HALVES, WEIGHTS, BY_FOUR, FACTOR]);
shader!(WIDEN: Params = "linalg/packed_widen", after [HALVES, WEIGHTS]);

/// The most rows of X that an invocation multiplies.
const MOST: usize = 4;

impl Params {
    /// Returns the params of `[m, K] · [n, K]ᵀ`, without offsets.
    pub fn new(form: Form, [m, n]: [usize; 2]) -> Params {
        let (k, blocks, block) = (form.k, form.blocks(), form.words());
        Params { m, n, k, blocks, block, x_offset: 0, word_offset: 0, scale_offset: 0, zero_offset: 0, zero_row: 0 }
    }

    /// Returns the rows of X that an invocation multiplies.
    pub fn few(&self) -> usize {
        self.m.div_ceil(self.m.div_ceil(MOST).max(1)).max(1)
    }

    /// Returns how many times all of the matrix is read.
    pub fn passes(&self) -> usize {
        self.m.div_ceil(self.few())
    }

    /// Returns whether rows of X can be read in vectors of four.
    fn in_fours(&self) -> bool {
        self.k.is_multiple_of(4) && self.x_offset.is_multiple_of(4)
    }
}

/// A matrix on an adapter.
pub(super) struct Operands<'a> {
    form: Form,
    n: usize,
    integers: Stored<'a>,
    scales: Stored<'a>,
    /// With the elements of a row.
    zeros: Option<(Stored<'a>, usize)>,
}

impl<'a> Operands<'a> {
    /// Returns the matrix of the bytes, the scales and perhaps the zeros.
    pub fn of(form: Form, inputs: &[GpuIn<'a, Dense>]) -> Operands<'a> {
        let zeros = inputs.get(2).map(|zeros| (Stored::of(zeros), zeros.shape()[1]));
        Operands::new(form, inputs[0].shape()[0], [Stored::of(&inputs[0]), Stored::of(&inputs[1])], zeros)
    }

    pub fn new(
        form: Form,
        n: usize,
        [integers, scales]: [Stored<'a>; 2],
        zeros: Option<(Stored<'a>, usize)>,
    ) -> Operands<'a> {
        Operands { form, n, integers, scales, zeros }
    }

    /// Returns the params of a product with `m` rows from an offset on.
    pub fn params(&self, m: usize, x_offset: usize) -> Params {
        let (zero_offset, zero_row) = self.zeros.map_or((0, 0), |(zeros, row)| (zeros.offset, row));
        Params {
            x_offset,
            word_offset: self.integers.offset / 4,
            scale_offset: self.scales.offset,
            zero_offset,
            zero_row,
            ..Params::new(self.form, [m, self.n])
        }
    }

    /// Sets what a kernel reads of the matrix.
    fn bind(&self, kernel: KernelBuilder) -> KernelBuilder {
        let zeros = self.zeros.map(|(zeros, _)| zeros);
        let kind = match zeros.map(|zeros| zeros.dtype) {
            None => 0u32,
            Some(DType::U8) => 1,
            Some(_) => 2,
        };
        kernel
            .constant("BITS", self.form.bits)
            .constant("ZEROS", kind)
            .constant("SCALE_HALVES", self.scales.halves())
            .constant("ZERO_HALVES", zeros.map_or(0, |zeros| zeros.halves()))
            .input(&self.integers)
            .input(&self.scales)
            .input(&zeros.unwrap_or(self.scales))
    }
}

/// Returns the kernel of a product with few rows.
pub(super) fn product(way: Way, operands: &Operands, params: Params, x: &Buffer, out: &Buffer) -> Kernel {
    let (shader, entry) = match (way, params.in_fours()) {
        (Way::Shared, true) => (SHARED_IN_FOURS, "packed_shared"),
        (Way::Shared, false) => (SHARED, "packed_shared"),
        (Way::Alone, true) => (ALONE_IN_FOURS, "packed_alone"),
        (Way::Alone, false) => (ALONE, "packed_alone"),
    };
    let kernel = operands.bind(Kernel::build(shader, entry, params)).constant("FEW", params.few()).input(x).output(out);
    match way {
        Way::Shared => kernel.workgroups(way.tasks(&params)),
        Way::Alone => kernel.each(way.tasks(&params)),
    }
}

/// Returns the kernel that writes all elements. On software adapters, an invocation writes the elements of a word, and
/// finds its place once. On hardware, neighbouring invocations write neighbours.
pub(super) fn widen(gpu: &Gpu, operands: &Operands, out: &Buffer) -> Kernel {
    let params = operands.params(0, 0);
    let run = if gpu.caps().software { 32 / operands.form.bits } else { 1 };
    let kernel = operands.bind(Kernel::build(WIDEN, "packed_widen", params)).constant("RUN", run);
    kernel.output(out).each(params.n * params.k.div_ceil(run))
}
