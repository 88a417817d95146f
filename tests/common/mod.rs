//! Code shared by all tests: the devices, and the comparison of tensors.
#![allow(dead_code, unused_imports, reason = "every test binary compiles this file and uses its own part of it")]

pub use anygpu::check::nd::{EXACT, Nd, Tolerance, difference, signed, uniform, values, whole};
pub use anygpu::testing::{adapters, device, devices};

use anygpu::Tensor;

/// Panics with `what`, the device, the shape, and the worst element if a tensor is not as expected.
#[track_caller]
pub fn assert_close(what: &str, got: &Tensor, expected: &Nd, tolerance: Tolerance) {
    if let Err(text) = difference(got, expected, tolerance) {
        panic!("{what} on {}: {text}", got.device());
    }
}
