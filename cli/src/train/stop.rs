//! Ctrl-C: a run ends after the step that it is in, and says where it can be continued.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

use super::ranks::Ranks;
use crate::progress;

/// How long after a signal a run of several processes reports what it has saved, if it is still in a step. `mpirun`
/// kills processes a second after it has asked them to end.
const PATIENCE: Duration = Duration::from_millis(500);

/// Whether the run was asked to end, by Ctrl-C or by `kill`.
#[derive(Clone, Debug, Default)]
pub struct Stop {
    seen: Arc<Seen>,
    ranks: Ranks,
}

/// What is known of signals.
#[derive(Debug, Default)]
struct Seen {
    /// The number of the signal; 0 before one came.
    signal: Arc<AtomicUsize>,
    /// The number of answers to [`requested`](Stop::requested).
    answers: AtomicUsize,
    /// What the run's checkpoint holds, for people.
    saved: Mutex<String>,
}

impl Stop {
    /// Listens to the signals from here on. A second one ends the process at once.
    pub fn listen(ranks: &Ranks) -> Stop {
        let stop = Stop { seen: Arc::default(), ranks: ranks.clone() };
        let again = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            // In this order: the first signal finds `again` unset, and sets it.
            let registered = flag::register_conditional_shutdown(signal, 128 + signal, again.clone())
                .and_then(|_| flag::register(signal, again.clone()))
                .and_then(|_| flag::register_usize(signal, stop.seen.signal.clone(), signal.unsigned_abs() as usize));
            if let Err(error) = registered {
                log::warn!("signal {signal} will end the run without a checkpoint: {error}");
            }
        }
        if ranks.are_several() && ranks.is_first() {
            let seen = stop.seen.clone();
            let begun = thread::Builder::new().name("anygpu signals".into()).spawn(move || seen.watch());
            drop(begun); // without the thread, only its message is missing
        }
        stop
    }

    /// Notes what the run's checkpoint holds, for people.
    pub fn saved(&self, text: String) {
        *self.seen.saved.lock().unwrap_or_else(PoisonError::into_inner) = text;
    }

    /// Returns the exit status of a run that is to end now: 128 plus the number of the signal, as in shells. All
    /// processes of the run must ask equally often, and get the same answer.
    pub fn requested(&self) -> Option<u8> {
        let own = match self.seen.signal.load(Ordering::Relaxed) {
            0 => 0,
            signal => 128u8.saturating_add(u8::try_from(signal).unwrap_or(u8::MAX)),
        };
        let status = self.ranks.greatest(own);
        self.seen.answers.fetch_add(1, Ordering::Relaxed);
        Some(status).filter(|&status| status > 0)
    }
}

impl Seen {
    /// Waits for a signal. A step of several processes does not end if one of them is dead: then `mpirun` first asks the others to
    /// end and soon kills them.
    fn watch(&self) {
        while self.signal.load(Ordering::Relaxed) == 0 {
            thread::sleep(PATIENCE / 5);
        }
        let before = self.answers.load(Ordering::Relaxed);
        thread::sleep(PATIENCE);
        let saved = self.saved.lock().unwrap_or_else(PoisonError::into_inner);
        if self.answers.load(Ordering::Relaxed) == before && !saved.is_empty() {
            progress::say(&format!("the run is to end while it waits for other ranks: {saved}"));
        }
    }
}
