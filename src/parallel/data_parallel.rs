use std::fmt;
use std::ops::DerefMut;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::gradient_buckets::BucketPlan;
use super::members::{Member, State};
use super::reducer::Reducer;
use super::replica::Replica;
use super::shares::{Balance, Shares};
use crate::context;
use crate::device::Device;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::nn::{KeyReport, Module, StateDict};
use crate::optim::Parameters;
use crate::sync::lock;
use crate::tensor::{Bucket, Tensor};

/// The size of a bucket of gradients: large enough for the speed of a link, and small enough that the last one, for which nothing
/// is left to compute, takes little time.
const BUCKET_BYTES: usize = 4 << 20;
/// The default of [`DataParallel::with_time_limit`].
const TIME_LIMIT: Duration = Duration::from_secs(600);

/// A net on any mix of devices, trained with the same steps as on one device.
///
/// Each device has a replica of the net and, if there are several devices, a thread.
/// [`train_batch`](DataParallel::train_batch) splits the batch along its first dimension, one part per device.
/// Gradients are averaged *by the number of samples*, in the order of the devices, so the step equals that of one
/// device over the whole batch for any [`Shares`]. Create one optimiser for [`parameters`](DataParallel::parameters).
///
/// Training steps switch the net to training mode, predictions to evaluation mode ([`Module::train`],
/// [`Module::eval`]). Batch norm uses the statistics of the *whole* batch, like PyTorch's `SyncBatchNorm`, with two
/// short exchanges through the host for each such layer. Dropout drops the same elements as on one device.
///
/// # With several devices
///
/// The values that are trained are on the host: the parameters, the buffers and the optimiser's state. Each replica gets copies
/// of the parameters before it computes, so that all replicas have the same bits, whatever their devices round. Gradients come
/// back in [buckets](DataParallel::with_bucket_bytes) while backward goes on, and are averaged on the host meanwhile.
///
/// **Devices may fail.** If a device is lost, its driver reports an error, a panic ends its part of a step, or it does not end it
/// [in time](DataParallel::with_time_limit), the step is repeated on the other devices, from the same values: the results are
/// those of a run without the failure, and a warning is logged. The device is then [left out](DataParallel::left_out) until it
/// [rejoins](DataParallel::rejoin). A device that runs out of memory gets smaller shares first.
///
/// With one device, there is no extra thread and no copy on the host, and a step does not read anything back.
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
    /// What is trained: on the host if there are several devices, otherwise the only replica.
    pub(super) host: Replica,
    /// A step, a prediction and a loading hold this lock, one at a time.
    state: Mutex<State>,
    /// Locked for moments only, so that it can be read during a step.
    pub(super) roster: Mutex<Roster>,
    plan: Arc<BucketPlan>,
    /// The format in which gradients travel.
    pub(super) wire: DType,
}

/// What other threads may ask about the devices.
pub(super) struct Roster {
    pub(super) devices: Vec<Device>,
    pub(super) nets: Vec<Arc<dyn Module>>,
    /// Why devices are left out.
    pub(super) left_out: Vec<Option<Error>>,
    pub(super) balance: Balance,
    pub(super) time_limit: Duration,
}

impl Roster {
    /// Replaces the replica of a device that takes part again.
    pub(super) fn set_member(&mut self, index: usize, replica: &Replica) {
        (self.devices[index], self.nets[index]) = (replica.device.clone(), replica.net.clone());
        self.left_out[index] = None;
        self.balance.take_in(index);
    }

    /// Returns the error for a call when all devices are left out.
    pub(super) fn all_out(&self) -> Error {
        let first = self.left_out.iter().flatten().next().cloned();
        first.unwrap_or_else(|| Error::internal("no device takes part"))
    }
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
        let (host, members) = match devices {
            [only] => (Replica::new(&net, only)?, Vec::new()),
            several => {
                let host = Replica::new(&net, &Device::cpu())?;
                let members = several.iter().map(|device| Member::new(&host, device)).collect::<Result<Vec<_>>>()?;
                (host, members)
            }
        };
        let nets = members.iter().map(|member| member.replica.net.clone()).collect();
        let balance = Balance::new(Shares::default(), devices.len())?;
        let left_out = vec![None; devices.len()];
        let roster = Roster { devices: devices.to_vec(), nets, left_out, balance, time_limit: TIME_LIMIT };
        let plan = BucketPlan::new(&host.trained(), BUCKET_BYTES).into();
        let state = Mutex::new(State { steps: 0, members });
        Ok(DataParallel { host, state, roster: Mutex::new(roster), plan, wire: DType::F32 })
    }

    /// Sets how batches are split. The default is by measured speed.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] unless fixed shares are one positive number per device.
    pub fn with_shares(self, shares: Shares) -> Result<DataParallel> {
        let mut roster = lock(&self.roster);
        roster.balance = Balance::new(shares, roster.devices.len())?;
        drop(roster);
        Ok(self)
    }

    /// Sets the size in bytes of the buckets in which gradients are read from several devices: 4 MiB if this is not called. A
    /// bucket is read while backward computes the next ones. A gradient larger than this is a bucket of its own. The results do
    /// not depend on it.
    ///
    /// ```
    /// # use anygpu::{DataParallel, Device, nn::Linear};
    /// let devices = [Device::new("cpu/0")?, Device::new("cpu/1")?];
    /// let net = DataParallel::new(Linear::new(4, 3)?, &devices)?.with_bucket_bytes(1 << 20);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    #[must_use]
    pub fn with_bucket_bytes(mut self, bytes: usize) -> DataParallel {
        self.plan = BucketPlan::new(&self.host.trained(), bytes).into();
        self
    }

    /// Sets how long a device may take for its part of a step or a prediction, before the call is repeated without it: 10
    /// minutes if this is not called. The first step includes the compilation of kernels. Has no effect with one device.
    ///
    /// ```
    /// # use anygpu::{DataParallel, Device, nn::Linear};
    /// use std::time::Duration;
    ///
    /// let devices = [Device::new("cpu/0")?, Device::new("cpu/1")?];
    /// let net = DataParallel::new(Linear::new(4, 3)?, &devices)?.with_time_limit(Duration::from_secs(60));
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    #[must_use]
    pub fn with_time_limit(self, limit: Duration) -> DataParallel {
        lock(&self.roster).time_limit = limit;
        self
    }

    /// Returns the fraction of the next batch that each device gets: 0 for one that is left out. They add up to 1.
    pub fn shares(&self) -> Vec<f64> {
        lock(&self.roster).balance.weights()
    }

    /// Returns the devices, in order.
    pub fn devices(&self) -> Vec<Device> {
        lock(&self.roster).devices.clone()
    }

    /// Returns the net that is trained: on the host if there are several devices, otherwise on the device. To compute with it is
    /// not to compute on several devices: see [`predict`](DataParallel::predict).
    pub fn module(&self) -> &dyn Module {
        &*self.host.net
    }

    /// Starts a call that no other call may be in the middle of, until the guards are dropped.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if this thread works for such a call.
    pub(super) fn alone(
        &self,
        call: &'static str,
    ) -> Result<(impl DerefMut<Target = State> + use<'_>, impl Drop + use<>)> {
        let me = std::ptr::from_ref(self).addr();
        let mut nets = context::read(|context| context.nets.clone());
        if nets.contains(&me) {
            let detail = "called by a loss function or a layer of the same DataParallel, while that is in the middle of \
                          a call: use the arguments of the loss function, or another DataParallel";
            return Err(Error::argument(call, detail));
        }
        nets.push(me);
        let guard = lock(&self.state);
        Ok((guard, context::set(|context| &mut context.nets, nets)))
    }

    /// Returns the parameters for the optimiser: those of [`module`](DataParallel::module). After a step, they have the gradients.
    pub fn parameters(&self) -> Parameters {
        self.host.parameters.to_vec().into()
    }

    /// Returns the values of the net by name, without the prefix `module.`.
    pub fn state_dict(&self) -> StateDict {
        self.module().state_dict()
    }

    /// Like [`Module::load_state_dict`], for every replica.
    ///
    /// # Errors
    /// Same as [`Module::load_state_dict`]. [`Error::InvalidArgument`] if it is called by a loss function of
    /// [`train_batch`](DataParallel::train_batch).
    pub fn load_state_dict(&self, state: &StateDict, strict: bool) -> Result<KeyReport> {
        let (mut members, _in_call) = self.alone("load_state_dict")?;
        for member in &mut members.members {
            member.buffers = false;
            member.replica.feedback.clear();
        }
        self.host.net.load_state_dict(state, strict)
    }

    /// Computes the forward and backward pass of one step over all devices. Takes `images: [N, ..]`, `labels: [N, ..]`
    /// and a loss function that returns a *mean* over samples. Afterwards, the [`parameters`](DataParallel::parameters) have the
    /// gradient of the whole batch. Earlier gradients are cleared. Call the optimiser's `step()` next.
    ///
    /// Returns the loss of the whole batch as a scalar. With one device, it is on that device and the call does not
    /// wait for it. With several, it is on `cpu`.
    ///
    /// # Errors
    /// - [`Error::ShapeMismatch`] unless there are as many labels as images; [`Error::InvalidArgument`] for an empty
    ///   batch, and if the loss function calls this method, [`predict`](DataParallel::predict) or another one that
    ///   computes with this net.
    /// - With several devices, [`Error::Replica`] or [`Error::WorkerPanic`] with the name of the device that failed, if the
    ///   failure is not one of a device, or all devices fail.
    /// - With one device, [`Error::DeviceLost`] if it is lost. A loss in the middle of a step is reported by the first call that
    ///   waits for the step.
    ///
    /// On error, all gradients are cleared. With several devices, parameters and buffers are as they were.
    pub fn train_batch<F>(&self, images: &Tensor, labels: &Tensor, loss_fn: F) -> Result<Tensor>
    where
        F: Fn(&Tensor, &Tensor) -> Result<Tensor> + Send + Sync + 'static,
    {
        let samples = samples(images, labels)?;
        let (mut state, _in_call) = self.alone("train_batch")?;
        let loss = match state.members.is_empty() {
            true => self.host.backward(images, labels, loss_fn),
            false => self.train_split(&mut state, images, labels, samples, Arc::new(loss_fn)),
        };
        if loss.is_err() {
            self.host.zero_grad();
        }
        loss
    }

    fn train_split<F>(
        &self,
        state: &mut State,
        images: &Tensor,
        labels: &Tensor,
        samples: usize,
        loss_fn: Arc<F>,
    ) -> Result<Tensor>
    where
        F: Fn(&Tensor, &Tensor) -> Result<Tensor> + Send + Sync + 'static,
    {
        self.host.zero_grad();
        self.take_in_reopened(state);
        let (present, buffers, block, loss, residuals) = self.with_survivors(state, samples, |state, sizes| {
            let shares: Vec<f64> = sizes.iter().filter(|&&n| n > 0).map(|&n| n as f64 / samples as f64).collect();
            let shares: Arc<[f64]> = shares.into();
            let mut reducer = Reducer::new(&self.plan, &shares)?;
            let (plan, loss_fn, wire) = (self.plan.clone(), loss_fn.clone(), self.wire);
            let work = move |replica: &Replica, part: super::members::Part| {
                let [images, labels] = &part.inputs[..] else { return Err(Error::internal("a part has two inputs")) };
                let wire = replica.feedback.wire(wire, shares[part.rank]);
                let step = replica.local_gradients(images, labels, &*loss_fn, &plan, wire, part.deliver)?;
                // All ranks have updated their buffers alike.
                let buffers = if part.rank == 0 { replica.buffers_on_host()? } else { Vec::new() };
                Ok((step, buffers))
            };
            let take = |rank, bucket, part| reducer.take(rank, bucket, part);
            let parts = self.attempt(state, sizes, &[images, labels], work, take)?;
            let (block, loss) = reducer.finish()?;
            let mut roster = lock(&self.roster);
            let (mut present, mut buffers, mut residuals) = (vec![false; self.host.trained().len()], None, Vec::new());
            let busy = (0..sizes.len()).filter(|&i| sizes[i] > 0);
            for (i, (step, of_first)) in busy.zip(parts) {
                roster.balance.record(i, sizes[i], step.seconds);
                present.iter_mut().zip(step.present).for_each(|(any, here)| *any |= here);
                buffers.get_or_insert(of_first);
                residuals.push((i, step.residuals));
            }
            Ok((present, buffers.unwrap_or_default(), block, loss, residuals))
        })?;
        state.steps += 1;
        self.host.set_buffers(&buffers)?;
        residuals.into_iter().for_each(|(i, lost)| state.members[i].replica.feedback.keep(lost));
        let trained = self.host.trained();
        for ((parameter, view), present) in
            trained.iter().zip(Bucket::laid_out(block, &trained).tensors()?).zip(present)
        {
            parameter.set_grad(present.then_some(view));
        }
        Tensor::scalar(loss, None)
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

/// Formats the devices and their shares.
impl fmt::Debug for DataParallel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let devices: Vec<String> = self.devices().iter().map(Device::to_string).collect();
        f.debug_struct("DataParallel")
            .field("devices", &devices)
            .field("shares", &self.shares())
            .finish_non_exhaustive()
    }
}
