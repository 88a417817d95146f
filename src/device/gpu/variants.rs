//! Kernels in several variants: each device uses the best one that gives right numbers there.
//!
//! A variant is tried on the device before its first use, on a small input of odd sizes, against the host. One that does
//! not compile, or gives wrong numbers, is put in quarantine on that device, with a line in the log, and the next one is
//! tried; the last one of a family is plain enough for any driver.

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex};

use super::{Caps, Gpu, Kernel, KernelBuilder, Params, Shader};
use crate::error::{Error, Result};
use crate::sync;

/// One way to compute what a family computes. All variants of a family take the same params and buffers.
#[derive(Debug)]
pub(crate) struct Variant<P> {
    pub name: &'static str,
    pub shader: Shader<P>,
    pub entry: &'static str,
    /// Whether an adapter has what it needs.
    pub fits: fn(&Caps) -> bool,
    /// Its grid.
    pub grid: Grid<P>,
}

/// How often a variant runs, from its params.
#[derive(Debug)]
pub(crate) enum Grid<P> {
    /// So many workgroups.
    Workgroups(fn(&P) -> usize),
    /// So many invocations.
    Each(fn(&P) -> usize),
}

/// Kernels that compute the same.
pub(crate) struct Family<P: 'static> {
    pub name: &'static str,
    /// The variants to try on an adapter, the best one first and the plain one last.
    pub order: fn(&Caps) -> &'static [&'static Variant<P>],
    /// Computes something small with a variant. `Some` says what is wrong with it.
    pub attempt: fn(&Gpu, &'static Variant<P>) -> Result<Option<String>>,
}

/// A family of any params, for what goes through all of them. Each family registers itself, by `inventory::submit!`.
pub(crate) trait AnyFamily: Sync {
    fn name(&self) -> &'static str;

    /// The names of the variants that an adapter can run, in their order.
    fn fitting(&self, caps: &Caps) -> Vec<&'static str>;

    /// Tries the variants until one is right.
    fn choose(&self, gpu: &Gpu) -> Result<()>;
}

inventory::collect!(&'static dyn AnyFamily);

impl<P: Params> AnyFamily for Family<P> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn fitting(&self, caps: &Caps) -> Vec<&'static str> {
        (self.order)(caps).iter().filter(|variant| (variant.fits)(caps)).map(|variant| variant.name).collect()
    }

    fn choose(&self, gpu: &Gpu) -> Result<()> {
        gpu.variant(self).map(|_| ())
    }
}

impl<P> Family<P> {
    /// The variant of this name, if an adapter can run it.
    pub fn named(&self, caps: &Caps, name: &str) -> Option<&'static Variant<P>> {
        (self.order)(caps).iter().copied().find(|variant| variant.name == name && (variant.fits)(caps))
    }
}

/// Which variants are used and which are not, by family.
#[derive(Default)]
pub(super) struct Choices(Mutex<HashMap<&'static str, Choice>>);

#[derive(Default)]
struct Choice {
    chosen: Option<&'static str>,
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
fn avoided(family: &str, variant: &str) -> bool {
    static AVOIDED: LazyLock<String> = LazyLock::new(|| std::env::var("ANYGPU_QUARANTINE").unwrap_or_default());
    AVOIDED.split(',').any(|name| name.trim().split_once('/') == Some((family, variant)))
}

impl Gpu {
    /// The variant of a family to use on this device; tried at the first call.
    ///
    /// # Errors
    ///
    /// [`Error::Gpu`] if not even the plain variant gives right numbers; [`Error::DeviceLost`]; [`Error::OutOfMemory`].
    pub(crate) fn variant<P>(&self, family: &Family<P>) -> Result<&'static Variant<P>> {
        let mut choices = sync::lock(&self.variants.0);
        let choice = choices.entry(family.name).or_default();
        if let Some(chosen) = choice.chosen.and_then(|name| family.named(&self.caps, name)) {
            return Ok(chosen);
        }
        self.synchronize()?; // what went wrong before is no variant's fault
        let fitting: Vec<_> = (family.order)(&self.caps).iter().copied().filter(|v| (v.fits)(&self.caps)).collect();
        for (i, variant) in fitting.iter().enumerate() {
            if i + 1 < fitting.len() && avoided(family.name, variant.name) {
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
                    choice.chosen = Some(variant.name);
                    return Ok(variant);
                }
                Ok(Some(wrong)) => wrong,
                Err(error) if error.is_device_lost() || error.is_out_of_memory() => return Err(error),
                Err(error) => error.to_string(),
            };
            self.warn(family.name, variant.name, &wrong);
            choice.shut_out(variant.name, &wrong);
        }
        let tried: Vec<String> = choice.quarantined.iter().map(|(name, wrong)| format!("{name}: {wrong}")).collect();
        Err(Error::Gpu {
            device: self.name.clone(),
            message: format!("no variant of {} gives right numbers on this adapter: {}", family.name, tried.join("; ")),
        })
    }

    /// Stops using a variant on this device, since something larger than the attempt has found it wrong.
    pub(crate) fn quarantine(&self, family: &'static str, variant: &'static str, wrong: &str) {
        let mut choices = sync::lock(&self.variants.0);
        let choice = choices.entry(family).or_default();
        if choice.shut_out(variant, wrong) {
            self.warn(family, variant, wrong);
        }
        if choice.chosen == Some(variant) {
            choice.chosen = None;
        }
    }

    /// What is in quarantine: `family/variant: why`.
    pub(crate) fn quarantined(&self, family: &str) -> Vec<String> {
        let choices = sync::lock(&self.variants.0);
        let list = choices.get(family).map(|choice| choice.quarantined.as_slice()).unwrap_or_default();
        list.iter().map(|(variant, wrong)| format!("{family}/{variant}: {wrong}")).collect()
    }

    fn warn(&self, family: &str, variant: &str, wrong: &str) {
        log::warn!("{}: the variant {family}/{variant} is not used on this adapter: {wrong}", self.name);
    }
}

impl<P: Params> Variant<P> {
    /// The kernel that runs this variant; `bind` sets its constants and buffers.
    pub fn kernel(&self, params: P, bind: impl FnOnce(KernelBuilder) -> KernelBuilder) -> Kernel {
        let kernel = bind(Kernel::build(self.shader, self.entry, params));
        match self.grid {
            Grid::Workgroups(count) => kernel.workgroups(count(&params)),
            Grid::Each(count) => kernel.each(count(&params)),
        }
    }
}
