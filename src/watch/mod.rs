//! Looking on while a net trains: a line of figures, curves as pictures (`Animator`, feature `plot`), and event files
//! for TensorBoard ([`SummaryWriter`]).
//!
//! These are parts: the loop stays yours. What they show comes from [`metrics`](crate::metrics), which keeps numbers on
//! the device until somebody looks.

#[cfg(feature = "plot")]
mod animator;
mod crc32c;
#[cfg(feature = "plot")]
mod draw;
mod events;
mod line;

#[cfg(feature = "plot")]
pub use animator::Animator;
pub use events::SummaryWriter;
pub use line::ProgressLine;

pub use crate::units::bytes;
