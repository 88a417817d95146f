//! Faults that kernels find in the values of their inputs, such as an index that is out of range. The host does not know
//! them when it calls the op. Kernels write the first one into a small buffer of the device, and the next call that waits
//! for the device returns it.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use super::transfer::Read;
use super::{Buffer, Gpu};
use crate::error::{Error, Result};
use crate::sync;

/// The end of the message of a fault. It tells an error of earlier work from one of the call that returns it.
pub(crate) const EARLIER_WORK: &str = "in work since it was last waited for)";

/// Words of a fault: the number of its op, the index and the size of the dimension. All are 0 if there is none.
const WORDS: usize = 3;

#[derive(Debug, Default)]
pub(super) struct Faults {
    buffer: Mutex<Option<Buffer>>,
    /// The names of the ops; number 1 is the first.
    ops: Mutex<Vec<&'static str>>,
    /// Whether a kernel that can find a fault was recorded since the last look at the buffer.
    expected: AtomicBool,
}

impl Gpu {
    /// Returns the buffer into which a kernel writes a fault, and the number of `op` in it.
    pub(crate) fn fault_record(&self, op: &'static str) -> Result<(Buffer, u32)> {
        let mut ops = sync::lock(&self.faults.ops);
        let position = ops.iter().position(|&known| known == op).unwrap_or_else(|| {
            ops.push(op);
            ops.len() - 1
        });
        drop(ops);
        let mut buffer = sync::lock(&self.faults.buffer);
        let record = match &*buffer {
            Some(record) => record.clone(),
            None => {
                let record = self.alloc(WORDS)?;
                self.clear(&record)?;
                buffer.insert(record).clone()
            }
        };
        drop(buffer);
        self.faults.expected.store(true, Ordering::Release);
        Ok((record, position as u32 + 1))
    }

    /// Waits for the recorded work, and returns the first fault that its kernels found.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] with the op and the index.
    pub(super) fn take_fault(&self) -> Result<()> {
        if !self.faults.expected.swap(false, Ordering::AcqRel) {
            return Ok(());
        }
        let Some(record) = sync::lock(&self.faults.buffer).clone() else { return Ok(()) };
        let mut words = [0; WORDS];
        self.read_words(&record, &mut words)?;
        let fault = self.fault(words);
        if fault.is_err() {
            self.clear(&record)?;
        }
        fault
    }

    /// Begins to read the fault of the work that was recorded before, for [`Gpu::fault`], without waiting. Later work begins
    /// without a fault. Returns `None` if no kernel could find one.
    pub(super) fn start_fault(&self) -> Result<Option<Read>> {
        if !self.faults.expected.swap(false, Ordering::AcqRel) {
            return Ok(None);
        }
        let Some(record) = sync::lock(&self.faults.buffer).clone() else { return Ok(None) };
        let read = self.start_read(&record, 0, WORDS)?;
        self.clear(&record)?;
        Ok(Some(read))
    }

    /// Returns the fault that these words are, as an error.
    pub(super) fn fault(&self, [op, index, size]: [u32; WORDS]) -> Result<()> {
        let Some(position) = op.checked_sub(1) else { return Ok(()) };
        let op = sync::lock(&self.faults.ops).get(position as usize).copied().unwrap_or("an op");
        let detail = format!("index {} is not within a dimension of {size}", index as i32);
        Err(Error::argument(op, format!("{detail} (found on {}, {EARLIER_WORK}", self.name)))
    }
}
