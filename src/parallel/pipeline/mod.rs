//! Pipeline parallelism: the layers of one net on several devices.
//!
//! The gradients of micro-batches are added one tensor at a time.

mod calls;
mod cut;
mod exchange;
mod measure;
mod schedule;
mod stage;

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::dims::SampleDims;
use super::loss_check::LossCheck;
use super::replica::Replica;
use super::worker::Worker;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::nn::{KeyReport, Module, Sequential, StateDict, replacing};
use crate::optim::Parameters;
use crate::util::threads::THREADS;

pub use self::schedule::PipelineSchedule;

/// The default of [`Pipeline::with_micro_batches`], for each stage: the stages then idle for less than a fifth of a step.
const MICRO_BATCHES_PER_STAGE: usize = 4;
/// The default of [`Pipeline::with_time_limit`].
const TIME_LIMIT: Duration = Duration::from_secs(600);

/// A net whose layers are on several devices, for nets that one device cannot hold.
///
/// The net is a chain of stages. Each stage is a [`Sequential`] on a device, with a thread of its own. A batch is split
/// into micro-batches: while a stage computes one of them, the next stage computes the one before. Activations and
/// gradients move between devices through the host. [`train_batch`](Pipeline::train_batch) adds the gradients of the
/// micro-batches, weighted by the number of samples. So a step equals one device's step over the whole batch, with any
/// number of micro-batches and either [`PipelineSchedule`]. Create one optimiser for the
/// [`parameters`](Pipeline::parameters), which are on all devices; it updates each parameter on its own device.
///
/// [`Pipeline::cut`] chooses the stages by measured time and by memory. Devices may be of any kind. A device may have
/// several stages.
///
/// **Losses.** All losses of [`nn`](crate::nn) give the loss of the whole batch, as in
/// [`DataParallel`](crate::DataParallel). A mean that ignores labels, weighs classes or counts the elements of a mask
/// depends on all micro-batches. From the first such loss on, all forward passes come before the first backward pass,
/// whatever the schedule. Every stage then keeps the activations of all micro-batches. A loss of your own that is not a
/// mean over samples is an error.
///
/// **Layers that depend on other samples.** Batch norm uses the statistics of a *micro-batch*, as in GPipe, and updates
/// its running statistics once for each micro-batch. Its results therefore depend on the number of micro-batches.
/// Dropout drops the same elements as on one device.
///
/// **Device failures.** If a device fails, the call ends with an error that names the device. The gradients are then
/// cleared, and the parameters are as they were. Some micro-batches may have updated running statistics. The layers of
/// a lost device are lost with it: create another pipeline and load a checkpoint.
///
/// # Example
/// ```
/// use anygpu::nn::{self, Linear, ReLU, Sequential};
/// use anygpu::{Device, Pipeline, Tensor, optim::Adam};
///
/// let first = Sequential::new().add("fc1", Linear::new(4, 32)?).add("relu", ReLU);
/// let second = Sequential::new().add("fc2", Linear::new(32, 3)?);
/// let net = Pipeline::new(vec![first, second], &[Device::new("cpu/0")?, Device::new("cpu/1")?])?.with_micro_batches(4)?;
/// let mut adam = Adam::new(net.parameters(), 0.05);
///
/// let (x, y) = (Tensor::rand([12, 4], None)?, Tensor::from_slice(&[0u32, 1, 2].repeat(4), 12, None)?);
/// let first = net.train_batch(&x, &y, nn::cross_entropy)?.item::<f32>()?;
/// for _ in 0..20 {
///     adam.step()?;
///     net.train_batch(&x, &y, nn::cross_entropy)?;
/// }
/// assert!(net.train_batch(&x, &y, nn::cross_entropy)?.item::<f32>()? < first);
/// assert_eq!(net.predict(&x)?.shape(), [12, 3]);
/// # Ok::<(), anygpu::Error>(())
/// ```
pub struct Pipeline {
    /// All layers in one net, with the tensors of the stages.
    net: Sequential,
    /// The layers of each stage.
    ranges: Vec<Range<usize>>,
    /// Each stage on its device.
    stages: Vec<Replica>,
    /// The threads of the stages. A call holds this lock.
    workers: Mutex<Vec<Worker>>,
    micro_batches: usize,
    schedule: PipelineSchedule,
    time_limit: Duration,
    pub(super) dims: SampleDims,
    /// Whether the result of a loss function is a sum over samples, not a mean.
    summed: bool,
    /// Whether losses have been seen that depend on all micro-batches together.
    gathers: AtomicBool,
    loss_check: Arc<LossCheck>,
}

impl Pipeline {
    /// Creates a pipeline with copies of the stages: stage i on device i. A device may be listed several times.
    ///
    /// Layers have the same names as in one [`Sequential`], so checkpoints also fit the net on one device, and the
    /// reverse. A layer that was named by [`push`](Sequential::push) gets its index in the whole net. Other names stay.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if there are no stages, if there are not as many devices as stages, if layers of two
    /// stages have the same name, or if two stages share a parameter, which can be on one device only; the errors of
    /// opening the devices.
    ///
    /// ```
    /// use anygpu::nn::{Linear, ReLU, Sequential};
    /// use anygpu::{Device, Pipeline};
    ///
    /// let stage = || -> anygpu::Result<Sequential> { Ok(Sequential::new().push(Linear::new(4, 4)?).push(ReLU)) };
    /// let net = Pipeline::new(vec![stage()?, stage()?], &[Device::cpu(), Device::new("cpu/1")?])?;
    /// let state = net.state_dict();
    /// assert_eq!(state.names().collect::<Vec<_>>(), ["0.weight", "0.bias", "2.weight", "2.bias"]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn new(stages: Vec<Sequential>, devices: &[Device]) -> Result<Pipeline> {
        let (count, of_devices) = (stages.len(), devices.len());
        if count == 0 || count != of_devices {
            let detail = format!(
                "{count} stages and {of_devices} devices: there must be one device for each stage, and a stage"
            );
            return Err(Error::argument("Pipeline", detail));
        }
        let (mut net, mut ranges) = (Sequential::new(), Vec::new());
        for stage in stages {
            let start = net.len();
            for (i, (name, layer)) in stage.into_layers()?.into_iter().enumerate() {
                let name = if name == i.to_string() { (start + i).to_string() } else { name };
                net.append(&name, layer)?;
            }
            ranges.push(start..net.len());
        }
        Pipeline::of_parts(net, ranges, devices)
    }

    /// Creates a pipeline of the layers in `ranges` of a net, which follow one another.
    fn of_parts(mut net: Sequential, ranges: Vec<Range<usize>>, devices: &[Device]) -> Result<Pipeline> {
        if !THREADS {
            let detail = "it needs a thread for each stage, and a browser has no threads: use DataParallel there";
            return Err(Error::argument("Pipeline", detail));
        }
        let parts: Vec<Sequential> = ranges.iter().map(|range| net.part(range.clone())).collect();
        nothing_shared(&parts)?;
        let (mut stages, mut workers) = (Vec::new(), Vec::new());
        for (part, device) in parts.iter().zip(devices) {
            let replica = Replica::new(part, device)?;
            net.visit_mut(&mut replacing(&part.parameters(), &replica.net.parameters()));
            let buffers =
                |net: &dyn Module| net.named_buffers().into_iter().map(|(_, buffer)| buffer).collect::<Vec<_>>();
            net.visit_buffers_mut(&mut replacing(&buffers(part), &buffers(&*replica.net)));
            stages.push(replica);
            workers.push(Worker::start(device)?);
        }
        let (micro_batches, schedule) = (MICRO_BATCHES_PER_STAGE * stages.len(), PipelineSchedule::default());
        let workers = Mutex::new(workers);
        Ok(Pipeline {
            net,
            ranges,
            stages,
            workers,
            micro_batches,
            schedule,
            time_limit: TIME_LIMIT,
            dims: SampleDims::default(),
            summed: false,
            gathers: AtomicBool::new(false),
            loss_check: Arc::default(),
        })
    }

    /// Sets the number of micro-batches of a batch.
    ///
    /// The default is 4 per stage. Micro-batches have equal numbers of samples, as far as possible. A batch with fewer
    /// samples than that has one micro-batch per sample. With K stages and n micro-batches, a stage is idle for (K − 1)
    /// / (n + K − 1) of a step.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for 0.
    pub fn with_micro_batches(mut self, micro_batches: usize) -> Result<Pipeline> {
        if micro_batches == 0 {
            return Err(Error::argument("with_micro_batches", "a batch has at least one micro-batch, not 0"));
        }
        self.micro_batches = micro_batches;
        Ok(self)
    }

    /// Sets the order of the passes. The default is [`PipelineSchedule::OneForwardOneBackward`].
    ///
    /// ```
    /// use anygpu::nn::{Linear, Sequential};
    /// use anygpu::{Device, Pipeline, parallel::PipelineSchedule};
    ///
    /// let stage = Sequential::new().push(Linear::new(4, 4)?);
    /// let net = Pipeline::new(vec![stage], &[Device::cpu()])?.with_schedule(PipelineSchedule::GPipe);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    #[must_use]
    pub fn with_schedule(mut self, schedule: PipelineSchedule) -> Pipeline {
        self.schedule = schedule;
        self
    }

    /// Sets how long a call waits while no stage ends a pass of a micro-batch.
    ///
    /// After this time, the call ends with [`Error::Timeout`]. The default is 10 minutes. The first step includes the
    /// compilation of kernels.
    #[must_use]
    pub fn with_time_limit(mut self, limit: Duration) -> Pipeline {
        self.time_limit = limit;
        self
    }

    /// Treats the result of a loss function as a *sum* over samples, like
    /// [`DataParallel::with_summed_losses`](crate::DataParallel::with_summed_losses).
    #[must_use]
    pub fn with_summed_losses(mut self) -> Pipeline {
        self.summed = true;
        self
    }

    /// Returns the devices of the stages, in order.
    #[must_use]
    pub fn devices(&self) -> Vec<Device> {
        self.stages.iter().map(|stage| stage.device.clone()).collect()
    }

    /// Returns the stages, in order. They hold the pipeline's own tensors.
    ///
    /// ```
    /// use anygpu::nn::{Linear, ReLU, Sequential};
    /// use anygpu::{Device, Pipeline, Tensor};
    ///
    /// let net = Sequential::new().add("fc1", Linear::new(4, 8)?).add("relu", ReLU).add("fc2", Linear::new(8, 2)?);
    /// let devices = [Device::new("cpu/0")?, Device::new("cpu/1")?];
    /// let pipeline = Pipeline::cut(net, &devices, &Tensor::ones([4, 4], None)?)?;
    /// for (stage, device) in pipeline.stages().iter().zip(pipeline.devices()) {
    ///     println!("{device}: {:?}", stage.iter().map(|(name, _)| name).collect::<Vec<_>>());
    /// }
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    #[must_use]
    pub fn stages(&self) -> Vec<Sequential> {
        self.ranges.iter().map(|range| self.net.part(range.clone())).collect()
    }

    /// Returns all layers as one net, with the pipeline's own tensors on all of its devices, for checkpoints and
    /// initialisation.
    ///
    /// To compute, use [`predict`](Pipeline::predict). The returned net has its own modes: call
    /// [`keep_eval`](Module::keep_eval) on a layer before you create the pipeline.
    #[must_use]
    pub fn module(&self) -> &Sequential {
        &self.net
    }

    /// Returns the parameters of all stages, for the optimiser.
    #[must_use]
    pub fn parameters(&self) -> Parameters {
        self.net.parameters().into()
    }

    /// Returns the values of the net by name, as in one [`Sequential`] of all layers, on the devices of their stages.
    #[must_use]
    pub fn state_dict(&self) -> StateDict {
        self.net.state_dict()
    }

    /// Copies the values of the whole net, from any device, into the stages, like [`Module::load_state_dict`].
    ///
    /// # Errors
    /// The errors of [`Module::load_state_dict`]. [`Error::InvalidArgument`] if a loss function of
    /// [`train_batch`](Pipeline::train_batch) calls this.
    pub fn load_state_dict(&self, state: &StateDict, strict: bool) -> Result<KeyReport> {
        let (_workers, _in_call) = self.alone("load_state_dict")?;
        self.net.load_state_dict(state, strict)
    }

    /// Switches all stages to training mode; see [`Module::train`].
    pub fn train(&self) {
        self.net.train();
        self.stages.iter().for_each(|stage| stage.net.train());
    }

    /// Switches all stages to evaluation mode; see [`Module::eval`].
    pub fn eval(&self) {
        self.net.eval();
        self.stages.iter().for_each(|stage| stage.net.eval());
    }
}

/// Returns an error if two stages have the same parameter or buffer: the move to their devices would make two of it.
fn nothing_shared(parts: &[Sequential]) -> Result<()> {
    let mut places: HashMap<u64, (usize, String)> = HashMap::new();
    let mut shared = None;
    for (stage, part) in parts.iter().enumerate() {
        let mut look = |name: &str, tensor: &crate::Tensor| {
            let (first, other) = places.entry(tensor.id()).or_insert_with(|| (stage, name.to_owned()));
            if *first != stage {
                shared.get_or_insert_with(|| {
                    format!("{other} of stage {first} and {name} of stage {stage} are one tensor")
                });
            }
        };
        part.visit(&mut look);
        part.visit_buffers(&mut look);
    }
    let detail = shared.map(|what| format!("{what}, which can be on one device only: put both layers into one stage"));
    detail.map_or(Ok(()), |detail| Err(Error::argument("Pipeline", detail)))
}

/// Formats the names of the layers on each device.
impl fmt::Debug for Pipeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut list = f.debug_list();
        for (stage, device) in self.stages().iter().zip(self.devices()) {
            let names: Vec<&str> = stage.iter().map(|(name, _)| name).collect();
            list.entry(&format_args!("{device}: {}", names.join(", ")));
        }
        list.finish()
    }
}
