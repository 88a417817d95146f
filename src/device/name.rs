//! Names of devices, and the traits by which a [`Device`] is compared, printed and parsed.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::str::FromStr;
use std::sync::Arc;

use super::Device;
use crate::error::{Error, Result};

/// The parsed name of a device. Names have the order of [`Device::all`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Name {
    Gpu { index: usize, logical: usize },
    Soft { index: usize, logical: usize },
    Cpu { logical: usize },
}

impl Name {
    pub(super) fn parse(text: &str) -> Option<Name> {
        let text = text.trim().to_ascii_lowercase();
        let (adapter, logical) = text.split_once('/').unwrap_or((&text, "0"));
        let (family, index) = adapter.split_once(':').unwrap_or((adapter, "0"));
        let (index, logical) = (number(index)?, number(logical)?);
        match family {
            "gpu" => Some(Name::Gpu { index, logical }),
            "soft" => Some(Name::Soft { index, logical }),
            "cpu" if index == 0 => Some(Name::Cpu { logical }),
            _ => None,
        }
    }
}

/// Parses digits only: `usize::from_str` would accept a sign.
fn number(text: &str) -> Option<usize> {
    text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

impl PartialEq for Device {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Device {}

/// The order of [`Device::all`]: `gpu:0`, `gpu:0/1`, `gpu:1`, …, `soft:0`, …, `cpu`, `cpu/1`, …
impl Ord for Device {
    fn cmp(&self, other: &Self) -> Ordering {
        let key = |device: &Device| Name::parse(device.name());
        // Two devices have one name if one of them was lost and opened again.
        let address = |device: &Device| Arc::as_ptr(&device.0) as usize;
        key(self)
            .cmp(&key(other))
            .then_with(|| self.name().cmp(other.name()))
            .then_with(|| address(self).cmp(&address(other)))
    }
}

impl PartialOrd for Device {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Hash for Device {
    fn hash<H: Hasher>(&self, state: &mut H) {
        Arc::as_ptr(&self.0).hash(state);
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Device({})", self.name())
    }
}

/// The device of a new tensor, or the device to move a tensor to: a [`Device`], by value or by reference, a
/// device's name, or `None` for the CPU.
///
/// ```
/// use anygpu::{Device, Tensor, try_gpu};
///
/// assert_eq!(Tensor::zeros([2], try_gpu(0))?.device(), Tensor::zeros([2], &try_gpu(0))?.device());
/// assert_eq!(Tensor::zeros([2], "cpu")?.device(), Tensor::zeros([2], None)?.device());
/// assert!(Tensor::zeros([2], "tpu").is_err());
/// # Ok::<(), anygpu::Error>(())
/// ```
pub trait IntoDevice {
    /// Returns the device.
    ///
    /// # Errors
    /// For names, the errors of [`Device::new`].
    fn into_device(self) -> Result<Device>;
}

impl IntoDevice for Device {
    fn into_device(self) -> Result<Device> {
        Ok(self)
    }
}

impl IntoDevice for &Device {
    fn into_device(self) -> Result<Device> {
        Ok(self.clone())
    }
}

impl IntoDevice for &&Device {
    fn into_device(self) -> Result<Device> {
        Ok((*self).clone())
    }
}

impl IntoDevice for Option<&Device> {
    fn into_device(self) -> Result<Device> {
        Ok(self.cloned().unwrap_or_default())
    }
}

impl IntoDevice for &str {
    fn into_device(self) -> Result<Device> {
        Device::new(self)
    }
}

impl IntoDevice for &String {
    fn into_device(self) -> Result<Device> {
        Device::new(self)
    }
}

/// For functions that take a device by value or by reference.
impl AsRef<Device> for Device {
    fn as_ref(&self) -> &Device {
        self
    }
}

impl FromStr for Device {
    type Err = Error;

    /// Same as [`Device::new`].
    fn from_str(name: &str) -> Result<Device> {
        Device::new(name)
    }
}

crate::error::try_from_str!(Device);

/// Serialised as its name. Deserialising opens the device of that name on the machine that reads it.
#[cfg(feature = "serde")]
impl serde::Serialize for Device {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

#[cfg(feature = "serde")]
impl<'de> serde::Deserialize<'de> for Device {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Device, D::Error> {
        let name = String::deserialize(deserializer)?;
        Device::new(&name).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_parsed() {
        assert_eq!(Name::parse("cpu"), Some(Name::Cpu { logical: 0 }));
        assert_eq!(Name::parse("CPU:0/3"), Some(Name::Cpu { logical: 3 }));
        assert_eq!(Name::parse("gpu"), Some(Name::Gpu { index: 0, logical: 0 }));
        assert_eq!(Name::parse(" GPU:3 "), Some(Name::Gpu { index: 3, logical: 0 }));
        assert_eq!(Name::parse("soft:1/2"), Some(Name::Soft { index: 1, logical: 2 }));
        let bad =
            ["", "gpu:", "gpu:+1", "gpu:x", "soft:1/", "soft:1/2/3", "cuda:0", "gpu:99999999999999999999", "cpu:1"];
        for bad in bad {
            assert_eq!(Name::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn devices_are_sorted_as_all_lists_them() -> Result<()> {
        let listed: Vec<Device> =
            Device::all().into_iter().chain(["cpu/1", "cpu/10"].map(|n| Device::new(n).unwrap())).collect();
        let mut sorted = listed.clone();
        sorted.reverse();
        sorted.sort();
        assert_eq!(sorted, listed);
        assert!(Device::new("cpu/2")? < Device::try_from("cpu/10")?);
        let (a, b): (Device, Device) = ("cpu".parse()?, "cpu".try_into()?);
        assert_eq!((a.cmp(&b), a), (Ordering::Equal, b));
        Ok(())
    }
}
