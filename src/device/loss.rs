//! The loss of a device (a driver reset, an unplugged card, a suspended laptop), and waits with a time limit.

use std::time::Duration;

use super::{Backend, Device, registry};
use crate::error::Result;

impl Device {
    /// Returns whether the device is lost, as far as its driver has reported it.
    ///
    /// This does not wait for the device. A loss in the middle of recorded work is known only when something waits for
    /// that work.
    ///
    /// ```
    /// use anygpu::Device;
    ///
    /// assert!(!Device::cpu().is_lost());
    /// ```
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.alive().is_err()
    }

    /// Returns [`Error::DeviceLost`](crate::Error::DeviceLost) if the device is lost, without waiting for it.
    pub(crate) fn alive(&self) -> Result<()> {
        self.opened().map_or(Ok(()), |gpu| gpu.alive())
    }

    /// Submits the recorded work and waits for it, for at most this long.
    ///
    /// Returns whether the device has finished the work; if not, the device continues with it. This never declares the
    /// device lost.
    ///
    /// # Errors
    ///
    /// Same as [`Device::synchronize`].
    ///
    /// ```
    /// use std::time::Duration;
    /// use anygpu::{Device, Tensor};
    ///
    /// for device in &Device::all() {
    ///     let x = Tensor::ones([64, 64], device)?;
    ///     let y = x.matmul(&x)?;
    ///     while !device.synchronize_timeout(Duration::from_millis(16))? {
    ///         // Draw the next frame.
    ///     }
    ///     assert_eq!(y.i((0, 0))?.item::<f32>()?, 64.0);
    /// }
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn synchronize_timeout(&self, limit: Duration) -> Result<bool> {
        self.opened().map_or(Ok(true), |gpu| gpu.synchronize_timeout(limit))
    }

    /// Sets how long a wait for the device may take before the device is considered lost.
    ///
    /// The default is 10 minutes. Reads of tensors and [`Device::synchronize`] wait. If the limit is shorter than the
    /// longest kernel, a working device is lost. Does nothing on `cpu`.
    ///
    /// Lavapipe takes new work only when it has computed what it took before. There, calls that give it work, such as the
    /// read of a large tensor, may take longer than the limit.
    ///
    /// # Errors
    ///
    /// [`Error::DeviceUnavailable`](crate::Error::DeviceUnavailable) if the device cannot be opened.
    pub fn set_wait_limit(&self, limit: Duration) -> Result<()> {
        if let Backend::Gpu(gpu) = self.backend()? {
            gpu.set_patience(limit);
        }
        Ok(())
    }

    /// Sets about how long the work of one submit to the driver may take.
    ///
    /// `None`, the default, means no limit. Between submits, other programs and other devices on the adapter get their
    /// turn. With 4 milliseconds, a window on the same adapter can draw 60 frames a second. Fewer kernels are then
    /// submitted at once, and each submit waits for earlier ones, which costs throughput. A single kernel is not split.
    /// Does nothing on `cpu`.
    ///
    /// # Errors
    ///
    /// [`Error::DeviceUnavailable`](crate::Error::DeviceUnavailable) if the device cannot be opened.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// let device = anygpu::try_gpu(0);
    /// device.set_submit_time(Some(Duration::from_millis(4)))?;
    /// # device.set_submit_time(None)?;
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn set_submit_time(&self, limit: Option<Duration>) -> Result<()> {
        if let Backend::Gpu(gpu) = self.backend()? {
            gpu.set_submit_time(limit);
        }
        Ok(())
    }

    /// Opens the adapter of a lost device again, and returns it as a device of the same name.
    ///
    /// As in a new process, the new device has none of the tensors that were on the lost one. From then on the name
    /// means the new device, also for [`Device::new`] and [`Device::all`]. This handle and all tensors on it stay lost,
    /// and this handle is not equal to the new device.
    ///
    /// Returns the device itself if it is not lost. If another call has already opened a new device, returns that
    /// one.
    ///
    /// # Errors
    ///
    /// [`Error::DeviceUnavailable`](crate::Error::DeviceUnavailable) if the driver refuses, for example while the
    /// card is not there: call it again later. Also for a device of `Device::from_wgpu`, which only its program can
    /// open, and on OpenGL, where a process has one device.
    ///
    /// ```
    /// use anygpu::{Device, Error, Tensor};
    ///
    /// fn sum_of_ones(device: &Device) -> anygpu::Result<f32> {
    ///     match Tensor::ones([100], device)?.sum_all()?.item() {
    ///         Err(Error::DeviceLost { .. }) => sum_of_ones(&device.reopen()?),
    ///         result => result,
    ///     }
    /// }
    /// assert_eq!(sum_of_ones(&Device::cpu())?, 100.0);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn reopen(&self) -> Result<Device> {
        let device = self.renewed()?;
        device.backend()?;
        Ok(device)
    }

    /// Asynchronous form of [`Device::reopen`].
    ///
    /// # Errors
    /// The errors of [`Device::reopen`].
    ///
    /// ```
    /// # use anygpu::Device;
    /// # pollster::block_on(async {
    /// assert_eq!(Device::cpu().reopen_async().await?, Device::cpu()); // it is not lost
    /// # Ok::<(), anygpu::Error>(())
    /// # })?;
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub async fn reopen_async(&self) -> Result<Device> {
        let device = self.renewed()?;
        device.open().await?;
        Ok(device)
    }

    /// Returns the device that has the name of this one now, not opened: a new one if this one is lost.
    fn renewed(&self) -> Result<Device> {
        if self.is_cpu() || !self.is_lost() {
            return Ok(self.clone());
        }
        if self.info().api == "GL" {
            return Err(self.unavailable("a GL driver has one device per process, which is lost"));
        }
        registry::renewed(self).ok_or_else(|| self.unavailable("the program that shares it has to open it"))
    }

    /// Marks the device as lost for the rest of the process, to test how a program handles a loss. Does nothing on
    /// `cpu`.
    #[doc(hidden)]
    pub fn lose(&self) -> Result<()> {
        match self.backend()? {
            Backend::Cpu(_) => Ok(()),
            Backend::Gpu(gpu) => gpu.lose(),
        }
    }
}
