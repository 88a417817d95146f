//! Ctrl-C: a run ends after the step that it is in, and says where it can be continued.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

/// Whether the run was asked to end, by Ctrl-C or by `kill`.
#[derive(Clone, Debug, Default)]
pub struct Stop {
    /// The number of the signal; 0 before one came.
    signal: Arc<AtomicUsize>,
}

impl Stop {
    /// Listens to the signals from here on. A second one ends the process at once.
    pub fn listen() -> Stop {
        let (stop, again) = (Stop::default(), Arc::new(AtomicBool::new(false)));
        for signal in [SIGINT, SIGTERM] {
            // In this order: the first signal finds `again` unset, and sets it.
            let registered = flag::register_conditional_shutdown(signal, 128 + signal, again.clone())
                .and_then(|_| flag::register(signal, again.clone()))
                .and_then(|_| flag::register_usize(signal, stop.signal.clone(), signal.unsigned_abs() as usize));
            if let Err(error) = registered {
                log::warn!("signal {signal} will end the run without a checkpoint: {error}");
            }
        }
        stop
    }

    /// Returns the exit status of a run that is to end now: 128 and the number of the signal, as shells have it.
    pub fn requested(&self) -> Option<u8> {
        match self.signal.load(Ordering::Relaxed) {
            0 => None,
            signal => Some(128u8.saturating_add(u8::try_from(signal).unwrap_or(u8::MAX))),
        }
    }
}
