//! Which devices this machine has, in which order and under which names.
//!
//! **One physical card is one device.** APIs are ranked Vulkan, Metal, DX12, GL; an adapter is dropped when a better
//! API lists the same card: the same PCI bus id where both report one (DX12's cannot be trusted: it is looked up by
//! vendor and device id, so identical cards collide), else the same vendor, device id and occurrence, else (GL, which
//! has no device id) the same chip name and occurrence. Software adapters differ by API, name and driver version:
//! lavapipe and llvmpipe of one Mesa are two devices, as their compilers' faults are not the same. A Vulkan driver that says that
//! it is not conformant ranks after GL, except `dzn`: in WSL, GL goes through the same driver of DirectX, and offers less.
//!
//! **The order does not depend on the driver's.** Hardware: discrete, integrated, virtual, and software last. Within each, drivers
//! that say that they are not conformant come last. Then, hardware: PCI bus id; API, vendor and device id, name. Software: API;
//! lavapipe/llvmpipe, SwiftShader, WARP, others; driver version, older first.

use std::collections::HashMap;
use std::sync::{Mutex, OnceLock};

use super::gpu::{self, Handle};
use super::info::{DeviceInfo, DeviceKind, Limits, Vendor};
use super::name::Name;
use super::{BackendHandle, Device, Inner, chaos, cpu};
use crate::error::{Error, Result};
use crate::util::notice::warn;
use crate::util::sync;

/// Logical devices that one adapter can be split into.
const MAX_LOGICAL: usize = 16;

/// The API that lists an adapter; the order is the rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Api {
    Vulkan,
    Metal,
    Dx12,
    Gl,
    /// The API of a browser.
    WebGpu,
}

impl Api {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Api::Vulkan => "Vulkan",
            Api::Metal => "Metal",
            Api::Dx12 => "DX12",
            Api::Gl => "GL",
            Api::WebGpu => "WebGPU",
        }
    }
}

/// The description of an adapter by its driver: plain data.
#[derive(Clone, Debug)]
pub(crate) struct AdapterInfo {
    pub api: Api,
    pub name: String,
    pub vendor_id: u32,
    pub device_id: u32,
    pub pci: String,
    pub kind: DeviceKind,
    /// `false` if the driver says that it is not conformant.
    pub conformant: bool,
    pub driver: String,
    pub driver_info: String,
    pub memory_total: Option<u64>,
    pub features: Vec<String>,
    pub limits: Limits,
}

/// A visible name, and the adapter and logical index that it stands for.
#[derive(Clone, Debug, PartialEq)]
struct Slot {
    name: String,
    adapter: usize,
    logical: usize,
}

struct Registry {
    adapters: Vec<(AdapterInfo, Handle)>,
    kinds: Vec<DeviceKind>,
    slots: Vec<Slot>,
    /// The devices that were asked for, by name.
    devices: Mutex<HashMap<String, Device>>,
}

static REGISTRY: OnceLock<Registry> = OnceLock::new();

/// Looks for adapters, once. In a browser, there is none before [`find_adapters`] has looked.
fn registry() -> &'static Registry {
    static NOT_YET: OnceLock<Registry> = OnceLock::new();
    if let Some(registry) = REGISTRY.get() {
        return registry;
    }
    match gpu::enumerate() {
        Ok(found) => REGISTRY.get_or_init(|| Registry::of(found)),
        Err(_) => NOT_YET.get_or_init(|| Registry::of(Vec::new())),
    }
}

/// Looks for adapters, if this has not been done.
pub(super) async fn find_adapters() {
    if REGISTRY.get().is_none() {
        let found = gpu::adapters().await;
        REGISTRY.get_or_init(|| Registry::of(found));
    }
}

impl Registry {
    fn of(found: Vec<(AdapterInfo, Handle)>) -> Registry {
        let mut found: Vec<Option<(AdapterInfo, Handle)>> = found.into_iter().map(Some).collect();
        let infos: Vec<AdapterInfo> = found.iter().flatten().map(|(info, _)| info.clone()).collect();
        let adapters: Vec<_> = select(&infos).into_iter().filter_map(|i| found[i].take()).collect();
        let kinds: Vec<_> = adapters.iter().map(|(info, _)| info.kind).collect();
        let visible = std::env::var("ANYGPU_VISIBLE_DEVICES").ok();
        let (slots, warnings) = name_slots(&kinds, visible.as_deref());
        for warning in warnings {
            warn(&format!("ANYGPU_VISIBLE_DEVICES: {warning}"));
        }
        Registry { adapters, kinds, slots, devices: Mutex::default() }
    }
}

/// The host device; finding it does not look for adapters.
pub(super) fn cpu() -> Device {
    static CPU: OnceLock<Device> = OnceLock::new();
    CPU.get_or_init(|| host("cpu".into())).clone()
}

/// The host's logical device of this index. All have the same memory and threads.
fn logical_cpu(logical: usize) -> Option<Device> {
    static MORE: [OnceLock<Device>; MAX_LOGICAL] = [const { OnceLock::new() }; MAX_LOGICAL];
    match logical {
        0 => Some(cpu()),
        _ => Some(MORE.get(logical)?.get_or_init(|| host(format!("cpu/{logical}"))).clone()),
    }
}

fn host(name: String) -> Device {
    let backend = BackendHandle::Cpu(cpu::logical(&name));
    Device(Inner { info: DeviceInfo { name, ..cpu::info() }, backend }.into())
}

/// The device called `name`, not opened.
pub(super) fn find(name: &str) -> Result<Device> {
    let unknown = || {
        let mut available: Vec<String> = registry().slots.iter().map(|slot| slot.name.clone()).collect();
        available.push("cpu".into());
        Error::UnknownDevice { name: name.into(), available }
    };
    let lower = name.trim().to_ascii_lowercase();
    if let Some((device, chaos)) = chaos::parse(&lower)? {
        let parsed = Name::parse(device).ok_or_else(unknown)?;
        let (adapter, logical) = lookup(&registry().slots, &registry().kinds, parsed).ok_or_else(unknown)?;
        return Ok(registry().named(lower, adapter, |handle| handle.logical(logical).with(chaos)));
    }
    match Name::parse(name).ok_or_else(unknown)? {
        Name::Cpu { logical } => logical_cpu(logical).ok_or_else(unknown),
        name => {
            let (adapter, logical) = lookup(&registry().slots, &registry().kinds, name).ok_or_else(unknown)?;
            Ok(registry().device(adapter, logical))
        }
    }
}

/// All visible devices, `cpu` last.
pub(super) fn all() -> Vec<Device> {
    let adapters = registry().slots.iter().map(|slot| registry().device(slot.adapter, slot.logical));
    adapters.chain([cpu()]).collect()
}

/// The host and the adapters' devices that were asked for so far, logical ones too. This does not look for adapters.
pub(super) fn known() -> Vec<Device> {
    let devices = REGISTRY.get().map(|registry| sync::lock(&registry.devices).values().cloned().collect::<Vec<_>>());
    let mut devices = devices.unwrap_or_default();
    devices.sort_by(|a, b| a.name().cmp(b.name()));
    devices.push(cpu());
    devices
}

/// The devices called `gpu:…`.
pub(super) fn gpus() -> Vec<Device> {
    all().into_iter().filter(|device| device.name().starts_with("gpu")).collect()
}

/// Returns the device that has the name of a lost one now; a new one, if that is lost too. `None` if the device is not
/// of the registry.
pub(super) fn renewed(lost: &Device) -> Option<Device> {
    let mut devices = sync::lock(&registry().devices);
    let current = devices.get_mut(lost.name())?;
    if current == lost || current.is_lost() {
        *current = current.unopened()?;
    }
    Some(current.clone())
}

impl Registry {
    fn device(&self, adapter: usize, logical: usize) -> Device {
        self.named(canonical_name(&self.slots, adapter, logical), adapter, |handle| handle.logical(logical))
    }

    /// Returns the device of this name, which is on this adapter.
    fn named(&self, name: String, adapter: usize, handle: impl FnOnce(&Handle) -> Handle) -> Device {
        let mut devices = sync::lock(&self.devices);
        let device = devices.entry(name.clone()).or_insert_with(|| {
            let (info, whole) = &self.adapters[adapter];
            Device(Inner { info: describe(info, name), backend: BackendHandle::unopened(handle(whole)) }.into())
        });
        device.clone()
    }
}

pub(super) fn describe(adapter: &AdapterInfo, name: String) -> DeviceInfo {
    let vendor = match Vendor::from_id(adapter.vendor_id) {
        Vendor::Other(id) => Vendor::from_text(&adapter.name).unwrap_or(Vendor::Other(id)),
        known => known,
    };
    DeviceInfo {
        name,
        vendor,
        kind: adapter.kind,
        adapter: adapter.name.clone(),
        api: adapter.api.name().into(),
        conformant: adapter.conformant,
        driver: [&*adapter.driver, &*adapter.driver_info].join(" ").trim().into(),
        vendor_id: adapter.vendor_id,
        device_id: adapter.device_id,
        pci_bus_id: Some(adapter.pci.clone()).filter(|id| !id.is_empty()),
        memory_total: adapter.memory_total,
        features: adapter.features.clone(),
        limits: adapter.limits,
    }
}

/// Which of the adapters are devices, in order: see the head of this file.
fn select(infos: &[AdapterInfo]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..infos.len()).collect();
    let text = |i: usize| [&infos[i].pci, &infos[i].name, &infos[i].driver, &infos[i].driver_info];
    order.sort_by(|&i, &j| (rank(&infos[i]), text(i)).cmp(&(rank(&infos[j]), text(j))));
    let mut kept: Vec<usize> = Vec::new();
    for i in order {
        if !kept.iter().any(|&k| same_card(infos, k, i, &kept)) {
            kept.push(i);
        }
    }
    kept.sort_by_cached_key(|&i| (sort_key(&infos[i]), i));
    kept
}

/// Which of several adapters that are one card is kept: the one of the least rank.
fn rank(adapter: &AdapterInfo) -> (Api, u8) {
    match (adapter.conformant, adapter.name.starts_with(DZN)) {
        (true, _) => (adapter.api, 0),
        (false, true) => (Api::Dx12, 1),
        (false, false) => (Api::Gl, 1),
    }
}

/// The prefix of the adapter names of Mesa's Vulkan on DirectX.
const DZN: &str = "Microsoft Direct3D12 (";

/// Whether adapter `new` is the card of the kept adapter `old`.
fn same_card(infos: &[AdapterInfo], old: usize, new: usize, kept: &[usize]) -> bool {
    let (a, b) = (&infos[old], &infos[new]);
    if a.kind == DeviceKind::Software || b.kind == DeviceKind::Software {
        let key = |f: &AdapterInfo| (f.api, f.kind, f.name.clone(), f.driver.clone(), f.driver_info.clone());
        return key(a) == key(b);
    }
    let pci_known = |f: &AdapterInfo| !f.pci.is_empty() && f.api != Api::Dx12;
    if pci_known(a) && pci_known(b) {
        return a.pci == b.pci;
    }
    // Without a bus id: the k-th card of a kind in one API is the k-th in the other.
    let nth = |i: usize, like: &AdapterInfo, among: &mut dyn Iterator<Item = usize>| {
        among.filter(|&j| infos[j].api == infos[i].api && same_model(&infos[j], like)).position(|j| j == i)
    };
    a.api != b.api && same_model(a, b) && nth(old, b, &mut kept.iter().copied()) == nth(new, b, &mut (0..infos.len()))
}

fn same_model(a: &AdapterInfo, b: &AdapterInfo) -> bool {
    if a.device_id != 0 && b.device_id != 0 {
        return (a.vendor_id, a.device_id) == (b.vendor_id, b.device_id);
    }
    let (a, b) = (chip_name(&a.name), chip_name(&b.name));
    a.contains(&b) || b.contains(&a)
}

/// The name of the chip in `"AMD Radeon RX 6800 (RADV NAVI21)"` or `"NVIDIA GeForce RTX 3090/PCIe/SSE2"`, without the
/// additions of the driver. Mesa's drivers on DirectX put the name into parentheses.
fn chip_name(name: &str) -> String {
    let name = [DZN, "D3D12 ("].iter().find_map(|on| name.strip_prefix(on)).unwrap_or(name);
    let name = name.to_lowercase().replace("(r)", "").replace("(tm)", "");
    let name = name.trim_start_matches("mesa ");
    let end = name.find(['(', ')', '/']).unwrap_or(name.len());
    name[..end].split_whitespace().collect::<Vec<_>>().join(" ")
}

type SortKey = (DeviceKind, bool, u8, String, Api, u8, Vec<u64>, (u32, u32), String);

fn sort_key(adapter: &AdapterInfo) -> SortKey {
    let id = (adapter.vendor_id, adapter.device_id);
    if adapter.kind != DeviceKind::Software {
        let no_bus = u8::from(adapter.pci.is_empty());
        return (
            adapter.kind,
            !adapter.conformant,
            no_bus,
            adapter.pci.to_lowercase(),
            adapter.api,
            0,
            Vec::new(),
            id,
            adapter.name.clone(),
        );
    }
    let text = format!("{} {}", adapter.name, adapter.driver).to_lowercase();
    let family = ["llvmpipe", "swiftshader", "basic render"].iter().position(|word| text.contains(word)).unwrap_or(3);
    let version = numbers(&adapter.driver_info);
    let name = adapter.name.clone();
    (adapter.kind, !adapter.conformant, 0, String::new(), adapter.api, family as u8, version, id, name)
}

/// `"Mesa 22.3.6 (LLVM 15.0.6)"` → `[22, 3, 6, 15, 0, 6]`.
fn numbers(version: &str) -> Vec<u64> {
    version.split(|c: char| !c.is_ascii_digit()).filter_map(|digits| digits.parse().ok()).collect()
}

/// The names of the visible devices, and warnings.
fn name_slots(kinds: &[DeviceKind], visible: Option<&str>) -> (Vec<Slot>, Vec<String>) {
    let mut counts = [0, 0];
    let name_of = |(adapter, kind): (usize, &DeviceKind)| {
        let soft = usize::from(*kind == DeviceKind::Software);
        let name = format!("{}:{}", ["gpu", "soft"][soft], counts[soft]);
        counts[soft] += 1;
        Slot { name, adapter, logical: 0 }
    };
    let every: Vec<Slot> = kinds.iter().enumerate().map(name_of).collect();
    let Some(list) = visible else { return (every, Vec::new()) };
    let (mut slots, mut warnings) = (Vec::<Slot>::new(), Vec::new());
    for entry in list.split(',').map(str::trim).filter(|entry| !entry.is_empty()) {
        let name = match Name::parse(entry) {
            Some(Name::Cpu { .. }) => continue,
            Some(name) => lookup(&every, kinds, name),
            None => None,
        };
        match name {
            None => warnings.push(format!("there is no '{entry}'")),
            Some((adapter, logical)) if slots.iter().any(|s| (s.adapter, s.logical) == (adapter, logical)) => {
                warnings.push(format!("'{entry}' is named twice"));
            }
            Some((adapter, logical)) => slots.push(Slot { name: format!("gpu:{}", slots.len()), adapter, logical }),
        }
    }
    (slots, warnings)
}

/// The adapter and logical index of a name.
fn lookup(slots: &[Slot], kinds: &[DeviceKind], name: Name) -> Option<(usize, usize)> {
    let (slot, logical) = match name {
        Name::Cpu { .. } => return None,
        Name::Gpu { index, logical } => (slots.iter().filter(|s| s.name.starts_with("gpu")).nth(index)?, logical),
        Name::Soft { index, logical } => {
            (slots.iter().filter(|s| kinds[s.adapter] == DeviceKind::Software).nth(index)?, logical)
        }
    };
    let logical = slot.logical.checked_add(logical)?;
    (logical < MAX_LOGICAL).then_some((slot.adapter, logical))
}

/// The canonical name of a logical device, which several names can reach.
fn canonical_name(slots: &[Slot], adapter: usize, logical: usize) -> String {
    let of_adapter = || slots.iter().filter(|slot| slot.adapter == adapter && slot.logical <= logical);
    match of_adapter().max_by_key(|slot| slot.logical) {
        Some(slot) if slot.logical == logical => slot.name.clone(),
        Some(slot) => format!("{}/{}", slot.name, logical - slot.logical),
        None => format!("adapter:{adapter}/{logical}"),
    }
}

#[cfg(test)]
#[path = "registry_tests.rs"]
mod tests;
