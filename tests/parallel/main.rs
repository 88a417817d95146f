//! Parts of tensors on several devices: collectives, layers that are split by channels, and losses and dimensions of batches that are
//! cut.

#[path = "../common/mod.rs"]
mod common;

mod batch_dims;
mod channel_parallel;
mod collectives;
mod weighted_losses;
