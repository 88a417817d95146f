use std::fmt;
use std::ops::DerefMut;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::balance::{Balance, Shares};
use super::collectives::logical;
use super::dims::SampleDims;
use super::gradient_buckets::BucketPlan;
use super::loss_check::LossCheck;
use super::machines::Machines;
use super::members::{Member, Roster, State};
use super::replica::Replica;
use super::turns::take_turn;
use crate::device::Device;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::nn::{KeyReport, Module, StateDict};
use crate::optim::Parameters;
use crate::util::sync::lock;

/// The size of a bucket of gradients. It is large enough for the speed of a link. It is small enough that the last
/// bucket, which no computation can hide, takes little time.
const BUCKET_BYTES: usize = 4 << 20;

/// A net on any mix of devices, trained with the same steps as on one device.
///
/// Each device has a replica of the net and, if there are several devices, a thread.
/// [`train_batch`](DataParallel::train_batch) splits the batch along its first dimension (or [another
/// one](DataParallel::with_batch_dims)), one part per device. Gradients are averaged *by the number of samples*, in the
/// order of the devices. So the step equals one device's step over the whole batch, for any [`Shares`]. Create one
/// optimiser for [`parameters`](DataParallel::parameters).
///
/// **Losses.** A loss function is called with the samples of one device. All losses of [`nn`](crate::nn) give the loss
/// of the *whole* batch: a mean that ignores labels, weighs classes or counts the elements of a mask is divided by the
/// weights of the whole batch, which the devices exchange. Sums of several losses, each times a constant, are right
/// too. In a loss of your own, return the mean over the samples, or combine the losses of single elements with
/// [`Reduction::reduce`](crate::nn::Reduction::reduce) or
/// [`Reduction::reduce_weighted`](crate::nn::Reduction::reduce_weighted). The value of any other loss, such as a sum or
/// the square root of a mean, depends on how the batch is split. So the first call of each loss function compares the
/// loss with the losses of parts of its samples, and returns an error if it is not their mean. Some losses cannot be
/// compared: in [`step`](DataParallel::step) and in browsers, of a single sample, with random numbers, and sums of such
/// a loss and a loss of `nn`.
///
/// Training steps switch the net to training mode, and predictions switch it to evaluation mode ([`Module::train`],
/// [`Module::eval`]). Layers that are [kept in evaluation mode](Module::keep_eval) are not switched. Batch norm uses
/// the statistics of the *whole* batch, like PyTorch's `SyncBatchNorm`, with two short exchanges through the host for
/// each such layer. Dropout drops the same elements as on one device.
///
/// **Custom layers.** If the number of random values that `forward` draws is proportional to the number of samples,
/// each sample has its own values. Otherwise, the values apply to all samples together (for example, whether a layer is
/// skipped) and are the same on all devices. A buffer that a layer computes from its samples differs between devices,
/// which is an error after the first steps. Compute such a buffer from [`batch_mean`](crate::parallel::batch_mean) of
/// its values.
///
/// # With several devices
///
/// The trained values are on the host: the parameters, the buffers and the optimiser's state. Each replica gets copies
/// of the parameters before it computes. So all replicas have the same parameter bits, even if their devices round
/// differently. Gradients come back in [buckets](DataParallel::with_bucket_bytes) while backward goes on, and the host
/// averages them meanwhile.
///
/// **Devices may fail.** A device fails if it is lost, if its driver reports an error, if a panic ends its part of a
/// step, or if it does not end its part [in time](DataParallel::with_time_limit). The step is then repeated on the
/// other devices, from the same values. The results are the same as without the failure, and a warning is logged.
/// The device is [left out](DataParallel::left_out) until it [rejoins](DataParallel::rejoin). A device that runs out of
/// memory first gets smaller shares. If the devices together have too little memory for a batch, it is computed in
/// parts, and the gradients of the parts are added. The step is then the same with two exceptions: batch norm uses the
/// statistics of each part, and dropout draws other random numbers.
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
    /// The trained net: on the host if there are several devices, otherwise the only replica.
    pub(super) host: Replica,
    /// A step, a prediction and a loading hold this lock, one at a time.
    pub(super) state: Mutex<State>,
    /// Locked for moments only, so that it can be read during a step.
    pub(super) roster: Mutex<Roster>,
    pub(super) plan: Arc<BucketPlan>,
    /// The other processes that train the net, if there are any.
    pub(super) machines: Option<Machines>,
    /// The format in which gradients travel.
    pub(super) wire: DType,
    /// Whether the result of a loss function is a sum over samples, not a mean.
    pub(super) summed: bool,
    pub(super) dims: SampleDims,
    pub(super) loss_check: Arc<LossCheck>,
}

impl DataParallel {
    /// Creates replicas of `net` on `devices`, with [`Shares::Measured`].
    ///
    /// Each device has one replica. To test code for several devices on one machine, use several logical devices of one
    /// adapter or of the CPU: `soft:0/0` and `soft:0/1`, or `cpu/0` and `cpu/1`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if `devices` is empty or contains a device twice; the errors of opening the devices.
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
        let roster = Roster::new(devices, &members)?;
        let plan = BucketPlan::new(&host.trained(), BUCKET_BYTES).into();
        let state = Mutex::new(State { members, ..State::default() });
        Ok(DataParallel {
            host,
            state,
            roster: Mutex::new(roster),
            plan,
            machines: None,
            wire: DType::F32,
            summed: false,
            dims: SampleDims::default(),
            loss_check: Arc::default(),
        })
    }

    /// Treats the result of a loss function as a *sum* over samples: the losses of the devices are added, as one device
    /// would add the losses of the whole batch.
    ///
    /// A term that does not depend on the samples, such as a penalty on parameters, is then added once per device: for
    /// a loss with such a term, return a mean instead. Without this call, the result is treated as a mean, and losses
    /// with [`Reduction::Sum`](crate::nn::Reduction::Sum) are an error with several devices.
    ///
    /// ```
    /// use anygpu::nn::{self, Linear, Reduction};
    /// use anygpu::{DataParallel, Device, Tensor};
    ///
    /// let devices = [Device::new("cpu/0")?, Device::new("cpu/1")?];
    /// let net = DataParallel::new(Linear::new(4, 1)?, &devices)?.with_summed_losses();
    /// let (x, y) = (Tensor::rand([6, 4], None)?, Tensor::rand([6, 1], None)?);
    /// let loss = net.train_batch(&x, &y, |output, y| nn::mse_loss(output, y, Reduction::Sum))?;
    /// let alone = nn::mse_loss(&net.module().forward(&x)?, &y, Reduction::Sum)?;
    /// assert!((loss.item::<f32>()? - alone.item::<f32>()?).abs() < 1e-5);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    #[must_use]
    pub fn with_summed_losses(mut self) -> DataParallel {
        self.summed = true;
        self
    }

    /// Sets how batches are split. The default is [`Shares::Measured`].
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] unless fixed shares are one positive number per device.
    pub fn with_shares(self, shares: Shares) -> Result<DataParallel> {
        let mut roster = lock(&self.roster);
        roster.balance = Balance::new(shares, roster.devices.len())?;
        drop(roster);
        Ok(self)
    }

    /// Sets the size in bytes of the buckets in which gradients are read from several devices.
    ///
    /// The default is 4 MiB. A bucket is read while backward computes the next ones. A gradient that is larger than a
    /// bucket has a bucket of its own. The results do not depend on the size.
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

    /// Sets how long a device may take for its part of a step or a prediction before the call is repeated without it.
    ///
    /// The default is 10 minutes. The first step includes the compilation of kernels. Has no effect with one device.
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

    /// Returns the fraction of the next batch that each device gets; the fractions add up to 1.
    ///
    /// A device has 0 if it is left out, or if its copies take longer than the other devices' steps
    /// ([`Shares::Measured`]).
    pub fn shares(&self) -> Vec<f64> {
        lock(&self.roster).balance.weights()
    }

    /// Returns the devices, in order.
    pub fn devices(&self) -> Vec<Device> {
        lock(&self.roster).devices.clone()
    }

    /// Returns the trained net: on the host if there are several devices, otherwise on the only device.
    ///
    /// Its `forward` does not use several devices: use [`predict`](DataParallel::predict) for that.
    pub fn module(&self) -> &dyn Module {
        &*self.host.net
    }

    /// Starts a call during which no other call may run, until the guards are dropped.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if this thread works for such a call.
    pub(super) fn alone(
        &self,
        call: &'static str,
    ) -> Result<(impl DerefMut<Target = State> + use<'_>, impl Drop + use<>)> {
        take_turn("DataParallel", call, std::ptr::from_ref(self).addr(), &self.state)
    }

    /// Returns the parameters of [`module`](DataParallel::module), for the optimiser. After a step, they have the
    /// gradients.
    pub fn parameters(&self) -> Parameters {
        self.host.parameters.to_vec().into()
    }

    /// Returns the values of the net by name, without the prefix `module.`.
    pub fn state_dict(&self) -> StateDict {
        self.module().state_dict()
    }

    /// Loads values into every replica, like [`Module::load_state_dict`].
    ///
    /// # Errors
    /// The errors of [`Module::load_state_dict`]. [`Error::InvalidArgument`] if a loss function of
    /// [`train_batch`](DataParallel::train_batch) calls this.
    pub fn load_state_dict(&self, state: &StateDict, strict: bool) -> Result<KeyReport> {
        let (mut held, _in_call) = self.alone("load_state_dict")?;
        held.forget_buffers();
        held.members.iter().for_each(|member| member.replica.feedback.clear());
        self.host.net.load_state_dict(state, strict)
    }
}

/// Returns why a device that is listed twice is refused, with devices that can be listed instead.
fn listed_twice(devices: &[Device], position: usize, twice: &Device) -> String {
    let times = devices.iter().filter(|device| *device == twice).count();
    let logical = logical(twice, times).map(|names| {
        let opened: Vec<String> = names.iter().map(|name| format!("Device::new(\"{name}\")?")).collect();
        format!(", or list its logical devices: {}", opened.join(", "))
    });
    format!(
        "device {twice} occurs again at position {position}, and a device has one replica. List it once, as \
         try_all_gpus() does{}",
        logical.unwrap_or_default()
    )
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
