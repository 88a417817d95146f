//! Measures how long each kernel of an adapter and each op of the host takes.
//!
//! ```
//! use anygpu::profiler::Profiler;
//! use anygpu::{Device, Tensor};
//!
//! let devices = Device::all();
//! let x = Tensor::rand([64, 64], &devices[0])?;
//! let profiler = Profiler::start(&devices)?;
//! let y = x.matmul(&x)?.relu()?;
//! let profile = profiler.stop();
//! println!("{profile}"); // ops by device, with calls, times, shares and bytes
//! # let path = std::env::temp_dir().join(format!("anygpu-profile-{}.json", std::process::id()));
//! profile.save_chrome_trace(&path)?; // for ui.perfetto.dev or chrome://tracing
//! # std::fs::remove_file(&path).ok();
//! assert!(profile.events().iter().any(|event| event.op.contains("matmul")));
//! # Ok::<(), anygpu::Error>(())
//! ```
//!
//! Adapters write timestamps at the begin and the end of each kernel. While a profile is recorded, each kernel has
//! a compute pass of its own; apart from that, kernels run as they do otherwise. So the kernels are as fast as
//! without a profile, but the time between them is longer. Adapters without timestamps run one kernel at a time;
//! [`DeviceInfo::features`](crate::DeviceInfo::features) contains `timestamps` for the adapters that have them.
//! Without them, the time is measured on the host, from the submit of the kernel to its end. Ops of `cpu` are
//! measured around their loops. Copies are not measured. On `cpu`, the creation of tensors is not measured either.
//! A device that is reopened during the profile is not profiled.

use std::collections::HashMap;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

pub use crate::device::profile::Event;

use crate::device::Device;
use crate::device::profile::Record;
use crate::error::{Error, Result};
use crate::util::chrome_trace::{self, TraceEvent};
use crate::util::json::quoted;

/// Rows of a printed profile, unless the format has a precision.
const ROWS: usize = 30;

/// A profile that is being recorded.
#[derive(Debug)]
#[must_use = "a profile ends when it is dropped"]
pub struct Profiler {
    devices: Vec<Device>,
    record: Arc<Record>,
}

impl Profiler {
    /// Begins to record the ops and kernels of these devices, from all threads.
    ///
    /// It first waits for their current work.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if one of them is profiled already, or is in the list twice; the errors of
    /// [`Device::synchronize`].
    pub fn start(devices: &[Device]) -> Result<Profiler> {
        let mut profiler = Profiler { devices: Vec::new(), record: Arc::new(Record::new()) };
        for device in devices {
            device.start_profile(&profiler.record)?;
            profiler.devices.push(device.clone());
        }
        Ok(profiler)
    }

    /// Waits for the devices, and returns their profile, with their [errors](Profile::errors).
    pub fn stop(mut self) -> Profile {
        let errors = self.end();
        let elapsed = self.record.since.elapsed();
        let (mut events, missed) = self.record.take();
        events.sort_by_key(|event| event.start);
        Profile { events, missed, elapsed, errors }
    }

    /// Ends the profile of every device, and returns the errors.
    fn end(&mut self) -> Vec<Error> {
        self.devices.drain(..).filter_map(|device| device.stop_profile().err()).collect()
    }
}

impl Drop for Profiler {
    fn drop(&mut self) {
        for error in self.end() {
            log::warn!("the profile was dropped: {error}");
        }
    }
}

/// The ops and kernels of some devices between [`Profiler::start`] and [`Profiler::stop`].
///
/// `Display` prints a table of the ops and kernels with the most time; `{:.5}` prints five rows.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    events: Vec<Event>,
    missed: u64,
    elapsed: Duration,
    errors: Vec<Error>,
}

/// All calls of one kernel for one op on one device.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Total {
    /// The device's name.
    pub device: String,
    /// As [`Event::op`].
    pub op: String,
    /// As [`Event::kernel`].
    pub kernel: String,
    /// The number of calls.
    pub calls: u64,
    /// The time of all calls.
    pub duration: Duration,
    /// The bytes of all calls.
    pub bytes: u64,
}

impl Profile {
    /// Returns all events in the order of their starts.
    #[must_use]
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// Returns the number of kernels whose time is not known, plus the events past the first million.
    #[must_use]
    pub fn missed(&self) -> u64 {
        self.missed
    }

    /// Returns the errors of devices, such as their loss. The last kernels of such a device are missed.
    #[must_use]
    pub fn errors(&self) -> &[Error] {
        &self.errors
    }

    /// Returns the time from start to stop.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.elapsed
    }

    /// Returns the sums over all calls of the same kernel for the same op on the same device, sorted by time,
    /// longest first.
    #[must_use]
    pub fn totals(&self) -> Vec<Total> {
        let mut totals: HashMap<[&str; 3], Total> = HashMap::new();
        for Event { device, op, kernel, duration, bytes, .. } in &self.events {
            let total = totals.entry([device, op, kernel]).or_insert_with(|| {
                let (device, op, kernel) = (device.clone(), op.clone(), kernel.clone());
                Total { device, op, kernel, calls: 0, duration: Duration::ZERO, bytes: 0 }
            });
            total.calls += 1;
            total.duration += *duration;
            total.bytes += bytes;
        }
        let mut totals: Vec<Total> = totals.into_values().collect();
        totals.sort_by(|a, b| {
            let names = [&a.device, &a.op, &a.kernel].cmp(&[&b.device, &b.op, &b.kernel]);
            b.duration.cmp(&a.duration).then(names)
        });
        totals
    }

    /// Returns the time that each device spent computing.
    fn busy(&self) -> Vec<(&str, Duration)> {
        let mut busy: Vec<(&str, Duration)> = Vec::new();
        for event in &self.events {
            match busy.iter_mut().find(|(device, _)| *device == event.device) {
                Some((_, time)) => *time += event.duration,
                None => busy.push((&event.device, event.duration)),
            }
        }
        busy
    }

    /// Writes the events to a file in Chrome's trace format, which `ui.perfetto.dev` and `chrome://tracing` show.
    /// There is one row for each device.
    ///
    /// # Errors
    /// [`Error::Data`] if the file cannot be written. An existing file is then unchanged.
    pub fn save_chrome_trace(&self, path: impl AsRef<Path>) -> Result<()> {
        let busy = self.busy();
        let row = |name: &str| busy.iter().position(|(device, _)| *device == name).unwrap_or(0);
        let events = self.events.iter().map(|event| TraceEvent {
            row: row(&event.device),
            name: &event.op,
            start: event.start,
            duration: event.duration,
            arguments: vec![("kernel", quoted(&event.kernel)), ("bytes", event.bytes.to_string())],
        });
        chrome_trace::save(path.as_ref(), busy.iter().map(|(device, _)| *device), events)
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let busy = self.busy();
        let of_device =
            |name: &str| busy.iter().find(|(device, _)| *device == name).map_or(Duration::ZERO, |(_, time)| *time);
        let totals = self.totals();
        let shown = &totals[..totals.len().min(f.precision().unwrap_or(ROWS))];
        let mut rows = vec![["device", "op", "kernel", "calls", "ms", "mean µs", "share", "GB/s"].map(String::from)];
        for total in shown {
            let seconds = total.duration.as_secs_f64();
            let share = 100.0 * seconds / of_device(&total.device).as_secs_f64().max(f64::MIN_POSITIVE);
            let rate = if total.bytes == 0 || seconds == 0.0 {
                String::new()
            } else {
                format!("{:.1}", total.bytes as f64 / seconds * 1e-9)
            };
            rows.push([
                total.device.clone(),
                total.op.clone(),
                total.kernel.clone(),
                total.calls.to_string(),
                format!("{:.2}", seconds * 1e3),
                format!("{:.1}", seconds * 1e6 / total.calls as f64),
                format!("{share:.1} %"),
                rate,
            ]);
        }
        let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let widths: [usize; 8] = std::array::from_fn(width);
        for row in &rows {
            let cells = row.iter().zip(widths).enumerate().map(|(column, (cell, width))| {
                if column < 3 { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
            });
            writeln!(f, "{}", cells.collect::<Vec<_>>().join("  ").trim_end())?;
        }
        if shown.len() < totals.len() {
            writeln!(f, "… and {} more", totals.len() - shown.len())?;
        }
        let elapsed = self.elapsed.as_secs_f64() * 1e3;
        for (device, time) in busy {
            let events = self.events.iter().filter(|event| event.device == device).count();
            let time = time.as_secs_f64() * 1e3;
            writeln!(f, "{device}: {time:.2} ms in {events} calls, of {elapsed:.2} ms")?;
        }
        if self.missed > 0 {
            writeln!(f, "{} calls without a time", self.missed)?;
        }
        self.errors.iter().try_for_each(|error| writeln!(f, "{error}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile() -> Profile {
        let event = |device: &str, op: &str, start, millis, bytes| Event {
            device: device.into(),
            op: op.into(),
            kernel: "a \"file\".main".into(),
            start: Duration::from_millis(start),
            duration: Duration::from_millis(millis),
            bytes,
        };
        let events = vec![
            event("soft:0", "matmul", 0, 2, 4_000_000),
            event("cpu", "relu", 1, 1, 0),
            event("soft:0", "add", 3, 1, 1_000_000),
            event("soft:0", "matmul", 5, 5, 3_000_000),
        ];
        Profile { events, missed: 1, elapsed: Duration::from_millis(20), errors: Vec::new() }
    }

    #[test]
    fn calls_of_one_kernel_are_one_row() {
        let totals = profile().totals();
        let rows: Vec<_> =
            totals.iter().map(|t| (&*t.device, &*t.op, t.calls, t.duration.as_millis(), t.bytes)).collect();
        assert_eq!(
            rows,
            [("soft:0", "matmul", 2, 7, 7_000_000), ("cpu", "relu", 1, 1, 0), ("soft:0", "add", 1, 1, 1_000_000)]
        );
        let text = profile().to_string();
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[1].starts_with("soft:0  matmul  a \"file\".main"), "{text}");
        assert!(lines[1].ends_with("2  7.00   3500.0   87.5 %   1.0"), "{text}");
        assert!(lines[2].ends_with("1  1.00   1000.0  100.0 %"), "{text}");
        let ends = [
            "soft:0: 8.00 ms in 3 calls, of 20.00 ms",
            "cpu: 1.00 ms in 1 calls, of 20.00 ms",
            "1 calls without a time",
        ];
        assert_eq!(lines[4..], ends, "{text}");
        assert!(format!("{:.1}", profile()).contains("… and 2 more"));
    }

    #[test]
    fn a_trace_is_json() -> Result<()> {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("trace.json");
        profile().save_chrome_trace(&path)?;
        let text = std::fs::read(&path).expect("the file");
        let trace: serde_json::Value = serde_json::from_slice(&text).expect("JSON");
        let events = trace["traceEvents"].as_array().expect("a list");
        assert_eq!(events.len(), 6);
        assert_eq!((&events[1]["args"]["name"], &events[1]["tid"]), (&"cpu".into(), &1.into()));
        let last = &events[5];
        assert_eq!((&last["name"], &last["args"]["kernel"]), (&"matmul".into(), &"a \"file\".main".into()));
        assert_eq!((last["ts"].as_f64(), last["dur"].as_f64(), last["tid"].as_u64()), (Some(5e3), Some(5e3), Some(0)));
        assert!(profile().save_chrome_trace(folder.path()).is_err());
        Ok(())
    }
}
