//! Monitoring of training: a line of figures ([`ProgressLine`]) and event files for TensorBoard
//! ([`SummaryWriter`]). The package `anygpu-plot` draws curves. [`StatusFile`] publishes what a process does on its
//! devices, for `anygpu top`.
//!
//! The training loop calls these. Their values come from [`metrics`](crate::metrics), which keeps numbers on the device
//! until they are read.

mod events;
mod line;
mod status;

pub use events::SummaryWriter;
pub use line::ProgressLine;
#[doc(hidden)]
pub use status::processes_in;
pub use status::{DeviceStatus, ProcessStatus, StatusFile, processes};

pub use crate::util::units::bytes;
