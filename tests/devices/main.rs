//! Devices: names, copies, limits, threads, asynchronous reads, and kernels and buffers of programs.

#[path = "../common/mod.rs"]
mod common;

mod asynchronous_reads;
mod devices;
mod hostile_kernels;
#[cfg(feature = "wgpu")]
mod interop;
mod kernel_launch;
mod limits;
mod long_loops;
mod threads;
