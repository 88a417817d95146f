//! The contract of an op, and `apply`, which every computation goes through.
//!
//! The graph has three kinds of nodes: an `Op` computes new elements, a `View` shows the same
//! elements through another layout, and a move copies them to another device. An op declares which layouts (dense or
//! strided) and which element types it reads. `apply` converts the inputs to these, inside the graph. Each family of
//! ops is a folder or a file, and `shaders/` has a folder or a file of the same name for its kernels; `shaders/common/` has what several
//! families share. Compositions of ops do not need this: they are methods of `Tensor`.

mod any_op;
mod autocast;
pub(crate) mod combine;
pub(crate) mod custom_grad;
mod elementwise;
#[cfg(feature = "fft")]
mod fourier;
mod index;
pub(crate) mod inplace;
mod inputs;
mod linalg;
pub(crate) mod long;
mod named;
mod names;
pub(crate) mod nll;
mod norm;
mod on_host;
pub(crate) mod optim;
mod parts;
pub(crate) mod random;
mod recomputed;
mod reduction;
mod saves;
mod shape;
mod spatial;
mod stored;
mod tiling;
#[cfg_attr(not(feature = "onnx"), allow(dead_code, unused_imports, reason = "only the export to ONNX reads a trace"))]
pub(crate) mod traced;
pub(crate) mod variants;

pub use autocast::autocast;
pub(crate) use autocast::{lowered, of_sums, products};
pub use custom_grad::{Backward, custom_grad};
pub use elementwise::binary::formula::{Formula, Term};
pub use elementwise::binary::operand::{Operand, Scalar};
#[cfg(feature = "onnx")]
pub(crate) use elementwise::binary::{BinaryFn, of_two};
pub(crate) use elementwise::cast::repacked;
#[cfg(feature = "onnx")]
pub(crate) use elementwise::onnx::{Composition, Onnx, PairComposition, Value};
#[cfg(feature = "onnx")]
pub(crate) use elementwise::unary::{UnaryFn, of_one};
pub use index::scatter_reduce::ScatterReduce;
pub(crate) use inputs::{CpuIn, CpuOut, Dense, GpuIn, Strided};
pub use linalg::attention::Attention;
pub(crate) use linalg::matmul_tuning;
pub(crate) use linalg::packed::{Form, Packed};
pub(crate) use long::KEEP_LONGS;
pub use long::narrow_64_bits;
pub(crate) use named::named;
pub(crate) use saves::Saves;
pub(crate) use shape::copy::{cat, duplicate};
pub use shape::pad::Padding;
pub(crate) use shape::view::SliceRange;
#[cfg(feature = "onnx")]
pub(crate) use spatial::conv::Activation;
pub use spatial::conv::{Conv, ConvPadding};
pub use spatial::grid_sample::{GridMode, GridPadding};
pub use spatial::pool::Pool;
pub use spatial::resample::{Resample, ResampleCoordinates, ResampleFilter, ResampleRounding};
pub use spatial::resize::Interpolation;
pub use spatial::unfold::Unfold;
pub use spatial::window::Sizes;

use std::fmt;
use std::sync::Arc;

use crate::device::gpu::{Buffer, Gpu, Kernel, ShaderText};
use crate::device::{Backend, Storage};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::shape::{Layout, checked_elem_count};
use crate::tensor::Tensor;
use any_op::AnyOp;
use elementwise::cast::{narrowed, widened};
use inputs::Reads;
use names::Names;
use stored::halves;
use traced::Traced;

/// The shape and the element type of an op's result.
pub(crate) type Output = (Vec<usize>, DType);

/// A gradient for each input; `None` for an input that gets no gradient.
pub(crate) type Gradients = Vec<Option<Tensor>>;

/// The inputs, the output and the output's gradient of a recorded op, outside the graph. Inputs and output have elements
/// only if the op [saves](Op::saves) them.
pub(crate) struct Gradient<'a> {
    /// The inputs as the op read them.
    pub inputs: &'a [Tensor],
    pub out: &'a Tensor,
    /// Has the shape of `out`.
    pub grad: &'a Tensor,
    /// Whether each input needs a gradient; an op may skip the others.
    pub needs: &'a [bool],
}

/// The element types that an op reads, and the conversion of other types by `apply`.
///
/// Packed types (halves, bytes) are stored several elements to a word. Kernels and host loops compute with words.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Elements {
    /// All inputs are of one float type. Halves are widened to f32, so that sums are f32; the result is narrowed.
    Floats(Casting),
    /// As `Floats`, but kernels read halves of the first two inputs as they are stored, so that no pass widens them. The host's
    /// loops never do.
    Factors(Casting),
    /// As `Factors`, of any float types: for ops that compute gradients, from the inputs of another op and the gradient of its
    /// result.
    MixedFactors(Casting),
    /// Any types. Packed types are widened, and the result is narrowed.
    Any,
    /// The elements as they are stored; for conversions between types.
    Stored,
}

impl Elements {
    /// Returns the conversion within [`autocast`](autocast()).
    fn casting(self) -> Casting {
        match self {
            Elements::Floats(casting) | Elements::Factors(casting) | Elements::MixedFactors(casting) => casting,
            Elements::Any | Elements::Stored => Casting::Keep,
        }
    }

    /// Returns whether an op reads elements of input `i` as they are stored.
    fn as_stored(self, i: usize, x: &Tensor, gaps: bool) -> bool {
        match self {
            Elements::Stored => true,
            // What is made dense is widened in the same pass.
            Elements::Factors(_) | Elements::MixedFactors(_) => {
                i < 2 && halves(x.dtype()) != 0 && !x.device().is_cpu() && !gaps
            }
            Elements::Floats(_) | Elements::Any => false,
        }
    }
}

/// The conversion of an op's inputs within [`autocast`](autocast()).
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Casting {
    /// No conversion.
    Keep,
    /// To halves, for the ops that do most of the work. Their sums are still f32 sums.
    Lower,
    /// To f32, for ops in which halves overflow or lose too much precision.
    Raise,
}

/// Computes new elements from tensors of one device.
pub(crate) trait Op: fmt::Debug + Send + Sync + 'static {
    /// [`Dense`] inputs are row-major without gaps, from any offset on; [`Strided`] inputs have any layout.
    type Layout: Reads;
    const ELEMENTS: Elements;
    /// All names of this op, by `names!["tril", "triu"]`. The tests ask for a case of each.
    const NAMES: Names;

    /// Returns the name that errors, profiles and the op table use. The default is the only one of [`NAMES`](Op::NAMES).
    fn name(&self) -> &'static str {
        const { Self::NAMES.only() }
    }

    /// Checks the inputs before they are widened or made dense, and returns the shape and the type of the result. The
    /// kernels compute the [wide](DType::wide) type of a packed type; `apply` narrows the result. The default is the
    /// shape and the type of the first input.
    fn output(&self, inputs: &[&Tensor]) -> Result<Output> {
        Ok((inputs[0].shape().to_vec(), inputs[0].dtype()))
    }

    /// Returns [`ELEMENTS`](Op::ELEMENTS), unless they depend on the arguments.
    fn elements(&self) -> Elements {
        Self::ELEMENTS
    }

    /// Returns whether [`backward`](Op::backward) takes halves for the gradient of a result of f32; else they are widened first.
    fn takes_halves(&self) -> bool {
        matches!(self.elements(), Elements::Factors(_) | Elements::MixedFactors(_))
    }

    /// Computes a result from inputs of which some have 64 bits. The default is an error: neither `cpu` nor `gpu` reads such.
    fn long(&self, inputs: &[&Tensor]) -> Result<Tensor> {
        let x = inputs.iter().find(|x| x.dtype().is_long()).unwrap_or(&inputs[0]);
        Err(long::unsupported(self.name(), x))
    }

    /// Computes on the host. `out` holds unspecified values.
    fn cpu(&self, inputs: &[CpuIn<Self::Layout>], out: CpuOut) -> Result<()>;

    /// Returns the kernels that compute this on an adapter, in order. `out` holds unspecified values.
    fn gpu(&self, gpu: &Arc<Gpu>, inputs: &[GpuIn<Self::Layout>], out: &Buffer) -> Result<Vec<Kernel>>;

    /// Returns how an adapter can compute the op in parts along dimension `dim` of the result, from inputs of these shapes: for each
    /// input the dimension that is divided with it, or `None` for one that every part reads whole. The default, `None`, says that
    /// it cannot.
    fn along(&self, _shapes: &[&[usize]], _dim: usize) -> Option<Vec<Option<usize>>> {
        None
    }

    /// Returns what [`backward`](Op::backward) reads. What it does not save has no elements there.
    fn saves(&self) -> Saves {
        Saves::All
    }

    /// Returns what the op computes as plain data; `None` for an op that is only part of a gradient, and for others that cannot be
    /// written down so.
    fn traced(&self, _inputs: &[&Tensor]) -> Option<Traced> {
        None
    }

    /// Returns the saved elements that the gradient of an input depends on smoothly. The gradient of a maximum, for
    /// example, depends on them by jumps only. It is an error if one of these elements is in the graph, the gradient is
    /// outside it, and the gradient needs a gradient itself.
    fn gradient_changes_with(&self, _input: usize) -> Saves {
        self.saves()
    }

    /// Computes the gradient with respect to each input. If the op broadcast an input, its gradient may have the
    /// broadcast shape; the graph then sums it to the shape of the input. The default, for an op that is only part of a
    /// gradient, returns an error.
    fn backward(&self, _ctx: &Gradient) -> Result<Gradients> {
        Err(no_gradient(self.name()))
    }
}

/// A node of the graph: an op, a view or a move.
pub(crate) trait Differentiable: fmt::Debug + Send + Sync + 'static {
    fn op_name(&self) -> &'static str;

    fn saves(&self) -> Saves;

    fn gradients(&self, ctx: &Gradient) -> Result<Gradients>;

    /// As [`Op::gradient_changes_with`].
    fn gradient_changes_with(&self, _input: usize) -> Saves {
        self.saves()
    }

    /// Adds the gradient of the only input to `sum` in place, outside the graph, if that is less work than a sum of whole tensors.
    /// Nobody else holds `sum`. Returns whether it did.
    fn add_gradient(&self, _sum: &Tensor, _grad: &Tensor) -> Result<bool> {
        Ok(false)
    }

    /// Returns what the node computes from these inputs as plain data, if that is possible.
    fn traced(&self, _inputs: &[&Tensor]) -> Option<Traced> {
        None
    }

    /// Returns whether [`gradients`](Differentiable::gradients) takes halves for the gradient of a result of f32.
    fn takes_halves(&self) -> bool {
        false
    }
}

impl<O: Op> Differentiable for O {
    fn op_name(&self) -> &'static str {
        self.name()
    }

    fn saves(&self) -> Saves {
        Op::saves(self)
    }

    fn gradients(&self, ctx: &Gradient) -> Result<Gradients> {
        self.backward(ctx)
    }

    fn takes_halves(&self) -> bool {
        Op::takes_halves(self)
    }

    fn gradient_changes_with(&self, input: usize) -> Saves {
        Op::gradient_changes_with(self, input)
    }

    fn traced(&self, inputs: &[&Tensor]) -> Option<Traced> {
        Op::traced(self, inputs)
    }
}

/// Returns the error of `backward` for an op that is itself part of a gradient, or that cannot be differentiated.
fn no_gradient(op: &'static str) -> Error {
    Error::Autograd(format!("{op} has no gradient"))
}

/// Returns the error of a kernel that does not exist: the op's callers use it on the host only.
fn only_on_the_host(op: &'static str) -> Error {
    Error::internal(format!("{op} has no kernel for adapters"))
}

/// Runs an op on its inputs' device and records it if an input is tracked. Errors have the name of the op, or the name
/// of the method that the user called (see [`named`](fn@named)).
pub(crate) fn apply<O: Op>(op: O, inputs: &[&Tensor]) -> Result<Tensor> {
    named(op.name(), || applied(op, inputs))
}

fn applied<O: Op>(op: O, inputs: &[&Tensor]) -> Result<Tensor> {
    let computed = computed(&op, inputs)?;
    // All that depends on the type of the op, which moves into the graph if an input is tracked.
    let node = computed.tracked.then(|| Box::new(op) as Box<dyn Differentiable>);
    computed.recorded(node, inputs)
}

/// A result of an op.
struct Computed {
    /// The result, outside the graph.
    out: Tensor,
    /// The type that it is to have.
    dtype: DType,
    /// The inputs as the op read them, if these are others than it was given.
    inputs: Option<Vec<Tensor>>,
    /// Whether the op becomes a node of the graph.
    tracked: bool,
}

impl Computed {
    /// Returns the result, of its type and with its node.
    fn recorded(self, node: Option<Box<dyn Differentiable>>, inputs: &[&Tensor]) -> Result<Tensor> {
        let read = self.inputs.as_deref().map(references);
        let out = match node {
            Some(node) => crate::autograd::with_node(node, read.as_deref().unwrap_or(inputs), &self.out),
            None => self.out,
        };
        if out.dtype() == self.dtype { Ok(out) } else { narrowed(&out, self.dtype) }
    }
}

fn computed(op: &dyn AnyOp, inputs: &[&Tensor]) -> Result<Computed> {
    let name = op.op_name();
    if !op.names().have(name) {
        return Err(Error::internal(format!("{op:?} has the name {name}, which is none of its {:?}", op.names())));
    }
    same_device(name, inputs)?;
    if inputs.iter().any(|x| x.dtype().is_long()) {
        let out = op.long(inputs)?;
        return Ok(Computed { dtype: out.dtype(), out, inputs: None, tracked: false });
    }
    let elements = op.elements();
    let cast = autocast::cast(elements.casting(), inputs)?;
    let of_cast = cast.as_deref().map(references);
    let inputs = of_cast.as_deref().unwrap_or(inputs);
    if matches!(elements, Elements::Floats(_) | Elements::Factors(_)) {
        one_float_type(name, inputs)?;
    }
    let (shape, dtype) = op.output(inputs)?;
    let ready = ready(elements, op.reads_dense(), inputs)?;
    let of_ready = ready.as_deref().map(references);
    let inputs = of_ready.as_deref().unwrap_or(inputs);
    let computed = if elements == Elements::Stored { dtype } else { dtype.wide() };
    let words = computed.words(checked_elem_count(name, &shape)?);
    let storage = compute(op, inputs, (&shape, computed), words)?;
    let out = Tensor::from_parts(storage, Layout::contiguous_owned(shape), computed, inputs[0].device().clone());
    let tracked = crate::autograd::noted(op, inputs, &out);
    Ok(Computed { out, dtype, tracked, inputs: ready.or(cast) })
}

fn references(tensors: &[Tensor]) -> Vec<&Tensor> {
    tensors.iter().collect()
}

/// Converts the inputs to the element types and the layouts that an op reads, by ops of the graph; `None` if they
/// match.
fn ready(elements: Elements, dense: bool, inputs: &[&Tensor]) -> Result<Option<Vec<Tensor>>> {
    let gaps = |x: &Tensor| dense && !x.layout().is_contiguous();
    let packed = |i, x: &Tensor| x.dtype().is_packed() && !elements.as_stored(i, x, gaps(x));
    if !inputs.iter().enumerate().any(|(i, x)| packed(i, x) || gaps(x)) {
        return Ok(None);
    }
    let one = |(i, &x): (usize, &&Tensor)| match x {
        _ if packed(i, x) => widened(x),
        _ if gaps(x) => x.contiguous(),
        _ => Ok(x.clone()),
    };
    inputs.iter().enumerate().map(one).collect::<Result<_>>().map(Some)
}

/// Computes an op of `words` words of output. For ops, only this function decides between the host and an adapter.
fn compute(op: &dyn AnyOp, inputs: &[&Tensor], out: (&[usize], DType), words: usize) -> Result<Storage> {
    let (shape, dtype) = out;
    match inputs[0].device().backend()? {
        Backend::Cpu(cpu) => {
            let out = cpu.alloc(words)?;
            if words > 0 {
                let guards = inputs::read_all(inputs)?;
                let result = &mut out.write()[..words];
                cpu.timed(op.op_name(), || op.cpu(inputs, &guards, CpuOut(result)))?;
            }
            Ok(Storage::Cpu(out))
        }
        Backend::Gpu(gpu) => {
            let out = gpu.alloc(words)?;
            if words > 0 {
                let most = gpu.largest_binding();
                let too_large = |x: &&Tensor| matches!(x.storage(), Storage::Gpu(buffer) if buffer.len() > most);
                if words > most || inputs.iter().any(too_large) {
                    let inputs = inputs.iter().map(|x| GpuIn::<Strided>::new(x).map(|x| parts::Part::of(&x)));
                    let inputs = inputs.collect::<Result<Vec<_>>>()?;
                    parts::compute(op, gpu, &inputs, parts::Target { buffer: &out, shape, dtype })?;
                } else {
                    gpu.run_op(op.op_name(), op.gpu(gpu, inputs, &out)?, &out)?;
                }
            }
            Ok(Storage::Gpu(out))
        }
    }
}

/// Checks that all inputs are on one device. Ops never copy an input to another device themselves.
pub(crate) fn same_device(op: &'static str, inputs: &[&Tensor]) -> Result<()> {
    let first = inputs.first().ok_or_else(|| Error::argument(op, "needs at least one tensor"))?;
    match inputs.iter().find(|t| t.device() != first.device()) {
        None => Ok(()),
        Some(other) => Err(Error::DeviceMismatch {
            op,
            left: first.device().name().to_owned(),
            right: other.device().name().to_owned(),
        }),
    }
}

/// Checks that all inputs are of one float type.
fn one_float_type(op: &'static str, inputs: &[&Tensor]) -> Result<()> {
    let dtype = inputs.first().map_or(DType::F32, |x| x.dtype());
    let Some(other) = inputs.iter().find(|x| !dtype.is_float() || x.dtype() != dtype) else { return Ok(()) };
    let expected = if dtype.is_float() { dtype.to_string() } else { "a float type".into() };
    Err(Error::DTypeMismatch { op, expected, got: other.dtype().to_string() })
}

/// Checks that an input is of a float type.
fn expect_float(op: &'static str, tensor: &Tensor) -> Result<()> {
    if tensor.dtype().is_float() {
        return Ok(());
    }
    Err(Error::DTypeMismatch { op, expected: "a float type".into(), got: tensor.dtype().to_string() })
}

/// Checks an input's element type.
fn expect_dtype(op: &'static str, tensor: &Tensor, expected: DType) -> Result<()> {
    if tensor.dtype() == expected {
        return Ok(());
    }
    Err(Error::DTypeMismatch { op, expected: expected.to_string(), got: tensor.dtype().to_string() })
}

/// Returns the names of all ops, for tests.
#[doc(hidden)]
pub fn names() -> Vec<&'static str> {
    names::all()
}

/// Returns every shader of the crate with each of its headers. The shader tests and `anygpu check` use this list.
#[doc(hidden)]
pub fn shader_catalogue() -> Vec<(&'static str, String)> {
    let texts = |text: &'static ShaderText| {
        let with_epilogue = text.has_epilogue().then_some(elementwise::epilogue_of_samples);
        let one = move |header| {
            let texts = [Some(text.assembled(header)), with_epilogue.map(|epilogue| epilogue(text, header))];
            texts.into_iter().flatten().map(|whole| (text.name, whole))
        };
        (text.headers)().into_iter().flat_map(one).collect::<Vec<_>>()
    };
    let mut list: Vec<_> = ShaderText::all().flat_map(texts).collect();
    list.push(("fused", elementwise::chain_of_samples()));
    list.sort();
    list
}
