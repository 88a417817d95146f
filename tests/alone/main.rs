//! What other tests on the same devices would disturb: counts of kernels and of memory, profiles, times, and errors that a device
//! reports to whoever waits for it next. Every test holds `common::alone()`.

#[path = "../common/mod.rs"]
mod common;
#[cfg(feature = "onnx")]
#[path = "../onnx/proto.rs"]
#[allow(dead_code, reason = "a model needs few of the messages")]
mod proto;

mod chains;
mod compile_ahead;
mod fused_layers;
mod index_faults;
mod memory;
mod memory_report;
mod metrics;
mod packed_products;
#[cfg(feature = "onnx")]
mod packed_weights;
mod product_memory;
mod profiler;
mod random_chains;
mod wide_indices;
