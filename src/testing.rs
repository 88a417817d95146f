//! Helpers for tests of programs that use this crate: devices to run on, reported skips, and a comparison of
//! tensors.
//!
//! ```
//! use anygpu::testing::{adapter, assert_close, devices};
//! use anygpu::{Result, Tensor};
//!
//! fn scaled(x: &Tensor) -> Result<Tensor> {
//!     x.mul(2.0)
//! }
//!
//! // In a program: #[test]
//! fn values_are_doubled_on_every_device() -> Result<()> {
//!     for device in devices() {
//!         let x = Tensor::new([1.5, -2.0], &device)?;
//!         assert_close(&scaled(&x)?, &Tensor::new([3.0, -4.0], None)?);
//!     }
//!     Ok(())
//! }
//!
//! // In a program: #[test]
//! fn an_adapter_gives_the_numbers_of_the_host() -> Result<()> {
//!     let Some(gpu) = adapter() else { return Ok(()) }; // says that it skips the test
//!     let x = Tensor::rand([20, 30], None)?;
//!     assert_close(&scaled(&x.to(&gpu)?)?, &scaled(&x)?);
//!     Ok(())
//! }
//! # values_are_doubled_on_every_device()?;
//! # an_adapter_gives_the_numbers_of_the_host()?;
//! # Ok::<(), anygpu::Error>(())
//! ```
//!
//! # Skipped tests
//!
//! A machine may have no adapter. [`adapter`], [`software_adapter`] and [`device`] then return `None`, and write a
//! line to standard error that the test runner does not hide: `SKIPPED my_test: this machine has no adapter`. On a
//! machine that must have certain devices, such as a CI runner, set `ANYGPU_REQUIRE_DEVICES` to a comma-separated
//! list of names, such as `soft:0,cpu`. Every function of this module then panics if one of them does not open, so
//! that no test passes because it did nothing.
//!
//! # Software adapters
//!
//! Tests need no GPU. `eval "$(scripts/software-adapters.sh)"`, a script of this crate, installs lavapipe, llvmpipe
//! and SwiftShader on Debian and Ubuntu, as root, and sets the variables that the Vulkan loader reads.
//!
//! # Several devices
//!
//! `cpu/1` to `cpu/15` are further devices on the host, and `soft:0/1` is one more on an adapter. With them, code
//! for several devices runs anywhere. With `ANYGPU_VISIBLE_DEVICES=soft:0,soft:1`, a program that names its devices
//! `gpu:0` and `gpu:1` finds software adapters there.
//!
//! # Faults
//!
//! `Device::new("chaos:soft:0?lose=100")` is a device that is lost after 100 kernels; see [`device`](crate::device).

use std::io::Write;
use std::thread;

use crate::check::nd::{difference, values};
use crate::device::{Device, DeviceKind};
use crate::dtype::DType;
use crate::tensor::Tensor;

pub use crate::check::nd::{Nd, Tolerance};

/// The variable that lists the devices without which tests must not pass.
const REQUIRED: &str = "ANYGPU_REQUIRE_DEVICES";

/// Returns every device to test on: `cpu`, the visible adapters, and one more logical device on the first adapter, or
/// on the host if there is no adapter.
///
/// So there are always at least two.
///
/// # Panics
///
/// If a device of `ANYGPU_REQUIRE_DEVICES` does not open.
#[must_use]
pub fn devices() -> Vec<Device> {
    require();
    let mut all: Vec<Device> = Device::all().into();
    all.rotate_right(1); // cpu first: what fails there too is no fault of an adapter
    let second = format!("{}/1", all.get(1).map_or("cpu", Device::name));
    all.extend(Device::new(&second));
    all
}

/// Returns the visible adapters, without `cpu`.
///
/// If there is none, this writes a line to standard error.
///
/// # Panics
///
/// If a device of `ANYGPU_REQUIRE_DEVICES` does not open.
#[must_use]
pub fn adapters() -> Vec<Device> {
    require();
    let adapters: Vec<Device> = Device::all().into_iter().filter(|device| !device.is_cpu()).collect();
    if adapters.is_empty() {
        skipped("this machine has no adapter");
    }
    adapters
}

/// Returns the first visible adapter that opens, hardware before software.
///
/// If there is none, this writes a line to standard error.
///
/// # Panics
///
/// If a device of `ANYGPU_REQUIRE_DEVICES` does not open.
#[must_use]
pub fn adapter() -> Option<Device> {
    first(|_| true, "adapter")
}

/// Returns the first visible software adapter that opens, such as lavapipe.
///
/// It is the same one on every machine that has it, so results do not depend on the machine's card. If there is none,
/// this writes a line to standard error.
///
/// # Panics
///
/// If a device of `ANYGPU_REQUIRE_DEVICES` does not open.
#[must_use]
pub fn software_adapter() -> Option<Device> {
    first(|device| device.info().kind == DeviceKind::Software, "software adapter")
}

/// Returns the device with this name.
///
/// If it does not open, this writes a line to standard error.
///
/// # Panics
///
/// If a device of `ANYGPU_REQUIRE_DEVICES` does not open.
///
/// ```
/// use anygpu::testing::device;
///
/// assert!(device("cpu/1").is_some());
/// assert!(device("gpu:99").is_none());
/// ```
#[must_use]
pub fn device(name: &str) -> Option<Device> {
    require();
    Device::new(name).inspect_err(|error| skipped(&error.to_string())).ok()
}

fn first(suits: impl Fn(&Device) -> bool, what: &str) -> Option<Device> {
    require();
    let opened = |device: Device| Device::new(device.name()).ok();
    let adapters = Device::all().into_iter().filter(|device| !device.is_cpu() && suits(device));
    let found = adapters.filter_map(opened).next();
    if found.is_none() {
        skipped(&format!("this machine has no {what}"));
    }
    found
}

/// Panics unless every required device opens.
fn require() {
    let names = std::env::var(REQUIRED).unwrap_or_default();
    for name in names.split(',').map(str::trim).filter(|name| !name.is_empty()) {
        if let Err(error) = Device::new(name) {
            panic!("{REQUIRED} asks for {name}, and these tests may not run without it: {error}");
        }
    }
}

/// Says why a test does not run. Not by `eprintln!`, which test runners show for tests that fail only.
fn skipped(reason: &str) {
    let thread = thread::current();
    // A test that cannot say so is skipped all the same.
    let _ = writeln!(std::io::stderr(), "SKIPPED {}: {reason}", thread.name().unwrap_or("a test"));
}

/// Checks that two tensors have the same type and shape, and nearly the same elements.
///
/// The tensors may be on any devices.
///
/// The condition is `|actual − expected| ≤ atol + rtol · |expected|`, with the tolerances of
/// `torch.testing.assert_close`. As `atol + rtol`, they are 1e-5 + 1.3e-6 for f32, 1e-5 + 1e-3 for f16, 1e-5 +
/// 1.6e-2 for bf16 and 1e-7 + 1e-7 for f64. Elements of other types must be equal (i64 is compared as f64). Two NaN
/// are equal, as in NumPy's `assert_allclose`.
///
/// # Panics
///
/// If the tensors differ: with the number of wrong elements and the worst of them. If a device cannot be read: with
/// the error.
///
/// ```
/// use anygpu::{Tensor, testing::assert_close};
///
/// let x = Tensor::new([1.0, 2.0], None)?;
/// assert_close(&x.add(1e-6)?, &x);
/// # Ok::<(), anygpu::Error>(())
/// ```
#[track_caller]
pub fn assert_close(actual: &Tensor, expected: &Tensor) {
    let (atol, rtol) = match expected.dtype() {
        DType::F32 => (1e-5, 1.3e-6),
        DType::F16 => (1e-5, 1e-3),
        DType::BF16 => (1e-5, 1.6e-2),
        DType::F64 => (1e-7, 1e-7),
        _ => (0.0, 0.0),
    };
    assert_close_within(actual, expected, Tolerance { atol, rtol });
}

/// Checks two tensors as [`assert_close`] does, with tolerances of the caller.
///
/// # Panics
///
/// Same as [`assert_close`].
///
/// ```should_panic
/// use anygpu::testing::{Tolerance, assert_close_within};
/// use anygpu::{Result, Tensor};
///
/// # fn main() -> Result<()> {
/// let x = Tensor::new([1.0, 2.0], None)?;
/// // tensors on cpu and cpu of [2] differ in 1 of 2 elements, worst at [1]: got 2.5, expected 2, error 5e-1, allowed 4e-1
/// assert_close_within(&x.mul(1.25)?, &x, Tolerance { atol: 0.2, rtol: 0.1 });
/// # Ok(())
/// # }
/// ```
#[track_caller]
pub fn assert_close_within(actual: &Tensor, expected: &Tensor, tolerance: Tolerance) {
    let (left, right) = (actual.device(), expected.device());
    let types = [actual.dtype(), expected.dtype()];
    assert!(types[0] == types[1], "the types differ: {} on {left}, expected {} on {right}", types[0], types[1]);
    let expected = match values(expected) {
        Ok(values) => Nd::new(expected.shape(), values),
        Err(error) => panic!("the expected tensor cannot be read from {right}: {error}"),
    };
    if let Err(text) = difference(actual, &expected, tolerance) {
        panic!("the tensor on {left} differs from the one on {right}: {text}");
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;
    use crate::error::Result;

    fn message(f: impl FnOnce()) -> String {
        let panic = catch_unwind(AssertUnwindSafe(f)).expect_err("it panics");
        panic.downcast_ref::<String>().expect("a text").clone()
    }

    #[test]
    fn there_are_two_devices_everywhere() {
        let devices = devices();
        assert!(
            devices.len() >= 2 && devices[0].is_cpu() && devices.iter().any(|device| device.name().ends_with("/1"))
        );
        assert!(adapters().iter().all(|device| !device.is_cpu() && devices.contains(device)));
        assert_eq!(adapter().is_some(), devices.iter().any(|device| !device.is_cpu()));
        assert!(software_adapter().is_none_or(|device| device.info().kind == DeviceKind::Software));
        assert!(device("gpu:99").is_none());
    }

    #[test]
    fn tolerances_are_those_of_the_type() -> Result<()> {
        for (dtype, rtol) in [(DType::F32, 1.3e-6), (DType::F16, 1e-3), (DType::BF16, 1.6e-2)] {
            let x = Tensor::full([3], 1024, None)?.to_dtype(dtype)?;
            assert_close(&x.mul(1.0 + 0.5 * rtol)?, &x);
            let other = x.mul(1.0 + 4.0 * rtol)?;
            assert!(message(|| assert_close(&other, &x)).contains("3 of 3 elements differ"), "{dtype}");
        }
        let nan = Tensor::full([2], f32::NAN, None)?;
        assert_close(&nan, &nan);
        let (x, y) = (Tensor::new([1, 2, 3], None)?, Tensor::new([1, 2, 4], None)?);
        let text = message(|| assert_close(&x, &y));
        assert!(text.contains("1 of 3 elements differ, the worst at [2]: got 3, expected 4"), "{text}");
        Ok(())
    }

    #[test]
    fn types_and_shapes_must_be_the_same() -> Result<()> {
        let x = Tensor::ones([2, 3], None)?;
        let other = x.to_dtype(DType::F16)?;
        assert!(message(|| assert_close(&other, &x)).contains("the types differ: f16 on cpu, expected f32"));
        let other = x.t()?;
        assert!(message(|| assert_close(&other, &x)).contains("the shape is [3, 2], expected [2, 3]"));
        Ok(())
    }
}
