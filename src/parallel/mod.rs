//! Training and inference on several devices at once.
//!
//! - [`collectives`]: broadcast, scatter, gather, all-reduce and so on of tensors, for programs that control the
//!   devices themselves;
//! - [`DataParallel`]: one replica of a net per device, each on its own thread, with the results of training one net;
//! - [`Pipeline`]: the layers of one net on several devices, for nets that one device cannot hold;
//! - [`ColumnParallelLinear`], [`RowParallelLinear`], [`ChannelParallelConv2d`]: one layer on several devices;
//! - [`Shares`]: the part of a batch that each device gets;
//! - `Communicator` (feature `mpi`): the processes on several machines that train one net together.

mod balance;
mod channel_parallel;
mod checks;
pub mod collectives;
mod data_parallel;
mod dims;
mod forward;
mod gradient_buckets;
mod in_turn;
mod loss_check;
mod machines;
mod members;
mod micro_batches;
mod pipeline;
mod replica;
mod step;
mod timeline;
mod turns;
mod wire;
mod worker;

pub use crate::process_group::batch_mean;
pub use balance::Shares;
pub use channel_parallel::{ChannelParallelConv2d, ColumnParallelLinear, RowParallelLinear};
pub use collectives::{
    Handle, ReduceOp, all_gather, all_gather_async, all_reduce, all_reduce_async, all_to_all, all_to_all_async,
    broadcast, broadcast_async, gather, gather_async, reduce, reduce_async, reduce_scatter, reduce_scatter_async,
    scatter, scatter_async, scatter_sizes, split_batch, split_batch_by, split_sizes,
};
pub use data_parallel::DataParallel;
#[cfg(feature = "mpi")]
pub use machines::Communicator;
pub use pipeline::{Pipeline, PipelineSchedule};
pub use timeline::{DeviceReport, ParallelReport};
