//! What is read and written: checkpoints, arrays, images, datasets, and values of other crates.

#[path = "../common/mod.rs"]
mod common;

mod checkpoints;
mod data;
mod features;
mod images;
mod npy;
mod pytorch_checkpoints;
