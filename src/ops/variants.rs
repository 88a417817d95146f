//! Which variant of a kernel an op runs on a device: the one that was tried there (see `device/gpu/variants.rs`).

use crate::context;
use crate::device::gpu::{Family, Gpu, Kernel, Variant};
use crate::device::{Backend, Device};
use crate::error::{Error, Result};
use crate::ops::linalg::matmul_variants;

/// Every family.
const FAMILIES: [&Family; 1] = [&matmul_variants::FAMILY];

/// Makes a kernel run as the variant that its device uses.
pub(super) fn settle(gpu: &Gpu, kernel: Kernel) -> Result<Kernel> {
    match FAMILIES.iter().find(|family| family.name == kernel.shader.name) {
        None => Ok(kernel),
        Some(family) => settle_as(gpu, kernel, family),
    }
}

fn settle_as(gpu: &Gpu, kernel: Kernel, family: &Family) -> Result<Kernel> {
    let forced = context::read(|context| context.variant).filter(|(name, _)| *name == family.name);
    let variant = match forced.and_then(|(_, name)| fitting(gpu, family, name)) {
        Some(variant) => variant,
        None => gpu.variant(family)?,
    };
    Ok(as_variant(kernel, variant))
}

/// The same work as another variant.
pub(super) fn as_variant(kernel: Kernel, variant: &Variant) -> Kernel {
    let groups = (variant.groups)(&kernel.params);
    Kernel { shader: variant.shader, entry: variant.entry, groups, ..kernel }
}

fn fitting(gpu: &Gpu, family: &Family, variant: &str) -> Option<&'static Variant> {
    let all = (family.order)(gpu.caps());
    all.iter().copied().find(|v| v.name == variant && (v.fits)(gpu.caps()))
}

fn family(name: &str) -> Option<&'static Family> {
    FAMILIES.into_iter().find(|family| family.name == name)
}

/// Runs `f` with one variant of a family on this thread, chosen or not.
pub(crate) fn forced<R>(family: &'static str, variant: &'static str, f: impl FnOnce() -> R) -> R {
    let _variant = context::set(|context| &mut context.variant, Some((family, variant)));
    f()
}

/// Whether a device has what a variant needs; the host has no variants.
pub(crate) fn runs_on(device: &Device, family_name: &str, variant: &str) -> bool {
    match (device.backend(), family(family_name)) {
        (Ok(Backend::Gpu(gpu)), Some(family)) => fitting(gpu, family, variant).is_some(),
        _ => false,
    }
}

/// The variant that is used where all others are wrong, and so is never put in quarantine by what the op table finds.
pub(crate) fn safe(device: &Device, family_name: &str) -> Option<&'static str> {
    match (device.backend(), family(family_name)) {
        (Ok(Backend::Gpu(gpu)), Some(family)) => (family.order)(gpu.caps()).last().map(|variant| variant.name),
        _ => None,
    }
}

/// Stops using a variant on a device.
pub(crate) fn quarantine(device: &Device, family_name: &str, variant: &'static str, wrong: &str) {
    if let (Ok(Backend::Gpu(gpu)), Some(family)) = (device.backend(), family(family_name)) {
        gpu.quarantine(family, variant, wrong);
    }
}

/// Tries the best variant of every family and gives what is in quarantine.
fn quarantined(gpu: &Gpu) -> Result<Vec<String>> {
    let mut all = Vec::new();
    for family in FAMILIES {
        match gpu.variant(family) {
            // None is left: all of them are listed.
            Ok(_) | Err(Error::Gpu { .. }) => all.extend(gpu.quarantined(family)),
            Err(error) => return Err(error),
        }
    }
    Ok(all)
}

impl Device {
    /// Kernel variants that give wrong numbers on this device, and so are not used there: `family/variant: what is wrong`.
    ///
    /// Before its first use on a device, a variant is tried there on something small; one that fails is put in quarantine,
    /// and the next one takes its place. This tries the best of each kernel; a [check](crate::check) tries all of them on
    /// more. `ANYGPU_QUARANTINE=matmul/tiles` keeps one from being used at all. Opens the device; empty for `cpu`.
    ///
    /// # Errors
    /// [`Error::DeviceUnavailable`] if its driver refuses, [`Error::DeviceLost`].
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
    use crate::device::gpu::Shader;
    use crate::ops::linalg::matmul_variants::{PLAIN, attempt};

    /// The plain variant with something wrong in its text.
    fn broken(name: &'static str, from: &str, to: &str) -> &'static Variant {
        let source = PLAIN.shader.source;
        assert!(source.contains(from), "{from}");
        let source: &'static str = Box::leak(source.replacen(from, to, 1).into_boxed_str());
        let shader = Shader { name, source };
        Box::leak(Box::new(Variant { name, shader, entry: PLAIN.entry, fits: PLAIN.fits, groups: PLAIN.groups }))
    }

    static FORGETFUL: std::sync::LazyLock<&Variant> =
        std::sync::LazyLock::new(|| broken("forgetful", "k < last", "k + 1u < last"));
    static NONSENSE: std::sync::LazyLock<&Variant> =
        std::sync::LazyLock::new(|| broken("nonsense", "var sum = 0.0;", "var sum = ;"));

    fn order(_: &crate::device::gpu::Caps) -> &'static [&'static Variant] {
        static ORDER: std::sync::LazyLock<[&Variant; 3]> = std::sync::LazyLock::new(|| [*FORGETFUL, *NONSENSE, &PLAIN]);
        &*ORDER
    }

    fn adapters() -> Vec<Device> {
        Device::all().into_iter().filter(|device| !device.is_cpu()).collect()
    }

    #[test]
    fn a_broken_variant_is_put_in_quarantine_and_the_next_one_used() -> Result<()> {
        static FAMILY: Family = Family { name: "matmul-with-broken-ones", order, attempt };
        for device in adapters() {
            let Backend::Gpu(gpu) = device.backend()? else { continue };
            assert_eq!(gpu.variant(&FAMILY)?.name, "plain", "{device}");
            let list = gpu.quarantined(&FAMILY);
            assert!(
                list[0].starts_with("matmul-with-broken-ones/forgetful: ") && list[0].contains("expected"),
                "{list:?}"
            );
            assert!(list[1].contains("/nonsense: ") && list[1].contains("does not compile"), "{list:?}");
            assert_eq!(list.len(), 2);
            // The device works on.
            assert_eq!(attempt(gpu, &PLAIN)?, None);
        }
        Ok(())
    }

    #[test]
    fn without_any_right_variant_there_is_an_error() -> Result<()> {
        fn order(_: &crate::device::gpu::Caps) -> &'static [&'static Variant] {
            static ORDER: std::sync::LazyLock<[&Variant; 1]> = std::sync::LazyLock::new(|| [*FORGETFUL]);
            &*ORDER
        }
        static FAMILY: Family = Family { name: "matmul-all-broken", order, attempt };
        for device in adapters() {
            let Backend::Gpu(gpu) = device.backend()? else { continue };
            let error = gpu.variant(&FAMILY).map(|v| v.name).unwrap_err().to_string();
            assert!(error.contains("no variant") && error.contains("forgetful"), "{error}");
        }
        Ok(())
    }

    /// What the op table finds wrong on larger operands.
    #[test]
    fn a_variant_in_use_can_be_put_in_quarantine() -> Result<()> {
        static FAMILY: Family = Family { name: "matmul-by-hand", order: matmul_variants::order, attempt };
        for device in adapters() {
            let Backend::Gpu(gpu) = device.backend()? else { continue };
            let first = gpu.variant(&FAMILY)?.name;
            gpu.quarantine(&FAMILY, first, "a test says so");
            assert_ne!(gpu.variant(&FAMILY)?.name, first, "{device}");
            assert_eq!(gpu.quarantined(&FAMILY), [format!("matmul-by-hand/{first}: a test says so")]);
        }
        Ok(())
    }
}
