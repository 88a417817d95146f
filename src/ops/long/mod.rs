//! Elements of 64 bits, `i64` and `f64`: pairs of words, the lower one first.
//!
//! `apply` gives inputs of these types to [`Op::long`](super::Op::long), so that no loop and no kernel that reads words is ever
//! given a pair. What only moves elements runs over the pairs ([`moved`]), on every device. Arithmetic is an op of its own over
//! pairs, on the host. Every other op returns the error of [`unsupported`]. None of it is in the graph: a 64-bit tensor has no
//! gradient.

pub(crate) mod cast;
pub(in crate::ops) mod pair;
pub(in crate::ops) mod product;
pub(in crate::ops) mod reduce;
pub(in crate::ops) mod single;

use crate::autograd;
use crate::context::slot;
use crate::device::Device;
use crate::device::gpu::Kernel;
use crate::dtype::{DType, long_words};
use crate::error::{Error, Result};
use crate::ops::traced::note_use;
use crate::ops::{Op, apply};
use crate::shape::Layout;
use crate::tensor::{Tensor, from_words};

slot! {
    /// Whether readers of files keep numbers of 64 bits. They do, except within [`narrow_64_bits`].
    pub(crate) KEEP_LONGS: bool = true
}

/// A number of 64 bits.
pub(in crate::ops) trait Long: Copy + PartialOrd + Send + Sync + 'static {
    fn of(pair: [u32; 2]) -> Self;
    fn pair(self) -> [u32; 2];
}

fn bits([low, high]: [u32; 2]) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

fn halves(bits: u64) -> [u32; 2] {
    [bits as u32, (bits >> 32) as u32]
}

impl Long for i64 {
    fn of(pair: [u32; 2]) -> i64 {
        bits(pair).cast_signed()
    }
    fn pair(self) -> [u32; 2] {
        halves(self.cast_unsigned())
    }
}

impl Long for f64 {
    fn of(pair: [u32; 2]) -> f64 {
        f64::from_bits(bits(pair))
    }
    fn pair(self) -> [u32; 2] {
        halves(self.to_bits())
    }
}

/// Returns the words of 64-bit elements, as a view with a last dimension of two words of u32.
pub(crate) fn pairs(x: &Tensor) -> Tensor {
    note_use(x, format_args!("are {}, of which no step is recorded", x.dtype()));
    let Layout { shape, strides, offset } = x.layout();
    // A negative stride is a number that wraps around.
    let strides = strides.iter().map(|stride| stride.wrapping_mul(2)).chain([1]).collect();
    let layout = Layout { shape: [shape, &[2][..]].concat(), strides, offset: 2 * offset };
    Tensor::from_parts(x.storage().clone(), layout, DType::U32, x.device().clone())
}

/// Returns the 64-bit elements of these words, which are dense and begin at an even word.
pub(crate) fn of_pairs(words: &Tensor, dtype: DType) -> Result<Tensor> {
    let (layout, [shape @ .., 2]) = (words.layout(), words.shape()) else {
        return Err(Error::internal(format!("{dtype} of words of shape {:?}", words.shape())));
    };
    if !layout.is_contiguous() || !layout.offset.is_multiple_of(2) {
        return Err(Error::internal(format!("{dtype} of words that are apart")));
    }
    held("to_dtype", dtype, words.device())?;
    let layout = Layout { offset: layout.offset / 2, ..Layout::contiguous(shape) };
    Ok(Tensor::from_parts(words.storage().clone(), layout, dtype, words.device().clone()))
}

/// Returns an error for a type that a device cannot hold.
pub(crate) fn held(op: &'static str, dtype: DType, device: &Device) -> Result<()> {
    if dtype != DType::F64 || device.is_cpu() {
        return Ok(());
    }
    let expected = format!("a type that {device} has, such as DType::F32 (f64 is on cpu only)");
    Err(Error::DTypeMismatch { op, expected, got: dtype.to_string() })
}

/// Returns the error of an op that has no 64-bit form on the device of `x`.
pub(in crate::ops) fn unsupported(op: &'static str, x: &Tensor) -> Error {
    let narrow = if x.dtype() == DType::F64 { "F32" } else { "I32" };
    let expected = match x.device() {
        cpu if cpu.is_cpu() => format!("a type of at most 32 bits, such as DType::{narrow}"),
        device => format!("a type that {device} computes with, such as DType::{narrow} (i64 is computed on cpu only)"),
    };
    Error::DTypeMismatch { op, expected, got: x.dtype().to_string() }
}

/// Returns the error of an op of the host that an adapter is asked for, which the checks before it prevent.
fn host_only(name: &str, dtype: DType) -> Result<Vec<Kernel>> {
    Err(Error::internal(format!("{name} of {dtype} on an adapter")))
}

/// Returns an error if one of the tensors has 64 bits: for compositions that would convert it to f32.
pub(crate) fn refuse<'a>(op: &'static str, tensors: impl IntoIterator<Item = &'a Tensor>) -> Result<()> {
    match tensors.into_iter().find(|x| x.dtype().is_long()) {
        Some(x) => Err(unsupported(op, x)),
        None => Ok(()),
    }
}

/// Returns an error if a gradient would have to flow through a 64-bit tensor.
pub(in crate::ops) fn untracked(op: &'static str, inputs: &[&Tensor]) -> Result<()> {
    if !autograd::is_recording() || !inputs.iter().any(|x| x.is_tracked()) {
        return Ok(());
    }
    let why = "f64 has no gradient: convert with .to_dtype(DType::F32)? before the leaf, or detach() the tensor";
    Err(Error::Autograd(format!("{op}: {why}")))
}

/// Runs `f`, in which file readers convert 64-bit numbers to 32 bits.
///
/// Outside `f`, they return tensors of [`DType::I64`] and [`DType::F64`]. The conversion applies to
/// [`Tensor::from_npy`], [`load_npz`](crate::npy::load_npz), and the readers of safetensors and PyTorch files in
/// [`checkpoint`](crate::checkpoint). It does not apply to a training run
/// ([`TrainingState`](crate::checkpoint::TrainingState)).
///
/// `f64` is rounded to `f32`. `i64` becomes `i32`; in safetensors and PyTorch files, it becomes `u32` if a value needs
/// it and no value is negative. A value that does not fit is never changed: a finite `f64` beyond `f32`, or an integer
/// beyond 32 bits. In `.npy` and `.npz` files, such a value is an error. In other files,
/// [`StateDict::skipped`](crate::nn::StateDict::skipped) names its tensor.
///
/// Use it to read a 64-bit file for an adapter, which holds no `f64`, or for layers, which compute in `f32`.
/// [`Module::load_state_dict`](crate::nn::Module::load_state_dict) converts by itself.
///
/// ```
/// use anygpu::{DType, Tensor, narrow_64_bits};
///
/// let folder = tempfile::tempdir().unwrap();
/// let path = folder.path().join("x.npy");
/// Tensor::from_slice(&[1i64, -2], [2], None)?.save_npy(&path)?;
/// assert_eq!(Tensor::from_npy(&path, None)?.to_vec::<i64>()?, [1, -2]);
/// assert_eq!(narrow_64_bits(|| Tensor::from_npy(&path, None))?.dtype(), DType::I32);
/// # Ok::<(), anygpu::Error>(())
/// ```
///
/// # Errors
/// The errors of `f`.
pub fn narrow_64_bits<T>(f: impl FnOnce() -> Result<T>) -> Result<T> {
    let _narrow = KEEP_LONGS.set(false);
    f()
}

/// Runs an op that only moves elements over the pairs of words. The inputs are of one type; a dimension that the op names counts
/// from the first.
pub(in crate::ops) fn moved<O: Op>(op: O, inputs: &[&Tensor]) -> Result<Tensor> {
    untracked(op.name(), inputs)?;
    let dtype = inputs.first().map_or(DType::I64, |x| x.dtype());
    let words: Vec<Tensor> = inputs.iter().map(|x| pairs(x)).collect();
    of_pairs(&apply(op, &words.iter().collect::<Vec<_>>())?, dtype)
}

/// Runs an op that moves elements to or from where an index says over the pairs of words. The second input is the index, `[K]` if it
/// is `shared`.
pub(in crate::ops) fn by_index<O: Op>(op: O, shared: bool, inputs: &[&Tensor]) -> Result<Tensor> {
    untracked(op.name(), inputs)?;
    let of_pair = |i: usize, x: &Tensor| match i {
        1 if shared => Ok(x.clone()),
        1 => x.unsqueeze(-1)?.broadcast_to([x.shape(), &[2]].concat()),
        _ => Ok(pairs(x)),
    };
    let words = inputs.iter().enumerate().map(|(i, x)| of_pair(i, x)).collect::<Result<Vec<_>>>()?;
    of_pairs(&apply(op, &words.iter().collect::<Vec<_>>())?, inputs[0].dtype())
}

/// Returns a tensor of rank 0.
pub(in crate::ops) fn scalar(bits: u64, dtype: DType, device: &Device) -> Result<Tensor> {
    let words = long_words([bits].into_iter(), crate::device::cpu::with_room)?;
    from_words(words, &[], dtype, device.clone())
}
