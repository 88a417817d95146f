//! The memory of an adapter, as Vulkan, DirectX 12 and Metal report it. OpenGL and browsers do not report it. No
//! test has run on DirectX 12 and Metal yet.

use super::Handle;
use crate::device::DriverMemory;

/// Bytes of a device's own memory.
struct Memory {
    total: u64,
    /// What this process can still have, where the driver tells it.
    free: Option<u64>,
}

const APIS: &[fn(&wgpu::Adapter) -> Option<Memory>] = &[
    #[cfg(any(target_os = "linux", target_os = "android", target_os = "freebsd", windows))]
    vulkan::read,
    #[cfg(windows)]
    direct_x::read,
    #[cfg(target_vendor = "apple")]
    metal::read,
];

/// Asks the API of an adapter.
fn read(adapter: &wgpu::Adapter) -> Option<Memory> {
    APIS.iter().find_map(|read| read(adapter))
}

/// Returns the bytes of the device's own memory.
pub(super) fn total(adapter: &wgpu::Adapter) -> Option<u64> {
    read(adapter).map(|memory| memory.total)
}

impl Handle {
    /// Returns the total memory, and the memory that this process can still have.
    pub(crate) fn driver_memory(&self) -> Option<DriverMemory> {
        let memory = read(&self.adapter)?;
        Some(DriverMemory { total: memory.total, free: memory.free? })
    }
}

#[cfg(any(target_os = "linux", target_os = "android", target_os = "freebsd", windows))]
mod vulkan {
    use ash::vk;

    use super::Memory;

    /// The sums over the heaps of a device's own memory. What is free is told by `VK_EXT_memory_budget`.
    pub fn read(adapter: &wgpu::Adapter) -> Option<Memory> {
        // SAFETY: the adapter lives longer than the guard, and nothing of it is destroyed.
        #[expect(unsafe_code, reason = "wgpu does not tell how much memory an adapter has")]
        let hal = unsafe { adapter.as_hal::<wgpu::hal::api::Vulkan>() }?;
        let instance = hal.shared_instance();
        let capabilities = hal.physical_device_capabilities();
        let versions = [instance.instance_api_version(), capabilities.properties().api_version];
        let told = versions.iter().all(|version| *version >= vk::API_VERSION_1_1)
            && capabilities.supports_extension(ash::ext::memory_budget::NAME);
        let mut budget = vk::PhysicalDeviceMemoryBudgetPropertiesEXT::default();
        let memory = if told {
            let mut both = vk::PhysicalDeviceMemoryProperties2::default().push_next(&mut budget);
            // SAFETY: the physical device belongs to this instance, which has the function from version 1.1 on, and the device
            // supports the structure that the second one points to.
            #[expect(unsafe_code, reason = "a plain query of the Vulkan loader")]
            unsafe {
                instance.raw_instance().get_physical_device_memory_properties2(hal.raw_physical_device(), &mut both);
            }
            both.memory_properties
        } else {
            // SAFETY: the physical device belongs to this instance.
            #[expect(unsafe_code, reason = "a plain query of the Vulkan loader")]
            unsafe {
                instance.raw_instance().get_physical_device_memory_properties(hal.raw_physical_device())
            }
        };
        let heaps = memory.memory_heaps.iter().take(memory.memory_heap_count as usize).enumerate();
        let own = heaps.filter(|(_, heap)| heap.flags.contains(vk::MemoryHeapFlags::DEVICE_LOCAL));
        let mut sums = Memory { total: 0, free: told.then_some(0) };
        for (i, heap) in own {
            sums.total += heap.size;
            sums.free = sums.free.map(|free| free + budget.heap_budget[i].saturating_sub(budget.heap_usage[i]));
        }
        Some(sums)
    }
}

#[cfg(windows)]
mod direct_x {
    use windows::Win32::Graphics::Dxgi::DXGI_MEMORY_SEGMENT_GROUP_LOCAL;

    use super::Memory;

    /// The budget that the system gives to this process changes with what others use. On a chip that shares the host's memory it is
    /// larger than the dedicated part.
    pub fn read(adapter: &wgpu::Adapter) -> Option<Memory> {
        // SAFETY: the adapter lives longer than the guard, and nothing of it is destroyed.
        #[expect(unsafe_code, reason = "wgpu does not tell how much memory an adapter has")]
        let hal = unsafe { adapter.as_hal::<wgpu::hal::api::Dx12>() }?;
        let adapter = hal.raw_adapter();
        let local = adapter.query_video_memory_info(DXGI_MEMORY_SEGMENT_GROUP_LOCAL).ok()?;
        // SAFETY: the interface is alive, and the call only writes the description that it returns.
        #[expect(unsafe_code, reason = "a plain query of DXGI")]
        let description = unsafe { adapter.GetDesc() }.ok()?;
        let total = local.Budget.max(description.DedicatedVideoMemory as u64);
        Some(Memory { total, free: Some(local.Budget.saturating_sub(local.CurrentUsage)) })
    }
}

#[cfg(target_vendor = "apple")]
mod metal {
    use objc2_metal::MTLDevice;

    use super::Memory;

    /// Metal tells what a process should use at most, and what it uses.
    pub fn read(adapter: &wgpu::Adapter) -> Option<Memory> {
        // SAFETY: the adapter lives longer than the guard, and nothing of it is destroyed.
        #[expect(unsafe_code, reason = "wgpu does not tell how much memory an adapter has")]
        let hal = unsafe { adapter.as_hal::<wgpu::hal::api::Metal>() }?;
        let device = hal.raw_device();
        let total = device.recommendedMaxWorkingSetSize();
        Some(Memory { total, free: Some(total.saturating_sub(device.currentAllocatedSize() as u64)) })
    }
}
