//! Lists of devices.

use std::ops::Deref;

use super::{Device, DeviceKind, Vendor};

/// A list of devices with filters; it dereferences to a slice.
///
/// ```
/// use anygpu::{Device, DeviceKind, Vendor};
/// let discrete_amd = Device::all().vendor(Vendor::Amd).kind(DeviceKind::Discrete);
/// assert!(discrete_amd.len() < Device::all().len());
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Devices(pub(super) Vec<Device>);

impl Devices {
    /// Keeps the devices of one vendor.
    #[must_use]
    pub fn vendor(mut self, vendor: Vendor) -> Devices {
        self.0.retain(|device| device.info().vendor == vendor);
        self
    }

    /// Keeps the devices of one kind.
    #[must_use]
    pub fn kind(mut self, kind: DeviceKind) -> Devices {
        self.0.retain(|device| device.info().kind == kind);
        self
    }
}

impl Deref for Devices {
    type Target = [Device];
    fn deref(&self) -> &[Device] {
        &self.0
    }
}

impl IntoIterator for Devices {
    type Item = Device;
    type IntoIter = std::vec::IntoIter<Device>;
    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl<'a> IntoIterator for &'a Devices {
    type Item = &'a Device;
    type IntoIter = std::slice::Iter<'a, Device>;
    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}

impl From<Devices> for Vec<Device> {
    fn from(devices: Devices) -> Self {
        devices.0
    }
}
