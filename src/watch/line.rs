use std::fmt;

use crate::device::Device;
use crate::util::units::bytes;

/// The progress of training as one line of text: speed, loss, learning rate and the memory of each device.
///
/// ```
/// use anygpu::watch::ProgressLine;
///
/// let line = ProgressLine { images_per_s: 1234.5, loss: Some(0.25), lr: 0.05, memory: vec![("gpu:0".into(), 3 << 20)] };
/// assert_eq!(line.to_string(), "1234 images/s  loss 0.2500  lr 0.05  gpu:0 3.0 MiB");
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ProgressLine {
    /// Images or other samples per second.
    pub images_per_s: f64,
    /// The loss, if it is known.
    pub loss: Option<f64>,
    /// The learning rate.
    pub lr: f32,
    /// The devices, and the bytes that their tensors hold.
    pub memory: Vec<(String, u64)>,
}

impl ProgressLine {
    /// Returns the bytes that tensors hold now on each of these devices ([`Device::memory`]).
    pub fn memory_of(devices: &[Device]) -> Vec<(String, u64)> {
        devices.iter().map(|device| (device.to_string(), device.memory().live)).collect()
    }
}

impl fmt::Display for ProgressLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.0} images/s", self.images_per_s.floor())?;
        if let Some(loss) = self.loss {
            write!(f, "  loss {loss:.4}")?;
        }
        write!(f, "  lr {}", self.lr)?;
        self.memory.iter().try_for_each(|(device, live)| write!(f, "  {device} {}", bytes(*live)))
    }
}
