//! Work that reads from devices in the middle, as the trial of a variant does, where no thread may wait: it runs until it needs something
//! that is not there, gives up with an error, and runs again from its beginning when that has arrived. So it must do the same each time.
//!
//! What it read before is given to it again. Reads are told apart by their device, their order, and who reads: a trial within the work is
//! done once only, and the replicas of a step run one after the other.

use std::any::Any;
use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

use futures_channel::oneshot;

use super::reader::Begun;
use super::{Buffer, Gpu};
use crate::device::cpu::copied;
use crate::error::{Error, Result};
use crate::util::waiting;

/// What a piece of work has read and kept, in its order.
#[derive(Default)]
pub(super) struct Rerun {
    arrived: HashMap<Source, Vec<Result<Vec<u32>>>>,
    /// How many of them this run has taken.
    taken: HashMap<Source, usize>,
    /// The reads that were begun when the work gave up.
    begun: Vec<(Source, Begun, usize)>,
    /// What it has begun otherwise.
    waits: Vec<oneshot::Receiver<()>>,
    kept: Vec<Arc<dyn Any + Send + Sync>>,
    /// How many of them this run has taken.
    next: usize,
    /// Who reads.
    part: Part,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Source {
    device: String,
    part: Part,
}

/// Who reads: the work itself, or a part of it that has an order of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum Part {
    #[default]
    Whole,
    /// The trial of a variant, with its family.
    Trial(&'static str, &'static str),
    /// A rank in a call with several, by the number of the call.
    Rank(usize, usize),
}

thread_local! {
    static NOW: RefCell<Option<Rerun>> = const { RefCell::new(None) };
}

/// While this lives, the reads count as the reads of a part.
pub(crate) struct PartReads(Part);

impl PartReads {
    /// Begins with the first read of the part, which may run several times within a run of the work.
    pub(crate) fn of(part: Part) -> PartReads {
        NOW.with_borrow_mut(|now| now.as_mut().map(|now| now.taken.retain(|source, _| source.part != part)));
        PartReads(set_part(part))
    }
}

impl Drop for PartReads {
    fn drop(&mut self) {
        set_part(self.0);
    }
}

fn set_part(part: Part) -> Part {
    NOW.with_borrow_mut(|now| now.as_mut().map(|now| std::mem::replace(&mut now.part, part)).unwrap_or_default())
}

impl Rerun {
    /// Runs `f` once. Returns `None` if it must run again after [`Rerun::arrive`].
    pub(super) fn run<T>(&mut self, f: &mut impl FnMut() -> Result<T>) -> Option<Result<T>> {
        let mine = Rerun { taken: HashMap::new(), next: 0, ..std::mem::take(self) };
        let outer = NOW.replace(Some(mine));
        let result = f();
        *self = NOW.replace(outer).unwrap_or_default();
        if self.begun.is_empty() && self.waits.is_empty() { Some(result) } else { None }
    }

    /// Waits for what the last run did not find.
    pub(super) async fn arrive(&mut self, gpus: &[&Gpu]) {
        for (source, begun, len) in std::mem::take(&mut self.begun) {
            let words = match gpus.iter().find(|gpu| gpu.name == source.device) {
                Some(gpu) => gpu.finish(begun, len, &mut None).await,
                None => Err(waiting::would_block()),
            };
            self.arrived.entry(source).or_default().push(words);
        }
        for wait in std::mem::take(&mut self.waits) {
            let _ = wait.await; // told by what was begun, or dropped with it
        }
    }
}

/// Returns the result of `f`, which reads from these devices, without waiting within it: it may run several times. Where threads may wait,
/// it runs once.
/// # Errors
/// The errors of `f`.
pub(crate) async fn rerun<T>(gpus: &[&Gpu], mut f: impl FnMut() -> Result<T>) -> Result<T> {
    if waiting::CAN_BLOCK {
        return f();
    }
    let mut rerun = Rerun::default();
    loop {
        match rerun.run(&mut f) {
            Some(result) => return result,
            None => rerun.arrive(gpus).await,
        }
    }
}

/// Returns whether this is called by work that runs again when it has to wait.
pub(crate) fn is_in_rerun() -> bool {
    !waiting::CAN_BLOCK && NOW.with_borrow(Option::is_some)
}

/// Returns what an earlier run of this work has made at this place, or makes it. Also returns its number among what
/// the work has kept.
pub(crate) fn kept<T: Send + Sync + 'static>(make: impl FnOnce() -> T) -> (usize, Arc<T>) {
    let earlier = NOW.with_borrow_mut(|now| {
        let now = now.as_mut()?;
        now.next += 1;
        Arc::downcast(now.kept.get(now.next - 1)?.clone() as Arc<dyn Any + Send + Sync>)
            .ok()
            .map(|kept| (now.next - 1, kept))
    });
    earlier.unwrap_or_else(|| {
        let new = Arc::new(make());
        let number = NOW.with_borrow_mut(|now| {
            let Some(now) = now else { return 0 };
            now.kept.push(new.clone());
            now.kept.len() - 1
        });
        (number, new)
    })
}

/// Lets the work run again when `wait` is told.
pub(crate) fn wait_for_other(wait: oneshot::Receiver<()>) {
    NOW.with_borrow_mut(|now| now.as_mut().map(|now| now.waits.push(wait)));
}

/// Returns whether this run has begun something that it waits for.
pub(crate) fn has_begun() -> bool {
    NOW.with_borrow(|now| now.as_ref().is_some_and(|now| !now.begun.is_empty() || !now.waits.is_empty()))
}

impl Gpu {
    /// Returns words of a buffer if they have arrived for the work that reads them, and begins to read them otherwise; `None` if this is
    /// not called by such work.
    pub(super) fn read_again(&self, buffer: &Buffer, offset: usize, len: usize) -> Option<Result<Vec<u32>>> {
        if !is_in_rerun() {
            return None;
        }
        let (source, arrived) = NOW.with_borrow_mut(|now| {
            let now = now.as_mut()?;
            let source = Source { device: self.name.clone(), part: now.part };
            let taken = now.taken.entry(source.clone()).or_default();
            let arrived = now.arrived.get(&source).and_then(|arrived| arrived.get(*taken));
            *taken += usize::from(arrived.is_some());
            let words = arrived.map(|arrived| arrived.as_ref().map_err(Error::clone).and_then(|words| copied(words)));
            Some((source, words))
        })?;
        Some(arrived.unwrap_or_else(|| {
            let waits =
                NOW.with_borrow(|now| now.as_ref().is_some_and(|now| now.begun.iter().any(|(of, ..)| *of == source)));
            if waits {
                return Err(waiting::would_block());
            }
            let begun = self.begin(buffer, offset, len)?; // not within the borrow: this submits
            NOW.with_borrow_mut(|now| now.as_mut().map(|now| now.begun.push((source, begun, len))));
            Err(waiting::would_block())
        }))
    }
}
