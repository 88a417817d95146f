//! Devices that fail on request, so that a program can test how it handles failures: `chaos:soft:0?lose=100`.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::error::{Error, Result};

/// The prefix of such a device's name.
const PREFIX: &str = "chaos:";

/// The faults of a device, as its name states them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Chaos {
    /// The number of kernels after which the device is lost.
    lose: Option<u64>,
    /// The allocation that fails, from 1.
    oom: Option<u64>,
    /// How much longer each submit takes.
    slow: Duration,
}

/// Splits the name of a device with faults into the device's name and the faults. Returns `None` for other names.
///
/// # Errors
///
/// [`Error::InvalidArgument`] for faults that do not exist.
pub(super) fn parse(name: &str) -> Result<Option<(&str, Chaos)>> {
    let Some(rest) = name.strip_prefix(PREFIX) else { return Ok(None) };
    let (device, faults) = rest.split_once('?').unwrap_or((rest, ""));
    let mut chaos = Chaos::default();
    for fault in faults.split('&') {
        let value = fault.split_once('=').and_then(|(kind, value)| Some((kind, value.parse::<u64>().ok()?)));
        match value {
            Some(("lose", kernels)) => chaos.lose = Some(kernels),
            Some(("oom", allocation @ 1..)) => chaos.oom = Some(allocation),
            Some(("slow", millis)) => chaos.slow = Duration::from_millis(millis),
            _ => {
                let detail = format!(
                    "'{fault}' in '{name}' is not a fault: write lose=KERNELS, oom=ALLOCATION or slow=MILLISECONDS, with & between \
                     them, as in chaos:soft:0?lose=100&slow=5"
                );
                return Err(Error::argument("Device::new", detail));
            }
        }
    }
    Ok(Some((device, chaos)))
}

/// The faults of an opened device, and how far it is from them.
#[derive(Debug, Default)]
pub(super) struct Faults {
    chaos: Chaos,
    kernels: AtomicU64,
    allocations: AtomicU64,
}

impl Faults {
    pub fn new(chaos: Chaos) -> Faults {
        Faults { chaos, ..Faults::default() }
    }

    /// Counts a kernel, and returns whether the device is lost with it.
    pub fn lose(&self) -> bool {
        self.chaos.lose.is_some_and(|most| self.kernels.fetch_add(1, Ordering::Relaxed) == most)
    }

    /// Counts an allocation, and returns whether it fails.
    pub fn run_out_of_memory(&self) -> bool {
        self.chaos.oom.is_some_and(|which| self.allocations.fetch_add(1, Ordering::Relaxed) + 1 == which)
    }

    /// Waits for the extra time of a submit.
    pub fn slow_down(&self) {
        if !self.chaos.slow.is_zero() {
            std::thread::sleep(self.chaos.slow);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_state_faults() -> Result<()> {
        assert_eq!(parse("soft:0")?, None);
        let chaos = Chaos { lose: Some(100), oom: Some(3), slow: Duration::from_millis(5) };
        assert_eq!(parse("chaos:soft:0/2?lose=100&oom=3&slow=5")?, Some(("soft:0/2", chaos)));
        for name in
            ["chaos:soft:0", "chaos:soft:0?", "chaos:gpu?lose", "chaos:gpu?lose=-1", "chaos:gpu?oom=0", "chaos:gpu?a=1"]
        {
            let error = parse(name).unwrap_err().to_string();
            assert!(error.contains(name) && error.contains("lose=KERNELS"), "{error}");
        }
        Ok(())
    }

    #[test]
    fn faults_come_when_they_were_asked_for() {
        let faults = Faults::new(Chaos { lose: Some(2), oom: Some(2), slow: Duration::ZERO });
        assert_eq!([(); 4].map(|()| faults.lose()), [false, false, true, false]);
        assert_eq!([(); 4].map(|()| faults.run_out_of_memory()), [false, true, false, false]);
        assert!(!Faults::default().lose() && !Faults::default().run_out_of_memory());
    }
}
