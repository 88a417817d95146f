//! Kernels in several variants. Each device uses the best variant that gives correct numbers on it and suits the sizes.
//!
//! A variant is tried on the device before its first use: on a small input of odd sizes, compared with the host. A
//! variant that does not compile or gives wrong numbers is put in quarantine on that device and reported in the log;
//! then the next one is tried. The last variant of a family is simple enough for any driver.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex};

use super::rerun::{Part, PartReads, Rerun, rerun};
use super::{Caps, Gpu, Kernel, KernelBuilder, Params, Shader};
use crate::error::{Error, Result};
use crate::util::sync;

/// One way to compute the result of a family. All variants of a family take the same params and buffers.
///
/// What callers must know of a variant is its `way`, an enum of the family. The name is for users: in settings, files and the log.
#[derive(Debug)]
pub(crate) struct Variant<P, W = ()> {
    pub name: &'static str,
    pub way: W,
    pub shader: Shader<P>,
    pub entry: &'static str,
    /// Returns whether an adapter has what the variant needs.
    pub fits: fn(&Caps) -> bool,
    /// The params for which the variant may be chosen.
    pub suits: Suits<P>,
    /// The grid of the variant.
    pub grid: Grid<P>,
}

/// The params that a variant is for.
#[derive(Debug)]
pub(crate) enum Suits<P> {
    All,
    /// The params for which the function returns true.
    Some(fn(&P) -> bool),
    /// None: it runs only where the op table asks for it.
    OnDemand,
}

impl<P> Suits<P> {
    /// Returns whether the variant may be chosen for these params, or for any.
    pub fn accepts(&self, params: Option<&P>) -> bool {
        match self {
            Suits::All => true,
            Suits::Some(suits) => params.is_none_or(suits),
            Suits::OnDemand => false,
        }
    }
}

/// The number of invocations or workgroups of a variant, computed from its params.
#[derive(Debug)]
pub(crate) enum Grid<P> {
    /// This number of workgroups.
    Workgroups(fn(&P) -> usize),
    /// This number of invocations.
    Each(fn(&P) -> usize),
}

/// Kernels that compute the same result.
pub(crate) struct Family<P: 'static, W: 'static = ()> {
    pub name: &'static str,
    /// Returns the variants to try on an adapter, the best one first and the plain one last.
    pub order: fn(&Caps) -> &'static [&'static Variant<P, W>],
    /// Computes a small example with a variant. `Some` describes what is wrong with the result. It must not ask for the
    /// variant of this family, which is locked.
    pub attempt: fn(&Gpu, &'static Variant<P, W>) -> Result<Option<String>>,
}

/// A family of any params, for code that handles all families. Each family registers itself with `inventory::submit!`.
pub(crate) trait AnyFamily: Sync {
    fn name(&self) -> &'static str;

    /// Returns the names of the variants that an adapter can run, in their order.
    fn fitting(&self, caps: &Caps) -> Vec<&'static str>;

    /// Returns whether an adapter runs a variant only where the op table asks for it.
    fn is_on_demand(&self, caps: &Caps, variant: &str) -> bool;

    /// Tries the variants until one is correct that is for all params.
    fn choose(&self, gpu: &Gpu) -> Result<()>;

    /// Returns the variants that may be chosen if all are correct, in their order.
    fn wanted(&self, caps: &Caps) -> Vec<&'static str>;

    /// Tries a variant, and returns whether it is correct. An incorrect variant has no consequences here.
    fn attempt(&self, gpu: &Gpu, variant: &'static str) -> Result<bool>;
}

inventory::collect!(&'static dyn AnyFamily);

impl<P: Params, W> AnyFamily for Family<P, W> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn fitting(&self, caps: &Caps) -> Vec<&'static str> {
        (self.order)(caps).iter().filter(|variant| (variant.fits)(caps)).map(|variant| variant.name).collect()
    }

    fn is_on_demand(&self, caps: &Caps, variant: &str) -> bool {
        self.named(caps, variant).is_some_and(|variant| matches!(variant.suits, Suits::OnDemand))
    }

    fn choose(&self, gpu: &Gpu) -> Result<()> {
        gpu.first_correct(self, None).map(|_| ())
    }

    fn wanted(&self, caps: &Caps) -> Vec<&'static str> {
        let order = || (self.order)(caps).iter().filter(|variant| (variant.fits)(caps));
        let last = order().position(|variant| matches!(variant.suits, Suits::All)).unwrap_or(usize::MAX);
        let chosen = order().take(last.saturating_add(1)).filter(|variant| variant.suits.accepts(None));
        chosen.map(|variant| variant.name).collect()
    }

    fn attempt(&self, gpu: &Gpu, variant: &'static str) -> Result<bool> {
        let Some(named) = self.named(&gpu.caps, variant) else { return Ok(false) };
        if avoided(self.name, variant) {
            return Ok(false);
        }
        let correct = (self.attempt)(gpu, named)?.is_none();
        if correct {
            sync::lock(&gpu.variants.of(self.name)).correct.push(variant);
        }
        Ok(correct)
    }
}

impl<P, W> Family<P, W> {
    /// Returns the variant of this name, if an adapter can run it.
    pub fn named(&self, caps: &Caps, name: &str) -> Option<&'static Variant<P, W>> {
        (self.order)(caps).iter().copied().find(|variant| variant.name == name && (variant.fits)(caps))
    }
}

/// The variants that passed their trial and those in quarantine, by family.
#[derive(Default)]
pub(super) struct Choices(Mutex<HashMap<&'static str, Arc<Mutex<Choice>>>>);

impl Choices {
    /// Returns the choice of a family. Each family is locked by itself during its trials: these may need variants
    /// of other families.
    fn of(&self, family: &'static str) -> Arc<Mutex<Choice>> {
        Arc::clone(sync::lock(&self.0).entry(family).or_default())
    }
}

#[derive(Default)]
struct Choice {
    correct: Vec<&'static str>,
    quarantined: Vec<(&'static str, String)>,
}

impl Choice {
    /// Puts a variant in quarantine, and returns whether it was not there before.
    fn shut_out(&mut self, variant: &'static str, wrong: &str) -> bool {
        self.correct.retain(|name| *name != variant);
        let news = !self.shuts_out(variant);
        if news {
            self.quarantined.push((variant, wrong.to_owned()));
        }
        news
    }

    fn shuts_out(&self, variant: &str) -> bool {
        self.quarantined.iter().any(|(name, _)| *name == variant)
    }
}

/// Returns whether `ANYGPU_QUARANTINE`, a comma-separated list of `family/variant`, names a variant.
fn avoided(family: &str, variant: &str) -> bool {
    static AVOIDED: LazyLock<String> = LazyLock::new(|| std::env::var("ANYGPU_QUARANTINE").unwrap_or_default());
    AVOIDED.split(',').any(|name| name.trim().split_once('/') == Some((family, variant)))
}

impl Gpu {
    /// Returns the variant of a family to use on this device for some params. A variant is tried before its first use.
    ///
    /// # Errors
    ///
    /// [`Error::Gpu`] if not even the plain variant gives correct numbers; [`Error::DeviceLost`];
    /// [`Error::OutOfMemory`].
    pub(crate) fn variant<P, W>(&self, family: &Family<P, W>, params: &P) -> Result<&'static Variant<P, W>> {
        self.first_correct(family, Some(params))
    }

    /// Tries the variants of all families, so that none has to be tried later: in a browser, where an op cannot wait for a trial.
    ///
    /// # Errors
    ///
    /// Same as [`Gpu::variant`].
    pub(super) async fn try_variants(&self) -> Result<()> {
        let families = || inventory::iter::<&'static dyn AnyFamily>();
        // All at the same time. An error may come from another trial; so only correct results count.
        let of = |family: &&'static dyn AnyFamily| {
            let family = *family;
            family.wanted(&self.caps).into_iter().map(move |name| (family, name, Rerun::default()))
        };
        let mut trials: Vec<_> = families().flat_map(of).collect();
        while !trials.is_empty() {
            trials.retain_mut(|(family, name, reads)| reads.run(&mut || family.attempt(self, name)).is_none());
            for (_, _, reads) in &mut trials {
                reads.arrive(&[self]).await;
            }
        }
        // Those that were not, one after the other.
        for family in families() {
            rerun(&[self], || family.choose(self)).await?;
        }
        Ok(())
    }

    /// Returns a variant by its name, if this adapter can run it and it is correct. It is tried before its first use.
    ///
    /// # Errors
    ///
    /// [`Error::DeviceLost`]; [`Error::OutOfMemory`].
    pub(crate) fn variant_named<P, W>(
        &self,
        family: &Family<P, W>,
        name: &str,
    ) -> Result<Option<&'static Variant<P, W>>> {
        let Some(variant) = family.named(&self.caps, name) else { return Ok(None) };
        let last = (family.order)(&self.caps).last().is_some_and(|last| last.name == name);
        let choice = self.variants.of(family.name);
        let mut choice = sync::lock(&choice);
        Ok(self.is_correct(family, variant, &mut choice, last)?.then_some(variant))
    }

    /// Returns the first correct variant for some params. Without params, returns the first correct one that is for
    /// all, and tries the variants before it too.
    fn first_correct<P, W>(&self, family: &Family<P, W>, params: Option<&P>) -> Result<&'static Variant<P, W>> {
        let choice = self.variants.of(family.name);
        let mut choice = sync::lock(&choice);
        let mut fitting = (family.order)(&self.caps).iter().copied().filter(|v| (v.fits)(&self.caps)).peekable();
        while let Some(variant) = fitting.next() {
            let usable = variant.suits.accepts(params);
            let enough = params.is_some() || matches!(variant.suits, Suits::All);
            if usable && self.is_correct(family, variant, &mut choice, fitting.peek().is_none())? && enough {
                return Ok(variant);
            }
        }
        let tried: Vec<String> = choice.quarantined.iter().map(|(name, wrong)| format!("{name}: {wrong}")).collect();
        Err(Error::Gpu {
            device: self.name.clone(),
            message: format!("no variant of {} gives right numbers on this adapter: {}", family.name, tried.join("; ")),
        })
    }

    /// Returns whether a variant gives correct numbers, and tries it on the first call. One that does not is put in
    /// quarantine. The `last` variant is tried even if the user excludes it.
    fn is_correct<P, W>(
        &self,
        family: &Family<P, W>,
        variant: &'static Variant<P, W>,
        choice: &mut Choice,
        last: bool,
    ) -> Result<bool> {
        if choice.correct.contains(&variant.name) || choice.shuts_out(variant.name) {
            return Ok(!choice.shuts_out(variant.name));
        }
        if !last && avoided(family.name, variant.name) {
            choice.shut_out(variant.name, "ANYGPU_QUARANTINE says so");
            return Ok(false);
        }
        self.synchronize()?; // an earlier error is not the fault of a variant
        #[cfg(test)]
        let _whole = super::pool::Unlimited::new();
        #[cfg(feature = "wgpu")]
        let _trial = super::launches::Trial::begin();
        let _reads = PartReads::of(Part::Trial(family.name, variant.name));
        let mut attempt = (family.attempt)(self, variant);
        // Errors of the device, and a wait that a browser does not allow, say nothing about the variant.
        let of_others = |error: &Error| error.is_device_lost() || error.is_out_of_memory() || error.is_would_block();
        if attempt.as_ref().is_err_and(|error| !of_others(error)) {
            attempt = (family.attempt)(self, variant); // the error may have come from another thread
        }
        let wrong = match attempt {
            Ok(None) => {
                choice.correct.push(variant.name);
                return Ok(true);
            }
            Ok(Some(wrong)) => wrong,
            Err(error) if of_others(&error) => return Err(error),
            Err(error) => error.to_string(),
        };
        self.warn(family.name, variant.name, &wrong);
        choice.shut_out(variant.name, &wrong);
        Ok(false)
    }

    /// Stops using a variant on this device, because a test larger than the attempt has found it wrong.
    pub(crate) fn quarantine(&self, family: &'static str, variant: &'static str, wrong: &str) {
        let choice = self.variants.of(family);
        let mut choice = sync::lock(&choice);
        if choice.shut_out(variant, wrong) {
            self.warn(family, variant, wrong);
        }
    }

    /// Returns the variants in quarantine: `family/variant: why`.
    pub(crate) fn quarantined(&self, family: &str) -> Vec<String> {
        let Some(choice) = sync::lock(&self.variants.0).get(family).map(Arc::clone) else { return Vec::new() };
        let choice = sync::lock(&choice);
        choice.quarantined.iter().map(|(variant, wrong)| format!("{family}/{variant}: {wrong}")).collect()
    }

    fn warn(&self, family: &str, variant: &str, wrong: &str) {
        log::warn!("{}: the variant {family}/{variant} is not used on this adapter: {wrong}", self.name);
    }
}

impl<P: Params, W> Variant<P, W> {
    /// Returns the kernel that runs this variant; `bind` sets its constants and buffers.
    pub fn kernel(&self, params: P, bind: impl FnOnce(KernelBuilder) -> KernelBuilder) -> Kernel {
        let kernel = bind(Kernel::build(self.shader, self.entry, params));
        match self.grid {
            Grid::Workgroups(count) => kernel.workgroups(count(&params)),
            Grid::Each(count) => kernel.each(count(&params)),
        }
    }
}
