//! What is measured by an allocator that counts: hostile files in bounded memory, and long runs. Every test holds
//! `common::alone()`, so that nothing else allocates meanwhile.

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/counting.rs"]
mod counting;
#[cfg(feature = "onnx")]
#[path = "../onnx/proto.rs"]
#[allow(dead_code, reason = "a model needs few of the messages")]
mod proto;

mod damaged_checkpoints;
#[cfg(feature = "image")]
mod hostile_data;
mod soak;
#[cfg(feature = "onnx")]
mod tables;
