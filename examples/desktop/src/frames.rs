//! How many frames the window draws, and how long the slowest one takes.

use std::time::{Duration, Instant};

/// The time after the first frame that is not counted: drivers compile the window's own pipelines in it.
const START: Duration = Duration::from_secs(1);

/// Counts frames.
pub struct Frames {
    first: Instant,
    last: Instant,
    /// Frames, and the longest time from one to the next, after the start.
    counted: u32,
    slowest: Duration,
    /// The smoothed time from one frame to the next.
    usual: Duration,
}

impl Frames {
    /// Begins with the first frame.
    pub fn new() -> Frames {
        let now = Instant::now();
        Frames { first: now, last: now, counted: 0, slowest: Duration::ZERO, usual: Duration::ZERO }
    }

    /// Counts a frame that begins now.
    pub fn count(&mut self) {
        let now = Instant::now();
        let time = now - self.last;
        if self.last - self.first >= START {
            self.counted += 1;
            self.slowest = self.slowest.max(time);
        }
        self.usual = (self.usual * 15 + time) / 16;
        self.last = now;
    }

    /// Returns the time since the first frame.
    pub fn elapsed(&self) -> Duration {
        self.first.elapsed()
    }

    /// Returns the time since the beginning of this frame.
    pub fn since_begin(&self) -> Duration {
        self.last.elapsed()
    }

    /// Returns the frames per second of the last moments.
    pub fn rate(&self) -> f64 {
        1.0 / self.usual.as_secs_f64().max(1e-3)
    }

    /// Returns one line about all frames after the first second.
    pub fn report(&self) -> String {
        let seconds = (self.last - self.first).saturating_sub(START).as_secs_f64();
        let (frames, slowest) = (self.counted, self.slowest.as_secs_f64() * 1e3);
        let rate = f64::from(frames) / seconds.max(1e-3);
        format!("{frames} frames in {seconds:.1} s, {rate:.1} frames/s, slowest {slowest:.0} ms")
    }
}
