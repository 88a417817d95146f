//! What other tests on the same devices would disturb: counts of kernels and of memory, profiles, times, and errors that a device
//! reports to whoever waits for it next. Every test holds `common::alone()`.

#[path = "../common/mod.rs"]
mod common;

mod chains;
mod compile_ahead;
mod fused_layers;
mod index_faults;
mod memory;
mod memory_report;
mod metrics;
mod packed_products;
mod product_memory;
mod profiler;
mod wide_indices;
