//! Collectives: operations on one tensor of each of several devices, in any mix of devices. They correspond to the
//! collectives of `torch.distributed` and NCCL.
//!
//! | function | takes | gives |
//! |---|---|---|
//! | [`broadcast`] | a tensor | a copy on each device |
//! | [`scatter`] | a tensor | a part of its first dimension on each device |
//! | [`gather`] | a tensor of each device | their concatenation on one device |
//! | [`all_gather`] | a tensor of each device | their concatenation on each device |
//! | [`reduce`] | equal shapes on each device | their [sum, mean, …](ReduceOp) on one device |
//! | [`all_reduce`] | equal shapes on each device | the same in place, on each device |
//! | [`reduce_scatter`] | equal shapes on each device | a part of the reduction on each device |
//! | [`all_to_all`] | a tensor of each device, in parts | on each device, its part of all tensors |
//!
//! Parts may have unequal sizes, for devices of unequal speed: [`split_sizes`] computes them from weights. Each device
//! may be listed once; `scatter` and `gather` also accept a device several times. To use one device several times, list
//! its logical devices, such as `cpu/0` and `cpu/1`. Only `broadcast`, `scatter` and `gather` record their results in
//! the graph.
//!
//! **Without waiting.** Each function has a form with the suffix `_async`, which begins the reads of all devices and
//! returns a [`Handle`]. Several collectives may run at the same time. Until a handle is done, do not write to its
//! input tensors, and do not read tensors that are reduced in place. The blocking functions run the same code on the
//! calling thread. Both forms give the same bits, regardless of the devices' timing.
//!
//! **Errors.** If a device is lost or fails, the collective ends with an error that names the device. Nothing waits for
//! a device longer than [`Device::set_wait_limit`] allows. Tensors that are reduced in place then have unspecified
//! elements.
//!
//! # How elements travel
//!
//! Two WebGPU adapters have no common memory. Data from one adapter to another is read into host memory and written
//! from there. A reduction is therefore computed on the host, on the way. All devices are read at the same time, in
//! chunks of 1 MiB. When a chunk of every device has arrived, all threads of the host reduce it in the memory to which
//! the drivers have copied it. One thread per device writes the result. An all-reduce thus moves each tensor once in
//! each direction over its device's link, which is the minimum. A ring or a tree would move at least as much over the
//! same links, since each of its steps between two adapters is a read and a write. It would also have more steps that
//! wait for each other. On software adapters and `cpu`, an all-reduce takes 1.1 to 1.7 times as long as its copies one
//! after the other (`docs/benchmarks.md`).

mod exchange;
mod handle;
mod moves;
mod reduce_op;
mod reductions;
mod split;

pub use handle::Handle;
pub use moves::{
    all_gather, all_gather_async, all_to_all, all_to_all_async, broadcast, broadcast_async, gather, gather_async,
    scatter, scatter_async, scatter_sizes,
};
pub use reduce_op::ReduceOp;
pub use reductions::{all_reduce, all_reduce_async, reduce, reduce_async, reduce_scatter, reduce_scatter_async};
pub use split::{split_batch, split_batch_by, split_sizes};

use crate::autograd::no_grad;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::tensor::Tensor;
use exchange::{Exchange, Stream, uninitialised};

/// A collective whose arguments are checked.
struct Collective<T> {
    op: &'static str,
    streams: Vec<Stream>,
    /// Makes the result of what has arrived.
    finish: Box<dyn FnOnce() -> Result<T> + Send>,
}

impl<T: Send + 'static> Collective<T> {
    fn new(op: &'static str, streams: Vec<Stream>, finish: impl FnOnce() -> Result<T> + Send + 'static) -> Self {
        Collective { op, streams, finish: Box::new(finish) }
    }

    /// Computes it on this thread.
    fn now(self) -> Result<T> {
        Exchange::begin(self.streams)?.finish()?;
        no_grad(self.finish)
    }

    /// Begins the reads, and leaves the rest to another thread.
    fn later(self) -> Result<Handle<T>> {
        let (exchange, finish) = (Exchange::begin(self.streams)?, self.finish);
        Handle::start(self.op, move || {
            exchange.finish()?;
            no_grad(finish)
        })
    }
}

/// Checks a list of devices: at least one, and none twice.
fn check_devices<'a>(op: &'static str, devices: impl IntoIterator<Item = &'a Device>) -> Result<()> {
    let mut seen: Vec<&Device> = Vec::new();
    for device in devices {
        if seen.contains(&device) {
            let names = logical(device, 2).map(|names| names.join(" and "));
            let instead =
                names.map_or_else(String::new, |names| format!(", or list logical devices of it, such as {names}"));
            return Err(Error::argument(op, format!("device {device} is listed twice: list it once{instead}")));
        }
        seen.push(device);
    }
    check_any(op, seen.len())
}

/// Checks that a list has devices, or tensors of devices.
fn check_any(op: &'static str, count: usize) -> Result<()> {
    if count == 0 { Err(Error::argument(op, "the list of devices is empty")) } else { Ok(()) }
}

/// Returns the names of `count` logical devices on a device's adapter, or on the CPU, if there can be several.
pub(super) fn logical(device: &Device, count: usize) -> Option<Vec<String>> {
    let (place, faults) = device.name().split_at(device.name().find('?').unwrap_or(device.name().len()));
    let base = place.split('/').next().unwrap_or(place);
    let one = device.info().api == "GL" || base.starts_with("wgpu:");
    (!one).then(|| (0..count).map(|i| format!("{base}/{i}{faults}")).collect())
}

/// Returns the first dimension of a tensor.
fn rows(op: &'static str, x: &Tensor) -> Result<usize> {
    let first = x.shape().first().copied();
    first.ok_or_else(|| Error::argument(op, "a scalar has no first dimension"))
}

/// Checks that there is one size for each of `parts` parts and that they add up to `rows`; makes equal ones if there are none.
fn sizes_of(op: &'static str, rows: usize, parts: usize, sizes: Option<&[usize]>) -> Result<Vec<usize>> {
    let Some(sizes) = sizes else { return Ok(split_sizes(rows, &vec![1.0; parts])) };
    let sum = sizes.iter().try_fold(0usize, |sum, size| sum.checked_add(*size));
    if sizes.len() == parts && sum == Some(rows) {
        return Ok(sizes.to_vec());
    }
    let detail = format!("sizes {sizes:?}: there must be {parts}, which add up to the first dimension, {rows}");
    Err(Error::argument(op, detail))
}

/// Returns a new tensor on a device, and its words.
fn target(shape: &[usize], like: &Tensor, device: &Device) -> Result<(Tensor, Tensor)> {
    let words = uninitialised(like.dtype().words(shape.iter().product()), device)?;
    Ok((words.tensor_at_word(0, shape, like.dtype())?, words))
}
