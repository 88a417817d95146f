//! Training: the same numbers on every mix of devices, after failures, and after a run is resumed.
//!
//! The tests seed the generator of the process, and some measure times and memory, so that every test holds `common::alone()`.

#[path = "../common/mod.rs"]
mod common;

mod determinism;
mod every_mix;
mod failing_devices;
mod gradient_wire;
mod mixed_layers;
mod pipeline;
mod pipeline_failures;
mod resnet18;
mod resume;
mod steps;
mod training;
