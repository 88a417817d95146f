//! Training and inference on several devices at once.
//!
//! - [`collectives`]: broadcast, scatter, gather, all-reduce and so on of tensors, for programs that drive the devices themselves;
//! - [`DataParallel`]: one replica of a net per device, each on its own thread, with the results of training one net;
//! - [`Shares`]: the part of a batch that each device gets.

mod accumulate;
pub mod collectives;
mod data_parallel;
mod forward;
mod gradient_buckets;
mod members;
mod reducer;
mod replica;
mod shares;
mod wire;
mod worker;

pub use collectives::{
    Handle, ReduceOp, all_gather, all_gather_async, all_reduce, all_reduce_async, all_to_all, all_to_all_async,
    broadcast, broadcast_async, gather, gather_async, reduce, reduce_async, reduce_scatter, reduce_scatter_async,
    scatter, scatter_async, scatter_sizes, split_batch, split_batch_by, split_sizes,
};
pub use data_parallel::DataParallel;
pub use shares::Shares;
