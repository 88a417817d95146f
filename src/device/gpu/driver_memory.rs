//! What Vulkan tells of an adapter's memory. Other APIs tell nothing that wgpu passes on.

use super::Handle;
use crate::device::DriverMemory;

/// Returns the bytes of the device's own memory heaps.
#[cfg(any(target_os = "linux", target_os = "android", target_os = "freebsd", windows))]
pub(super) fn total(adapter: &wgpu::Adapter) -> Option<u64> {
    vulkan::read(adapter).map(|memory| memory.total)
}

#[cfg(not(any(target_os = "linux", target_os = "android", target_os = "freebsd", windows)))]
pub(super) fn total(_adapter: &wgpu::Adapter) -> Option<u64> {
    None
}

impl Handle {
    /// Returns the bytes that there are and those that this process can still have.
    #[cfg(any(target_os = "linux", target_os = "android", target_os = "freebsd", windows))]
    pub(crate) fn driver_memory(&self) -> Option<DriverMemory> {
        let memory = vulkan::read(&self.adapter)?;
        Some(DriverMemory { total: memory.total, free: memory.free? })
    }

    #[cfg(not(any(target_os = "linux", target_os = "android", target_os = "freebsd", windows)))]
    pub(crate) fn driver_memory(&self) -> Option<DriverMemory> {
        None
    }
}

#[cfg(any(target_os = "linux", target_os = "android", target_os = "freebsd", windows))]
mod vulkan {
    use ash::vk;

    /// The sums over the heaps of a device's own memory.
    pub struct Memory {
        pub total: u64,
        /// Absent without `VK_EXT_memory_budget`.
        pub free: Option<u64>,
    }

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
