//! The processes that `mpirun` started together, and what they say to each other through MPI.

use std::fmt;
use std::io::Write;
use std::sync::{Arc, Mutex};

use ::mpi::environment::{Universe, initialize_with_threading, is_finalized, processor_name};
use ::mpi::traits::{Communicator as _, CommunicatorCollectives as _, Equivalence, Root as _};
use ::mpi::{Count, Threading, collective::SystemOperation, datatype::PartitionMut, topology::SimpleCommunicator};

use crate::device::cpu::with_room;
use crate::error::{Error, Result};
use crate::util::sync::lock;

/// The number of words in an [agreement](Communicator::agree).
pub(super) const WORDS: usize = 10;
/// The variable by which Open MPI tells a process that it may only use some of the cores: by default one, in small jobs.
const BOUND: &str = "OMPI_MCA_orte_bound_at_launch";
/// The most elements in one message: MPI counts with 31 bits.
const MOST: usize = 1 << 28;

/// All processes of a job that `mpirun` started, and the rank of this process among them.
///
/// This is `MPI_COMM_WORLD` with its rank.
///
/// Clones are the same communicator. Methods that exchange data are *collective*: all processes must call the same
/// methods in the same order, as they do if they run the same program. If a process does something else or drops its
/// communicator early, the whole job ends with a message that says so. MPI is shut down when the last clone is dropped,
/// including the clones in [`DataParallel`](crate::DataParallel).
///
/// An error of MPI itself, such as a broken connection, ends the job, because MPI cannot continue after an error.
///
/// ```
/// use anygpu::parallel::Communicator;
///
/// let communicator = Communicator::init()?; // without mpirun: a job of one process
/// assert!(communicator.rank() < communicator.world_size());
/// assert_eq!(communicator.all_gather(b"hello").len(), communicator.world_size());
/// assert!(Communicator::init().is_err()); // once in a process
/// # Ok::<(), anygpu::Error>(())
/// ```
#[derive(Clone)]
pub struct Communicator {
    inner: Arc<Inner>,
}

struct Inner {
    rank: usize,
    world_size: usize,
    host: String,
    control: Channel,
    /// Shuts MPI down when it is dropped, after all channels.
    _universe: Universe,
}

/// What a process is about to do with all others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub(super) enum Act {
    /// It drops its communicator.
    End,
    Barrier,
    Broadcast,
    Gather,
    Numbers,
    /// It creates a net, or takes a step with it.
    Net,
    Step,
}

impl Act {
    fn name(code: u64) -> &'static str {
        const NAMES: [&str; 7] = [
            "has ended its run",
            "waits in barrier",
            "is in broadcast",
            "is in all_gather",
            "adds numbers",
            "creates a DataParallel",
            "takes a training step",
        ];
        NAMES.get(code as usize).copied().unwrap_or("does something unknown")
    }
}

/// A communicator of MPI with its own messages, used by one thread at a time.
pub(super) struct Channel(Mutex<Handle>);

struct Handle(SimpleCommunicator);

#[expect(unsafe_code, reason = "the handle is a pointer, of which the compiler knows nothing")]
// SAFETY: MPI_THREAD_MULTIPLE is granted, so any thread may use the handle. A mutex lets in one at a time.
unsafe impl Send for Handle {}

impl Channel {
    fn new(communicator: SimpleCommunicator) -> Channel {
        Channel(Mutex::new(Handle(communicator)))
    }

    /// Returns the values of all ranks, in order. All ranks have the same number of values.
    pub fn all_gather<T: Equivalence + Clone + Default>(&self, own: &[T], ranks: usize) -> Vec<T> {
        let mut all = vec![T::default(); own.len() * ranks];
        lock(&self.0).0.all_gather_into(own, &mut all[..]);
        all
    }

    /// Returns the values of all ranks, in order. Rank i has `counts[i]` values.
    pub fn all_gather_counts<T: Equivalence + Clone + Default>(&self, own: &[T], counts: &[usize]) -> Vec<T> {
        let count = |n: usize| Count::try_from(n).unwrap_or(Count::MAX); // MPI reports a message that is too large
        let ends = counts.iter().scan(0, |end, &n| {
            let start = *end;
            *end += n;
            Some(count(start))
        });
        let starts: Vec<Count> = ends.collect();
        let mut all = vec![T::default(); counts.iter().sum()];
        let counts: Vec<Count> = counts.iter().map(|&n| count(n)).collect();
        let mut parts = PartitionMut::new(&mut all[..], counts, starts);
        lock(&self.0).0.all_gather_varcount_into(own, &mut parts);
        all
    }

    /// Returns the sums of the values of all ranks.
    pub fn sum(&self, own: &[f32]) -> Result<Vec<f32>> {
        self.all_reduce(own, SystemOperation::sum)
    }

    /// Returns the greatest of the values of all ranks.
    pub fn max(&self, own: &[f32]) -> Result<Vec<f32>> {
        self.all_reduce(own, SystemOperation::max)
    }

    fn all_reduce(&self, own: &[f32], op: fn() -> SystemOperation) -> Result<Vec<f32>> {
        let mut all: Vec<f32> = with_room(own.len())?;
        all.resize(own.len(), 0.0);
        let handle = lock(&self.0);
        for (own, all) in own.chunks(MOST).zip(all.chunks_mut(MOST)) {
            handle.0.all_reduce_into(own, all, op());
        }
        Ok(all)
    }

    /// Overwrites the values with the values of rank 0.
    fn broadcast<T: Equivalence>(&self, values: &mut [T]) {
        let handle = lock(&self.0);
        let first = handle.0.process_at_rank(0);
        values.chunks_mut(MOST).for_each(|part| first.broadcast_into(part));
    }
}

impl Communicator {
    /// Starts MPI. Call it once in every process, before anything else that takes long.
    ///
    /// # Errors
    /// [`Error::Communication`] if MPI was started before or is shut down, or if the MPI library was built without
    /// support for several threads (`MPI_THREAD_MULTIPLE`).
    pub fn init() -> Result<Communicator> {
        let failed = |rank, host: &str, message: &str| {
            Err(Error::Communication { rank, host: host.to_string(), message: message.to_string() })
        };
        if is_finalized() {
            return failed(0, "this machine", "MPI is shut down, and cannot be started again in the same process");
        }
        let Some((universe, threading)) = initialize_with_threading(Threading::Multiple) else {
            return failed(0, "this machine", "MPI was started before: clone the first Communicator");
        };
        let world = universe.world();
        let host = processor_name().unwrap_or_else(|_| "a machine without a name".to_string());
        let (rank, world_size) = (world.rank().unsigned_abs() as usize, world.size().unsigned_abs() as usize);
        if threading != Threading::Multiple {
            let message = "this MPI library does not support several threads (MPI_THREAD_MULTIPLE): use one that does";
            return failed(rank, &host, message);
        }
        if std::env::var_os(BOUND).is_some() && std::thread::available_parallelism().is_ok_and(|cores| cores.get() == 1)
        {
            log::warn!(
                "mpirun has bound rank {rank} on {host} to one core, for all of its threads: add --bind-to none"
            );
        }
        let control = Channel::new(world.duplicate());
        Ok(Communicator { inner: Arc::new(Inner { rank, world_size, host, control, _universe: universe }) })
    }

    /// Returns the rank of this process, counted from 0.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.inner.rank
    }

    /// Returns the number of processes.
    #[must_use]
    pub fn world_size(&self) -> usize {
        self.inner.world_size
    }

    /// Returns the name of this machine.
    #[must_use]
    pub fn host(&self) -> &str {
        &self.inner.host
    }

    /// Waits until all processes have called this.
    pub fn barrier(&self) {
        self.agree(Act::Barrier, &[]);
    }

    /// Returns the bytes of rank 0 on all processes, for example a configuration or a checkpoint. The bytes of other
    /// ranks are not used.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if there is no memory for them.
    pub fn broadcast(&self, bytes: Vec<u8>) -> Result<Vec<u8>> {
        let len = self.agree(Act::Broadcast, &[bytes.len() as u64])[0][1] as usize;
        let mut bytes = if self.rank() == 0 { bytes } else { with_room(len)? };
        bytes.resize(len, 0);
        self.inner.control.broadcast(&mut bytes);
        Ok(bytes)
    }

    /// Returns the bytes of all processes, in order of the ranks.
    #[must_use]
    pub fn all_gather(&self, bytes: &[u8]) -> Vec<Vec<u8>> {
        let lens = self.agree(Act::Gather, &[bytes.len() as u64]);
        let lens: Vec<usize> = lens.iter().map(|words| words[1] as usize).collect();
        let mut all = self.inner.control.all_gather_counts(bytes, &lens).into_iter();
        lens.iter().map(|&len| all.by_ref().take(len).collect()).collect()
    }

    /// Returns the sums over all processes, for example of metrics.
    ///
    /// All processes give the same number of values. The sums have the same bits on all processes.
    #[must_use]
    pub fn sum(&self, values: &[f64]) -> Vec<f64> {
        let lens = self.agree(Act::Numbers, &[values.len() as u64]);
        if let Some(other) = lens.iter().position(|words| words[1] as usize != values.len()) {
            self.abort(&format!("adds {} numbers, but rank {other} adds {}", values.len(), lens[other][1]), 1);
        }
        let all = self.inner.control.all_gather(values, self.world_size());
        (0..values.len()).map(|i| all.iter().skip(i).step_by(values.len()).sum()).collect()
    }

    /// Ends the processes of the job, on all machines, with this exit status, and writes the message to standard error.
    pub fn abort(&self, message: &str, status: i32) -> ! {
        self.inner.abort(message, status)
    }

    /// Returns the error of this process with this message.
    pub(super) fn error(&self, message: impl Into<String>) -> Error {
        Error::Communication { rank: self.rank(), host: self.host().to_string(), message: message.into() }
    }

    /// Returns a new channel: all processes must call this.
    pub(super) fn channel(&self) -> Channel {
        Channel::new(lock(&self.inner.control.0).0.duplicate())
    }

    /// Overwrites the words with the words of rank 0.
    pub(super) fn broadcast_words(&self, words: &mut [u32]) {
        self.inner.control.broadcast(words);
    }

    /// Tells all processes what this process is about to do, with some words. Returns the words of all ranks, each
    /// after the code of what the rank does. The job ends if the processes are about to do different things.
    pub(super) fn agree(&self, act: Act, words: &[u64]) -> Vec<[u64; WORDS]> {
        self.inner.agree(act, words)
    }
}

impl Inner {
    fn agree(&self, act: Act, words: &[u64]) -> Vec<[u64; WORDS]> {
        let mut own = [0; WORDS];
        own[0] = act as u64;
        own[1..].iter_mut().zip(words).for_each(|(own, word)| *own = *word);
        let all = self.control.all_gather(&own, self.world_size);
        let (all, _) = all.as_chunks::<WORDS>();
        if let Some(other) = all.iter().position(|words| words[0] != own[0]) {
            let (here, there) = (Act::name(own[0]), Act::name(all[other][0]));
            self.abort(&format!("this rank {here}, but rank {other} {there}"), 1);
        }
        all.to_vec()
    }

    fn abort(&self, message: &str, status: i32) -> ! {
        // In one piece, since mpirun mixes the lines of all ranks. It may be closed.
        let line = format!("error: rank {} on {}: {message}\n", self.rank, self.host);
        let _ = std::io::stderr().write_all(line.as_bytes());
        SimpleCommunicator::world().abort(status)
    }
}

/// Waits until all processes have come to their ends, or ends them if this one panics or another one goes on.
impl Drop for Inner {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.abort("a panic ended this rank", 101);
        }
        self.agree(Act::End, &[]);
    }
}

impl fmt::Debug for Communicator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { rank, world_size, host, .. } = &*self.inner;
        f.debug_struct("Communicator").field("rank", rank).field("world_size", world_size).field("host", host).finish()
    }
}
