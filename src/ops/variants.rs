//! The variant of a kernel that an op runs on a device: the one that was measured to be the fastest there (see
//! `device/gpu/tuned.rs`), or else the first one that suits the sizes; in either case one that passed its trial
//! (`device/gpu/variants.rs`).
//!
//! Products, convolutions, attention, rows of reductions and sums by index have variants. The variants for hardware
//! were shaped by what the compiler for AMD makes of them, and never timed; their limits of size are an estimate.

use crate::context::slot;
use crate::device::gpu::{AnyFamily, Caps, Family, Gpu, Params, Variant};
use crate::device::{Backend, Device};
use crate::error::{Error, Result};

slot! {
    /// A kernel family and the variant of it to use regardless of selection. The op table uses this to check every variant.
    FORCED: Option<(&'static str, &'static str)> = None
}

/// What a plan asks of an adapter. The tables of the plans ask [`Caps`], without a trial of variants and without an adapter.
pub(super) trait Adapter {
    fn caps(&self) -> &Caps;

    /// Returns the words of the largest buffer that a kernel can bind.
    fn largest_binding(&self) -> usize;

    /// Returns the variant of a family that runs for some params.
    fn chosen<P: Params, W>(&self, family: &Family<P, W>, params: &P) -> Result<&'static Variant<P, W>>;
}

impl Adapter for Gpu {
    fn caps(&self) -> &Caps {
        self.caps()
    }

    fn largest_binding(&self) -> usize {
        self.largest_binding()
    }

    fn chosen<P: Params, W>(&self, family: &Family<P, W>, params: &P) -> Result<&'static Variant<P, W>> {
        chosen(self, family, params)
    }
}

#[cfg(test)]
impl Adapter for Caps {
    fn caps(&self) -> &Caps {
        self
    }

    fn largest_binding(&self) -> usize {
        self.max_binding_words
    }

    fn chosen<P: Params, W>(&self, family: &Family<P, W>, params: &P) -> Result<&'static Variant<P, W>> {
        let mut fitting = (family.order)(self).iter().copied().filter(|variant| (variant.fits)(self));
        Ok(fitting.find(|variant| variant.suits.accepts(Some(params))).expect("one for all params"))
    }
}

/// Classes of adapters, for the tables of the plans.
#[cfg(test)]
pub(super) mod classes {
    use super::Caps;

    /// A large card without cooperative matrices.
    pub const HARDWARE: Caps = Caps {
        max_binding_words: 1 << 29,
        max_buffer_words: 1 << 30,
        max_workgroups: 65_535,
        subgroup: None,
        software: false,
        loop_budget: None,
        flushes_subnormals: false,
        fxc: false,
        f16: true,
        cooperative: None,
        max_invocations: 1024,
        max_storage_buffers: 8,
        max_immediates: 128,
        workgroup_memory: 32 << 10,
        gl: false,
    };
    pub const WITH_COOPERATIVE: Caps = Caps { cooperative: Some(16), ..HARDWARE };
    /// Whose subgroups have 8 invocations.
    pub const LAVAPIPE: Caps = Caps { software: true, subgroup: Some(8), ..HARDWARE };
    pub const SWIFTSHADER: Caps = Caps { software: true, subgroup: Some(4), ..HARDWARE };
}

/// Returns family and name of each variant that an adapter of some class can run.
#[cfg(test)]
pub(crate) fn of_any_class() -> Vec<(&'static str, &'static str)> {
    let classes = [classes::HARDWARE, classes::WITH_COOPERATIVE, classes::LAVAPIPE, classes::SWIFTSHADER];
    let of_class = |caps: &Caps| {
        let of_family =
            |family: &'static dyn AnyFamily| family.fitting(caps).into_iter().map(|name| (family.name(), name));
        families().flat_map(of_family).collect::<Vec<_>>()
    };
    let mut all: Vec<_> = classes.iter().flat_map(of_class).collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// Returns the variant of a family that runs on a device for some params.
pub(super) fn chosen<P: Params, W>(gpu: &Gpu, family: &Family<P, W>, params: &P) -> Result<&'static Variant<P, W>> {
    let forced = FORCED.get().filter(|(name, _)| *name == family.name);
    match forced.and_then(|(_, name)| family.named(gpu.caps(), name)) {
        Some(variant) => Ok(variant),
        None => gpu.variant(family, params),
    }
}

/// Returns whether the op table asks for a variant of a family: then other ways to the result are left out.
pub(super) fn asked_for<P, W>(family: &Family<P, W>) -> bool {
    FORCED.get().is_some_and(|(name, _)| name == family.name)
}

/// Returns whether the op table asks for a variant of some family: then kernels for software adapters alone are left out too.
pub(super) fn any_asked_for() -> bool {
    FORCED.get().is_some()
}

/// As [`chosen`], for sizes of a class that may have been [tuned](crate::tune).
pub(super) fn chosen_of_class<P: Params, W>(
    gpu: &Gpu,
    family: &Family<P, W>,
    params: &P,
    class: impl FnOnce() -> String,
) -> Result<&'static Variant<P, W>> {
    match if asked_for(family) { None } else { gpu.tuned(family, class)? } {
        Some(variant) => Ok(variant),
        None => chosen(gpu, family, params),
    }
}

/// Returns every family.
fn families() -> impl Iterator<Item = &'static dyn AnyFamily> {
    inventory::iter::<&'static dyn AnyFamily>.into_iter().copied()
}

/// Returns what `f` returns for a family on an adapter; `None` for the host.
fn on_adapter<R>(device: &Device, family: &str, f: impl FnOnce(&dyn AnyFamily, &Gpu) -> R) -> Option<R> {
    let family = families().find(|known| known.name() == family)?;
    match device.backend() {
        Ok(Backend::Gpu(gpu)) => Some(f(family, gpu)),
        Ok(Backend::Cpu(_)) | Err(_) => None,
    }
}

/// Returns the names of the variants that an adapter can run, in their order; none for the host.
fn fitting(device: &Device, family: &str) -> Vec<&'static str> {
    on_adapter(device, family, |family, gpu| family.fitting(gpu.caps())).unwrap_or_default()
}

/// Returns whether a device runs a variant only where the op table asks for it.
pub(crate) fn is_on_demand(device: &Device, family: &str, variant: &str) -> bool {
    on_adapter(device, family, |family, gpu| family.is_on_demand(gpu.caps(), variant)).unwrap_or(false)
}

/// Runs `f` on this thread with the given variant of a family, even if it is not the chosen one.
pub(crate) fn forced<R>(family: &'static str, variant: &'static str, f: impl FnOnce() -> R) -> R {
    let _variant = FORCED.set(Some((family, variant)));
    f()
}

/// Returns whether a device can run a variant; false for the host, which has no variants.
pub(crate) fn runs_on(device: &Device, family: &str, variant: &str) -> bool {
    fitting(device, family).contains(&variant)
}

/// Returns the last variant of a family, which is used if all others are wrong. The op table never puts it in
/// quarantine.
pub(crate) fn safe(device: &Device, family: &str) -> Option<&'static str> {
    fitting(device, family).last().copied()
}

/// Stops using a variant on a device.
pub(crate) fn quarantine(device: &Device, family: &'static str, variant: &'static str, wrong: &str) {
    if let Ok(Backend::Gpu(gpu)) = device.backend() {
        gpu.quarantine(family, variant, wrong);
    }
}

/// Tries the best variant of every family and returns the variants in quarantine.
fn quarantined(gpu: &Gpu) -> Result<Vec<String>> {
    let mut all = Vec::new();
    for family in families() {
        match family.choose(gpu) {
            // No variant is left: all of them are in the list.
            Ok(()) | Err(Error::Gpu { .. }) => all.extend(gpu.quarantined(family.name())),
            Err(error) => return Err(error),
        }
    }
    Ok(all)
}

impl Device {
    /// Returns the kernel variants that compute wrong numbers on this device, each as `family/variant: what is wrong`.
    ///
    /// The device does not use them. The list is empty for `cpu`.
    ///
    /// Before its first use on a device, a variant is tried there on a small input. If it fails, it is put in
    /// quarantine, and the next variant is used. This method opens the device. For each kernel, it tries the variants
    /// in order, up to the first one that is right and suits all sizes. It skips variants that the device never uses. A
    /// [check](crate::check) tries all of them on more inputs.
    ///
    /// `ANYGPU_QUARANTINE=matmul/tiles` excludes a variant from use. Without `matmul/subgroups`, convolutions write
    /// their columns to memory and multiply them.
    ///
    /// # Errors
    /// [`Error::DeviceUnavailable`] if the driver does not open the device; [`Error::DeviceLost`].
    ///
    /// ```
    /// assert!(anygpu::Device::cpu().quarantined()?.is_empty());
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn quarantined(&self) -> Result<Vec<String>> {
        match self.backend()? {
            Backend::Cpu(_) => Ok(Vec::new()),
            Backend::Gpu(gpu) => quarantined(gpu),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::gpu::{Grid, Shader, ShaderText, Suits};
    use crate::ops::linalg::matmul_variants::{
        Loads, PLAIN, PanelVariant, attempt, order as matmul_order, tests::sized,
    };
    use crate::ops::linalg::panels::ProductParams;

    type ProductFamily = Family<ProductParams, Loads>;

    /// Returns the plain variant with an error in its text.
    fn broken(name: &'static str, from: &str, to: &str) -> &'static PanelVariant {
        let files = PLAIN.shader.text.files;
        let (source, shared) = files.split_last().expect("a file");
        assert!(source.contains(from), "{from}");
        let source: &'static str = Box::leak(source.replacen(from, to, 1).into_boxed_str());
        let files: &'static [&'static str] = Box::leak([shared, &[source]].concat().into_boxed_slice());
        let shader = Shader { text: ShaderText { name, files, ..PLAIN.shader.text }, ..PLAIN.shader };
        let grid = Grid::Each(|p: &ProductParams| p.m * p.n * p.z_count);
        let (way, entry, fits) = (PLAIN.way, PLAIN.entry, PLAIN.fits);
        Box::leak(Box::new(Variant { name, way, shader, entry, fits, suits: Suits::All, grid }))
    }

    static FORGETFUL: std::sync::LazyLock<&PanelVariant> =
        std::sync::LazyLock::new(|| broken("forgetful", "k < last", "k + 1u < last"));
    static NONSENSE: std::sync::LazyLock<&PanelVariant> =
        std::sync::LazyLock::new(|| broken("nonsense", "var sum = 0.0;", "var sum = ;"));

    fn order(_: &Caps) -> &'static [&'static PanelVariant] {
        static ORDER: std::sync::LazyLock<[&PanelVariant; 3]> =
            std::sync::LazyLock::new(|| [*FORGETFUL, *NONSENSE, &PLAIN]);
        &*ORDER
    }

    fn adapters() -> Vec<Device> {
        Device::all().into_iter().filter(|device| !device.is_cpu()).collect()
    }

    #[test]
    fn a_broken_variant_is_put_in_quarantine_and_the_next_one_used() -> Result<()> {
        static FAMILY: ProductFamily = Family { name: "matmul-with-broken-ones", order, attempt };
        for device in adapters() {
            let Backend::Gpu(gpu) = device.backend()? else { continue };
            assert_eq!(gpu.variant(&FAMILY, &sized(1, 1, 1))?.name, "plain", "{device}");
            let list = gpu.quarantined(FAMILY.name);
            assert!(
                list[0].starts_with("matmul-with-broken-ones/forgetful: ") && list[0].contains("expected"),
                "{list:?}"
            );
            assert!(list[1].contains("/nonsense: ") && list[1].contains("does not compile"), "{list:?}");
            assert_eq!(list.len(), 2);
            // The device still works.
            assert_eq!(attempt(gpu, &PLAIN)?, None);
        }
        Ok(())
    }

    #[test]
    fn a_variant_is_tried_when_the_sizes_suit_it() -> Result<()> {
        static LARGE: std::sync::LazyLock<PanelVariant> = std::sync::LazyLock::new(|| {
            let Variant { name, way, shader, entry, fits, .. } = **FORGETFUL;
            let (suits, grid) = (Suits::Some(|p: &ProductParams| p.m > 100), Grid::Each(|p: &ProductParams| p.m * p.n));
            Variant { name, way, shader, entry, fits, suits, grid }
        });
        static ON_DEMAND: std::sync::LazyLock<PanelVariant> = std::sync::LazyLock::new(|| {
            let Variant { name, way, shader, entry, fits, .. } = **NONSENSE;
            let grid = Grid::Each(|p: &ProductParams| p.m * p.n);
            Variant { name, way, shader, entry, fits, suits: Suits::OnDemand, grid }
        });
        fn order(_: &Caps) -> &'static [&'static PanelVariant] {
            static ORDER: std::sync::LazyLock<[&PanelVariant; 3]> =
                std::sync::LazyLock::new(|| [&*ON_DEMAND, &*LARGE, &PLAIN]);
            &*ORDER
        }
        static FAMILY: ProductFamily = Family { name: "matmul-by-size", order, attempt };
        for device in adapters() {
            let Backend::Gpu(gpu) = device.backend()? else { continue };
            assert_eq!(gpu.variant(&FAMILY, &sized(100, 100, 1))?.name, "plain", "{device}");
            assert!(gpu.quarantined(FAMILY.name).is_empty(), "a variant for other sizes was tried");
            assert_eq!(gpu.variant(&FAMILY, &sized(101, 100, 1))?.name, "plain", "{device}");
            FAMILY.choose(gpu)?;
            assert_eq!(gpu.quarantined(FAMILY.name).len(), 1, "a variant that only the op table asks for was tried");
        }
        Ok(())
    }

    #[test]
    fn without_any_right_variant_there_is_an_error() -> Result<()> {
        fn order(_: &Caps) -> &'static [&'static PanelVariant] {
            static ORDER: std::sync::LazyLock<[&PanelVariant; 1]> = std::sync::LazyLock::new(|| [*FORGETFUL]);
            &*ORDER
        }
        static FAMILY: ProductFamily = Family { name: "matmul-all-broken", order, attempt };
        for device in adapters() {
            let Backend::Gpu(gpu) = device.backend()? else { continue };
            let error = gpu.variant(&FAMILY, &sized(1, 1, 1)).map(|v| v.name).unwrap_err().to_string();
            assert!(error.contains("no variant") && error.contains("forgetful"), "{error}");
        }
        Ok(())
    }

    /// Puts a variant in quarantine, as the op table does after an error on larger operands.
    #[test]
    fn a_variant_in_use_can_be_put_in_quarantine() -> Result<()> {
        static FAMILY: ProductFamily = Family { name: "matmul-by-hand", order: matmul_order, attempt };
        for device in adapters() {
            let Backend::Gpu(gpu) = device.backend()? else { continue };
            let first = gpu.variant(&FAMILY, &sized(1, 1, 1))?.name;
            gpu.quarantine(FAMILY.name, first, "a test says so");
            assert_ne!(gpu.variant(&FAMILY, &sized(1, 1, 1))?.name, first, "{device}");
            assert_eq!(gpu.quarantined(FAMILY.name), [format!("matmul-by-hand/{first}: a test says so")]);
        }
        Ok(())
    }
}
