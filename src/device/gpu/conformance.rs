//! Whether a Vulkan driver says that it has passed Khronos' conformance tests.
//!
//! wgpu hides drivers that say they have not: the drivers for Intel's Haswell and Broadwell, Microsoft's `dzn` of
//! WSL, and new drivers of Mesa. This crate lists them and says so: their results can be checked.

/// Returns `false` if the driver of an adapter says that it has not passed the conformance tests of Vulkan. Other
/// APIs do not report it, nor do drivers of Vulkan 1.1 and older without the extension.
pub(super) fn states(adapter: &wgpu::Adapter) -> bool {
    #[cfg(any(target_os = "linux", target_os = "android", target_os = "freebsd", windows))]
    if let Some(version) = vulkan::version(adapter) {
        // As wgpu decides it.
        return version.major != 0;
    }
    let _ = adapter;
    true
}

#[cfg(any(target_os = "linux", target_os = "android", target_os = "freebsd", windows))]
mod vulkan {
    use ash::vk;

    /// Returns the version of the conformance tests that the driver has passed.
    pub fn version(adapter: &wgpu::Adapter) -> Option<vk::ConformanceVersion> {
        // SAFETY: the adapter lives longer than the guard, and nothing of it is destroyed.
        #[expect(unsafe_code, reason = "wgpu does not tell which adapters it would hide")]
        let hal = unsafe { adapter.as_hal::<wgpu::hal::api::Vulkan>() }?;
        let instance = hal.shared_instance();
        let capabilities = hal.physical_device_capabilities();
        let device_version = capabilities.properties().api_version;
        let told = instance.instance_api_version().min(device_version) >= vk::API_VERSION_1_1
            && (device_version >= vk::API_VERSION_1_2
                || capabilities.supports_extension(ash::khr::driver_properties::NAME));
        if !told {
            return None;
        }
        let mut driver = vk::PhysicalDeviceDriverProperties::default();
        let mut both = vk::PhysicalDeviceProperties2::default().push_next(&mut driver);
        // SAFETY: the physical device belongs to this instance, which has the function from version 1.1 on, and the device
        // supports the structure that the second one points to.
        #[expect(unsafe_code, reason = "a plain query of the Vulkan loader")]
        unsafe {
            instance.raw_instance().get_physical_device_properties2(hal.raw_physical_device(), &mut both);
        }
        Some(driver.conformance_version)
    }
}
