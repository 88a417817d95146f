//! Monitoring of training: a line of figures, curves as pictures (`Animator`, feature `plot`), and event files
//! for TensorBoard ([`SummaryWriter`]). Also what processes do on their devices ([`StatusFile`]), for `anygpu top`.
//!
//! The training loop calls these. Their values come from [`metrics`](crate::metrics), which keeps numbers on the device
//! until they are read.

#[cfg(feature = "plot")]
mod animator;
mod crc32c;
#[cfg(feature = "plot")]
mod draw;
mod events;
mod line;
mod status;

#[cfg(feature = "plot")]
pub use animator::Animator;
pub use events::SummaryWriter;
pub use line::ProgressLine;
#[doc(hidden)]
pub use status::processes_in;
pub use status::{DeviceStatus, ProcessStatus, StatusFile, processes};

pub use crate::units::bytes;
