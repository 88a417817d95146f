//! Training on several machines: one process on each, connected by MPI. Needs the feature `mpi`.

#[cfg(feature = "mpi")]
mod communicator;
#[cfg(feature = "mpi")]
mod gradient_thread;
#[cfg(feature = "mpi")]
mod joint_step;
#[cfg(not(feature = "mpi"))]
mod no_mpi;

#[cfg(feature = "mpi")]
pub use communicator::Communicator;
#[cfg(feature = "mpi")]
pub(super) use joint_step::{JointStep, Machines};
#[cfg(not(feature = "mpi"))]
pub(super) use no_mpi::{JointStep, Machines};

use super::DataParallel;
use crate::data::Shard;

impl DataParallel {
    /// Returns the part of each batch that this process must load, for
    /// [`DataLoader::shard`](crate::data::DataLoader::shard).
    ///
    /// With several processes (`with_communicator`, feature `mpi`), the parts follow the measured speeds of the
    /// processes. They stay equal if a process has other [`Shares`](super::Shares) than measured ones. With one
    /// process, the part is the whole batch.
    ///
    /// ```
    /// use anygpu::data::{DataLoader, mnist_5k};
    /// use anygpu::{DataParallel, Device, nn::Linear};
    ///
    /// let net = DataParallel::new(Linear::new(4, 3)?, &[Device::cpu()])?;
    /// let loader = DataLoader::new(mnist_5k()?.train, 64)?.shuffle(7).shard(&net.shard());
    /// assert_eq!(net.shard().weights(), [1.0]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    #[must_use]
    pub fn shard(&self) -> Shard {
        self.machines.as_ref().map_or_else(|| Shard::equal(0, 1), Machines::shard)
    }
}
