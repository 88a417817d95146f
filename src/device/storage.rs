//! The words of a tensor, wherever they are.

use std::sync::Arc;

use super::{cpu, gpu};

/// The words of a tensor, in host memory or on an adapter. Clones share them.
#[derive(Clone, Debug)]
pub(crate) enum Storage {
    /// In host memory.
    Cpu(Arc<cpu::CpuBuffer>),
    /// On an adapter.
    Gpu(gpu::Buffer),
}

impl Storage {
    /// Length in words.
    pub(crate) fn len(&self) -> usize {
        match self {
            Storage::Cpu(buffer) => buffer.len(),
            Storage::Gpu(buffer) => buffer.len(),
        }
    }

    /// The identity of the allocation, as long as it lives.
    pub(crate) fn id(&self) -> usize {
        match self {
            Storage::Cpu(buffer) => Arc::as_ptr(buffer) as usize,
            Storage::Gpu(buffer) => buffer.id(),
        }
    }

    /// The number of tensors that hold it.
    pub(crate) fn holders(&self) -> usize {
        match self {
            Storage::Cpu(buffer) => Arc::strong_count(buffer),
            Storage::Gpu(buffer) => buffer.holders(),
        }
    }

    /// The number of in-place writes so far.
    pub(crate) fn version(&self) -> u64 {
        match self {
            Storage::Cpu(buffer) => buffer.version(),
            Storage::Gpu(buffer) => buffer.version(),
        }
    }

    /// Counts an in-place write.
    pub(crate) fn bump(&self) {
        match self {
            Storage::Cpu(buffer) => buffer.bump(),
            Storage::Gpu(buffer) => buffer.bump(),
        }
    }
}
