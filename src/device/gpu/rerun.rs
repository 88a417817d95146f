//! Work that reads from a device in the middle, as the trial of a variant does, where no thread may wait: it runs until it needs words that
//! are not there, gives up, and runs again from its beginning when they have arrived. So it must do the same each time. A trial within it
//! is done once, and has reads of its own.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;

use super::reader::Begun;
use super::{Buffer, Gpu};
use crate::device::cpu::copied;
use crate::error::{Error, Result};
use crate::util::waiting;

/// The reads of a piece of work, in their order.
#[derive(Default)]
pub(super) struct Reads {
    arrived: HashMap<Part, Vec<Result<Vec<u32>>>>,
    /// How many of them this run has taken.
    taken: HashMap<Part, usize>,
    /// The read that was begun when the run gave up.
    begun: Option<(Part, Begun, usize)>,
}

/// The family and the variant whose trial reads; empty for the work around it.
type Part = (&'static str, &'static str);

thread_local! {
    /// The reads of the work that runs now, and the name of its device.
    static READS: RefCell<Option<(String, Reads)>> = const { RefCell::new(None) };
    static PART: Cell<Part> = const { Cell::new(("", "")) };
}

/// The reads until this is dropped are those of a trial.
pub(super) struct TrialReads(Part);

impl TrialReads {
    pub(super) fn begin(family: &'static str, variant: &'static str) -> TrialReads {
        TrialReads(PART.replace((family, variant)))
    }
}

impl Drop for TrialReads {
    fn drop(&mut self) {
        PART.set(self.0);
    }
}

impl Reads {
    /// Runs `f` once. Returns `None` if it must run again after [`Reads::arrive`].
    pub(super) fn run<T>(&mut self, gpu: &Gpu, f: &mut impl FnMut() -> Result<T>) -> Option<Result<T>> {
        let mine = Reads { taken: HashMap::new(), ..std::mem::take(self) };
        let outer = READS.replace(Some((gpu.name.clone(), mine)));
        let result = f();
        *self = READS.replace(outer).map(|(_, reads)| reads).unwrap_or_default();
        if self.begun.is_some() { None } else { Some(result) }
    }

    /// Waits for the read at which the last run gave up.
    pub(super) async fn arrive(&mut self, gpu: &Gpu) {
        if let Some((part, begun, len)) = self.begun.take() {
            let words = gpu.finish(begun, len, &mut None).await;
            self.arrived.entry(part).or_default().push(words);
        }
    }
}

impl Gpu {
    /// Returns the result of `f`, which reads from this device, without waiting within it: it may run several times. Where threads may
    /// wait, it runs once.
    ///
    /// # Errors
    /// Those of `f`.
    pub(crate) async fn rerun<T>(&self, mut f: impl FnMut() -> Result<T>) -> Result<T> {
        if waiting::CAN_BLOCK {
            return f();
        }
        let mut reads = Reads::default();
        loop {
            match reads.run(self, &mut f) {
                Some(result) => return result,
                None => reads.arrive(self).await,
            }
        }
    }

    /// Returns whether this is called by work that runs again when it has to wait.
    pub(super) fn is_in_rerun(&self) -> bool {
        !waiting::CAN_BLOCK && READS.with_borrow(|reads| reads.as_ref().is_some_and(|(name, _)| *name == self.name))
    }

    /// Returns words of a buffer if they have arrived for the work that reads them, and begins to read them otherwise; `None` if this is
    /// not called by such work.
    pub(super) fn read_again(&self, buffer: &Buffer, offset: usize, len: usize) -> Option<Result<Vec<u32>>> {
        if !self.is_in_rerun() {
            return None;
        }
        // Not within the borrow: this submits.
        let arrived = READS.with_borrow_mut(|reads| {
            let (_, reads) = reads.as_mut()?;
            let taken = reads.taken.entry(PART.get()).or_default();
            let arrived = reads.arrived.get(&PART.get())?.get(*taken)?;
            *taken += 1;
            Some(arrived.as_ref().map_err(Error::clone).and_then(|words| copied(words)))
        });
        Some(arrived.unwrap_or_else(|| {
            let begun = self.begin(buffer, offset, len)?;
            READS
                .with_borrow_mut(|reads| reads.as_mut().map(|(_, reads)| reads.begun = Some((PART.get(), begun, len))));
            Err(waiting::would_block())
        }))
    }
}
