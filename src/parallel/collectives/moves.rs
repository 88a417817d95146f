//! The collectives that only move elements.

use super::exchange::{Stream, uninitialised};
use super::handle::Handle;
use super::{Collective, check_any, check_devices, rows, sizes_of, target};
use crate::autograd;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::ops;
use crate::tensor::Tensor;

/// Returns one copy of `x` per device, in order.
///
/// On the device of `x`, the copy is the same tensor. Gradients flow back to `x`.
///
/// # Errors
/// [`Error::InvalidArgument`] for an empty list and a device that is listed twice; errors of the devices.
///
/// ```
/// use anygpu::{Device, Tensor, parallel::broadcast};
///
/// let copies = broadcast(&Tensor::ones([3], None)?, &[Device::new("cpu/0")?, Device::new("cpu/1")?])?;
/// assert_eq!(copies[1].to_vec::<f32>()?, [1.0; 3]);
/// # Ok::<(), anygpu::Error>(())
/// ```
pub fn broadcast(x: &Tensor, devices: &[Device]) -> Result<Vec<Tensor>> {
    check_devices("broadcast", devices)?;
    if in_graph(x) {
        return devices.iter().map(|device| x.to(device)).collect();
    }
    plan_broadcast(x, devices)?.now()
}

/// Starts a [`broadcast`] and returns a handle.
///
/// The copies are outside the graph.
///
/// # Errors
/// The errors of [`broadcast`]: errors of the arguments at once, others from the handle.
///
/// ```
/// use anygpu::{Device, Tensor, parallel::broadcast_async};
///
/// let handle = broadcast_async(&Tensor::ones([3], None)?, &[Device::new("cpu/0")?, Device::new("cpu/1")?])?;
/// assert_eq!(handle.wait()?[1].to_vec::<f32>()?, [1.0; 3]);
/// # Ok::<(), anygpu::Error>(())
/// ```
pub fn broadcast_async(x: &Tensor, devices: &[Device]) -> Result<Handle<Vec<Tensor>>> {
    plan_broadcast(&x.detach(), devices)?.later()
}

fn plan_broadcast(x: &Tensor, devices: &[Device]) -> Result<Collective<Vec<Tensor>>> {
    check_devices("broadcast", devices)?;
    let (mut copies, mut targets) = (Vec::new(), Vec::new());
    for device in devices {
        if device == x.device() {
            copies.push(x.clone());
            continue;
        }
        let (copy, words) = target(x.shape(), x, device)?;
        copies.push(copy);
        targets.push(words);
    }
    let stream = Stream { terms: vec![x.as_words()?], reduction: None, targets };
    Ok(Collective::new("broadcast", vec![stream], move || Ok(copies)))
}

/// Splits `x: [N, ..]` along its first dimension into one part per device, of sizes as equal as possible.
///
/// Part i is moved to device i. A device that is listed twice gets two parts. With fewer rows than devices, the last
/// parts are empty. Gradients flow back to `x`.
///
/// # Errors
/// [`Error::InvalidArgument`] for a scalar and an empty list; errors of the devices.
///
/// ```
/// use anygpu::{Device, Tensor, parallel::scatter};
///
/// let x = Tensor::arange(0.0, 20.0, 1.0, None)?.reshape([4, 5])?;
/// let parts = scatter(&x, &[Device::new("cpu/0")?, Device::new("cpu/1")?])?;
/// assert_eq!((parts[0].shape(), parts[1].shape()), (&[2, 5][..], &[2, 5][..]));
/// assert_eq!(parts[1].to_vec::<f32>()?[0], 10.0);
/// # Ok::<(), anygpu::Error>(())
/// ```
pub fn scatter(x: &Tensor, devices: &[Device]) -> Result<Vec<Tensor>> {
    scattered(x, devices, None)
}

/// Splits `x: [N, ..]` like [`scatter`], into parts of the given sizes: one size per device.
///
/// Sizes may be 0 and add up to N. For parts in proportion to speeds, see [`split_sizes`](super::split_sizes).
///
/// # Errors
/// The errors of [`scatter`], and [`Error::InvalidArgument`] for other sizes.
///
/// ```
/// use anygpu::{Device, Tensor, parallel::scatter_sizes};
///
/// let parts = scatter_sizes(&Tensor::ones([5], None)?, &[Device::new("cpu/0")?, Device::new("cpu/1")?], &[4, 1])?;
/// assert_eq!((parts[0].shape(), parts[1].shape()), (&[4][..], &[1][..]));
/// # Ok::<(), anygpu::Error>(())
/// ```
pub fn scatter_sizes(x: &Tensor, devices: &[Device], sizes: &[usize]) -> Result<Vec<Tensor>> {
    scattered(x, devices, Some(sizes))
}

fn scattered(x: &Tensor, devices: &[Device], sizes: Option<&[usize]>) -> Result<Vec<Tensor>> {
    check_any("scatter", devices.len())?;
    if in_graph(x) {
        let parts = x.split_sizes(&sizes_of("scatter", rows("scatter", x)?, devices.len(), sizes)?, 0)?;
        return parts.iter().zip(devices).map(|(part, device)| part.to(device)).collect();
    }
    plan_scatter(x, devices, sizes)?.now()
}

/// Starts a [`scatter`], or a [`scatter_sizes`] if there are sizes, and returns a handle.
///
/// The parts are outside the graph.
///
/// # Errors
/// The errors of [`scatter_sizes`]: errors of the arguments at once, others from the handle.
///
/// ```
/// use anygpu::{Device, Tensor, parallel::scatter_async};
///
/// let handle = scatter_async(&Tensor::ones([5], None)?, &[Device::new("cpu/0")?, Device::new("cpu/1")?], Some(&[4, 1]))?;
/// assert_eq!(handle.wait()?[1].to_vec::<f32>()?, [1.0]);
/// # Ok::<(), anygpu::Error>(())
/// ```
pub fn scatter_async(x: &Tensor, devices: &[Device], sizes: Option<&[usize]>) -> Result<Handle<Vec<Tensor>>> {
    plan_scatter(&x.detach(), devices, sizes)?.later()
}

fn plan_scatter(x: &Tensor, devices: &[Device], sizes: Option<&[usize]>) -> Result<Collective<Vec<Tensor>>> {
    check_any("scatter", devices.len())?;
    let sizes = sizes_of("scatter", rows("scatter", x)?, devices.len(), sizes)?;
    let (mut parts, mut streams) = (Vec::new(), Vec::new());
    for (part, device) in x.split_sizes(&sizes, 0)?.into_iter().zip(devices) {
        if device == x.device() {
            parts.push(part);
            continue;
        }
        let (copy, words) = target(part.shape(), x, device)?;
        parts.push(copy);
        streams.push(Stream { terms: vec![part.as_words()?], reduction: None, targets: vec![words] });
    }
    Ok(Collective::new("scatter", streams, move || Ok(parts)))
}

/// Concatenates `[Nᵢ, ..]` tensors of any devices along their first dimension, in order, on `device`.
///
/// This is the inverse of [`scatter`]. Gradients flow back to each tensor.
///
/// # Errors
/// [`Error::InvalidArgument`] for scalars and an empty slice; [`Error::ShapeMismatch`] if the other dimensions differ;
/// [`Error::DTypeMismatch`] if the types differ; errors of the devices.
///
/// ```
/// use anygpu::{Device, Tensor, parallel::{gather, scatter}};
///
/// let x = Tensor::rand([7, 3], None)?;
/// let parts = scatter(&x, &[Device::new("cpu/0")?, Device::new("cpu/1")?])?;
/// assert_eq!(gather(&parts, &Device::cpu())?.to_vec::<f32>()?, x.to_vec::<f32>()?);
/// # Ok::<(), anygpu::Error>(())
/// ```
pub fn gather(tensors: &[Tensor], device: &Device) -> Result<Tensor> {
    if tensors.iter().any(in_graph) {
        check_rows("gather", tensors)?;
        let here = tensors.iter().map(|tensor| tensor.to(device)).collect::<Result<Vec<_>>>()?;
        return ops::cat(&here.iter().collect::<Vec<_>>(), 0);
    }
    first(plan_gather("gather", tensors, &[device])?).now()
}

/// Starts a [`gather`] and returns a handle.
///
/// The result is outside the graph.
///
/// # Errors
/// The errors of [`gather`]: errors of the arguments at once, others from the handle.
///
/// ```
/// use anygpu::{Device, Tensor, parallel::gather_async};
///
/// let parts = [Tensor::zeros([2], "cpu/0")?, Tensor::ones([1], "cpu/1")?];
/// assert_eq!(gather_async(&parts, &Device::cpu())?.wait()?.to_vec::<f32>()?, [0.0, 0.0, 1.0]);
/// # Ok::<(), anygpu::Error>(())
/// ```
pub fn gather_async(tensors: &[Tensor], device: &Device) -> Result<Handle<Tensor>> {
    first(plan_gather("gather", tensors, &[device])?).later()
}

/// Concatenates `[Nᵢ, ..]` tensors of distinct devices along their first dimension, in order, on each of these devices.
///
/// The results are outside the graph.
///
/// # Errors
/// The errors of [`gather`], and [`Error::InvalidArgument`] for two tensors of one device.
///
/// ```
/// use anygpu::{Tensor, parallel::all_gather};
///
/// let whole = all_gather(&[Tensor::zeros([2], "cpu/0")?, Tensor::ones([1], "cpu/1")?])?;
/// assert_eq!(whole[1].to_vec::<f32>()?, [0.0, 0.0, 1.0]);
/// assert_eq!(whole[1].device().name(), "cpu/1");
/// # Ok::<(), anygpu::Error>(())
/// ```
pub fn all_gather(tensors: &[Tensor]) -> Result<Vec<Tensor>> {
    plan_all_gather(tensors)?.now()
}

/// Starts an [`all_gather`] and returns a handle.
///
/// # Errors
/// The errors of [`all_gather`]: errors of the arguments at once, others from the handle.
///
/// ```
/// use anygpu::{Tensor, parallel::all_gather_async};
///
/// let handle = all_gather_async(&[Tensor::zeros([2], "cpu/0")?, Tensor::ones([1], "cpu/1")?])?;
/// assert_eq!(handle.wait()?[0].to_vec::<f32>()?, [0.0, 0.0, 1.0]);
/// # Ok::<(), anygpu::Error>(())
/// ```
pub fn all_gather_async(tensors: &[Tensor]) -> Result<Handle<Vec<Tensor>>> {
    plan_all_gather(tensors)?.later()
}

fn plan_all_gather(tensors: &[Tensor]) -> Result<Collective<Vec<Tensor>>> {
    let devices = devices_of(tensors);
    check_devices("all_gather", devices.iter().copied())?;
    plan_gather("all_gather", tensors, &devices)
}

/// Plans the concatenation of all tensors on each of these devices.
fn plan_gather(op: &'static str, tensors: &[Tensor], devices: &[&Device]) -> Result<Collective<Vec<Tensor>>> {
    check_rows(op, tensors)?;
    let mut joined = Vec::new();
    let mut streams = Vec::new();
    for tensor in tensors {
        streams.push(Stream { terms: vec![tensor.as_words()?], reduction: None, targets: Vec::new() });
    }
    for device in devices {
        let (joint, words) = Joint::new(tensors, device)?;
        streams.iter_mut().zip(words).for_each(|(stream, words)| stream.targets.push(words));
        joined.push(joint);
    }
    Ok(Collective::new(op, streams, move || joined.into_iter().map(Joint::whole).collect()))
}

/// Splits the tensor of each device, `[Nᵢ, ..]`, along its first dimension into one part per device.
///
/// Device j gets the j-th parts of all tensors, concatenated in the order of the devices. `sizes[i][j]` is the number
/// of rows that device i sends to device j. Without sizes, the parts are as equal as possible. The results are outside
/// the graph.
///
/// # Errors
/// The errors of [`all_gather`]; [`Error::InvalidArgument`] unless there is one size for each device and the sizes of
/// device i add up to Nᵢ.
///
/// ```
/// use anygpu::{Tensor, parallel::all_to_all};
///
/// let a = Tensor::new([1, 2, 3], "cpu/0")?;
/// let b = Tensor::new([4, 5], "cpu/1")?;
/// let parts = all_to_all(&[a.clone(), b.clone()], None)?; // of a, two rows and one; of b, one and one
/// assert_eq!(parts[0].to_vec::<i32>()?, [1, 2, 4]);
/// assert_eq!(parts[1].to_vec::<i32>()?, [3, 5]);
/// let parts = all_to_all(&[a, b], Some(&[vec![0, 3], vec![2, 0]]))?;
/// assert_eq!(parts[0].to_vec::<i32>()?, [4, 5]);
/// # Ok::<(), anygpu::Error>(())
/// ```
pub fn all_to_all(tensors: &[Tensor], sizes: Option<&[Vec<usize>]>) -> Result<Vec<Tensor>> {
    plan_all_to_all(tensors, sizes)?.now()
}

/// Starts an [`all_to_all`] and returns a handle.
///
/// # Errors
/// The errors of [`all_to_all`]: errors of the arguments at once, others from the handle.
///
/// ```
/// use anygpu::{Tensor, parallel::all_to_all_async};
///
/// let handle = all_to_all_async(&[Tensor::new([1, 2], "cpu/0")?, Tensor::new([3, 4], "cpu/1")?], None)?;
/// assert_eq!(handle.wait()?[1].to_vec::<i32>()?, [2, 4]);
/// # Ok::<(), anygpu::Error>(())
/// ```
pub fn all_to_all_async(tensors: &[Tensor], sizes: Option<&[Vec<usize>]>) -> Result<Handle<Vec<Tensor>>> {
    plan_all_to_all(tensors, sizes)?.later()
}

fn plan_all_to_all(tensors: &[Tensor], sizes: Option<&[Vec<usize>]>) -> Result<Collective<Vec<Tensor>>> {
    const OP: &str = "all_to_all";
    check_devices(OP, devices_of(tensors))?;
    check_rows(OP, tensors)?;
    if let Some(sizes) = sizes.filter(|sizes| sizes.len() != tensors.len()) {
        let detail =
            format!("{} tensors and {} lists of sizes: there must be one for each", tensors.len(), sizes.len());
        return Err(Error::argument(OP, detail));
    }
    let mut parts = Vec::new();
    for (i, tensor) in tensors.iter().enumerate() {
        let sizes = sizes_of(OP, rows(OP, tensor)?, tensors.len(), sizes.map(|sizes| &sizes[i][..]))?;
        parts.push(tensor.detach().split_sizes(&sizes, 0)?);
    }
    let (mut joined, mut streams) = (Vec::new(), Vec::new());
    for (j, device) in devices_of(tensors).into_iter().enumerate() {
        let theirs: Vec<Tensor> = parts.iter().map(|parts| parts[j].clone()).collect();
        let (joint, words) = Joint::new(&theirs, device)?;
        for (part, words) in theirs.iter().zip(words) {
            streams.push(Stream { terms: vec![part.as_words()?], reduction: None, targets: vec![words] });
        }
        joined.push(joint);
    }
    Ok(Collective::new(OP, streams, move || joined.into_iter().map(Joint::whole).collect()))
}

/// The place of a concatenation on one device.
enum Joint {
    Whole(Tensor),
    /// Parts that begin within words: they are put together when they have arrived.
    Parts(Vec<Tensor>),
}

impl Joint {
    /// Returns the place for the concatenation of these tensors, and the words of each in it.
    fn new(tensors: &[Tensor], device: &Device) -> Result<(Joint, Vec<Tensor>)> {
        let Some(like) = tensors.first() else { return Err(Error::internal("a concatenation of nothing")) };
        let dtype = like.dtype();
        let (_, others) = tensors.split_last().unwrap_or((like, &[]));
        if others.iter().any(|tensor| tensor.elem_count() % dtype.per_word() != 0) {
            let parts =
                tensors.iter().map(|tensor| target(tensor.shape(), like, device)).collect::<Result<Vec<_>>>()?;
            let (parts, words) = parts.into_iter().unzip();
            return Ok((Joint::Parts(parts), words));
        }
        let counts: Vec<usize> = tensors.iter().map(|tensor| dtype.words(tensor.elem_count())).collect();
        let block = uninitialised(counts.iter().sum(), device)?;
        let mut shape = like.shape().to_vec();
        shape[0] = tensors.iter().map(|tensor| tensor.shape()[0]).sum();
        Ok((Joint::Whole(block.tensor_at_word(0, &shape, dtype)?), block.split_sizes(&counts, 0)?))
    }

    fn whole(self) -> Result<Tensor> {
        match self {
            Joint::Whole(whole) => Ok(whole),
            Joint::Parts(parts) => ops::cat(&parts.iter().collect::<Vec<_>>(), 0),
        }
    }
}

/// Returns the collective that gives the only result of a list.
fn first(list: Collective<Vec<Tensor>>) -> Collective<Tensor> {
    let Collective { op, streams, finish } = list;
    Collective::new(op, streams, move || finish()?.pop().ok_or_else(|| Error::internal("a gather without a result")))
}

fn in_graph(x: &Tensor) -> bool {
    x.is_tracked() && autograd::is_recording()
}

fn devices_of(tensors: &[Tensor]) -> Vec<&Device> {
    tensors.iter().map(Tensor::device).collect()
}

/// Checks tensors that are to be concatenated.
fn check_rows(op: &'static str, tensors: &[Tensor]) -> Result<()> {
    check_any(op, tensors.len())?;
    let first = &tensors[0];
    for tensor in tensors {
        rows(op, tensor)?;
        if tensor.shape().get(1..) != first.shape().get(1..) {
            let rule = "all dimensions but the first must be equal";
            return Err(Error::shapes(op, first.shape(), tensor.shape(), rule));
        }
        if tensor.dtype() != first.dtype() {
            let (expected, got) = (first.dtype().to_string(), tensor.dtype().to_string());
            return Err(Error::DTypeMismatch { op, expected, got });
        }
    }
    Ok(())
}
