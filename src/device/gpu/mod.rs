//! Adapters through wgpu: the only folder that says `wgpu::`.
//!
//! - `adapter.rs` lists adapters and opens one;
//! - `kernel.rs` turns a [`Kernel`] (plain data) into a pipeline, once;
//! - `queue.rs` records kernels into an open batch and submits it;
//! - `pool.rs` hands out buffers and takes them back;
//! - `transfer.rs` moves words between host and devices: the only file that maps buffers or waits;
//! - `probe.rs` looks for known faults of the driver;
//! - `variants.rs` tries the variants of a kernel and chooses one;
//! - `health.rs` keeps what the driver complained about, for the next host call to report.

mod adapter;
mod health;
mod kernel;
mod pool;
pub(crate) mod probe;
mod queue;
#[cfg(test)]
mod tests;
pub(crate) mod transfer;
mod variants;

use std::sync::{Arc, Mutex};

pub(crate) use adapter::{Handle, enumerate};
pub(crate) use kernel::{Kernel, Pipeline, Shader, Signature};
pub(crate) use pool::Buffer;
pub(crate) use variants::{Family, Variant};

use crate::device::{MemoryStats, Quirk};
use crate::error::{Error, Result};

/// What kernels need to know to choose their variant and their grid.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Caps {
    /// Words of the largest buffer that a kernel can bind.
    pub max_binding_words: usize,
    /// Workgroups in each dimension of a dispatch.
    pub max_workgroups: u32,
    /// The subgroup size, if there are subgroups and all have one size.
    pub subgroup: Option<u32>,
    /// A driver that computes on the CPU: it wants registers, not barriers.
    pub software: bool,
    /// Loop iterations that an invocation has in total, on a driver with [`Quirk::LoopBudget`].
    pub loop_budget: Option<u32>,
    /// Whether subnormal numbers become 0: [`Quirk::FlushesSubnormals`].
    pub flushes_subnormals: bool,
    /// `enable f16;` works.
    pub f16: bool,
    /// Invocations in one workgroup.
    pub max_invocations: u32,
    /// Storage buffers of one kernel.
    pub max_storage_buffers: u32,
    /// Bytes of `var<workgroup>` memory.
    pub workgroup_memory: u32,
}

impl Caps {
    pub(crate) fn quirks(&self) -> Vec<Quirk> {
        let budget = self.loop_budget.map(|iterations| Quirk::LoopBudget { iterations });
        budget.into_iter().chain(self.flushes_subnormals.then_some(Quirk::FlushesSubnormals)).collect()
    }
}

/// One opened adapter. Safe to drive from several threads; what one thread records stays in its order.
pub(crate) struct Gpu {
    name: String,
    device: wgpu::Device,
    queue: wgpu::Queue,
    caps: Caps,
    health: Arc<health::Health>,
    pool: Arc<pool::Pool>,
    kernels: kernel::Cache,
    recorder: Mutex<queue::Recorder>,
    staging: transfer::Staging,
    variants: variants::Choices,
}

impl Gpu {
    /// What kernels need to know.
    pub(crate) fn caps(&self) -> &Caps {
        &self.caps
    }

    /// Live, peak and reserved bytes.
    pub(crate) fn memory(&self) -> MemoryStats {
        self.pool.memory()
    }

    /// Starts the peak again.
    pub(crate) fn reset_peak(&self) {
        self.pool.reset_peak();
    }

    /// The first complaint of the driver since the last call, as an error; for ever, if the device is lost.
    fn check(&self) -> Result<()> {
        self.health.check(&self.name, || self.pool.memory().live)
    }

    fn error(&self, message: impl Into<String>) -> Error {
        Error::Gpu { device: self.name.clone(), message: message.into() }
    }

    fn limit(&self, limit: &'static str, value: u64, max: u64) -> Error {
        Error::LimitExceeded { device: self.name.clone(), limit, value, max }
    }
}

impl std::fmt::Debug for Gpu {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gpu").field("name", &self.name).field("caps", &self.caps).finish_non_exhaustive()
    }
}
