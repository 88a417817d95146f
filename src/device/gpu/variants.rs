//! Kernels in several variants: each device uses the best one that gives right numbers there.
//!
//! A variant is tried on the device before its first use, on a small input of odd sizes, against the host. One that does
//! not compile, or gives wrong numbers, is put in quarantine on that device, with a line in the log, and the next one is
//! tried; the last one of a family is plain enough for any driver.

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex};

use super::{Caps, Gpu, Shader};
use crate::error::{Error, Result};
use crate::sync;

/// One way to compute what a family computes. All variants of a family take the same params and buffers.
#[derive(Debug)]
pub(crate) struct Variant {
    pub name: &'static str,
    pub shader: Shader,
    pub entry: &'static str,
    /// Whether an adapter has what it needs.
    pub fits: fn(&Caps) -> bool,
    /// Its grid, from a kernel's params.
    pub groups: fn(&[u32]) -> [u32; 3],
}

/// Kernels that compute the same.
pub(crate) struct Family {
    /// The stem of the shader that its kernels are written for.
    pub name: &'static str,
    /// The variants to try on an adapter, the best one first and the plain one last.
    pub order: fn(&Caps) -> &'static [&'static Variant],
    /// Computes something small with a variant. `Some` says what is wrong with it.
    pub attempt: fn(&Gpu, &'static Variant) -> Result<Option<String>>,
}

/// Which variants are used and which are not, by family.
#[derive(Default)]
pub(super) struct Choices(Mutex<HashMap<&'static str, Choice>>);

#[derive(Default)]
struct Choice {
    chosen: Option<&'static Variant>,
    quarantined: Vec<(&'static str, String)>,
}

impl Choice {
    /// Whether this is news.
    fn shut_out(&mut self, variant: &'static str, wrong: &str) -> bool {
        let news = self.quarantined.iter().all(|(name, _)| *name != variant);
        if news {
            self.quarantined.push((variant, wrong.to_owned()));
        }
        news
    }
}

/// Whether `ANYGPU_QUARANTINE`, a comma-separated list of `family/variant`, names a variant.
fn avoided(family: &Family, variant: &Variant) -> bool {
    static AVOIDED: LazyLock<String> = LazyLock::new(|| std::env::var("ANYGPU_QUARANTINE").unwrap_or_default());
    AVOIDED.split(',').any(|name| name.trim().split_once('/') == Some((family.name, variant.name)))
}

impl Gpu {
    /// The variant of a family to use on this device; tried at the first call.
    ///
    /// # Errors
    ///
    /// [`Error::Gpu`] if not even the plain variant gives right numbers; [`Error::DeviceLost`]; [`Error::OutOfMemory`].
    pub(crate) fn variant(&self, family: &Family) -> Result<&'static Variant> {
        let mut choices = sync::lock(&self.variants.0);
        let choice = choices.entry(family.name).or_default();
        if let Some(chosen) = choice.chosen {
            return Ok(chosen);
        }
        self.synchronize()?; // what went wrong before is no variant's fault
        let fitting: Vec<_> = (family.order)(&self.caps).iter().filter(|v| (v.fits)(&self.caps)).collect();
        for (i, variant) in fitting.iter().enumerate() {
            if i + 1 < fitting.len() && avoided(family, variant) {
                choice.shut_out(variant.name, "ANYGPU_QUARANTINE says so");
            }
            if choice.quarantined.iter().any(|(name, _)| *name == variant.name) {
                continue;
            }
            let mut attempt = (family.attempt)(self, variant);
            if attempt.as_ref().is_err_and(|error| !error.is_device_lost() && !error.is_out_of_memory()) {
                attempt = (family.attempt)(self, variant); // another thread's error may have come up here
            }
            let wrong = match attempt {
                Ok(None) => {
                    choice.chosen = Some(variant);
                    return Ok(variant);
                }
                Ok(Some(wrong)) => wrong,
                Err(error) if error.is_device_lost() || error.is_out_of_memory() => return Err(error),
                Err(error) => error.to_string(),
            };
            self.warn(family, variant.name, &wrong);
            choice.shut_out(variant.name, &wrong);
        }
        let tried: Vec<String> = choice.quarantined.iter().map(|(name, wrong)| format!("{name}: {wrong}")).collect();
        Err(Error::Gpu {
            device: self.name.clone(),
            message: format!("no variant of {} gives right numbers on this adapter: {}", family.name, tried.join("; ")),
        })
    }

    /// Stops using a variant on this device, since something larger than the attempt has found it wrong.
    pub(crate) fn quarantine(&self, family: &Family, variant: &'static str, wrong: &str) {
        let mut choices = sync::lock(&self.variants.0);
        let choice = choices.entry(family.name).or_default();
        if choice.shut_out(variant, wrong) {
            self.warn(family, variant, wrong);
        }
        if choice.chosen.is_some_and(|chosen| chosen.name == variant) {
            choice.chosen = None;
        }
    }

    /// What is in quarantine: `family/variant: why`.
    pub(crate) fn quarantined(&self, family: &Family) -> Vec<String> {
        let choices = sync::lock(&self.variants.0);
        let list = choices.get(family.name).map(|choice| choice.quarantined.as_slice()).unwrap_or_default();
        list.iter().map(|(variant, wrong)| format!("{}/{variant}: {wrong}", family.name)).collect()
    }

    fn warn(&self, family: &Family, variant: &str, wrong: &str) {
        log::warn!("{}: the variant {}/{variant} is not used on this adapter: {wrong}", self.name, family.name);
    }
}
