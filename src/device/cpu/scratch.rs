//! Temporary memory of one op.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use super::{Cpu, Pool, bytes, host};
use crate::error::Result;

/// Floats from the pool, counted like those of a tensor, with one owner. Dropping returns them to the pool.
pub(crate) struct Scratch {
    data: Vec<u32>,
    len: usize,
    pool: Arc<Pool>,
}

/// `len` floats of unspecified values.
///
/// # Errors
/// [`Error::OutOfMemory`](crate::Error::OutOfMemory).
pub(crate) fn scratch(len: usize) -> Result<Scratch> {
    let cpu: &Cpu = host();
    let data = cpu.words(len)?;
    cpu.pool.ledger.take(bytes(data.len()));
    Ok(Scratch { data, len, pool: cpu.pool.clone() })
}

impl Deref for Scratch {
    type Target = [f32];
    fn deref(&self) -> &[f32] {
        bytemuck::cast_slice(&self.data[..self.len])
    }
}

impl DerefMut for Scratch {
    fn deref_mut(&mut self) -> &mut [f32] {
        bytemuck::cast_slice_mut(&mut self.data[..self.len])
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        self.pool.put(std::mem::take(&mut self.data), true);
    }
}
