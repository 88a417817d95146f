//! The collectives that compute.

use super::exchange::{Reduction, Stream};
use super::handle::Handle;
use super::{Collective, ReduceOp, check_devices, rows, sizes_of, target};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::ops::inplace::copy_;
use crate::tensor::Tensor;

/// Replaces each tensor with the [sum, mean, …](ReduceOp) of all tensors, in place and outside the graph.
///
/// Afterwards, every device holds the same bits. The tensors must have equal shapes and be on distinct devices. A
/// single tensor keeps its elements.
///
/// # Errors
/// [`Error::ShapeMismatch`] if shapes differ; [`Error::DTypeMismatch`] if types differ or the type has no arithmetic;
/// [`Error::InvalidArgument`] for an empty slice, two tensors of one device, and means of integers; errors of the
/// devices. After an error of a device, the elements are unspecified.
///
/// ```
/// use anygpu::{Tensor, parallel::{ReduceOp, all_reduce}};
///
/// let data = [Tensor::full([2], 1.0, "cpu/0")?, Tensor::full([2], 5.0, "cpu/1")?];
/// all_reduce(&data, ReduceOp::Sum)?;
/// assert_eq!(data[1].to_vec::<f32>()?, [6.0, 6.0]);
///
/// let gradients = [Tensor::full([2], 1.0, "cpu/0")?, Tensor::full([2], 5.0, "cpu/1")?];
/// all_reduce(&gradients, ReduceOp::WeightedMean(vec![3.0, 1.0]))?; // from 3 samples and from 1
/// assert_eq!(gradients[0].to_vec::<f32>()?, [2.0, 2.0]);
/// # Ok::<(), anygpu::Error>(())
/// ```
pub fn all_reduce(tensors: &[Tensor], op: ReduceOp) -> Result<()> {
    plan_all_reduce(tensors, &op)?.now()
}

/// Starts an [`all_reduce`] and returns a handle.
///
/// The tensors have the result when the handle is done.
///
/// # Errors
/// The errors of [`all_reduce`]: errors of the arguments at once, others from the handle.
///
/// ```
/// use anygpu::{Tensor, parallel::{ReduceOp, all_reduce_async}};
///
/// let data = [Tensor::full([2], 1.0, "cpu/0")?, Tensor::full([2], 5.0, "cpu/1")?];
/// let handle = all_reduce_async(&data, ReduceOp::Max)?;
/// // Other work.
/// handle.wait()?;
/// assert_eq!(data[0].to_vec::<f32>()?, [5.0, 5.0]);
/// # Ok::<(), anygpu::Error>(())
/// ```
pub fn all_reduce_async(tensors: &[Tensor], op: ReduceOp) -> Result<Handle<()>> {
    plan_all_reduce(tensors, &op)?.later()
}

fn plan_all_reduce(tensors: &[Tensor], op: &ReduceOp) -> Result<Collective<()>> {
    const OP: &str = "all_reduce";
    let (terms, reduction) = terms(OP, tensors, op)?;
    if tensors.len() == 1 {
        return Ok(Collective::new(OP, Vec::new(), || Ok(()))); // every reduction of one tensor is the tensor
    }
    let (mut targets, mut copies) = (Vec::new(), Vec::new());
    for (tensor, term) in tensors.iter().zip(&terms) {
        if term.storage().id() == tensor.storage().id() {
            tensor.storage().bump();
            targets.push(term.as_words()?);
        } else {
            let (copy, words) = target(tensor.shape(), term, tensor.device())?;
            targets.push(words);
            copies.push((tensor.clone(), copy));
        }
    }
    let terms = terms.iter().map(Tensor::as_words).collect::<Result<Vec<_>>>()?;
    let stream = Stream { terms, reduction: Some(reduction), targets };
    Ok(Collective::new(OP, vec![stream], move || {
        copies.iter().try_for_each(|(tensor, copy)| copy_(tensor, &copy.to_dtype(tensor.dtype())?))
    }))
}

/// Returns the [sum, mean, …](ReduceOp) of tensors of equal shapes on distinct devices.
///
/// The result is a new tensor on `device`, which may be any device, and is outside the graph.
///
/// # Errors
/// The errors of [`all_reduce`].
///
/// ```
/// use anygpu::{Device, Tensor, parallel::{ReduceOp, reduce}};
///
/// let data = [Tensor::new([1, 2], "cpu/0")?, Tensor::new([3, 4], "cpu/1")?];
/// let sum = reduce(&data, &Device::cpu(), ReduceOp::Sum)?;
/// assert_eq!(sum.to_vec::<i32>()?, [4, 6]);
/// # Ok::<(), anygpu::Error>(())
/// ```
pub fn reduce(tensors: &[Tensor], device: &Device, op: ReduceOp) -> Result<Tensor> {
    plan_reduce(tensors, device, &op)?.now()
}

/// Starts a [`reduce`] and returns a handle.
///
/// # Errors
/// The errors of [`reduce`]: errors of the arguments at once, others from the handle.
///
/// ```
/// use anygpu::{Device, Tensor, parallel::{ReduceOp, reduce_async}};
///
/// let data = [Tensor::new([1.0, 2.0], "cpu/0")?, Tensor::new([3.0, 4.0], "cpu/1")?];
/// let handle = reduce_async(&data, &Device::cpu(), ReduceOp::Mean)?;
/// assert_eq!(handle.wait()?.to_vec::<f32>()?, [2.0, 3.0]);
/// # Ok::<(), anygpu::Error>(())
/// ```
pub fn reduce_async(tensors: &[Tensor], device: &Device, op: ReduceOp) -> Result<Handle<Tensor>> {
    plan_reduce(tensors, device, &op)?.later()
}

fn plan_reduce(tensors: &[Tensor], device: &Device, op: &ReduceOp) -> Result<Collective<Tensor>> {
    let (terms, reduction) = terms("reduce", tensors, op)?;
    let (result, words) = target(terms[0].shape(), &terms[0], device)?;
    let terms = terms.iter().map(Tensor::as_words).collect::<Result<Vec<_>>>()?;
    let dtype = tensors[0].dtype();
    let stream = Stream { terms, reduction: Some(reduction), targets: vec![words] };
    Ok(Collective::new("reduce", vec![stream], move || result.to_dtype(dtype)))
}

/// Computes the [sum, mean, …](ReduceOp) of tensors `[N, ..]` of equal shapes on distinct devices, and splits it among
/// the devices.
///
/// Device i gets `sizes[i]` rows of it, in order. Without sizes, the parts are as equal as possible. The results are
/// outside the graph.
///
/// # Errors
/// The errors of [`all_reduce`]; [`Error::InvalidArgument`] for scalars, and unless there is one size for each tensor
/// and the sizes add up to N.
///
/// ```
/// use anygpu::{Tensor, parallel::{ReduceOp, reduce_scatter}};
///
/// let data = [Tensor::new([1.0, 2.0, 3.0], "cpu/0")?, Tensor::new([10.0, 20.0, 30.0], "cpu/1")?];
/// let parts = reduce_scatter(&data, ReduceOp::Sum, None)?;
/// assert_eq!((parts[0].to_vec::<f32>()?, parts[1].to_vec::<f32>()?), (vec![11.0, 22.0], vec![33.0]));
/// # Ok::<(), anygpu::Error>(())
/// ```
pub fn reduce_scatter(tensors: &[Tensor], op: ReduceOp, sizes: Option<&[usize]>) -> Result<Vec<Tensor>> {
    plan_reduce_scatter(tensors, &op, sizes)?.now()
}

/// Starts a [`reduce_scatter`] and returns a handle.
///
/// # Errors
/// The errors of [`reduce_scatter`]: errors of the arguments at once, others from the handle.
///
/// ```
/// use anygpu::{Tensor, parallel::{ReduceOp, reduce_scatter_async}};
///
/// let data = [Tensor::new([1.0, 2.0, 3.0], "cpu/0")?, Tensor::new([10.0, 20.0, 30.0], "cpu/1")?];
/// let handle = reduce_scatter_async(&data, ReduceOp::Sum, Some(&[0, 3]))?;
/// assert_eq!(handle.wait()?[1].to_vec::<f32>()?, [11.0, 22.0, 33.0]);
/// # Ok::<(), anygpu::Error>(())
/// ```
pub fn reduce_scatter_async(tensors: &[Tensor], op: ReduceOp, sizes: Option<&[usize]>) -> Result<Handle<Vec<Tensor>>> {
    plan_reduce_scatter(tensors, &op, sizes)?.later()
}

fn plan_reduce_scatter(tensors: &[Tensor], op: &ReduceOp, sizes: Option<&[usize]>) -> Result<Collective<Vec<Tensor>>> {
    const OP: &str = "reduce_scatter";
    let (terms, reduction) = terms(OP, tensors, op)?;
    let sizes = sizes_of(OP, rows(OP, &terms[0])?, tensors.len(), sizes)?;
    let split = terms.iter().map(|term| term.split_sizes(&sizes, 0)).collect::<Result<Vec<_>>>()?;
    let (mut parts, mut streams) = (Vec::new(), Vec::new());
    for (i, tensor) in tensors.iter().enumerate() {
        let terms: Vec<&Tensor> = split.iter().map(|parts| &parts[i]).collect();
        let (part, words) = target(terms[0].shape(), terms[0], tensor.device())?;
        let terms = terms.into_iter().map(Tensor::as_words).collect::<Result<Vec<_>>>()?;
        streams.push(Stream { terms, reduction: Some(reduction.clone()), targets: vec![words] });
        parts.push(part);
    }
    let dtype = tensors[0].dtype();
    Ok(Collective::new(OP, streams, move || parts.iter().map(|part| part.to_dtype(dtype)).collect()))
}

/// Checks the tensors of a reduction; there must be at least one. Returns the reduction, and the tensors without gaps,
/// outside the graph, and in the type in which they are reduced.
fn terms(name: &'static str, tensors: &[Tensor], op: &ReduceOp) -> Result<(Vec<Tensor>, Reduction)> {
    check_devices(name, tensors.iter().map(Tensor::device))?;
    let reduction = op.of(name, tensors)?;
    for (i, tensor) in tensors.iter().enumerate() {
        if tensors[..i].iter().any(|other| other.storage().id() == tensor.storage().id()) {
            return Err(Error::argument(name, "two tensors share their elements: copy() one of them"));
        }
    }
    let dense = |tensor: &Tensor| tensor.detach().to_dtype(reduction.dtype)?.contiguous();
    Ok((tensors.iter().map(dense).collect::<Result<_>>()?, reduction))
}
