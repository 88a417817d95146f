//! A stopwatch that waits for devices.

use web_time::{Duration, Instant};

use crate::device::Device;
use crate::error::{Error, Result};

/// A stopwatch with laps, like the `Timer` of "Dive into Deep Learning".
///
/// Ops on an adapter return before the adapter has computed them. A timer that is created [`on`](Timer::on) devices
/// waits for them at each start and stop ([`Device::synchronize`]). So it measures finished work, and no work from
/// before the start. A timer that is created by [`new`](Timer::new) does not wait, which is right for work on the CPU.
///
/// ```
/// use anygpu::{Tensor, metrics::Timer, try_gpu};
///
/// let device = try_gpu(0);
/// let mut timer = Timer::on(&[&device])?; // starts it
/// for _ in 0..3 {
///     timer.start()?;
///     let x = Tensor::rand([64, 64], &device)?;
///     x.matmul(&x)?;
///     timer.stop()?;
/// }
/// println!("{:.1} ms each", 1e3 * timer.avg());
/// assert_eq!(timer.times().len(), 3);
/// assert!((timer.sum() - 3.0 * timer.avg()).abs() < 1e-9);
/// # Ok::<(), anygpu::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Timer {
    devices: Vec<Device>,
    /// `None` after a stop.
    start: Option<Instant>,
    laps: Vec<Duration>,
}

impl Default for Timer {
    fn default() -> Timer {
        Timer::new()
    }
}

impl Timer {
    /// Creates a timer that waits for no device, and starts it.
    #[must_use]
    pub fn new() -> Timer {
        Timer { devices: Vec::new(), start: Some(Instant::now()), laps: Vec::new() }
    }

    /// Creates a timer that waits for these devices, and starts it.
    ///
    /// # Errors
    /// The errors of [`start`](Timer::start).
    pub fn on(devices: &[impl AsRef<Device>]) -> Result<Timer> {
        let devices = devices.iter().map(|device| device.as_ref().clone()).collect();
        let mut timer = Timer { devices, ..Timer::new() };
        timer.start()?;
        Ok(timer)
    }

    /// Waits for the devices and starts a lap. A running lap is discarded.
    ///
    /// # Errors
    /// The errors of [`Device::synchronize`].
    pub fn start(&mut self) -> Result<()> {
        self.start = None;
        self.wait()?;
        self.start = Some(Instant::now());
        Ok(())
    }

    /// Waits for the devices, ends the lap, and returns its seconds.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if no lap is running; the errors of [`Device::synchronize`], after which no lap is
    /// running.
    pub fn stop(&mut self) -> Result<f64> {
        let detail = "no lap is running: call start() before each stop()";
        let start = self.start.take().ok_or_else(|| Error::argument("Timer::stop", detail))?;
        self.wait()?;
        let lap = start.elapsed();
        self.laps.push(lap);
        Ok(lap.as_secs_f64())
    }

    /// Returns the seconds of each finished lap.
    #[must_use]
    pub fn times(&self) -> Vec<f64> {
        self.laps.iter().map(Duration::as_secs_f64).collect()
    }

    /// Returns the total seconds of all finished laps.
    #[must_use]
    pub fn sum(&self) -> f64 {
        self.laps.iter().sum::<Duration>().as_secs_f64()
    }

    /// Returns the mean seconds of a finished lap, or NaN without any.
    #[must_use]
    pub fn avg(&self) -> f64 {
        self.sum() / self.laps.len() as f64
    }

    /// Returns the cumulative seconds at the end of each lap, without the time between laps.
    #[must_use]
    pub fn cumsum(&self) -> Vec<f64> {
        let mut sum = Duration::ZERO;
        let up_to = |lap: &Duration| {
            sum += *lap;
            sum.as_secs_f64()
        };
        self.laps.iter().map(up_to).collect()
    }

    fn wait(&self) -> Result<()> {
        self.devices.iter().try_for_each(Device::synchronize)
    }
}
