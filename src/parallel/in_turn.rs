//! Computes the parts of a call one after the other on the calling thread. Used in a browser, where no other threads
//! can be started.
//!
//! Nothing can wait there. A part may need words from its adapter, or a value that another part has yet to compute. It
//! then gives up, and is run again from its beginning when the value is there (`device/gpu/rerun.rs`). A net with batch
//! norm runs again as often as its parts exchange values. A part of a net without exchanges runs once, and its
//! gradients arrive while other code runs.

use std::sync::{Arc, Mutex};

use futures_channel::oneshot;
use web_time::Instant;

use super::gradient_buckets::Deliver;
use super::worker::on_device;
use crate::device::{Device, Part, PartReads, has_begun, kept, wait_for_other};
use crate::error::{Error, Result};
use crate::process_group::ProcessGroup;
use crate::tensor::Tensor;
use crate::util::sync::lock;
use crate::util::waiting;

/// What is known of the parts of one call.
struct Parts<T> {
    group: Arc<ProcessGroup>,
    parts: Vec<Known<T>>,
}

impl<T> Parts<T> {
    fn ended(&self) -> usize {
        self.parts.iter().filter(|part| part.result.is_some()).count()
    }
}

/// What is known of one part.
struct Known<T> {
    /// Whether it has run before, and gave up.
    ran: bool,
    result: Option<Result<T>>,
    buckets: Arc<Mutex<Buckets>>,
}

/// The buckets of gradients that have arrived since a part began.
#[derive(Default)]
struct Buckets {
    arrived: Vec<(usize, Result<Tensor>)>,
    last: Option<Instant>,
    /// Told when there are all.
    all: Option<oneshot::Sender<()>>,
}

/// Runs `work` for each rank of a group, on its device, until all parts have ended and each has delivered `buckets`
/// buckets of gradients. `work` is told whether it runs again. Returns the results by rank. Calls `take` with each
/// bucket: the rank, the number of the bucket, and its elements.
///
/// # Errors
/// [`Error::WouldBlock`] if a part waits for its adapter: the call then has to run again.
pub(super) fn run_in_turn<T: Clone + Send + 'static>(
    devices: &[Device],
    group: impl FnOnce() -> Arc<ProcessGroup>,
    buckets: usize,
    work: impl Fn(usize, bool, Deliver) -> Result<T>,
    mut take: impl FnMut(usize, usize, Tensor) -> Result<()>,
) -> Result<(Arc<ProcessGroup>, Vec<Result<T>>)> {
    let fresh = || Known { ran: false, result: None, buckets: Arc::default() };
    let (call, known) = kept(|| {
        Mutex::new(Parts { group: group(), parts: devices.iter().map(|_| fresh()).collect::<Vec<Known<T>>>() })
    });
    let mut known = lock(&known);
    let group = known.group.clone();
    loop {
        let before = (group.exchanges(), known.ended());
        for (rank, place) in group.ranks().enumerate() {
            let part = &mut known.parts[rank];
            if part.result.is_some() {
                continue;
            }
            // Buckets that an earlier run has begun to send are delivered to that run.
            let (all, arrived) = oneshot::channel();
            part.buckets = Arc::new(Mutex::new(Buckets { all: Some(all), ..Buckets::default() }));
            let sent = part.buckets.clone();
            let deliver: Deliver = Arc::new(move |bucket, elements| {
                let mut sent = lock(&sent);
                sent.arrived.push((bucket, elements));
                sent.last = Some(Instant::now());
                if sent.arrived.len() == buckets {
                    sent.all.take().map(|all| all.send(()));
                }
            });
            let _reads = PartReads::of(Part::Rank(call, rank));
            group.begin_again(rank);
            let again = std::mem::replace(&mut part.ran, true);
            let result = on_device(&devices[rank], || place.within(|| work(rank, again, deliver)));
            if result.as_ref().is_err_and(Error::is_would_block) {
                log::debug!("call {call}: rank {rank} waits after {} exchanges", group.exchanges());
                continue;
            }
            if result.is_ok() && buckets > 0 && lock(&part.buckets).arrived.len() < buckets {
                wait_for_other(arrived);
            }
            group.abandon(); // those that come to further exchanges are not given what they wait for
            part.result = Some(result);
        }
        if known.ended() == devices.len() || (group.exchanges(), known.ended()) == before {
            break;
        }
    }
    if has_begun() || known.parts.iter().any(|part| part.result.is_none()) {
        return Err(waiting::would_block());
    }
    let mut results = Vec::new();
    for (rank, part) in known.parts.iter().enumerate() {
        let mut result = part.result.clone().unwrap_or_else(|| Err(waiting::would_block()));
        for (bucket, elements) in &lock(&part.buckets).arrived {
            match elements {
                Ok(elements) if result.is_ok() => take(rank, *bucket, elements.clone())?,
                Ok(_) => {}
                Err(error) => result = on_device(&devices[rank], || Err(error.clone())),
            }
        }
        results.push(result);
    }
    Ok((group, results))
}
