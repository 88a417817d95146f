//! The processes of one run, which `mpirun` started, on one machine or on several; without it, this process alone.
//!
//! All of them take the same steps. Rank 0 prints, and writes the files of the run.

use std::env;

use anygpu::DataParallel;
use anygpu::data::Shard;
#[cfg(feature = "mpi")]
use anygpu::parallel::Communicator;
use serde::Serialize;

use crate::failure::Failure;

/// The environment variables by which Open MPI and MPICH say how many processes they have started.
const SIZES: [&str; 2] = ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE"];

/// The processes of a run.
#[derive(Clone, Debug, Default)]
pub struct Ranks {
    /// `None` for one process.
    #[cfg(feature = "mpi")]
    communicator: Option<Communicator>,
}

/// One process of several, as `--json` prints it.
#[derive(Serialize)]
pub struct Rank {
    rank: usize,
    host: String,
    devices: Vec<String>,
    /// Its final share in a batch.
    share: f64,
}

/// The devices, and where they are.
impl std::fmt::Display for Rank {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} of rank {} ({})", self.devices.join(", "), self.rank, self.host)
    }
}

#[cfg(feature = "mpi")]
impl Ranks {
    fn started(size: usize) -> Result<Ranks, Failure> {
        Ok(Ranks { communicator: if size < 2 { None } else { Some(Communicator::init()?) } })
    }

    /// Returns the number of this process.
    pub fn rank(&self) -> usize {
        self.communicator.as_ref().map_or(0, Communicator::rank)
    }

    /// Returns the number of processes.
    pub fn size(&self) -> usize {
        self.communicator.as_ref().map_or(1, Communicator::world_size)
    }

    fn host(&self) -> &str {
        self.communicator.as_ref().map_or("", Communicator::host)
    }

    /// Trains the net together with the other processes.
    pub fn join(&self, net: DataParallel) -> anygpu::Result<DataParallel> {
        match &self.communicator {
            Some(communicator) => net.with_communicator(communicator),
            None => Ok(net),
        }
    }

    /// Returns the sums of numbers over all processes.
    pub fn sum<const N: usize>(&self, values: [f64; N]) -> [f64; N] {
        let sums = self.communicator.as_ref().map(|communicator| communicator.sum(&values));
        sums.and_then(|sums| sums.try_into().ok()).unwrap_or(values)
    }

    /// Returns the bytes of all processes.
    fn all_gather(&self, bytes: Vec<u8>) -> Vec<Vec<u8>> {
        match &self.communicator {
            Some(communicator) => communicator.all_gather(&bytes),
            None => vec![bytes],
        }
    }

    /// Returns the bytes of rank 0.
    pub fn broadcast(&self, bytes: Vec<u8>) -> anygpu::Result<Vec<u8>> {
        self.communicator.as_ref().map_or(Ok(bytes.clone()), |communicator| communicator.broadcast(bytes))
    }

    /// Ends all processes with a message.
    fn abort(&self, message: &str, status: u8) {
        if let Some(communicator) = &self.communicator {
            communicator.abort(message, i32::from(status));
        }
    }
}

#[cfg(not(feature = "mpi"))]
impl Ranks {
    fn started(size: usize) -> Result<Ranks, Failure> {
        if size < 2 {
            return Ok(Ranks::default());
        }
        Err(Failure::Usage(format!(
            "mpirun has started {size} processes, but this anygpu was built without MPI: each would train its own net. Build it \
             with  cargo install anygpu-cli --features mpi"
        )))
    }

    pub fn rank(&self) -> usize {
        0
    }

    pub fn size(&self) -> usize {
        1
    }

    fn host(&self) -> &str {
        ""
    }

    pub fn join(&self, net: DataParallel) -> anygpu::Result<DataParallel> {
        Ok(net)
    }

    pub fn sum<const N: usize>(&self, values: [f64; N]) -> [f64; N] {
        values
    }

    fn all_gather(&self, bytes: Vec<u8>) -> Vec<Vec<u8>> {
        vec![bytes]
    }

    pub fn broadcast(&self, bytes: Vec<u8>) -> anygpu::Result<Vec<u8>> {
        Ok(bytes)
    }

    fn abort(&self, _: &str, _: u8) {}
}

impl Ranks {
    /// Starts MPI if `mpirun` has started this process together with others.
    ///
    /// # Errors
    /// [`Failure::Usage`] if it has, and this command was built without MPI.
    pub fn start() -> Result<Ranks, Failure> {
        let size = SIZES.iter().find_map(|name| env::var(name).ok()?.parse().ok());
        Ranks::started(size.unwrap_or(1))
    }

    /// Returns whether this process prints and writes files.
    pub fn is_first(&self) -> bool {
        self.rank() == 0
    }

    /// Returns whether this process is not the only one.
    pub fn are_several(&self) -> bool {
        self.size() > 1
    }

    /// Returns the equal part of each batch that this process loads to measure the net.
    pub fn shard(&self) -> anygpu::Result<Shard> {
        Shard::new(self.rank(), self.size())
    }

    /// Returns the greatest status of all processes.
    pub fn greatest(&self, status: u8) -> u8 {
        self.all_gather(vec![status]).into_iter().flatten().max().unwrap_or(status)
    }

    /// Returns an error unless all processes have the same options, given as JSON.
    pub fn compare(&self, options: &str) -> Result<(), Failure> {
        let all = self.all_gather(options.as_bytes().to_vec());
        match all.iter().position(|theirs| *theirs != all[0]) {
            None => Ok(()),
            Some(rank) => Err(Failure::Usage(format!(
                "all ranks need the same options, except --devices: rank 0 has {}, rank {rank} has {}",
                String::from_utf8_lossy(&all[0]),
                String::from_utf8_lossy(&all[rank])
            ))),
        }
    }

    /// Returns what all processes have, in order; nothing for one process. All must call it.
    pub fn table(&self, devices: Vec<String>, shares: &[f64]) -> Vec<Rank> {
        if !self.are_several() {
            return Vec::new();
        }
        let own = serde_json::to_vec(&(self.host(), devices)).unwrap_or_default(); // cannot fail: it is all text
        let all = self.all_gather(own).into_iter().enumerate();
        let row = |(rank, bytes): (usize, Vec<u8>)| {
            let (host, devices) = serde_json::from_slice(&bytes).unwrap_or_default();
            Rank { rank, host, devices, share: shares.get(rank).copied().unwrap_or_default() }
        };
        all.map(row).collect()
    }

    /// Returns how this process ends. A failure ends all processes, because the others wait for this one.
    pub fn end(&self, result: Result<(), Failure>) -> Result<(), Failure> {
        match result {
            Err(Failure::Stopped(_, status)) if !self.is_first() => Err(Failure::Quiet(status)), // all stop, rank 0 says so
            Err(failure) if self.are_several() && !matches!(failure, Failure::Stopped(..)) => {
                let (message, status) = failure.message();
                self.abort(&message, status);
                Err(failure)
            }
            result => result,
        }
    }
}
