//! Faults that kernels find in the values of their inputs, such as an index that is out of range. The host does not know
//! them when it calls the op. Kernels write the first one into a small buffer of the device, and the next call that waits
//! for the device returns it.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use super::transfer::Read;
use super::{Buffer, Gpu};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::util::sync;

/// The end of the message of a fault. It tells an error of earlier work from one of the call that returns it.
pub(crate) const EARLIER_WORK: &str = "in work since it was last waited for)";

/// What a kernel checks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Checked {
    Index,
    /// A label of a class, with the element type that the user gave it in.
    Label(DType),
}

/// Words of a fault: the number of its op, the index and the size of the dimension. All are 0 if there is none.
const WORDS: usize = 3;

#[derive(Debug, Default)]
pub(super) struct Faults {
    buffer: Mutex<Option<Buffer>>,
    /// The names of the ops, and what each checks; number 1 is the first.
    ops: Mutex<Vec<(&'static str, Checked)>>,
    /// Whether a kernel that can find a fault was recorded since the last look at the buffer.
    expected: AtomicBool,
}

impl Gpu {
    /// Returns the buffer into which a kernel that is [checking](super::Kernel::checking) writes a fault, and the number of `op` in it.
    pub(crate) fn fault_record(&self, op: &'static str, checked: Checked) -> Result<(Buffer, u32)> {
        let mut ops = sync::lock(&self.faults.ops);
        let position = ops.iter().position(|&known| known == (op, checked)).unwrap_or_else(|| {
            ops.push((op, checked));
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
        Ok((record, position as u32 + 1))
    }

    /// Notes that a kernel was recorded that can find a fault. It must not be called earlier: a wait of another
    /// thread or of a trial would then look for the fault too early, and none would look for it later.
    pub(super) fn expect_fault(&self) {
        self.faults.expected.store(true, Ordering::Release);
    }

    /// Waits for the recorded work, and returns the first fault that its kernels found.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] with the op and the index.
    pub(super) async fn take_fault(&self) -> Result<()> {
        if !self.faults.expected.swap(false, Ordering::AcqRel) {
            return Ok(());
        }
        let Some(record) = sync::lock(&self.faults.buffer).clone() else { return Ok(()) };
        let mut words = [0; WORDS];
        self.read_words(&record, &mut words).await?;
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
        let known = sync::lock(&self.faults.ops).get(position as usize).copied();
        let (op, checked) = known.unwrap_or(("an op", Checked::Index));
        let detail = match checked {
            Checked::Index => format!("index {} is not within a dimension of {size}", index as i32),
            // What numbers that are beyond both words become: see `ops/long/cast.rs`.
            Checked::Label(DType::I64) if index == 1 << 31 => {
                format!("a label beyond 32 bits is not one of the {size} classes")
            }
            Checked::Label(dtype) => no_class(label_of(index, dtype), "", size as usize),
        };
        Err(Error::argument(op, format!("{detail} (found on {}, {EARLIER_WORK}", self.name)))
    }
}

/// Returns the label that a word is, in the element type that the user gave it in.
pub(crate) fn label_of(word: u32, dtype: DType) -> i64 {
    match dtype {
        DType::I32 | DType::I64 => (word as i32).into(),
        _ => word.into(),
    }
}

/// Returns what is wrong with a label that is no class, and what to do. `place` comes after its number.
pub(crate) fn no_class(label: i64, place: &str, classes: usize) -> String {
    let what = format!("label {label}{place} is not one of the {classes} classes, which are numbered from 0");
    let habit = if label == -100 { ", as PyTorch does without being told" } else { "" };
    // Labels of positions that have none, by custom.
    match label < 0 || label == 255 {
        true => format!("{what}: CrossEntropyLoss::new().ignore_index({label}) leaves out such positions{habit}"),
        false => what,
    }
}
