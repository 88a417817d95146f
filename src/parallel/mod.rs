//! Training and inference on several devices at once.
//!
//! - [`collectives`]: scatter, gather, broadcast and all-reduce of tensors, for programs that drive the devices themselves;
//! - [`DataParallel`]: one replica of a net per device, each on its own thread, trained as if it were one net;
//! - [`Shares`]: how much of a batch each device gets.

mod accumulate;
pub mod collectives;
mod data_parallel;
mod replica;
mod shares;
mod worker;

pub use collectives::{
    all_reduce, all_reduce_mean, broadcast, gather, scatter, split_batch, split_batch_by, split_sizes,
};
pub use data_parallel::DataParallel;
pub use shares::Shares;
