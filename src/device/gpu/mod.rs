//! Adapters through wgpu. Only this folder uses `wgpu`.
//!
//! - `adapter.rs` lists adapters and opens one;
//! - `shader.rs` has the crate's WGSL files and the Rust side of their params;
//! - `kernel.rs` has a [`Kernel`] as plain data, which `pipeline.rs` compiles, once;
//! - `chain.rs` has elementwise kernels that may become one, or a part of the kernel before them; `chain_record.rs`
//!   keeps and records them, `fused.rs` has the text of the one kernel, `epilogue.rs` the text of the part;
//! - `bind_groups.rs` keeps the bind groups that were used last;
//! - `queue.rs` records kernels into an open batch and submits it;
//! - `pacing.rs` limits the time of a submit;
//! - `pool.rs` allocates and recycles buffers;
//! - `transfer.rs` moves words between host and devices: the only file that maps buffers or waits;
//! - `driver_memory.rs` asks Vulkan how much memory there is, `conformance.rs` whether its driver is conformant;
//! - `timestamps.rs` measures single kernels for profiles;
//! - `reader.rs` has the thread that ends reads which nobody waits for;
//! - `rerun.rs` runs what reads, such as a trial, in a browser, where nothing may wait;
//! - `process_exit.rs` lets the end of the process wait for software adapters;
//! - `probe.rs` looks for known faults of the driver;
//! - `variants.rs` tries the variants of a kernel and chooses one;
//! - `tuned.rs` has the file of the variants that were measured to be the fastest;
//! - `faults.rs` returns what kernels found in the values of their inputs;
//! - `launches.rs` tells a tool of every kernel that runs;
//! - `interop.rs` has what programs that use wgpu themselves exchange with this crate;
//! - `gl.rs` has what OpenGL needs;
//! - `health.rs` keeps errors that the driver raised, for the next host call to report.

mod adapter;
mod bind_groups;
mod chain;
mod chain_record;
mod conformance;
mod driver_memory;
mod epilogue;
mod faults;
mod fused;
mod gl;
mod health;
#[cfg(feature = "wgpu")]
mod interop;
mod kernel;
mod kernel_list;
#[cfg(feature = "wgpu")]
pub(crate) mod launches;
mod pacing;
mod pipeline;
mod pool;
pub(crate) mod probe;
mod process_exit;
mod queue;
mod reader;
mod rerun;
pub(crate) mod shader;
#[cfg(test)]
mod tests;
mod timestamps;
pub(crate) mod transfer;
mod tuned;
mod variants;
mod wait;

use std::sync::{Arc, Mutex};

pub(crate) use adapter::{Handle, adapters, enumerate};
pub(crate) use chain::{Operand, Pointwise, operands};
pub(crate) use epilogue::epilogue_text;
pub(crate) use faults::{Checked, EARLIER_WORK, label_of, no_class};
pub(crate) use fused::chain_text;
#[cfg(feature = "wgpu")]
pub(crate) use interop::Copy as TextureCopy;
pub(crate) use kernel::{AsBuffer, Kernel, KernelBuilder};
pub(crate) use kernel_list::{MOST as MOST_LISTED, fuzz as fuzz_line};
pub(crate) use pipeline::{ParamsAt, Pipeline, Signature};
#[cfg(test)]
pub(crate) use pool::LARGEST_BINDING;
pub(crate) use pool::{BINDING_ALIGNMENT, Buffer};
pub(crate) use queue::Dispatch;
pub(crate) use reader::Chunk;
pub(crate) use rerun::{Part, PartReads, has_begun, is_in_rerun, kept, rerun, wait_for_other};
pub(crate) use shader::{
    Bits, FOURS, PUT, Param, ParamField, ParamWords, Params, Shader, ShaderText, Slots, params, shader, stem, wgsl,
};
pub(crate) use tuned::{TunedChoice, fuzz as fuzz_tuned};
pub(crate) use variants::{AnyFamily, Family, Grid, Suits, Variant};

use crate::device::chaos::Faults;
use crate::device::{HeldMemory, MemoryStats, Quirk};
use crate::error::{Error, Result};

/// The properties of an adapter by which kernels choose their variant and their grid.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Caps {
    /// Words of the largest buffer that a kernel can bind: a multiple of four, so that all buffers are whole vectors.
    pub max_binding_words: usize,
    /// Words of the largest buffer: a multiple of four.
    pub max_buffer_words: usize,
    /// Workgroups in each dimension of a dispatch.
    pub max_workgroups: u32,
    /// The subgroup size, if there are subgroups and all have one size.
    pub subgroup: Option<u32>,
    /// Whether the driver computes on the CPU. There, registers are fast and barriers are slow.
    pub software: bool,
    /// The total of loop iterations of an invocation, on a driver with [`Quirk::LoopBudget`].
    pub loop_budget: Option<u32>,
    /// Whether subnormal numbers become 0: [`Quirk::FlushesSubnormals`].
    pub flushes_subnormals: bool,
    /// Whether DirectX's old compiler is used: [`Quirk::Fxc`].
    pub fxc: bool,
    /// Whether `enable f16;` works.
    pub f16: bool,
    /// The rows and columns of cooperative matrices of f16 with sums of f32, if subgroups multiply such.
    pub cooperative: Option<u32>,
    /// Invocations in one workgroup.
    pub max_invocations: u32,
    /// Storage buffers of one kernel.
    pub max_storage_buffers: u32,
    /// Bytes of the parameters that a dispatch can carry itself (push constants); 0 if there are none.
    pub max_immediates: u32,
    /// Bytes of `var<workgroup>` memory.
    pub workgroup_memory: u32,
    /// Whether this is OpenGL.
    pub gl: bool,
}

impl Caps {
    /// Returns how many neighbouring vectors of four elements one invocation of an elementwise kernel computes: one, so that
    /// neighbouring invocations read neighbouring vectors. Software adapters take several, since there an invocation is
    /// expensive and a core reads long ranges best.
    pub(crate) fn vectors_each(&self) -> usize {
        if self.software { 8 } else { 1 }
    }

    pub(crate) fn quirks(&self) -> Vec<Quirk> {
        let budget = self.loop_budget.map(|iterations| Quirk::LoopBudget { iterations });
        let flushes = self.flushes_subnormals.then_some(Quirk::FlushesSubnormals);
        [budget, flushes, self.fxc.then_some(Quirk::Fxc)].into_iter().flatten().collect()
    }
}

/// One opened adapter. Several threads can use it. The work of each thread keeps its order.
pub(crate) struct Gpu {
    name: String,
    device: wgpu::Device,
    queue: wgpu::Queue,
    caps: Caps,
    gl: gl::GlLock,
    faults: faults::Faults,
    health: Arc<health::Health>,
    pool: Arc<pool::Pool>,
    kernels: pipeline::Cache,
    chains: Mutex<chain::Chains>,
    recorder: Mutex<queue::Recorder>,
    staging: transfer::Staging,
    reader: reader::Reader,
    patience: wait::Patience,
    #[cfg(feature = "wgpu")]
    programs: interop::Programs,
    chaos: Faults,
    timestamps: timestamps::Timestamps,
    pacing: pacing::Pacing,
    tuned: tuned::Tuned,
    variants: variants::Choices,
}

impl Gpu {
    /// Returns the properties of the adapter.
    pub(crate) fn caps(&self) -> &Caps {
        &self.caps
    }

    /// Returns the live, peak and reserved bytes, without those that only kernels need that are not recorded yet.
    pub(crate) fn memory(&self) -> MemoryStats {
        self.flush_chain_for_counts();
        self.pool.memory()
    }

    /// Returns the large tensors by who made them.
    pub(crate) fn held_memory(&self) -> Vec<HeldMemory> {
        self.pool.accounts().held()
    }

    /// Resets the peak to the live bytes.
    pub(crate) fn reset_peak(&self) {
        self.pool.reset_peak();
    }

    /// Returns the first error that the driver raised since the last call. If the device is lost, every call returns
    /// that error.
    fn check(&self) -> Result<()> {
        match self.health.check(&self.name, || self.short(0, None)) {
            Err(Error::Gpu { message, .. }) => Err(self.failure(message)),
            checked => checked,
        }
    }

    /// Returns an error with this message. If the device is lost, returns that error, since anything else follows
    /// from it.
    fn error(&self, message: impl Into<String>) -> Error {
        let lost = self.alive().err();
        lost.unwrap_or_else(|| Error::Gpu { device: self.name.clone(), message: message.into() })
    }

    /// Returns an error if a program has destroyed a buffer of which it had a handle.
    fn check_usable(&self, buffer: &Buffer) -> Result<()> {
        if buffer.is_private() || self.is_usable(&buffer.page().raw) {
            return Ok(());
        }
        Err(self.failure("the buffer of a tensor cannot be used: the program has destroyed it".into()))
    }

    /// Without programs that have handles of buffers.
    #[cfg(not(feature = "wgpu"))]
    fn is_usable(&self, _: &wgpu::Buffer) -> bool {
        true
    }

    /// Returns the error for a value past a limit of the adapter.
    pub(crate) fn limit(&self, limit: &'static str, value: u64, max: u64) -> Error {
        Error::LimitExceeded { device: self.name.clone(), limit, value, max }
    }
}

impl std::fmt::Debug for Gpu {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gpu").field("name", &self.name).field("caps", &self.caps).finish_non_exhaustive()
    }
}
