//! Temporary memory of one op.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use super::{Cpu, Pool, bytes, host};
use crate::error::Result;

/// The floats of a line of a cache. The widest vectors are as long: one that lies in two lines takes two loads.
const LINE: usize = 16;

/// Fewer floats than this are given room to start at the beginning of a line. The pool rounds what is larger up by as much as a quarter, and most of it
/// has that room already.
const ROOM: usize = 512 << 10;

/// Floats from the pool, counted like those of a tensor, with one owner. They start at the beginning of a line of a cache, except some
/// large ones. Dropping returns them to the pool.
pub(crate) struct Scratch {
    data: Vec<u32>,
    start: usize,
    len: usize,
    pool: Arc<Pool>,
}

/// `len` floats of unspecified values.
///
/// # Errors
/// [`Error::OutOfMemory`](crate::Error::OutOfMemory).
pub(crate) fn scratch(len: usize) -> Result<Scratch> {
    let cpu: &Cpu = host();
    let data = cpu.words(if len < ROOM { len + LINE - 1 } else { len })?;
    cpu.pool.ledger.take(bytes(data.len()));
    let start = data.as_ptr().align_offset(LINE * size_of::<u32>());
    let start = if start <= data.len() - len { start } else { 0 };
    Ok(Scratch { data, start, len, pool: cpu.pool.clone() })
}

impl Deref for Scratch {
    type Target = [f32];
    fn deref(&self) -> &[f32] {
        bytemuck::cast_slice(&self.data[self.start..][..self.len])
    }
}

impl DerefMut for Scratch {
    fn deref_mut(&mut self) -> &mut [f32] {
        bytemuck::cast_slice_mut(&mut self.data[self.start..][..self.len])
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        self.pool.put(std::mem::take(&mut self.data), true);
    }
}
