//! When each device computed and copied in the steps of a run: sums for a report, and a trace of single steps.

use std::fmt;
use std::path::Path;

use web_time::{Duration, Instant};

use super::DataParallel;
use crate::error::{Error, Result};
use crate::util::chrome_trace::{self, TraceEvent};
use crate::util::sync::lock;

/// The most events of a trace. Later events are not recorded.
const MOST_EVENTS: usize = 1_000_000;

/// When a replica did its part of a step.
#[derive(Clone, Debug)]
pub(super) struct PartTimes {
    /// When it began to copy parameters and buffers to the device.
    pub begin: Instant,
    /// When it had copied them.
    pub copied: Instant,
    /// When it had recorded the loss.
    pub forward: Instant,
    /// When it had recorded backward.
    pub backward: Instant,
    /// For each bucket of gradients, when the device had computed it, and when it was on the host.
    pub buckets: Vec<(Instant, Instant)>,
    /// How long it waited for other devices in layers over the whole batch.
    pub waited: Duration,
}

impl PartTimes {
    /// When the device had computed the last gradient.
    fn computed(&self) -> Instant {
        self.buckets.iter().map(|(computed, _)| *computed).max().unwrap_or(self.backward).max(self.copied)
    }

    /// When the last gradient was on the host.
    fn end(&self) -> Instant {
        self.buckets.iter().map(|(_, arrived)| *arrived).max().unwrap_or(self.backward)
    }

    /// The time for the samples.
    pub fn compute(&self) -> Duration {
        self.computed().saturating_duration_since(self.copied).saturating_sub(self.waited)
    }

    /// The time for copies of parameters and gradients while nothing was computed.
    pub fn copies(&self) -> Duration {
        self.copied.saturating_duration_since(self.begin) + self.end().saturating_duration_since(self.computed())
    }

    /// The time of the copies of gradients, and the part of it while backward went on.
    fn gradients(&self) -> [Duration; 2] {
        let computed = self.computed();
        self.buckets.iter().fold([Duration::ZERO; 2], |[all, hidden], &(from, to)| {
            let of = |end: Instant| end.saturating_duration_since(from);
            [all + of(to), hidden + of(to.min(computed))]
        })
    }
}

/// The work and the times of one device in the steps of a run on several devices.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct DeviceReport {
    /// The device's name.
    pub device: String,
    /// The number of samples that it computed.
    pub samples: u64,
    /// The time in which it computed them, in seconds, without the time that it waited for other devices.
    pub compute: f64,
    /// The time of copies of parameters and gradients during which it computed nothing, in seconds.
    pub copies: f64,
    /// The rest of the steps' time, in which it waited for other devices and for the host, in seconds.
    pub idle: f64,
    /// The time of copies of gradients to the host, in seconds.
    pub gradient_copies: f64,
    /// The part of [`gradient_copies`](DeviceReport::gradient_copies) during which the device continued with backward,
    /// in seconds.
    pub hidden_copies: f64,
    /// Whether it gets samples. If it has not failed, `false` means that its copies take longer than the other devices'
    /// steps.
    pub takes_part: bool,
    /// Whether it has failed and is [left out](DataParallel::left_out).
    pub failed: bool,
}

/// The work and the times of all devices of a run.
///
/// Its `Display` form is a table.
///
/// ```
/// use anygpu::{DataParallel, Device, Tensor, nn};
///
/// let net = DataParallel::new(nn::Linear::new(4, 3)?, &[Device::new("cpu/0")?, Device::new("cpu/1")?])?;
/// let (x, y) = (Tensor::rand([12, 4], None)?, Tensor::from_slice(&[0u32, 1, 2].repeat(4), 12, None)?);
/// for _ in 0..3 {
///     net.train_batch(&x, &y, nn::cross_entropy)?;
/// }
/// let report = net.report();
/// assert_eq!((report.steps, report.samples, report.devices.len()), (3, 36, 2));
/// println!("{report}");
/// # Ok::<(), anygpu::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct ParallelReport {
    /// The number of steps.
    pub steps: u64,
    /// The number of samples of all steps.
    pub samples: u64,
    /// The time of all steps, in seconds, without the optimiser's.
    pub seconds: f64,
    /// One for each device.
    pub devices: Vec<DeviceReport>,
}

impl ParallelReport {
    /// Returns the speed-up over the fastest device alone, or `None` if there are no steps.
    ///
    /// It is the estimated time of the fastest device for all samples, divided by the time of the steps. The estimate
    /// uses the measured time per sample of that device.
    #[must_use]
    pub fn speed_up(&self) -> Option<f64> {
        let speeds = self.devices.iter().filter(|device| device.compute > 0.0);
        let best = speeds.map(|device| device.samples as f64 / device.compute).max_by(f64::total_cmp)?;
        (self.seconds > 0.0 && best > 0.0).then(|| self.samples as f64 / self.seconds / best)
    }

    /// Returns the fraction of the time of gradient copies during which backward continued, or `None` if nothing was
    /// copied.
    #[must_use]
    pub fn hidden(&self) -> Option<f64> {
        let sum = |value: fn(&DeviceReport) -> f64| self.devices.iter().map(value).sum::<f64>();
        let all = sum(|device| device.gradient_copies);
        (all > 0.0).then(|| sum(|device| device.hidden_copies) / all)
    }
}

impl fmt::Display for ParallelReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.devices.iter().map(|device| device.device.len()).max().unwrap_or(0).max("device".len());
        writeln!(f, "{:<width$}  share  compute, s  copies, s  idle, s  samples/s", "device")?;
        for device in &self.devices {
            let DeviceReport { device: name, samples, compute, copies, idle, .. } = device;
            let share = 100.0 * *samples as f64 / (self.samples as f64).max(1.0);
            let speed = if *compute > 0.0 { *samples as f64 / compute } else { 0.0 };
            write!(f, "{name:<width$}  {share:>4.0} %  {compute:>10.3}  {copies:>9.3}  {idle:>7.3}  {speed:>9.1}")?;
            writeln!(
                f,
                "{}",
                match device {
                    DeviceReport { failed: true, .. } => "  (failed: left out)",
                    DeviceReport { takes_part: false, .. } => "  (takes no part)",
                    _ => "",
                }
            )?;
        }
        let ParallelReport { steps, samples, seconds, .. } = self;
        if *steps == 0 {
            return writeln!(f, "no step on several devices yet: the steps of one device are not timed");
        }
        let speed = if *seconds > 0.0 { *samples as f64 / seconds } else { 0.0 };
        write!(f, "{steps} steps, {samples} samples in {seconds:.3} s: {speed:.1} samples/s")?;
        if let Some(times) = self.speed_up() {
            write!(f, ", {times:.2} times the fastest device alone")?;
        }
        if let Some(hidden) = self.hidden() {
            write!(f, "; {:.0} % of the copies of gradients were hidden by backward", 100.0 * hidden)?;
        }
        writeln!(f)
    }
}

/// An event of a trace.
#[derive(Debug)]
struct Span {
    row: usize,
    name: String,
    start: Duration,
    duration: Duration,
    samples: usize,
}

/// The sums of the steps so far, and a trace if one is recorded.
#[derive(Debug, Default)]
pub(super) struct Timeline {
    report: ParallelReport,
    trace: Option<(Instant, Vec<Span>)>,
}

impl Timeline {
    /// Begins a trace. An earlier one is dropped.
    pub fn start_trace(&mut self) {
        self.trace = Some((Instant::now(), Vec::new()));
    }

    /// Returns the sums.
    pub fn report(&self) -> &ParallelReport {
        &self.report
    }

    /// Adds a step, or a part of one: its begin, the time at which its gradients were averaged, and what each device
    /// with samples did. Devices are given by their index in `names`.
    pub fn add(&mut self, names: &[String], begin: Instant, parts: &[(usize, usize, &PartTimes)]) {
        let end = Instant::now();
        let seconds = end.saturating_duration_since(begin).as_secs_f64();
        let report = &mut self.report;
        report.devices.resize_with(names.len(), DeviceReport::default);
        report.devices.iter_mut().zip(names).for_each(|(device, name)| device.device.clone_from(name));
        report.seconds += seconds;
        for device in &mut report.devices {
            device.idle += seconds;
        }
        for &(index, samples, times) in parts {
            report.samples += samples as u64;
            let Some(device) = report.devices.get_mut(index) else { continue };
            let [compute, copies] = [times.compute(), times.copies()].map(|time| time.as_secs_f64());
            device.samples += samples as u64;
            device.compute += compute;
            device.copies += copies;
            device.idle = (device.idle - compute - copies).max(0.0);
            let [all, hidden] = times.gradients().map(|time| time.as_secs_f64());
            device.gradient_copies += all;
            device.hidden_copies += hidden;
        }
        self.trace_step(begin, end, parts);
    }

    /// Counts a step that has ended.
    pub fn count_step(&mut self) {
        self.report.steps += 1;
    }

    fn trace_step(&mut self, begin: Instant, end: Instant, parts: &[(usize, usize, &PartTimes)]) {
        let step = self.report.steps + 1;
        let Some((zero, spans)) = self.trace.as_mut().filter(|(_, spans)| spans.len() < MOST_EVENTS) else { return };
        let mut span = |row: usize, name: String, from: Instant, to: Instant, samples: usize| {
            let (start, duration) = (from.saturating_duration_since(*zero), to.saturating_duration_since(from));
            spans.push(Span { row, name, start, duration, samples });
        };
        span(0, format!("step {step}"), begin, end, parts.iter().map(|(_, samples, _)| samples).sum());
        for (index, samples, times) in parts {
            let row = 1 + 2 * index;
            span(row, "copy of parameters".into(), times.begin, times.copied, *samples);
            span(row, "compute".into(), times.copied, times.computed(), *samples);
            span(row, "forward".into(), times.copied, times.forward.min(times.computed()), *samples);
            span(row, "backward".into(), times.forward, times.backward.min(times.computed()), *samples);
            for (bucket, (from, to)) in times.buckets.iter().enumerate() {
                span(row + 1, format!("gradients {bucket}"), *from, *to, *samples);
            }
        }
    }

    /// Writes the trace that was begun.
    pub fn save_trace(&self, names: &[String], path: &Path) -> Result<()> {
        let Some((_, spans)) = &self.trace else {
            let detail = "no trace was begun: call start_trace() before the steps to record";
            return Err(Error::argument("save_trace", detail));
        };
        let mut rows = vec!["steps".to_string()];
        rows.extend(names.iter().flat_map(|name| [name.clone(), format!("{name}: gradients to the host")]));
        let events = spans.iter().map(|span| TraceEvent {
            row: span.row,
            name: &span.name,
            start: span.start,
            duration: span.duration,
            arguments: vec![("samples", span.samples.to_string())],
        });
        chrome_trace::save(path, rows.iter().map(String::as_str), events)
    }
}

impl DataParallel {
    /// Returns the work and the times of each device in the steps so far.
    ///
    /// With one device, the report is empty, because a step does not wait for the device.
    #[must_use]
    pub fn report(&self) -> ParallelReport {
        lock(&self.roster).report()
    }

    /// Begins a trace of the following steps: when each device copied, computed, and sent its gradients.
    ///
    /// An earlier trace is dropped. A trace ends after a million events.
    pub fn start_trace(&self) {
        lock(&self.roster).timeline.start_trace();
    }

    /// Writes the trace as a file of Chrome's trace format, for `ui.perfetto.dev` and `chrome://tracing`.
    ///
    /// It has a row for the steps, and two rows for each device: its computation, and the copies of its gradients to
    /// the host. *forward* and *backward* end when they are recorded. *compute* ends when the device has computed the
    /// last gradient.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] without [`start_trace`](DataParallel::start_trace); [`Error::Data`] if the file cannot be written.
    ///
    /// ```
    /// # use anygpu::{DataParallel, Device, Tensor, nn};
    /// let net = DataParallel::new(nn::Linear::new(4, 3)?, &[Device::new("cpu/0")?, Device::new("cpu/1")?])?;
    /// net.start_trace();
    /// let (x, y) = (Tensor::rand([6, 4], None)?, Tensor::new([0u32, 1, 2, 0, 1, 2], None)?);
    /// net.train_batch(&x, &y, nn::cross_entropy)?;
    /// # let path = std::env::temp_dir().join(format!("anygpu-steps-{}.json", std::process::id()));
    /// net.save_trace(&path)?;
    /// # std::fs::remove_file(&path).ok();
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn save_trace(&self, path: impl AsRef<Path>) -> Result<()> {
        let roster = lock(&self.roster);
        roster.timeline.save_trace(&roster.names(), path.as_ref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_split_into_compute_copies_and_idle() {
        let begin = Instant::now();
        let at = |millis: u64| begin + Duration::from_millis(millis);
        let times = PartTimes {
            begin: at(10),
            copied: at(20),
            forward: at(25),
            backward: at(30), // recorded; the device ends at 120
            buckets: vec![(at(60), at(90)), (at(100), at(130)), (at(120), at(140))],
            waited: Duration::from_millis(40),
        };
        assert_eq!((times.compute().as_millis(), times.copies().as_millis()), (60, 30));
        assert_eq!(times.gradients().map(|time| time.as_millis()), [80, 50]);
        let mut timeline = Timeline::default();
        let names = ["gpu:0", "cpu"].map(String::from);
        timeline.add(&names, begin, &[(0, 6, &times)]);
        timeline.count_step();
        let report = timeline.report();
        let [gpu, cpu] = &report.devices[..] else { panic!("two devices") };
        assert_eq!((report.steps, report.samples, gpu.samples, cpu.samples), (1, 6, 6, 0));
        assert!((gpu.compute - 0.06).abs() < 1e-9 && (gpu.copies - 0.03).abs() < 1e-9 && cpu.idle == report.seconds);
        assert!((report.hidden().unwrap() - 50.0 / 80.0).abs() < 1e-9);
        assert!(report.to_string().contains("62 % of the copies") || report.to_string().contains("63 % of the copies"));
    }

    #[test]
    fn a_report_without_steps_has_no_ratios() {
        let report = ParallelReport::default();
        assert_eq!((report.speed_up(), report.hidden()), (None, None));
        let last = "no step on several devices yet: the steps of one device are not timed\n";
        assert!(report.to_string().ends_with(last), "{report}");
    }
}
