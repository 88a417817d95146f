//! What the system reports of devices, whoever uses them: load, temperature, power and memory.
//!
//! On Linux, it reads the files of `/proc` and `/sys`. For NVIDIA's cards, it runs `nvidia-smi` on every system.

use std::collections::HashMap;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anygpu::{Device, DeviceKind, Vendor};
use serde::Serialize;

/// One reading. Values that the system does not report are absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Reading {
    /// The share of the time since the last reading that the device was busy, from 0 to 1.
    pub load: Option<f64>,
    /// Degrees Celsius.
    pub temperature: Option<f64>,
    /// Watts.
    pub power: Option<f64>,
    /// Bytes that all programs use.
    pub memory_used: Option<u64>,
    /// The total bytes.
    pub memory_total: Option<u64>,
}

/// The sensors of this machine.
pub struct Sensors {
    /// `/`, except in tests.
    root: PathBuf,
    /// The busy and the whole time of the processors at the last reading, in the system's units.
    before: Option<(u64, u64)>,
}

impl Sensors {
    pub fn new(root: &Path) -> Sensors {
        Sensors { root: root.to_owned(), before: None }
    }

    /// Reads the sensors of these devices.
    pub fn read(&mut self, devices: &[Device]) -> Vec<Reading> {
        let host = self.host();
        let vendor = |device: &Device| device.info().vendor;
        let nvidia =
            if devices.iter().any(|device| vendor(device) == Vendor::Nvidia) { nvidia_cards() } else { Cards::new() };
        let reading = |device: &Device| {
            let info = device.info();
            match (&info.pci_bus_id, info.kind) {
                // A software adapter is the host.
                (_, DeviceKind::Cpu | DeviceKind::Software) => host,
                (Some(bus), _) if info.vendor == Vendor::Nvidia => {
                    bus_id(bus).and_then(|bus| nvidia.get(&bus).copied()).unwrap_or_default()
                }
                (Some(bus), _) => self.card(bus),
                (None, _) => Reading::default(),
            }
        };
        let with_memory = |device: &Device, reading: Reading| match device.driver_memory() {
            Some(memory) if reading.memory_used.is_none() => {
                let used = Some(memory.total.saturating_sub(memory.free));
                Reading { memory_used: used, memory_total: Some(memory.total), ..reading }
            }
            _ => Reading { memory_total: reading.memory_total.or(device.info().memory_total), ..reading },
        };
        devices.iter().map(|device| with_memory(device, reading(device))).collect()
    }

    fn text(&self, path: impl AsRef<Path>) -> Option<String> {
        fs::read_to_string(self.root.join(path)).ok()
    }

    fn number(&self, path: impl AsRef<Path>) -> Option<u64> {
        self.text(path)?.trim().parse().ok()
    }

    /// Reads the processors: all of them together.
    fn host(&mut self) -> Reading {
        let times = self.text("proc/stat").and_then(|text| {
            let line = text.lines().next()?.strip_prefix("cpu ")?;
            // user, nice, system, idle, iowait, …
            let times: Vec<u64> = line.split_whitespace().map_while(|field| field.parse().ok()).take(8).collect();
            let (all, idle) = (times.iter().sum::<u64>(), times.get(3)? + times.get(4)?);
            Some((all - idle, all))
        });
        let load = self.before.zip(times).and_then(|((busy_before, before), (busy, all))| {
            let passed = all.checked_sub(before).filter(|passed| *passed > 0)?;
            // The system may take back what it counted as idle.
            Some((busy.saturating_sub(busy_before) as f64 / passed as f64).min(1.0))
        });
        self.before = times;
        let memory = self.text("proc/meminfo").unwrap_or_default();
        let of = |key: &str| {
            let line = memory.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
            line.trim().strip_suffix(" kB")?.parse::<u64>().ok()?.checked_mul(1024)
        };
        let (total, available) = (of("MemTotal"), of("MemAvailable"));
        Reading {
            load,
            temperature: self
                .monitor("sys/class/hwmon", &["k10temp", "coretemp", "zenpower", "cpu_thermal"])
                .temperature,
            power: None,
            memory_used: total.zip(available).map(|(total, available)| total.saturating_sub(available)),
            memory_total: total,
        }
    }

    /// Reads a card by what its driver writes into `/sys`. AMD's writes all of this, Intel's a part.
    fn card(&self, bus: &str) -> Reading {
        let folder = Path::new("sys/bus/pci/devices").join(bus.to_lowercase());
        let percent = self.number(folder.join("gpu_busy_percent"));
        let monitor = self.monitor(folder.join("hwmon"), &[]);
        Reading {
            load: percent.map(|percent| percent as f64 / 100.0),
            memory_used: self.number(folder.join("mem_info_vram_used")),
            memory_total: self.number(folder.join("mem_info_vram_total")),
            ..monitor
        }
    }

    /// Reads temperature and power of the first hardware monitor of a folder that has one of these names, or of the first
    /// one.
    fn monitor(&self, folder: impl AsRef<Path>, names: &[&str]) -> Reading {
        let Ok(monitors) = fs::read_dir(self.root.join(folder)) else { return Reading::default() };
        let mut monitors: Vec<PathBuf> = monitors.flatten().map(|monitor| monitor.path()).collect();
        monitors.sort();
        let named = |monitor: &PathBuf| {
            names.is_empty() || self.text(monitor.join("name")).is_some_and(|name| names.contains(&name.trim()))
        };
        let Some(monitor) = monitors.iter().find(|monitor| named(monitor)) else { return Reading::default() };
        let thousandths = self.number(monitor.join("temp1_input"));
        let millionths = ["power1_average", "power1_input"].iter().find_map(|name| self.number(monitor.join(name)));
        Reading {
            temperature: thousandths.map(|value| value as f64 / 1e3),
            power: millionths.map(|value| value as f64 / 1e6),
            ..Reading::default()
        }
    }
}

/// The cards of NVIDIA by their PCI bus ids, in one form.
type Cards = HashMap<String, Reading>;

/// Reads NVIDIA's cards by `nvidia-smi`, which comes with the driver; none if it is not there.
fn nvidia_cards() -> Cards {
    let fields = "pci.bus_id,utilization.gpu,temperature.gpu,power.draw,memory.used,memory.total";
    let format = "--format=csv,noheader,nounits";
    let mut command = Command::new("nvidia-smi");
    command.args([&format!("--query-gpu={fields}"), format]).stdin(Stdio::null()).stderr(Stdio::null());
    output_within(&mut command, Duration::from_secs(3)).map_or_else(Cards::new, |text| cards_of(&text))
}

/// Returns what a command writes, which must be little, or `None` if it does not start, fails or takes longer than this.
fn output_within(command: &mut Command, limit: Duration) -> Option<String> {
    let mut child = command.stdout(Stdio::piped()).spawn().ok()?;
    let begin = Instant::now();
    loop {
        match child.try_wait() {
            Ok(Some(status)) if status.success() => break,
            Ok(None) if begin.elapsed() < limit => thread::sleep(Duration::from_millis(5)),
            _ => {
                // A driver that hangs may keep even a killed process.
                let _ = child.kill();
                return None;
            }
        }
    }
    let mut text = String::new();
    child.stdout.take()?.read_to_string(&mut text).ok()?;
    Some(text)
}

/// Returns the cards of lines of `nvidia-smi`: percent, degrees Celsius, watts and MiB, or `[N/A]` for what a card does not tell.
fn cards_of(text: &str) -> Cards {
    let card = |line: &str| {
        let mut cells = line.split(',').map(str::trim);
        let bus = bus_id(cells.next()?)?;
        let mut number = || cells.next()?.parse::<f64>().ok();
        let (load, temperature, power) = (number().map(|percent| percent / 100.0), number(), number());
        let mut mebibytes = || number().map(|value| (value * f64::from(1 << 20)) as u64);
        let (memory_used, memory_total) = (mebibytes(), mebibytes());
        Some((bus, Reading { load, temperature, power, memory_used, memory_total }))
    };
    text.lines().filter_map(card).collect()
}

/// Returns a PCI bus id in one form: NVIDIA writes eight digits for the domain where others write four, and capitals.
fn bus_id(text: &str) -> Option<String> {
    let (domain, rest) = text.split_once(':')?;
    Some(format!("{:04x}:{}", u32::from_str_radix(domain, 16).ok()?, rest.to_lowercase()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        fs::write(path, text).expect("a file");
    }

    #[test]
    fn the_host_is_read_from_proc_and_its_monitor() {
        let root = tempfile::tempdir().expect("a folder");
        let root = root.path();
        let mut sensors = Sensors::new(root);
        assert_eq!(sensors.host(), Reading::default());
        write(root, "proc/stat", "cpu  100 0 50 800 50 0 0 0 0 0\ncpu0 1 1 1 1\n");
        write(root, "proc/meminfo", "MemTotal:       1000 kB\nMemFree:  1 kB\nMemAvailable:    400 kB\n");
        write(root, "sys/class/hwmon/hwmon0/name", "nvme\n");
        write(root, "sys/class/hwmon/hwmon0/temp1_input", "30000\n");
        write(root, "sys/class/hwmon/hwmon1/name", "k10temp\n");
        write(root, "sys/class/hwmon/hwmon1/temp1_input", "61250\n");
        assert_eq!(sensors.host().load, None); // there is nothing to compare with yet
        write(root, "proc/stat", "cpu  160 0 65 820 55 0 0 0 0 0\n");
        let memory = (Some(600 << 10), Some(1000 << 10));
        let expected = Reading {
            load: Some(0.75),
            temperature: Some(61.25),
            power: None,
            memory_used: memory.0,
            memory_total: memory.1,
        };
        assert_eq!(sensors.host(), expected);
        assert_eq!(sensors.host().load, None); // no time has passed
    }

    #[test]
    fn nvidias_cards_are_read_from_its_tool() {
        let text =
            "00000000:01:00.0, 87, 61, 350.25, 20480, 81559\n00000000:0A:00.0, [N/A], 33, [N/A], 0, 24576\nno cards\n";
        let cards = cards_of(text);
        let first = Reading {
            load: Some(0.87),
            temperature: Some(61.0),
            power: Some(350.25),
            memory_used: Some(20 << 30),
            memory_total: Some(81_559 << 20),
        };
        assert_eq!((cards.len(), cards["0000:01:00.0"]), (2, first));
        assert_eq!((cards["0000:0a:00.0"].load, cards["0000:0a:00.0"].temperature), (None, Some(33.0)));
        assert_eq!(bus_id("0000:0A:00.0"), Some("0000:0a:00.0".into()));
    }

    #[cfg(unix)]
    #[test]
    fn a_command_that_hangs_or_fails_has_no_output() {
        let run = |script: &str, millis| {
            output_within(Command::new("sh").args(["-c", script]), Duration::from_millis(millis))
        };
        assert_eq!(run("echo 1", 20_000), Some("1\n".into()));
        assert_eq!(run("echo 1; exit 3", 20_000), None);
        assert_eq!(run("exec sleep 60", 50), None);
        assert_eq!(output_within(&mut Command::new("there-is-no-such-command"), Duration::from_secs(1)), None);
    }

    #[test]
    fn a_card_is_read_by_its_bus() {
        let root = tempfile::tempdir().expect("a folder");
        let folder = "sys/bus/pci/devices/0000:0a:00.0";
        for (file, text) in [
            ("gpu_busy_percent", "37\n"),
            ("mem_info_vram_used", "1048576\n"),
            ("mem_info_vram_total", "8388608\n"),
            ("hwmon/hwmon3/temp1_input", "54000\n"),
            ("hwmon/hwmon3/power1_average", "45000000\n"),
        ] {
            write(root.path(), &format!("{folder}/{file}"), text);
        }
        let sensors = Sensors::new(root.path());
        let expected = Reading {
            load: Some(0.37),
            temperature: Some(54.0),
            power: Some(45.0),
            memory_used: Some(1 << 20),
            memory_total: Some(8 << 20),
        };
        assert_eq!(sensors.card("0000:0A:00.0"), expected);
        assert_eq!(sensors.card("0000:0b:00.0"), Reading::default());
    }
}
