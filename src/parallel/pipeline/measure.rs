//! Measures what the layers of a net take on each device, and cuts the net by that.

use std::collections::HashMap;

use web_time::Instant;

use super::Pipeline;
use super::cut::{Costs, cut_points};
use crate::device::{Device, DeviceKind};
use crate::error::{Error, Result};
use crate::nn::{Module, Sequential};
use crate::parallel::replica::Replica;
use crate::philox::Stream;
use crate::process_group::ProcessGroup;
use crate::tensor::Tensor;
use crate::util::units;

/// The number of measured runs of a layer, of which the fastest counts. One run before them compiles the kernels.
const RUNS: usize = 3;

impl Pipeline {
    /// Cuts a net into stages for these devices, in their order: neighbouring layers of the [`Sequential`] form a
    /// stage.
    ///
    /// `example` has the shape of a micro-batch. The layers are measured with it one by one on each device, forward and
    /// backward.
    ///
    /// The cut makes the slowest stage as fast as possible, including the time to move its input, its output and their
    /// gradients. It respects the memory of each device where that is [known](Device::driver_memory). The memory holds
    /// the parameters with their gradients and two tensors of optimiser state, and the activations of as many
    /// micro-batches as [`OneForwardOneBackward`](super::PipelineSchedule::OneForwardOneBackward) keeps. `cpu` and
    /// software adapters share the host's memory, and each of them gets an equal part of it.
    ///
    /// A device gets no stage if the pipeline would be slower with it. [`devices`](Pipeline::devices) returns the
    /// devices with a stage, and the log names the others. Times are measured, so repeated calls may cut in different
    /// places. The values and running statistics of `net` and the random generator are not changed.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if there are no devices or no layers, or if no cut fits into the devices' memory; the
    /// errors of [`new`](Pipeline::new); errors of the layers.
    ///
    /// ```
    /// use anygpu::{Device, Pipeline, Tensor, nn::models::lenet};
    ///
    /// let devices = [Device::new("cpu/0")?, Device::new("cpu/1")?];
    /// let net = Pipeline::cut(lenet()?, &devices, &Tensor::rand([4, 1, 28, 28], None)?)?;
    /// assert!((1..=2).contains(&net.devices().len()));
    /// assert_eq!(net.predict(&Tensor::rand([8, 1, 28, 28], None)?)?.shape(), [8, 10]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn cut(net: Sequential, devices: &[Device], example: &Tensor) -> Result<Pipeline> {
        let mut whole = Sequential::new();
        net.into_layers()?.into_iter().try_for_each(|(name, layer)| whole.append(&name, layer))?;
        if devices.is_empty() || whole.is_empty() {
            let detail = format!("{} devices and {} layers: both must be at least 1", devices.len(), whole.len());
            return Err(Error::argument("Pipeline::cut", detail));
        }
        let costs = measure(&whole, devices, example)?;
        let Some(cut) = cut_points(&costs) else { return Err(does_not_fit(&costs, devices)) };
        let (ranges, used): (Vec<_>, Vec<Device>) =
            cut.into_iter().zip(devices).filter(|(range, _)| !range.is_empty()).map(|(r, d)| (r, d.clone())).unzip();
        for device in devices.iter().filter(|device| !used.contains(device)) {
            log::info!("{device} has no stage: the pipeline would be slower with it");
        }
        Pipeline::of_parts(whole, ranges, &used)
    }
}

fn does_not_fit(costs: &Costs, devices: &[Device]) -> Error {
    let sum = |sizes: &[u64]| units::bytes(sizes.iter().sum());
    let (parameters, activations) = (sum(&costs.parameters), sum(&costs.activations));
    let limit = |(device, limit): (&Device, &Option<u64>)| match limit {
        Some(limit) => format!("{device} {}", units::bytes(*limit)),
        None => format!("{device} an unknown amount"),
    };
    let limits: Vec<String> = devices.iter().zip(&costs.limits).map(limit).collect();
    let detail = format!(
        "no cut fits: the parameters take {parameters} (four times that with gradients and optimiser state), and activations \
         of a micro-batch take {activations}. Free memory: {}. Use more devices, or an example with fewer samples",
        limits.join(", ")
    );
    Error::argument("Pipeline::cut", detail)
}

/// The output and the costs of a layer on one device.
struct Measured {
    seconds: f64,
    transfer: f64,
    activations: u64,
    /// On the host.
    output: Tensor,
}

/// Measures all layers on all devices. One layer is on one device at a time, so that the net may be larger than any of them.
fn measure(net: &Sequential, devices: &[Device], example: &Tensor) -> Result<Costs> {
    let mut costs = Costs {
        compute: vec![Vec::new(); devices.len()],
        transfer: vec![Vec::new(); devices.len()],
        parameters: Vec::new(),
        activations: Vec::new(),
        limits: limits(devices),
    };
    let mut input = example.detach().cpu()?;
    for (i, (name, layer)) in net.iter().enumerate() {
        let (mut output, mut activations, mut refused) = (None, 0, None);
        for (d, device) in devices.iter().enumerate() {
            let measured = match measure_layer(layer, device, &input, i > 0) {
                Ok(measured) => measured,
                Err(error) if error.is_for_less_memory() => {
                    costs.compute[d].push(f64::INFINITY);
                    costs.transfer[d].push(0.0);
                    refused = Some(error);
                    continue;
                }
                Err(error) => return Err(error.at_layer(name)),
            };
            costs.compute[d].push(measured.seconds);
            costs.transfer[d].push(measured.transfer);
            activations = measured.activations.max(activations);
            output.get_or_insert(measured.output);
        }
        let none = || refused.unwrap_or_else(|| Error::internal("no device has measured a layer"));
        input = output.ok_or_else(none)?;
        costs.parameters.push(layer.parameters().iter().map(bytes).sum());
        costs.activations.push(activations);
    }
    Ok(costs)
}

fn measure_layer(layer: &dyn Module, device: &Device, input: &Tensor, has_gradient: bool) -> Result<Measured> {
    let replica = Replica::new(layer, device)?; // its buffers are its own
    replica.net.train();
    let samples = input.shape().first().copied().unwrap_or(1);
    let (mut seconds, mut transfer, mut activations, mut output) = (f64::INFINITY, f64::INFINITY, 0, None);
    for run in 0..=RUNS {
        // Layers draw from a stream of their own, so that the process's generator stays where it is.
        let rank = ProcessGroup::in_turn(vec![samples], Stream { seed: 0, first: 0 }, None).ranks().next();
        let rank = rank.ok_or_else(|| Error::internal("a group without a rank"))?;
        let start = Instant::now();
        let x = input.to(device)?;
        let x = if has_gradient && x.dtype().is_float() { x.requires_grad() } else { x };
        drop(x.detach().cpu()?);
        let (moved, before) = (start.elapsed().as_secs_f64(), device.memory().live);
        let start = Instant::now();
        let y = rank.scope(|| replica.net.forward(&x))?;
        activations = device.memory().live.saturating_sub(before).max(activations).max(bytes(&y));
        if y.is_tracked() {
            y.backward_from(&y.detach().ones_like()?, false)?;
        }
        device.synchronize()?;
        replica.zero_grad();
        if run > 0 {
            (seconds, transfer) = (seconds.min(start.elapsed().as_secs_f64()), transfer.min(moved));
        }
        output = Some(y);
    }
    let output = output.ok_or_else(|| Error::internal("a layer was not run"))?.detach().cpu()?;
    Ok(Measured { seconds, transfer, activations, output })
}

fn bytes(tensor: &Tensor) -> u64 {
    4 * tensor.dtype().words(tensor.elem_count()) as u64
}

/// Returns the bytes that each device has for the net, where that is known.
fn limits(devices: &[Device]) -> Vec<Option<u64>> {
    let on_host = |device: &Device| device.is_cpu() || device.info().kind == DeviceKind::Software;
    // Logical devices share the memory of one adapter.
    let memory = |device: &Device| match on_host(device) {
        true => "cpu".to_owned(),
        false => device.name().split('/').next().unwrap_or_default().to_owned(),
    };
    let mut sharers: HashMap<String, u64> = HashMap::new();
    devices.iter().for_each(|device| *sharers.entry(memory(device)).or_default() += 1);
    let limit = |device: &Device| {
        let known = if on_host(device) { Device::cpu().driver_memory() } else { device.driver_memory() };
        Some(known?.free / sharers.get(&memory(device)).copied().unwrap_or(1).max(1))
    };
    devices.iter().map(limit).collect()
}
