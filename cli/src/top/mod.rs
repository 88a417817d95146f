//! `anygpu top`: shows the devices of this machine and the processes that use them, again and again.

mod sensors;

use std::collections::HashMap;
use std::io::IsTerminal;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anygpu::watch::{DeviceStatus, ProcessStatus, bytes, processes};
use anygpu::{Device, DeviceKind};
use serde::Serialize;

use crate::failure::Failure;
use crate::{devices, output};
use sensors::{Reading, Sensors};

/// Shows load, temperature, power and memory of the devices, and what programs of this crate do on them.
///
/// Load, temperature, power and used memory cover all programs, as far as the system reports them. For NVIDIA's
/// cards they come from the driver's nvidia-smi, for AMD's and Intel's from /sys, and for the CPU (and software
/// adapters, which run on it) from /proc. The processes shown are the commands of `anygpu`, and programs that call
/// `anygpu::watch::StatusFile::publish`.
///
/// Ends with Ctrl-C. If the output is not a terminal, the table is printed once.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The devices: auto, all, or a list such as gpu:0,cpu; may be given several times
    #[arg(long, alias = "device", default_value = "all", value_name = "auto|all|LIST", value_delimiter = ',')]
    devices: Vec<String>,
    /// Seconds between two readings
    #[arg(long, default_value_t = 1.0, value_parser = interval, value_name = "SECONDS")]
    interval: f64,
    /// Print the table once, after one interval
    #[arg(long)]
    once: bool,
}

fn interval(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| "it must be a number of seconds".to_string())?;
    if (0.1..=3600.0).contains(&seconds) { Ok(seconds) } else { Err("it must be from 0.1 to 3600 seconds".into()) }
}

/// One device, as `--json` prints it.
#[derive(Serialize)]
struct DeviceRow {
    device: String,
    adapter: String,
    /// The device of the same processors whose row has their reading.
    #[serde(skip_serializing_if = "Option::is_none")]
    runs_on: Option<String>,
    #[serde(flatten)]
    reading: Reading,
}

/// What one process does on one device, as `--json` prints it.
#[derive(Serialize)]
struct ProcessRow {
    pid: u32,
    process: String,
    /// The device's name in this process; if it is not among the devices, its name in the other process.
    device: String,
    live: u64,
    peak: u64,
    reserved: u64,
    /// Kernels per second since the last reading; absent for `cpu`, and in the first reading of a process.
    kernels_per_second: Option<f64>,
}

/// The most rows of processes that are shown.
const MOST_ROWS: usize = 200;

/// Kernels of a process on a device, and when they were counted.
type Counts = HashMap<(u32, String), (u64, Instant)>;

/// Runs the command.
///
/// # Errors
/// [`Failure::Usage`] for an unknown device; if standard output cannot be written.
pub fn run(args: &Args, as_json: bool) -> Result<(), Failure> {
    let devices = devices::select(&args.devices.join(","))?;
    let mut sensors = Sensors::new(Path::new("/"));
    sensors.read(&devices); // load is a difference
    let mut counts = Counts::new();
    rows_of(&devices, &processes(), &mut counts);
    let again = !args.once && std::io::stdout().is_terminal();
    loop {
        thread::sleep(Duration::from_secs_f64(args.interval));
        let readings = sensors.read(&devices);
        let rows = device_rows(&devices, readings);
        let processes = rows_of(&devices, &processes(), &mut counts);
        if as_json {
            rows.iter().try_for_each(output::json)?;
            processes.iter().take(MOST_ROWS).try_for_each(output::json)?;
        } else {
            let shown = format!("{}\n\n{}", device_table(&rows), process_table(&processes));
            // Home, the text with each rest of a line cleared, and what is below it cleared.
            let text = if again { format!("\x1b[H{}\x1b[J", shown.replace('\n', "\x1b[K\n")) } else { shown };
            output::line(text)?;
        }
        if !again {
            return Ok(());
        }
    }
}

/// Returns a row for each device. The reading of the host is in the first row of the devices that run on it, and is
/// not repeated.
fn device_rows(devices: &[Device], readings: Vec<Reading>) -> Vec<DeviceRow> {
    let on_host = |device: &Device| matches!(device.info().kind, DeviceKind::Cpu | DeviceKind::Software);
    let first = devices.iter().position(Device::is_cpu).or_else(|| devices.iter().position(on_host));
    let row = |(i, (device, reading)): (usize, (&Device, Reading))| {
        let runs_on = first.filter(|first| on_host(device) && *first != i).map(|first| devices[first].to_string());
        let reading = if runs_on.is_some() { Reading::default() } else { reading };
        DeviceRow { device: device.to_string(), adapter: device.info().adapter.clone(), runs_on, reading }
    };
    devices.iter().zip(readings).enumerate().map(row).collect()
}

/// Returns a row for each device of each process, and keeps its count of kernels for the next reading.
fn rows_of(devices: &[Device], processes: &[ProcessStatus], counts: &mut Counts) -> Vec<ProcessRow> {
    let now = Instant::now();
    let all = processes.iter().flat_map(|process| process.devices.iter().map(move |device| (process, device)));
    let mut next = Counts::new();
    let mut row = |(process, status): (&ProcessStatus, &DeviceStatus)| {
        let key = (process.pid, status.name.clone());
        let before = counts.get(&key);
        let kernels_per_second = before.and_then(|(kernels, at)| {
            let seconds = now.duration_since(*at).as_secs_f64();
            Some(status.kernels.checked_sub(*kernels)? as f64 / seconds.max(1e-3)).filter(|_| status.kernels > 0)
        });
        next.insert(key, (status.kernels, now));
        // Of equal cards that have no bus id, the one with the same name.
        let same = |device: &&Device| status.is_of(device);
        let here =
            devices.iter().filter(same).find(|device| device.name() == status.name).or(devices.iter().find(same));
        ProcessRow {
            pid: process.pid,
            process: process.title.clone(),
            device: here.map_or_else(|| status.name.clone(), Device::to_string),
            live: status.live,
            peak: status.peak,
            reserved: status.reserved,
            kernels_per_second,
        }
    };
    let rows = all.map(&mut row).collect();
    *counts = next;
    rows
}

fn or_dash(text: Option<String>) -> String {
    text.unwrap_or_else(|| "–".into())
}

fn device_table(rows: &[DeviceRow]) -> String {
    let mut table = output::table(&["device", "adapter", "load", "temperature", "power", "memory"]);
    for DeviceRow { device, adapter, runs_on, reading } in rows {
        if let Some(host) = runs_on {
            let dashes = [(); 3].map(|()| "–".to_string());
            table.add_row([device.clone(), adapter.clone(), format!("on {host}")].into_iter().chain(dashes));
            continue;
        }
        let memory = match (reading.memory_used, reading.memory_total) {
            (Some(used), Some(total)) => format!("{} of {}", bytes(used), bytes(total)),
            (None, Some(total)) => format!("– of {}", bytes(total)),
            (used, None) => or_dash(used.map(bytes)),
        };
        table.add_row([
            device.clone(),
            adapter.clone(),
            or_dash(reading.load.map(|load| format!("{:.0} %", 100.0 * load))),
            or_dash(reading.temperature.map(|degrees| format!("{degrees:.0} °C"))),
            or_dash(reading.power.map(|watts| format!("{watts:.0} W"))),
            memory,
        ]);
    }
    table.to_string()
}

fn process_table(rows: &[ProcessRow]) -> String {
    if rows.is_empty() {
        return "no process of anygpu".into();
    }
    let mut table = output::table(&["pid", "process", "device", "live", "peak", "reserved", "kernels/s"]);
    for row in rows.iter().take(MOST_ROWS) {
        table.add_row([
            row.pid.to_string(),
            row.process.clone(),
            row.device.clone(),
            bytes(row.live),
            bytes(row.peak),
            bytes(row.reserved),
            or_dash(row.kernels_per_second.map(|rate| format!("{rate:.0}"))),
        ]);
    }
    match rows.len().saturating_sub(MOST_ROWS) {
        0 => table.to_string(),
        more => format!("{table}\nand {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_seconds() {
        assert_eq!(interval("0.5"), Ok(0.5));
        for text in ["0", "-1", "nan", "1e9", "a"] {
            assert!(interval(text).is_err(), "{text}");
        }
    }

    #[test]
    fn what_is_not_known_is_a_dash() {
        let reading = Reading { load: Some(0.756), memory_total: Some(8 << 30), ..Reading::default() };
        let text =
            device_table(&[DeviceRow { device: "gpu:0".into(), adapter: "a card".into(), runs_on: None, reading }]);
        let row = text.lines().find(|line| line.contains("gpu:0")).expect("a row");
        let cells: Vec<&str> = row.split_whitespace().collect();
        assert_eq!(cells, ["gpu:0", "a", "card", "76", "%", "–", "–", "–", "of", "8.0", "GiB"]);
        assert_eq!(process_table(&[]), "no process of anygpu");
    }

    #[test]
    fn the_host_is_said_once() {
        let devices = [Device::cpu(), Device::new("cpu/1").expect("the host"), Device::new("cpu/2").expect("the host")];
        let reading = Reading { load: Some(0.5), memory_total: Some(8 << 30), ..Reading::default() };
        let rows = device_rows(&devices, vec![reading; 3]);
        let loads: Vec<Option<f64>> = rows.iter().map(|row| row.reading.load).collect();
        assert_eq!(loads, [Some(0.5), None, None]);
        let text = device_table(&rows);
        assert_eq!((text.matches("50 %").count(), text.matches("on cpu").count()), (1, 2), "{text}");
    }

    #[test]
    fn rows_are_bounded() {
        let row = |pid| ProcessRow {
            pid,
            process: "a job".into(),
            device: "cpu".into(),
            live: 1,
            peak: 1,
            reserved: 1,
            kernels_per_second: None,
        };
        let rows: Vec<ProcessRow> = (0..1000).map(row).collect();
        let text = process_table(&rows);
        assert!(text.ends_with("and 800 more") && text.lines().count() < 210, "{text}");
    }
}
