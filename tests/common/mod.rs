//! What all tests share: the devices they run on, and one way of comparing.
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

/// Panics with `what`, the device, the shape, and the worst element if a tensor is not as expected.
#[track_caller]
pub fn assert_close(what: &str, got: &Tensor, expected: &Nd, tolerance: Tolerance) {
    let device = got.device();
    assert_eq!(got.shape(), expected.shape, "{what} on {device}");
    let values = values(got).unwrap_or_else(|error| panic!("{what} on {device}: {error}"));
    if let Some((worst, wrong)) = worst(&values, &expected.data, tolerance).filter(|(_, wrong)| *wrong > 0) {
        let at = index_of(worst.position, &expected.shape);
        panic!("{what} on {device}: {wrong} elements differ, worst at {at:?} of {:?}: {worst:?}", expected.shape);
    }
}
