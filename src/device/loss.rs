//! The loss of a device: a driver reset, an unplugged card, a suspended laptop.

use super::{Backend, BackendHandle, Device};
use crate::error::Result;

impl Device {
    /// Returns whether the device is lost, as far as its driver has said so. This does not wait for the device: a loss
    /// in the middle of recorded work is known only when something waits for that work.
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
        match &self.0.backend {
            BackendHandle::Cpu(_) => Ok(()),
            BackendHandle::Gpu { opened, .. } => opened.get().map_or(Ok(()), |gpu| gpu.alive()),
        }
    }

    /// Loses the device for the rest of the process, for tests of what follows. Does nothing on `cpu`.
    #[doc(hidden)]
    pub fn lose(&self) -> Result<()> {
        match self.backend()? {
            Backend::Cpu(_) => Ok(()),
            Backend::Gpu(gpu) => gpu.lose(),
        }
    }
}
