//! Code shared by all tests: the list of devices, and the comparison of tensors.
#![allow(dead_code, unused_imports, reason = "every test binary compiles this file and uses its own part of it")]

pub use anygpu::check::nd::{EXACT, Nd, Tolerance, signed, uniform, values, whole};

use anygpu::check::nd::{index_of, worst};
use anygpu::{Device, Tensor};

/// Every device that the tests run on: `cpu`, each visible adapter, and a second logical device on the first adapter.
///
/// `ANYGPU_REQUIRE_DEVICES`, a comma-separated list of names, says which must be there: a missing one fails the test.
pub fn devices() -> Vec<Device> {
    required();
    let mut all: Vec<Device> = Device::all().into();
    all.rotate_right(1); // cpu first: where it fails too, the op is wrong, not an adapter
    if let Some(first) = all.iter().find(|d| d.name().starts_with("soft:") || d.name().starts_with("gpu:")) {
        all.extend(Device::new(&format!("{}/1", first.name())));
    }
    all
}

/// Panics unless every device of `ANYGPU_REQUIRE_DEVICES` opens.
fn required() {
    let names = std::env::var("ANYGPU_REQUIRE_DEVICES").unwrap_or_default();
    for name in names.split(',').map(str::trim).filter(|name| !name.is_empty()) {
        if let Err(error) = Device::new(name) {
            panic!("ANYGPU_REQUIRE_DEVICES asks for {name}, and these tests may not run without it: {error}");
        }
    }
}

/// The device called `name`, or `None` (said on standard error) where this machine has none; what
/// `ANYGPU_REQUIRE_DEVICES` asks for is there.
pub fn device(name: &str) -> Option<Device> {
    required();
    Device::new(name).inspect_err(|error| eprintln!("NOT TESTED: {error}")).ok()
}

/// What is wrong with a tensor: its shape, or the worst element.
pub fn difference(got: &Tensor, expected: &Nd, tolerance: Tolerance) -> Result<(), String> {
    if got.shape() != expected.shape {
        return Err(format!("the shape is {:?}, expected {:?}", got.shape(), expected.shape));
    }
    let values = values(got).map_err(|error| error.to_string())?;
    match worst(&values, &expected.data, tolerance) {
        Some((worst, wrong)) if wrong > 0 => {
            let at = index_of(worst.position, &expected.shape);
            Err(format!("{wrong} elements differ, worst at {at:?} of {:?}: {worst:?}", expected.shape))
        }
        _ => Ok(()),
    }
}

/// Panics with `what`, the device, the shape, and the worst element if a tensor is not as expected.
#[track_caller]
pub fn assert_close(what: &str, got: &Tensor, expected: &Nd, tolerance: Tolerance) {
    if let Err(text) = difference(got, expected, tolerance) {
        panic!("{what} on {}: {text}", got.device());
    }
}
