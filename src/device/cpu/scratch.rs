//! Memory for the loops of the host. It comes from the host's pool and is counted like the memory of tensors.

use anygpu_host::memory::{self, Memory};

use super::{Cpu, bytes, host};
use crate::error::Error;

/// See [`host`].
pub(super) struct HostMemory;

impl Memory for HostMemory {
    fn take(&self, words: usize) -> memory::Result<Vec<u32>> {
        let cpu: &Cpu = host();
        let data = cpu.words(words).map_err(memory::Error::new)?;
        cpu.pool.ledger.take(bytes(data.len()));
        Ok(data)
    }

    fn give(&self, words: Vec<u32>) {
        host().pool.put(words, true);
    }
}

/// Converts an error of the host's loops to one of this crate. It is not a `From`: then the error types of many
/// closures could not be inferred.
pub(crate) fn host_error(error: memory::Error) -> Error {
    let own = error.downcast_ref::<Error>().cloned();
    own.unwrap_or_else(|| Error::internal(error.to_string()))
}
