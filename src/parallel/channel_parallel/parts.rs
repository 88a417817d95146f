//! Parts of one layer that compute at the same time, each on its device, as one op of the graph.

use std::sync::{Arc, Mutex};
use std::thread::{self, Builder};

use crate::context::Context;
use crate::device::Device;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::nn::{Module, parameters_onto, replacing};
use crate::ops::custom_grad::attached;
use crate::parallel::collectives::split_sizes;
use crate::parallel::worker::{not_started, on_device};
use crate::tensor::Tensor;
use crate::util::sync::lock;
use crate::util::threads::THREADS;

/// Returns how many of `count` channels each device gets.
pub(super) fn sizes(layer: &'static str, count: usize, devices: &[Device], weights: &[f64]) -> Result<Vec<usize>> {
    let positive = weights.iter().all(|weight| weight.is_finite() && *weight > 0.0);
    if devices.is_empty() || weights.len() != devices.len() || !positive {
        let devices = devices.len();
        let detail =
            format!("{devices} devices and weights {weights:?}: there must be one positive number for each device");
        return Err(Error::argument(layer, detail));
    }
    if count < devices.len() {
        let detail =
            format!("{count} channels or groups cannot be split among {} devices: each needs one", devices.len());
        return Err(Error::argument(layer, detail));
    }
    Ok(split_sizes(count, weights))
}

/// Returns the ranges of consecutive parts of these sizes as (start, length).
pub(super) fn ranges(sizes: &[usize]) -> impl Iterator<Item = (usize, usize)> {
    sizes.iter().scan(0, |next, &size| Some((std::mem::replace(next, *next + size), size)))
}

/// Returns a range of a parameter, which is trained if the parameter is.
pub(super) fn range_of(parameter: &Tensor, dim: usize, (start, len): (usize, usize)) -> Result<Tensor> {
    let part = parameter.detach().narrow(dim, start, len)?;
    Ok(if parameter.is_tracked() { part.requires_grad() } else { part })
}

/// Returns copies of a weight and a bias on a device, in one block.
pub(super) fn placed(weight: Tensor, bias: Option<Tensor>, device: &Device) -> Result<(Tensor, Option<Tensor>)> {
    let mut placed = parameters_onto(&[weight].into_iter().chain(bias).collect::<Vec<_>>(), device)?.into_iter();
    let weight = placed.next().ok_or_else(|| Error::internal("a weight was not placed"))?;
    Ok((weight, placed.next()))
}

/// Returns parameters of the parts as one on the host, which is trained if they are.
pub(super) fn joined<'a>(parts: impl Iterator<Item = &'a Tensor>, dim: usize) -> Result<Tensor> {
    let parts: Vec<&Tensor> = parts.collect();
    let host = parts.iter().map(|part| part.detach().cpu()).collect::<Result<Vec<_>>>()?;
    let whole = Tensor::cat(&host.iter().collect::<Vec<_>>(), dim)?;
    Ok(if parts.iter().any(|part| part.is_tracked()) { whole.requires_grad() } else { whole })
}

/// Returns the device of each part: where its parameters are.
pub(super) fn devices<M: Module>(parts: &[M]) -> Vec<Device> {
    let device = |part: &M| part.parameters().first().map(|parameter| parameter.device().clone()).unwrap_or_default();
    parts.iter().map(device).collect()
}

/// What the parts have of a tensor of the whole layer.
#[derive(Clone, Debug)]
pub(super) enum Parted {
    /// Each has all of it as its input, or a term of it as its output.
    Whole,
    /// Each has a range of this dimension, of these sizes.
    Along(usize, Vec<usize>),
}

impl Parted {
    fn split(&self, whole: &Tensor, parts: usize) -> Result<Vec<Tensor>> {
        match self {
            Parted::Whole => Ok(vec![whole.clone(); parts]),
            Parted::Along(dim, sizes) => whole.split_sizes(sizes, *dim),
        }
    }

    /// Returns the sum, computed in f32, or the concatenation.
    fn join(&self, parts: &[Tensor]) -> Result<Tensor> {
        match (self, parts) {
            (Parted::Whole, [first, others @ ..]) => {
                let mut sum = first.to_dtype(DType::F32)?;
                for other in others {
                    sum = sum.add(&other.to_dtype(DType::F32)?)?;
                }
                sum.to_dtype(first.dtype())
            }
            (Parted::Whole, []) => Err(Error::internal("a layer without parts")),
            (Parted::Along(dim, _), _) => Tensor::cat(&parts.iter().collect::<Vec<_>>(), *dim),
        }
    }
}

/// The graph of one part in one call, which begins at leaves of its own.
struct Local {
    input: Tensor,
    parameters: Vec<Tensor>,
    output: Tensor,
}

impl Local {
    /// Computes the output from this part of the input, which is on another device.
    fn forward<M: Module + Clone>(part: &M, input: &Tensor, has_gradient: bool, device: &Device) -> Result<Local> {
        let leaf =
            |tensor: &Tensor, tracked: bool| if tracked { tensor.detach().requires_grad() } else { tensor.detach() };
        let input = leaf(&input.to(device)?, has_gradient);
        let old = part.parameters();
        let parameters: Vec<Tensor> = old.iter().map(|parameter| leaf(parameter, parameter.is_tracked())).collect();
        let mut own = part.clone();
        own.visit_mut(&mut replacing(&old, &parameters));
        let output = own.forward(&input)?;
        Ok(Local { input, parameters, output })
    }

    /// Returns the gradient of the input on `home`, and the gradients of the parameters.
    fn backward(&self, grad: &Tensor, home: &Device) -> Result<(Option<Tensor>, Vec<Option<Tensor>>)> {
        let leaves = || self.parameters.iter().chain([&self.input]);
        leaves().for_each(|leaf| leaf.set_grad(None)); // of an earlier pass
        self.output.backward_from(&grad.to(self.output.device())?, true)?;
        let input = self.input.grad().map(|grad| grad.to(home)).transpose()?;
        let parameters = self.parameters.iter().map(Tensor::grad).collect();
        leaves().for_each(|leaf| leaf.set_grad(None));
        Ok((input, parameters))
    }
}

/// Computes a layer by its parts, at the same time. The input is on any device; the output is there too.
pub(super) fn compute<M: Module + Clone>(
    layer: &'static str,
    parts: &[M],
    input: &Tensor,
    taken: Parted,
    given: Parted,
) -> Result<Tensor> {
    let (devices, home) = (devices(parts), input.device().clone());
    let inputs = taken.split(&input.detach(), parts.len())?;
    let has_gradient = input.is_tracked();
    let (locals, outputs): (Vec<Local>, Vec<Tensor>) = at_once(&devices, |i| {
        let local = Local::forward(&parts[i], &inputs[i], has_gradient, &devices[i])?;
        let output = local.output.detach().to(&home)?;
        Ok((local, output))
    })?
    .into_iter()
    .unzip();
    let output = given.join(&outputs)?;
    let parameters: Vec<Tensor> = parts.iter().flat_map(Module::parameters).collect();
    let tracked: Vec<&Tensor> = [input].into_iter().chain(&parameters).collect();
    // One backward pass at a time: they use the same leaves.
    let locals = Arc::new(Mutex::new(locals));
    let backward = move |b: &crate::Backward| {
        let locals = lock(&locals);
        let grads = given.split(b.grad(), locals.len())?;
        let home = b.inputs()[0].device();
        let all = at_once(&devices, |i| locals[i].backward(&grads[i], home))?;
        let (inputs, parameters): (Vec<Option<Tensor>>, Vec<Vec<Option<Tensor>>>) = all.into_iter().unzip();
        let inputs: Option<Vec<Tensor>> = inputs.into_iter().collect();
        let input = inputs.map(|inputs| taken.join(&inputs)).transpose()?;
        Ok([input].into_iter().chain(parameters.into_iter().flatten()).collect())
    };
    attached(layer, &tracked, output, Box::new(backward))
}

/// Runs `work` for each part. If the parts are on several devices, each has a thread, because submits to a software
/// adapter and reads block until earlier work is done. Errors have the device's name.
fn at_once<T: Send>(devices: &[Device], work: impl Fn(usize) -> Result<T> + Sync) -> Result<Vec<T>> {
    let run = |i: usize| on_device(&devices[i], || work(i));
    if !THREADS || devices.windows(2).all(|pair| pair[0] == pair[1]) {
        return (0..devices.len()).map(run).collect();
    }
    thread::scope(|scope| {
        let start = |i: usize| {
            let context = Context::current();
            let thread = Builder::new().name(format!("anygpu {}", devices[i]));
            let thread = thread.spawn_scoped(scope, move || context.run(|| run(i)));
            thread.map_err(|error| not_started(&devices[i], &error))
        };
        let others: Vec<_> = (1..devices.len()).map(start).collect();
        let first = run(0);
        let join = |(i, thread): (usize, Result<thread::ScopedJoinHandle<Result<T>>>)| match thread?.join() {
            Ok(result) => result,
            Err(_) => Err(Error::internal(format!("a thread for {} panicked", devices[i + 1]))),
        };
        // All of them, before the first error is returned.
        let others: Vec<Result<T>> = others.into_iter().enumerate().map(join).collect();
        [first].into_iter().chain(others).collect()
    })
}
