//! Code shared by all tests: the devices, and the comparison of tensors.
#![allow(dead_code, unused_imports, reason = "every test binary compiles this file and uses its own part of it")]

pub use anygpu::check::nd::{EXACT, Nd, Tolerance, difference, signed, uniform, values, whole};
pub use anygpu::testing::{adapters, device, devices};

use std::sync::{Mutex, MutexGuard, PoisonError};

use anygpu::{Device, DeviceKind, Tensor};
use proptest::prelude::ProptestConfig;
use proptest::test_runner::RngSeed;

/// Waits until no other test holds what this returns. Every test of `tests/alone/`, `tests/train/`, `tests/breaking/` and
/// `tests/allocations/` begins with it, since the generator, the counters and the errors of a device are those of the process.
pub fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns `cpu` and two adapters, for a test of what is made of ops: other tests have other adapters, so that all together have
/// all. The ops themselves are tested on every adapter. With `ANYGPU_EVERY_DEVICE=1`, these are all [`devices`].
pub fn devices_in_turn() -> Vec<Device> {
    const EACH: usize = 2;
    let all = devices();
    if all.len() <= 2 + EACH || std::env::var_os("ANYGPU_EVERY_DEVICE").is_some() {
        return all;
    }
    // The last one is a second device on the first adapter.
    let adapters = &all[1..all.len() - 1];
    let test = std::thread::current().name().unwrap_or_default().bytes().map(usize::from).sum::<usize>();
    let own = (0..EACH).map(|i| adapters[(test + i) % adapters.len()].clone());
    [all[0].clone()].into_iter().chain(own).collect()
}

/// Returns the adapters for the `i`-th shape of a test. Software adapters take seconds to compile the kernels of a shape, so that each
/// shape has two of them, in turn.
pub fn adapters_of_shape(i: usize) -> Vec<Device> {
    const EACH: usize = 2;
    let adapters = devices().into_iter().filter(|device| !device.is_cpu());
    let (software, mut all): (Vec<Device>, Vec<Device>) =
        adapters.partition(|device| device.info().kind == DeviceKind::Software);
    all.extend((0..software.len().min(EACH)).map(|more| software[(i + more) % software.len()].clone()));
    all
}

/// Returns the settings of a property: so many cases, the same ones each time. PROPTEST_RNG_SEED draws others, PROPTEST_CASES more.
pub fn property(cases: u32) -> ProptestConfig {
    let mut config = ProptestConfig { failure_persistence: None, ..ProptestConfig::default() };
    if std::env::var_os("PROPTEST_CASES").is_none() {
        config.cases = cases;
    }
    if config.rng_seed == RngSeed::Random {
        config.rng_seed = RngSeed::Fixed(0);
    }
    config
}

/// Panics with `what`, the device, the shape, and the worst element if a tensor is not as expected.
#[track_caller]
pub fn assert_close(what: &str, got: &Tensor, expected: &Nd, tolerance: Tolerance) {
    if let Err(text) = difference(got, expected, tolerance) {
        panic!("{what} on {}: {text}", got.device());
    }
}
