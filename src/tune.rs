//! Finds the fastest variant of a kernel on a device, for each class of sizes. The choice is measured once, stored
//! for the adapter and driver, and used by every later process. Without stored choices, the sizes alone choose the
//! variant. The command `anygpu tune` does this.
//!
//! So far only the matrix product is measured. The file is in `anygpu/tuned` in the user's cache folder
//! (`XDG_CACHE_HOME`, or else the system's default). It is read when a device is opened. A file that is damaged, or
//! was written for another driver or version of this crate, is ignored with a warning. A variant that it names is
//! still [tried](crate::Device::quarantined) before its first use. `ANYGPU_TUNED=0` turns off the use of stored
//! choices.
//!
//! ```no_run
//! use anygpu::{Device, tune};
//!
//! for device in Device::all() {
//!     let choices = tune::measure(&device, |_, _| ())?;
//!     for choice in &choices {
//!         println!("{}: {} instead of {}, {:.2} x", choice.class, choice.tuned, choice.default, choice.ratio());
//!     }
//!     if !device.is_cpu() {
//!         tune::store(&device, &choices)?;
//!     }
//! }
//! # Ok::<(), anygpu::Error>(())
//! ```

use std::path::PathBuf;
use std::time::Duration;

use crate::device::gpu::TunedChoice;
use crate::device::{Backend, Device};
use crate::error::{Error, Result};
use crate::ops::matmul_tuning::{self, Measured};

/// A variant that is faster by less than this than the default does not replace it: such differences are noise.
const WORTH: f64 = 1.05;

/// The variant of a kernel for a class of sizes on a device.
///
/// See [`measure`].
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Choice {
    /// The family of variants, such as `matmul`.
    pub family: &'static str,
    /// The class of sizes, such as `9-48 tiles, broad, deep`. It has the number of 64 × 64 tiles of the result,
    /// over all products of a batch; `narrow` if the result is a single tile high or wide; `deep` if sums are
    /// longer than 128.
    pub class: String,
    /// The sizes m, k and n of the product that was measured.
    pub sizes: [usize; 3],
    /// The variant that is chosen by the sizes alone.
    pub default: &'static str,
    /// The fastest variant; the default variant if it is less than 5 % slower.
    pub tuned: &'static str,
    /// The shortest time of each correct variant that the adapter can run. Variants that are much slower than the
    /// fastest run only once.
    pub times: Vec<(&'static str, Duration)>,
}

impl Choice {
    fn new(measured: Measured) -> Choice {
        let Measured { class, sizes, default, times } = measured;
        let mut choice = Choice { family: matmul_tuning::NAME, class, sizes, default, tuned: default, times };
        let fastest = choice.times.iter().min_by_key(|(_, time)| *time).map_or(default, |(name, _)| *name);
        let seconds = |name: &str| choice.time(name).as_secs_f64();
        if seconds(fastest) * WORTH < seconds(default) {
            choice.tuned = fastest;
        }
        choice
    }

    /// Returns the time of a variant; zero if it was not measured.
    #[must_use]
    pub fn time(&self, variant: &str) -> Duration {
        self.times.iter().find(|(name, _)| *name == variant).map_or(Duration::ZERO, |(_, time)| *time)
    }

    /// Returns how many times faster the tuned variant is than the default: 1 if the two are the same.
    #[must_use]
    pub fn ratio(&self) -> f64 {
        let [default, tuned] = [self.default, self.tuned].map(|name| self.time(name).as_secs_f64());
        if self.default == self.tuned || tuned == 0.0 { 1.0 } else { default / tuned }
    }
}

/// Measures the variants of the matrix product on a device, for each class of sizes.
///
/// Returns a choice for each class. Returns no choice for the CPU, which has no variants. On software adapters, the
/// largest classes are omitted.
///
/// This takes some seconds on a GPU, and up to a minute on a software adapter. Nothing else should run on it
/// meanwhile. `progress` is called with the number of classes that are done, and the number of all classes.
///
/// # Errors
/// [`Error::DeviceUnavailable`] if the driver does not open the device, [`Error::DeviceLost`], [`Error::OutOfMemory`].
pub fn measure(device: &Device, progress: impl FnMut(usize, usize)) -> Result<Vec<Choice>> {
    match device.backend()? {
        Backend::Cpu(_) => Ok(Vec::new()),
        Backend::Gpu(gpu) => Ok(matmul_tuning::measure(gpu, progress)?.into_iter().map(Choice::new).collect()),
    }
}

/// Stores choices for the adapter of a device, with its driver and this version of the crate.
///
/// They replace earlier choices, and the device uses them at once. Returns the path of the file.
///
/// # Errors
/// [`Error::Data`] if the file cannot be written; [`Error::InvalidArgument`] for the CPU; [`Error::DeviceUnavailable`].
pub fn store(device: &Device, choices: &[Choice]) -> Result<PathBuf> {
    let Backend::Gpu(gpu) = device.backend()? else {
        return Err(Error::argument("tune::store", format!("{device} has no variants of kernels")));
    };
    let stored = |choice: &Choice| TunedChoice {
        family: choice.family.to_owned(),
        class: choice.class.clone(),
        variant: choice.tuned.to_owned(),
    };
    gpu.store_tuned(choices.iter().map(stored).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choice(times: &[(&'static str, u64)]) -> Choice {
        let times = times.iter().map(|(name, millis)| (*name, Duration::from_millis(*millis))).collect();
        Choice::new(Measured { class: "1-8 tiles, broad, deep".into(), sizes: [1; 3], default: "tiles", times })
    }

    #[test]
    fn the_fastest_variant_is_chosen_if_it_is_worth_it() {
        let faster = choice(&[("blocks", 50), ("tiles", 100), ("plain", 900)]);
        assert_eq!((faster.tuned, faster.ratio()), ("blocks", 2.0));
        let equal = choice(&[("blocks", 97), ("tiles", 100)]);
        assert_eq!((equal.tuned, equal.ratio()), ("tiles", 1.0));
        assert_eq!(equal.time("plain"), Duration::ZERO);
    }

    #[test]
    fn the_cpu_has_no_variants() -> Result<()> {
        assert_eq!(measure(&Device::cpu(), |_, _| ())?, []);
        let error = store(&Device::cpu(), &[]).expect_err("no variants").to_string();
        assert!(error.contains("cpu has no variants"), "{error}");
        Ok(())
    }
}
