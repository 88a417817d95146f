use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};

use super::replica::{LocalGradients, Replica};
use super::shares::{Balance, Shares};
use super::worker::{Worker, wait_all};
use crate::context;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::nn::{KeyReport, Module, StateDict};
use crate::optim::Parameters;
use crate::process_group::ProcessGroup;
use crate::sync::lock;
use crate::tensor::{Tensor, generator, skip_blocks, weighted_sum};

/// The number of steps after which the first replica's parameters overwrite the others'. Each device rounds its own
/// updates, and this bounds the differences.
const STEPS_BETWEEN_BROADCASTS: u64 = 256;

/// A net on any mix of devices, trained with the same steps as on one device.
///
/// Each device has a replica of the net and, if there are several devices, a thread.
/// [`train_batch`](DataParallel::train_batch) splits the batch along its first dimension, one part per device.
/// Gradients are averaged *by the number of samples*, in the order of the devices, so the step equals that of one
/// device over the whole batch for any [`Shares`]. Create one optimiser for [`parameters`](DataParallel::parameters),
/// which are those of all replicas.
///
/// Training steps switch the net to training mode, predictions to evaluation mode ([`Module::train`],
/// [`Module::eval`]). Batch norm uses the statistics of the *whole* batch, like PyTorch's `SyncBatchNorm`, with two
/// short exchanges through the host for each such layer. Dropout drops the same elements as on one device.
///
/// With one device, there is no extra thread, and a step does not read anything back.
///
/// # Example
/// ```
/// use anygpu::{DataParallel, Device, Tensor, nn, optim::SGD};
///
/// let net = nn::Sequential::new().add("fc", nn::Linear::new(4, 3)?);
/// let net = DataParallel::new(net, &[anygpu::try_gpu(0)])?; // or several
/// let mut sgd = SGD::new(net.parameters(), 0.5);
///
/// let (x, y) = (Tensor::rand([12, 4], None)?, Tensor::from_slice(&[0u32, 1, 2].repeat(4), 12, None)?);
/// let first = net.train_batch(&x, &y, nn::cross_entropy)?.item::<f32>()?;
/// for _ in 0..20 {
///     sgd.step()?;
///     net.train_batch(&x, &y, nn::cross_entropy)?;
/// }
/// assert!(net.train_batch(&x, &y, nn::cross_entropy)?.item::<f32>()? < first);
/// assert_eq!(net.predict(&x)?.shape(), [12, 3]);
/// # Ok::<(), anygpu::Error>(())
/// ```
pub struct DataParallel {
    pub(super) replicas: Vec<Replica>,
    /// One per replica; empty if there is only one replica.
    pub(super) workers: Vec<Worker>,
    /// The number of steps. A step, a prediction and a loading hold this lock, one at a time.
    steps: Mutex<u64>,
    /// Locked for moments only, so that the shares can be read during a step.
    pub(super) balance: Mutex<Balance>,
}

impl DataParallel {
    /// Creates replicas of `net` on `devices`, with [`Shares::Measured`].
    ///
    /// A device has one replica. For several on one adapter or on the CPU, as in tests of code for several devices, use
    /// logical devices: `soft:0/0` and `soft:0/1`, `cpu/0` and `cpu/1`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if `devices` is empty or contains a device twice; those of opening the devices.
    ///
    /// ```
    /// use anygpu::{DataParallel, Device, nn::Linear};
    ///
    /// let net = DataParallel::new(Linear::new(4, 3)?, &[Device::new("cpu/0")?, Device::new("cpu/1")?])?;
    /// assert_eq!(net.devices().len(), 2);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn new(net: impl Module + 'static, devices: &[Device]) -> Result<DataParallel> {
        if devices.is_empty() {
            return Err(Error::argument("DataParallel", "needs at least one device"));
        }
        if let Some((i, twice)) = devices.iter().enumerate().find(|(i, device)| devices[..*i].contains(device)) {
            return Err(Error::argument("DataParallel", listed_twice(devices, i, twice)));
        }
        let replicas = devices.iter().map(|device| Replica::new(&net, device)).collect::<Result<Vec<_>>>()?;
        let workers = match devices {
            [_] => Vec::new(),
            several => several.iter().map(Worker::start).collect::<Result<_>>()?,
        };
        let balance = Mutex::new(Balance::new(Shares::default(), devices.len())?);
        Ok(DataParallel { replicas, workers, steps: Mutex::new(0), balance })
    }

    /// Sets how batches are split. The default is by measured speed.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] unless fixed shares are one positive number per device.
    pub fn with_shares(self, shares: Shares) -> Result<DataParallel> {
        let devices = self.replicas.len();
        *lock(&self.balance) = Balance::new(shares, devices)?;
        Ok(self)
    }

    /// Returns the fraction of the next batch that each device gets. They add up to 1.
    pub fn shares(&self) -> Vec<f64> {
        lock(&self.balance).weights()
    }

    /// Returns the devices, in order.
    pub fn devices(&self) -> Vec<Device> {
        self.replicas.iter().map(|replica| replica.device.clone()).collect()
    }

    /// Returns the replica of the first device that is not lost.
    pub fn module(&self) -> &dyn Module {
        &*self.living().net
    }

    /// Returns the replica of the first device that is not lost, or the first replica if all are.
    fn living(&self) -> &Replica {
        self.replicas.iter().find(|replica| !replica.device.is_lost()).unwrap_or(&self.replicas[0])
    }

    /// Starts a call that no other call may be in the middle of, until the guards are dropped.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if this thread works for such a call.
    pub(super) fn alone(&self, call: &'static str) -> Result<(MutexGuard<'_, u64>, impl Drop + use<>)> {
        let me = std::ptr::from_ref(self).addr();
        let mut nets = context::read(|context| context.nets.clone());
        if nets.contains(&me) {
            let detail = "called by a loss function or a layer of the same DataParallel, while that is in the middle of \
                          a call: use the arguments of the loss function, or another DataParallel";
            return Err(Error::argument(call, detail));
        }
        nets.push(me);
        let guard = lock(&self.steps);
        Ok((guard, context::set(|context| &mut context.nets, nets)))
    }

    /// Returns the parameters of all replicas for the optimiser, the first device's first.
    pub fn parameters(&self) -> Parameters {
        Parameters::of_replicas(self.replicas.iter().map(|replica| &*replica.parameters))
    }

    /// Returns the values of one replica by name, without the prefix `module.`: of the first one whose device is not
    /// lost. The parameters of the other replicas differ only by rounding; their buffers may differ.
    pub fn state_dict(&self) -> StateDict {
        self.module().state_dict()
    }

    /// Like [`Module::load_state_dict`], for every replica.
    ///
    /// # Errors
    /// Same as [`Module::load_state_dict`]. If a device fails after others got the values, the replicas differ: load
    /// again. [`Error::InvalidArgument`] if it is called by a loss function of [`train_batch`](DataParallel::train_batch).
    pub fn load_state_dict(&self, state: &StateDict, strict: bool) -> Result<KeyReport> {
        let _alone = self.alone("load_state_dict")?;
        let report = self.replicas[0].net.load_state_dict(state, strict)?;
        self.replicas[1..].iter().try_for_each(|other| other.net.load_state_dict(state, strict).map(|_| ()))?;
        Ok(report)
    }

    /// Computes the forward and backward pass of one step over all devices. Takes `images: [N, ..]`, `labels: [N, ..]`
    /// and a loss function that returns a *mean* over samples. Afterwards, every replica's parameters have the gradient
    /// of the whole batch. Earlier gradients are cleared. Call the optimiser's `step()` next.
    ///
    /// Returns the loss of the whole batch as a scalar. With one device, it is on that device and the call does not
    /// wait for it. With several, it is on `cpu`.
    ///
    /// # Errors
    /// - [`Error::ShapeMismatch`] unless there are as many labels as images; [`Error::InvalidArgument`] for an empty
    ///   batch, and if the loss function calls this method, [`predict`](DataParallel::predict) or another one that
    ///   computes with this net.
    /// - With several devices, [`Error::Replica`] or [`Error::WorkerPanic`] with the name of the device that failed.
    /// - [`Error::DeviceLost`], also within [`Error::Replica`], for a device that is lost. With one device, a loss in
    ///   the middle of a step is reported by the first call that waits for the step.
    ///
    /// On error, all gradients are cleared, and all replicas get the buffers of the first device that is not lost, so
    /// that they stay equal.
    pub fn train_batch<F>(&self, images: &Tensor, labels: &Tensor, loss_fn: F) -> Result<Tensor>
    where
        F: Fn(&Tensor, &Tensor) -> Result<Tensor> + Send + Sync + 'static,
    {
        let samples = samples(images, labels)?;
        let (mut steps, _in_call) = self.alone("train_batch")?;
        let loss = match self.replicas.as_slice() {
            [only] => only.backward(images, labels, loss_fn),
            _ => self.train_split(images, labels, samples, Arc::new(loss_fn), &mut steps),
        };
        if loss.is_err() {
            self.replicas.iter().for_each(Replica::zero_grad);
            // Some replicas may have updated their running statistics before another failed. Errors are ignored: the
            // buffers of a device that cannot be reached stay unchanged.
            let source = self.living();
            let others = self.replicas.iter().filter(|other| other.device != source.device);
            others.for_each(|other| drop(other.copy_buffers_from(source)));
        }
        loss
    }

    fn train_split<F>(
        &self,
        images: &Tensor,
        labels: &Tensor,
        samples: usize,
        loss_fn: Arc<F>,
        steps: &mut u64,
    ) -> Result<Tensor>
    where
        F: Fn(&Tensor, &Tensor) -> Result<Tensor> + Send + Sync + 'static,
    {
        if *steps > 0 && steps.is_multiple_of(STEPS_BETWEEN_BROADCASTS) {
            self.on_all(
                |replica, first| if replica.device == first.device { Ok(()) } else { replica.copy_from(first) },
            )?;
        }
        *steps += 1;

        let sizes = lock(&self.balance).sizes(samples);
        let (images, labels) = (images.split_sizes(&sizes, 0)?, labels.split_sizes(&sizes, 0)?);
        let busy: Vec<usize> = (0..sizes.len()).filter(|&i| sizes[i] > 0).collect();
        let group = ProcessGroup::new(busy.iter().map(|&i| sizes[i]).collect(), generator());
        let jobs = busy.iter().zip(group.ranks()).map(|(&i, rank)| {
            let (replica, images, labels) = (self.replicas[i].clone(), images[i].clone(), labels[i].clone());
            let loss_fn = loss_fn.clone();
            self.workers[i].submit(move || rank.scope(|| replica.local_gradients(&images, &labels, &*loss_fn)))
        });
        let parts = wait_all(jobs.collect())?;
        skip_blocks(group.drawn());
        self.copy_buffers_to_idle(&sizes)?;
        let mut balance = lock(&self.balance);
        busy.iter().zip(&parts).for_each(|(&i, part)| balance.record(i, sizes[i], part.seconds));
        drop(balance);

        let shares: Vec<f64> = busy.iter().map(|&i| sizes[i] as f64 / samples as f64).collect();
        let mean = Arc::new(mean(parts, &shares)?);
        let set = mean.clone();
        self.on_all(move |replica, _| replica.set_gradients(&set))?;
        mean.loss()
    }

    /// Copies the buffers of a replica that had samples to those that had none in this step.
    fn copy_buffers_to_idle(&self, sizes: &[usize]) -> Result<()> {
        let Some(source) = sizes.iter().position(|&size| size > 0) else { return Ok(()) };
        let mut idle = (0..sizes.len()).filter(|&i| sizes[i] == 0);
        idle.try_for_each(|i| self.replicas[i].copy_buffers_from(&self.replicas[source]))
    }

    /// Runs `work(replica, first replica)` on all threads concurrently and waits for them.
    fn on_all(&self, work: impl Fn(&Replica, &Replica) -> Result<()> + Clone + Send + 'static) -> Result<()> {
        let start = |(worker, replica): (&Worker, &Replica)| {
            let (work, replica, first) = (work.clone(), replica.clone(), self.replicas[0].clone());
            worker.submit(move || work(&replica, &first))
        };
        wait_all(self.workers.iter().zip(&self.replicas).map(start).collect()).map(|_| ())
    }
}

/// Returns why a device that is listed twice is refused, with devices that can be listed instead.
fn listed_twice(devices: &[Device], position: usize, twice: &Device) -> String {
    let times = devices.iter().filter(|device| *device == twice).count();
    let base = twice.name().split('/').next().unwrap_or_default();
    let logical: Vec<String> = (0..times).map(|i| format!("Device::new(\"{base}/{i}\")?")).collect();
    format!(
        "device {twice} occurs again at position {position}, and a device has one replica. List it once, as \
         try_all_gpus() does, or list its logical devices: {}",
        logical.join(", ")
    )
}

/// Returns the number of samples of a batch.
fn samples(images: &Tensor, labels: &Tensor) -> Result<usize> {
    match (images.shape().first(), labels.shape().first()) {
        (Some(0), Some(0)) => Err(Error::argument("train_batch", "the batch is empty")),
        (Some(&images), Some(&labels)) if images == labels => Ok(images),
        _ => {
            let rule = "there must be as many labels as images: the first dimensions must be equal";
            Err(Error::shapes("train_batch", images.shape(), labels.shape(), rule))
        }
    }
}

/// Returns the mean of gradients and losses, weighted by the shares, computed in order.
fn mean(parts: Vec<LocalGradients>, shares: &[f64]) -> Result<LocalGradients> {
    let flat: Vec<Tensor> = parts.iter().map(|part| part.bucket.flat().clone()).collect();
    let sum = weighted_sum(&flat, Some(shares))?;
    let any = |mut all: LocalGradients, part: LocalGradients| {
        all.present.iter_mut().zip(part.present).for_each(|(any, present)| *any |= present);
        LocalGradients { seconds: all.seconds.max(part.seconds), ..all }
    };
    let all = parts.into_iter().reduce(any).ok_or_else(|| Error::argument("train_batch", "no device has samples"))?;
    Ok(LocalGradients { bucket: all.bucket.with_flat(sum), ..all })
}

/// Formats the devices and their shares.
impl fmt::Debug for DataParallel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.replicas.iter().map(|replica| replica.device.name()).collect();
        f.debug_struct("DataParallel").field("devices", &names).field("shares", &self.shares()).finish_non_exhaustive()
    }
}
