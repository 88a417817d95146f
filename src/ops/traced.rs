//! What ops compute, as plain data: for code that writes a computation down in another form, such as a file of ONNX.
//!
//! While a thread [traces](trace), every op, view and move that it records is noted as well, with its inputs and its result. Which
//! value a tensor has is known by its [key](Key). A trace is refused if a tensor is written in place after a step that reads or
//! makes it, or with elements that are computed from the inputs; if such elements are used without a recorded op, as by the host or
//! by a kernel of the user; and if random numbers are drawn. Not noticed: what threads of the user compute.

use std::collections::HashSet;
use std::fmt;
use std::sync::{Arc, Mutex};

pub(crate) use super::elementwise::binary::BinaryFn;
pub(crate) use super::elementwise::unary::UnaryFn;
pub(crate) use super::norm::{NormShape, Then, further};
pub(crate) use super::spatial::resize::Way;
use super::{Padding, SliceRange};
use crate::context::slot;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::shape::Layout;
use crate::tensor::Tensor;
use crate::util::sync::lock;
pub(crate) use anygpu_host::window::{Window, WindowParams};

/// What an op computes from its inputs. Dimensions are dimensions of the inputs.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Traced {
    /// The same elements.
    Same,
    /// The same values as far as the type can represent them.
    Cast(DType),
    /// Whether each element is not 0, as 0 or 1 of this type.
    Truth(DType),
    /// A function of one element, with its two arguments.
    Unary(UnaryFn, [f64; 2]),
    /// A function of two elements, which are broadcast.
    Binary(BinaryFn),
    /// A function of an element and a number, which is on the left or on the right.
    WithNumber {
        function: BinaryFn,
        number: f64,
        left: bool,
    },
    /// Of `[a, b, condition]`: a where the condition is true, else b.
    Where,
    /// The first input with a number where the second is not 0.
    MaskedFill(f64),
    Reshape(Vec<usize>),
    Permute(Vec<usize>),
    /// The range of each dimension.
    Slice(Vec<SliceRange>),
    Broadcast(Vec<usize>),
    Flip(Vec<usize>),
    Pad(Padding, Vec<(usize, usize)>),
    Cat(usize),
    /// One side of a diagonal of matrices.
    Triangle {
        upper: bool,
        diagonal: i64,
    },
    MatMul,
    /// Queries, keys, values: `softmax(q · kᵀ · scale) · v`, with the later keys left out if it is causal.
    Attention {
        scale: f64,
        causal: bool,
    },
    /// Image, weight, bias if there is one.
    Conv {
        groups: usize,
        window: Window,
    },
    /// Image, weight. `window` belongs to the convolution that is transposed: its `out` is the size of the input here.
    ConvTranspose {
        groups: usize,
        window: Window,
    },
    /// The product of a matrix (its rows, one after the other) with each column along a dimension.
    Along {
        dim: usize,
        rows: Vec<f32>,
    },
    /// The maxima of parts of a dimension: first element and end of each.
    MaxOfParts {
        dim: usize,
        parts: Vec<[usize; 2]>,
    },
    Interpolate {
        dim: usize,
        size: usize,
        way: Way,
    },
    MaxPool(Window),
    /// The position of each maximum in its plane.
    MaxPoolPositions(Window),
    /// The mean of each window; with the zeros of the padding or without.
    AvgPool {
        window: Window,
        count_pad: bool,
        /// What the sum of each window is divided by.
        divisors: Vec<f32>,
    },
    /// `[N, C, H, W]` → `[N, C · taps, windows]`
    Columns(Window),
    /// `[N, C · taps, windows]` → `[N, C, H, W]`, a sum where windows overlap.
    Planes(Window),
    /// → `[2, C]`: means and variances (see [`NormShape`]).
    Moments(NormShape),
    /// x, `[2, C]`, weight, bias and residual as far as there are.
    Normalise(NormShape),
    Reduce {
        reduction: &'static str,
        dims: Vec<usize>,
    },
    /// The index of the largest or the smallest element, without the dimension.
    Arg {
        dim: usize,
        smallest: bool,
    },
    Softmax {
        dim: usize,
        log: bool,
    },
    /// The running sum.
    RunningSum(usize),
    /// The order of the elements along the last dimension.
    Argsort {
        descending: bool,
    },
    /// Elements by index along a dimension; whole slices if the index is shared, which has one dimension then.
    Gather {
        dim: usize,
        shared: bool,
    },
    /// Base, index, sources. The sources replace elements, or are reduced with them.
    Scatter {
        dim: usize,
        shared: bool,
        reduction: Option<&'static str>,
    },
    /// Indices of which the negative ones count from the end of a dimension of this size.
    IndicesFromEnd(usize),
    /// Two indices as one: `a · size + b`.
    JoinIndices(usize),
}

/// What identifies a value: storage, layout, type.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    storage: usize,
    offset: usize,
    shape: Vec<usize>,
    strides: Vec<usize>,
    dtype: DType,
}

impl Key {
    pub fn of(x: &Tensor) -> Key {
        let Layout { shape, strides, offset } = x.layout().clone();
        Key { storage: x.storage().id(), offset, shape, strides, dtype: x.dtype() }
    }
}

/// An op that was recorded.
pub(crate) struct Step {
    pub name: &'static str,
    /// `None` for an op that [`Traced`] has no words for.
    pub what: Option<Traced>,
    pub inputs: Vec<Tensor>,
    pub out: Tensor,
    /// The versions of the storages of inputs and result.
    versions: Vec<u64>,
}

/// The ops that a computation has recorded, in order. It holds their inputs and results, so that no memory is used twice.
#[derive(Default)]
pub(crate) struct Trace {
    steps: Vec<Step>,
    /// The storages that hold the inputs or what is computed from them.
    computed: HashSet<usize>,
    /// Why the computation cannot be written down.
    refused: Option<String>,
}

impl fmt::Debug for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trace").field("steps", &self.steps.len()).finish_non_exhaustive()
    }
}

/// A trace that a thread writes.
pub(crate) type Tracing = Arc<Mutex<Trace>>;

fn versions<'a>(tensors: impl IntoIterator<Item = &'a Tensor>) -> Vec<u64> {
    tensors.into_iter().map(|tensor| tensor.storage().version()).collect()
}

slot! {
    /// The record of all ops, while a computation is traced.
    pub(crate) TRACE: Option<Tracing> = None
}

/// Returns whether the ops of this thread are recorded in a trace.
pub(crate) fn is_traced() -> bool {
    TRACE.with(Option::is_some)
}

/// Notes an op.
pub(crate) fn note(tracing: &Tracing, name: &'static str, what: Option<Traced>, inputs: &[&Tensor], out: &Tensor) {
    let mut trace = lock(tracing);
    if inputs.iter().any(|input| trace.computed.contains(&input.storage().id())) {
        trace.computed.insert(out.storage().id());
    }
    let versions = versions(inputs.iter().copied().chain([out]));
    let inputs = inputs.iter().map(|&input| input.clone()).collect();
    trace.steps.push(Step { name, what, inputs, out: out.clone(), versions });
}

/// Notes that elements are used by something that no step records. What is computed from them would be the same in
/// every later run. `how` says what is done with them, as in "are read by the host".
pub(crate) fn note_use(x: &Tensor, how: impl fmt::Display) {
    let Some(tracing) = TRACE.get() else { return };
    let mut trace = lock(&tracing);
    if trace.computed.contains(&x.storage().id()) {
        let shape = x.shape();
        trace.refused.get_or_insert_with(|| {
            format!("elements of a tensor of shape {shape:?}, which is computed from the input, {how}")
        });
    }
}

/// Notes that `op` writes to `dst` in place, with the elements of `src` if they come from a tensor.
pub(crate) fn note_write(op: &str, dst: &Tensor, src: Option<&Tensor>) {
    note_use(dst, format_args!("are written in place by {op}"));
    if let Some(src) = src {
        note_use(src, format_args!("are written to another tensor in place by {op}"));
    }
}

/// Notes that random numbers are drawn, which would be the same in every later run.
pub(crate) fn note_random() {
    let Some(tracing) = TRACE.get() else { return };
    lock(&tracing).refused.get_or_insert_with(|| "random numbers are drawn".to_owned());
}

/// Runs a computation on inputs and returns its result with the ops that it recorded.
///
/// # Errors
/// The errors of the computation; [`Error::InvalidArgument`] if it cannot be written down as its steps (see [the
/// module](self)).
pub(crate) fn trace<T>(
    op: &'static str,
    inputs: &[&Tensor],
    compute: impl FnOnce() -> Result<T>,
) -> Result<(T, Vec<Step>)> {
    let computed = inputs.iter().map(|input| input.storage().id()).collect();
    let tracing = Arc::new(Mutex::new(Trace { computed, ..Trace::default() }));
    let result = {
        let _tracing = TRACE.set(Some(tracing.clone()));
        compute()?
    };
    let mut trace = lock(&tracing);
    if let Some(why) = trace.refused.take() {
        return Err(Error::argument(op, why));
    }
    let steps = std::mem::take(&mut trace.steps);
    let changed = |step: &&Step| step.versions != versions(step.inputs.iter().chain([&step.out]));
    match steps.iter().find(changed) {
        Some(step) => {
            Err(Error::argument(op, format!("an input or the result of {} is later written in place", step.name)))
        }
        None => Ok((result, steps)),
    }
}
