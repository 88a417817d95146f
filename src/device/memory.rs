//! How much memory the tensors of a device take.

use std::path::Path;

use super::{BackendHandle, Device, HeldMemory, cpu, registry};
use crate::error::Result;

/// Bytes on one device, counted by this crate (few drivers report them).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryStats {
    /// Held by tensors now.
    pub live: u64,
    /// The most that tensors held at once since the start or the last [`Device::reset_peak_memory`].
    pub peak: u64,
    /// Allocated by the driver: the live bytes, and the bytes that the pool keeps for later tensors.
    pub reserved: u64,
}

/// The memory of a device in bytes, as its driver or the system reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DriverMemory {
    /// The total memory.
    pub total: u64,
    /// The bytes that this process can still allocate: the total without the memory that all programs use.
    pub free: u64,
}

impl Device {
    /// Returns the total and the free memory of the device, as `torch.cuda.mem_get_info` does.
    ///
    /// It asks the driver each time, and does not open the device. Returns `None` if nothing reports the memory. Vulkan
    /// reports it with `VK_EXT_memory_budget`, which the drivers of cards have. DirectX 12 and Metal report it, and so
    /// does Linux for `cpu`. OpenGL and browsers do not.
    ///
    /// ```
    /// use anygpu::Device;
    ///
    /// for device in &Device::all() {
    ///     if let Some(memory) = device.driver_memory() {
    ///         assert!(memory.free <= memory.total);
    ///     }
    /// }
    /// ```
    #[must_use]
    pub fn driver_memory(&self) -> Option<DriverMemory> {
        match &self.0.backend {
            BackendHandle::Cpu(_) => {
                let total = self.info().memory_total?;
                Some(DriverMemory { total, free: cpu::available(Path::new("/"))?.min(total) })
            }
            BackendHandle::Gpu { handle, .. } => handle.driver_memory(),
        }
    }

    /// Returns the bytes in use; all are zero for an adapter that is not open yet.
    #[must_use]
    pub fn memory(&self) -> MemoryStats {
        match &self.0.backend {
            BackendHandle::Cpu(cpu) => cpu.memory(),
            BackendHandle::Gpu { opened, .. } => opened.get().map(|gpu| gpu.memory()).unwrap_or_default(),
        }
    }

    /// Returns the devices that were asked for by name or in lists so far, each with its bytes and the number of
    /// its kernels. Unlike [`Device::memory`] and [`Device::dispatches`], this changes nothing: it does not count
    /// kernels that wait to be recorded.
    pub(crate) fn activity() -> Vec<(Device, MemoryStats, u64)> {
        let of = |device: Device| {
            let (memory, kernels) = match &device.0.backend {
                BackendHandle::Cpu(cpu) => (cpu.memory(), 0),
                BackendHandle::Gpu { opened, .. } => opened.get().map(|gpu| gpu.activity()).unwrap_or_default(),
            };
            (device, memory, kernels)
        };
        registry::known().into_iter().map(of).collect()
    }

    /// Returns the large tensors of the device by who made them.
    pub(super) fn held_memory(&self) -> Vec<HeldMemory> {
        match &self.0.backend {
            BackendHandle::Cpu(cpu) => cpu.held_memory(),
            BackendHandle::Gpu { opened, .. } => opened.get().map(|gpu| gpu.held_memory()).unwrap_or_default(),
        }
    }

    /// Resets [`MemoryStats::peak`] to the bytes that are live now, to measure one part of a program.
    ///
    /// ```
    /// use anygpu::{Device, Tensor};
    /// let device = Device::cpu();
    /// device.reset_peak_memory();
    /// let before = device.memory().live;
    /// drop(Tensor::zeros([256, 1024], &device)?);
    /// assert!(device.memory().peak >= before + (1 << 20));
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn reset_peak_memory(&self) {
        match &self.0.backend {
            BackendHandle::Cpu(cpu) => cpu.reset_peak(),
            BackendHandle::Gpu { opened, .. } => opened.get().into_iter().for_each(|gpu| gpu.reset_peak()),
        }
    }

    /// Gives the memory that no tensor holds back to the driver or the system, as `torch.cuda.empty_cache` does.
    ///
    /// Without this call, the memory is kept for later tensors. Call it so that other programs get the memory, or
    /// before you make large tensors of other sizes. Waits for the device.
    ///
    /// # Errors
    ///
    /// Same as [`Device::synchronize`].
    ///
    /// ```
    /// use anygpu::{Device, Tensor};
    /// for device in &Device::all() {
    ///     drop(Tensor::zeros([256, 1024], device)?);
    ///     device.empty_cache()?;
    ///     let memory = device.memory();
    ///     assert_eq!(memory.reserved, memory.live);
    /// }
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn empty_cache(&self) -> Result<()> {
        match &self.0.backend {
            BackendHandle::Cpu(cpu) => {
                cpu.trim();
                Ok(())
            }
            BackendHandle::Gpu { opened, .. } => opened.get().map_or(Ok(()), |gpu| gpu.trim()),
        }
    }
}
