//! The description of the host.

use crate::device::{DeviceInfo, DeviceKind, Limits, Vendor};

/// Name, cores and memory of the host.
pub(crate) fn info() -> DeviceInfo {
    let model = field("/proc/cpuinfo", "model name").unwrap_or_else(|| std::env::consts::ARCH.into());
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    let on_apple = cfg!(all(target_vendor = "apple", target_arch = "aarch64"));
    DeviceInfo {
        name: "cpu".into(),
        vendor: if on_apple { Vendor::Apple } else { Vendor::from_text(&model).unwrap_or(Vendor::Other(0)) },
        kind: DeviceKind::Cpu,
        adapter: format!("{model}, {cores} {}", if cores == 1 { "thread" } else { "threads" }),
        api: "native".into(),
        driver: format!("anygpu {}", env!("CARGO_PKG_VERSION")),
        conformant: true,
        vendor_id: 0,
        device_id: 0,
        pci_bus_id: None,
        memory_total: field("/proc/meminfo", "MemTotal").and_then(|text| kibibytes(&text)),
        features: Vec::new(),
        limits: Limits {
            max_binding: isize::MAX as u64,
            max_buffer: isize::MAX as u64,
            workgroups_per_dimension: u32::MAX,
            invocations_per_workgroup: u32::MAX,
            workgroup_memory: u32::MAX,
            storage_buffers: u32::MAX,
            subgroup_size: (0, 0),
        },
    }
}

/// The first `key : value` of a file of such lines; `None` on systems without it.
fn field(path: &str, key: &str) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    let line = text.lines().find(|line| line.starts_with(key))?;
    Some(line.split_once(':')?.1.trim().to_string())
}

fn kibibytes(text: &str) -> Option<u64> {
    text.strip_suffix(" kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}
