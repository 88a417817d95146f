//! `anygpu devices` lists the devices of this machine. Also parses `--devices` for the other commands.

use anygpu::device::Quirk;
use anygpu::{Device, try_all_gpus};
use comfy_table::ColumnConstraint;
use serde::Serialize;

use crate::failure::Failure;
use crate::output;

/// Lists the devices of this machine with their properties.
///
/// Opens every device, because faults of a driver are found by running kernels, not by its name.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Show all known properties of each device: vendor, driver, features, quirks
    #[arg(long)]
    long: bool,
}

/// One device, as `--json` prints it.
#[derive(Serialize)]
struct DeviceRow {
    name: String,
    kind: String,
    vendor: String,
    adapter: String,
    api: String,
    driver: String,
    /// `false` if the driver says that it is not conformant.
    conformant: bool,
    vendor_id: u32,
    device_id: u32,
    pci_bus_id: Option<String>,
    memory_total: Option<u64>,
    /// The part of it that this process can still have, if the driver reports it.
    memory_free: Option<u64>,
    features: Vec<String>,
    quirks: Vec<String>,
    /// What to do about the quirks, where something can be done.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    remedies: Vec<String>,
    /// Kernel variants that are not used, because their results are wrong on this device.
    quarantined: Vec<String>,
    /// Why the device cannot be used; absent if it can.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

impl DeviceRow {
    fn new(device: &Device) -> Self {
        let found = device.quirks().and_then(|quirks| Ok((quirks, device.quarantined()?)));
        let (found, quarantined, error) = match found {
            Ok((quirks, quarantined)) => (quirks, quarantined, None),
            Err(error) => (Vec::new(), Vec::new(), Some(error.to_string())),
        };
        let remedy = |quirk: &Quirk| Some(format!("{quirk}: {}", quirk.remedy()?));
        let info = device.info();
        DeviceRow {
            name: device.name().to_string(),
            kind: info.kind.to_string(),
            vendor: info.vendor.to_string(),
            adapter: info.adapter.clone(),
            api: info.api.clone(),
            driver: info.driver.clone(),
            conformant: info.conformant,
            vendor_id: info.vendor_id,
            device_id: info.device_id,
            pci_bus_id: info.pci_bus_id.clone(),
            memory_total: info.memory_total,
            memory_free: device.driver_memory().map(|memory| memory.free),
            features: info.features.clone(),
            quirks: found.iter().map(ToString::to_string).collect(),
            remedies: found.iter().filter_map(remedy).collect(),
            quarantined,
            error,
        }
    }

    /// The cells of the table.
    fn cells(&self) -> Vec<String> {
        vec![self.name.clone(), self.adapter.clone(), self.kind.clone(), self.api.clone(), self.memory()]
    }

    fn memory(&self) -> String {
        self.memory_total.map_or_else(|| "–".to_string(), anygpu::watch::bytes)
    }

    /// All properties, one on each line.
    fn long(&self) -> String {
        let list = |all: &[String]| if all.is_empty() { "none".to_string() } else { all.join(", ") };
        let mut lines = vec![
            ("adapter", self.adapter.clone()),
            ("vendor", self.vendor.clone()),
            ("kind", self.kind.clone()),
            ("API", self.api.clone()),
            ("driver", self.driver.clone()),
            ("conformant", if self.conformant { "yes" } else { "no" }.to_string()),
            ("id", format!("{:#06x}:{:#06x}", self.vendor_id, self.device_id)),
            ("PCI bus id", self.pci_bus_id.clone().unwrap_or_else(|| "not reported".to_string())),
            ("memory", self.memory_total.map_or_else(|| "not reported".to_string(), anygpu::watch::bytes)),
            ("features", list(&self.features)),
            ("quirks", list(&self.quirks)),
            ("not used", list(&self.quarantined)),
        ];
        lines.extend(self.remedies.iter().map(|remedy| ("remedy", remedy.clone())));
        lines.extend(self.error.iter().map(|error| ("error", error.clone())));
        let lines: Vec<String> = lines.into_iter().map(|(label, text)| format!("  {label:12}{text}")).collect();
        format!("{}\n{}", self.name, lines.join("\n"))
    }
}

/// Runs the command. `as_json`: one object per device instead of the table.
///
/// # Errors
/// If standard output cannot be written. A device that cannot be opened is listed with the reason.
pub fn run(args: &Args, as_json: bool) -> Result<(), Failure> {
    let rows: Vec<DeviceRow> = Device::all().iter().map(DeviceRow::new).collect();
    if as_json {
        return rows.iter().try_for_each(output::json);
    }
    if args.long {
        return output::line(rows.iter().map(DeviceRow::long).collect::<Vec<_>>().join("\n\n"));
    }
    let mut table = output::table(&["name", "adapter", "kind", "API", "memory"]);
    // Only long names of adapters are wrapped on a narrow terminal.
    for at in [0, 2, 3, 4] {
        table.column_mut(at).map(|column| column.set_constraint(ColumnConstraint::ContentWidth));
    }
    for row in &rows {
        table.add_row(row.cells());
    }
    output::line(table)?;
    for row in rows.iter().filter(|row| !row.conformant) {
        output::line(format!(
            "{0} has a driver that says it is not conformant: anygpu check --devices {0} tells whether its results are right",
            row.name
        ))?;
    }
    for (row, remedy) in rows.iter().flat_map(|row| row.remedies.iter().map(move |remedy| (row, remedy))) {
        output::line(format!("{} has the quirk {remedy}", row.name))?;
    }
    for (row, error) in rows.iter().filter_map(|row| Some((row, row.error.as_ref()?))) {
        output::line(format!("{} cannot be used: {error}", row.name))?;
    }
    Ok(())
}

/// Returns the devices that a `--devices` value names, in its order.
///
/// - `auto`: all hardware GPUs, or the CPU if there is none. A software adapter runs on the same cores as the CPU
///   device and is slower, so it is used only if it is named.
/// - `all`: every visible device, including software adapters and the CPU.
/// - `gpu:0,soft:1,cpu`: these devices.
///
/// # Errors
/// [`Failure::Usage`] for an unknown name (the message lists the names of this machine), for an empty list, and for
/// a device that is listed twice.
pub fn select(spec: &str) -> Result<Vec<Device>, Failure> {
    match spec.trim() {
        "auto" => return Ok(try_all_gpus()),
        "all" => return Ok(Device::all().iter().cloned().collect()),
        list if list.split(',').all(|name| name.trim().is_empty()) => {
            return Err(Failure::Usage("no device given: write auto, all, or a list such as gpu:0,cpu".to_string()));
        }
        _ => {}
    }
    let devices = Device::list(spec)?;
    for (i, device) in devices.iter().enumerate() {
        if devices[..i].contains(device) {
            let base = device.name().split('/').next().unwrap_or_default();
            return Err(Failure::Usage(format!(
                "device {device} is listed twice in '{spec}': for two replicas on one device, write {base}/0,{base}/1"
            )));
        }
    }
    Ok(devices)
}

/// Returns the only device that a `--devices` value names; `auto` is the first hardware GPU, else the CPU.
///
/// # Errors
/// As [`select`], and [`Failure::Usage`] for several devices.
pub fn one(command: &str, spec: &str) -> Result<Device, Failure> {
    let mut devices = select(spec)?;
    if spec.trim() != "auto" && devices.len() > 1 {
        return Err(Failure::Usage(format!("--devices {spec}: {command} computes on one device: name one")));
    }
    Ok(devices.remove(0))
}

/// The names as text: `[gpu:0, cpu]`.
pub fn names(devices: &[Device]) -> String {
    let names: Vec<&str> = devices.iter().map(Device::name).collect();
    format!("[{}]", names.join(", "))
}
