//! The command `anygpu`: what it prints, what it writes, and how it fails.

mod common;

mod bench;
mod commands;
mod compile_ahead;
#[cfg(target_os = "linux")]
mod conformance;
mod kernel;
#[cfg(feature = "mpi")]
mod mpi;
mod predict;
mod report;
mod resnet18;
mod resume;
mod run;
mod top;
mod tune;
