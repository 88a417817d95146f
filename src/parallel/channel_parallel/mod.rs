//! Layers whose channels are on several devices (tensor parallelism), for layers that one device cannot hold.
//!
//! Each call starts a thread for each part.

mod conv;
mod linear;
mod parts;

pub use conv::ChannelParallelConv2d;
pub use linear::{ColumnParallelLinear, RowParallelLinear};
