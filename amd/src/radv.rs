//! RADV without hardware: with `RADV_FORCE_FAMILY`, Mesa's driver for AMD opens a device that compiles and cannot run
//! anything.
#![expect(unsafe_code, reason = "Vulkan's functions are unsafe")]

use std::error::Error;
use std::ffi::{CStr, CString, FromBytesUntilNulError};

use ash::{khr, vk};

use crate::compiled::Compiled;

pub struct Radv {
    /// The name and the version of the driver.
    pub driver: String,
    /// The rows and columns of the cooperative matrices of f16 with sums of f32 that the chip has.
    pub matrices: Vec<u32>,
    device: ash::Device,
    executables: khr::pipeline_executable_properties::Device,
    // The device's functions are in the library that this holds.
    _entry: ash::Entry,
}

/// Returns a name that Vulkan filled in; it is empty if it does not end.
fn text(name: Result<&CStr, FromBytesUntilNulError>) -> String {
    name.map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

impl Radv {
    /// Opens the chip that `RADV_FORCE_FAMILY` names, of the driver that `VK_DRIVER_FILES` names.
    pub fn open() -> Result<Radv, Box<dyn Error>> {
        let application = vk::ApplicationInfo::default().api_version(vk::API_VERSION_1_3);
        let info = vk::InstanceCreateInfo::default().application_info(&application);
        // SAFETY: the library is Vulkan's loader, `info` and what it points to outlive the call, and the devices
        // belong to the instance.
        let (entry, instance, devices) = unsafe {
            let entry = ash::Entry::load()?;
            let instance = entry.create_instance(&info, None)?;
            let devices = instance.enumerate_physical_devices()?;
            (entry, instance, devices)
        };
        let mut found = None;
        for physical in devices {
            let mut driver = vk::PhysicalDeviceDriverProperties::default();
            let mut properties = vk::PhysicalDeviceProperties2::default().push_next(&mut driver);
            // SAFETY: the device is one of this instance, and the structs are Vulkan's own, in a chain of one.
            unsafe { instance.get_physical_device_properties2(physical, &mut properties) };
            if driver.driver_id == vk::DriverId::MESA_RADV {
                found = Some((
                    physical,
                    format!("{} {}", text(driver.driver_name_as_c_str()), text(driver.driver_info_as_c_str())),
                ));
            }
        }
        let (physical, driver) = found.ok_or("no device of RADV: is the manifest in ANYGPU_RADV right?")?;
        let matrices = matrices(&entry, &instance, physical)?;
        let device = device(&instance, physical, !matrices.is_empty())?;
        let executables = khr::pipeline_executable_properties::Device::new(&instance, &device);
        Ok(Radv { driver, matrices, device, executables, _entry: entry })
    }

    /// Returns the compiler's figures for an entry point of a module, except for the hottest block, and the machine
    /// code.
    pub fn compile(
        &self,
        words: &[u32],
        entry: &str,
        bindings: &[(u32, bool)],
    ) -> Result<(Compiled, String), Box<dyn Error>> {
        let name = CString::new(entry)?;
        let bindings: Vec<_> = bindings
            .iter()
            .map(|&(binding, uniform)| {
                let kinds = [vk::DescriptorType::STORAGE_BUFFER, vk::DescriptorType::UNIFORM_BUFFER_DYNAMIC];
                let binding = vk::DescriptorSetLayoutBinding::default().binding(binding).descriptor_count(1);
                binding.stage_flags(vk::ShaderStageFlags::COMPUTE).descriptor_type(kinds[usize::from(uniform)])
            })
            .collect();
        let sets = vk::DescriptorSetLayoutCreateInfo::default().bindings(&bindings);
        // SAFETY: naga wrote the module for this entry point with these bindings. What the infos point to outlives the
        // calls. The objects are of this device; they are destroyed last, and nothing runs on a device without hardware.
        unsafe {
            let set = self.device.create_descriptor_set_layout(&sets, None)?;
            let sets = [set];
            let immediates = [vk::PushConstantRange::default().stage_flags(vk::ShaderStageFlags::COMPUTE).size(256)];
            let layout = vk::PipelineLayoutCreateInfo::default().set_layouts(&sets).push_constant_ranges(&immediates);
            let layout = self.device.create_pipeline_layout(&layout, None)?;
            let module = self.device.create_shader_module(&vk::ShaderModuleCreateInfo::default().code(words), None)?;
            let stage = vk::PipelineShaderStageCreateInfo::default().stage(vk::ShaderStageFlags::COMPUTE);
            let flags = vk::PipelineCreateFlags::CAPTURE_STATISTICS_KHR
                | vk::PipelineCreateFlags::CAPTURE_INTERNAL_REPRESENTATIONS_KHR;
            let info = vk::ComputePipelineCreateInfo::default().stage(stage.module(module).name(&name));
            let infos = [info.layout(layout).flags(flags)];
            let made = self.device.create_compute_pipelines(vk::PipelineCache::null(), &infos, None);
            let pipelines = made.map_err(|(_, result)| result)?;
            let pipeline = *pipelines.first().ok_or("no pipeline")?;
            let executable = vk::PipelineExecutableInfoKHR::default().pipeline(pipeline).executable_index(0);
            let mut compiled = self.statistics(&executable)?;
            let about = vk::PipelineInfoKHR::default().pipeline(pipeline);
            let about = self.executables.get_pipeline_executable_properties(&about)?;
            compiled.lanes = about.first().map_or(0, |about| u64::from(about.subgroup_size));
            let result = (compiled, self.assembly(&executable)?);
            self.device.destroy_pipeline(pipeline, None);
            self.device.destroy_shader_module(module, None);
            self.device.destroy_pipeline_layout(layout, None);
            self.device.destroy_descriptor_set_layout(set, None);
            Ok(result)
        }
    }

    fn statistics(&self, executable: &vk::PipelineExecutableInfoKHR) -> Result<Compiled, Box<dyn Error>> {
        // SAFETY: the pipeline is of this device and was made with the flag that captures statistics.
        let statistics = unsafe { self.executables.get_pipeline_executable_statistics(executable)? };
        let find = |name: &str| {
            let found = statistics.iter().find(|statistic| text(statistic.name_as_c_str()) == name);
            let value = found.ok_or_else(|| format!("the driver has no statistic {name:?}"))?;
            // SAFETY: all members of the union have eight bytes, and RADV's numbers are whole and unsigned.
            Ok::<u64, String>(unsafe { value.value.u64 })
        };
        Ok(Compiled {
            vgprs: find("VGPRs")?,
            subgroups: find("Subgroups per SIMD")?,
            instructions: find("Instructions")?,
            spilled: find("Spilled VGPRs")? + find("Spilled SGPRs")?,
            scratch: find("Scratch size")?,
            ..Compiled::default()
        })
    }

    fn assembly(&self, executable: &vk::PipelineExecutableInfoKHR) -> Result<String, Box<dyn Error>> {
        // SAFETY: the pipeline is of this device and was made with the flag that captures texts. The first call returns
        // their lengths; the second one writes as much into the bytes that `p_data` points to.
        unsafe {
            let mut texts = self.executables.get_pipeline_executable_internal_representations(executable)?;
            let mut all: Vec<Vec<u8>> = texts.iter().map(|text| vec![0; text.data_size]).collect();
            for (text, bytes) in texts.iter_mut().zip(&mut all) {
                text.p_data = bytes.as_mut_ptr().cast();
            }
            let mut count = u32::try_from(texts.len())?;
            let get = self.executables.fp().get_pipeline_executable_internal_representations_khr;
            get(self.device.handle(), executable, &mut count, texts.as_mut_ptr()).result()?;
            let code = texts
                .iter()
                .zip(&all)
                .find(|(representation, _)| text(representation.name_as_c_str()).contains("Assembly"));
            let (_, bytes) = code.ok_or("the driver returns no machine code")?;
            Ok(String::from_utf8_lossy(bytes).trim_end_matches('\0').to_owned())
        }
    }
}

/// Returns the rows and columns of a chip's cooperative matrices of f16 with sums of f32.
fn matrices(
    entry: &ash::Entry,
    instance: &ash::Instance,
    physical: vk::PhysicalDevice,
) -> Result<Vec<u32>, vk::Result> {
    // SAFETY: the physical device is one of the instance.
    let extensions = unsafe { instance.enumerate_device_extension_properties(physical)? };
    let name = khr::cooperative_matrix::NAME;
    if !extensions.iter().any(|extension| extension.extension_name_as_c_str() == Ok(name)) {
        return Ok(Vec::new());
    }
    let functions = khr::cooperative_matrix::Instance::new(entry, instance);
    // SAFETY: as above, and the device has the extension of this function.
    let all = unsafe { functions.get_physical_device_cooperative_matrix_properties(physical)? };
    let is = |p: &&vk::CooperativeMatrixPropertiesKHR| {
        let types = [p.a_type, p.b_type, p.c_type, p.result_type];
        let (half, word) = (vk::ComponentTypeKHR::FLOAT16, vk::ComponentTypeKHR::FLOAT32);
        types == [half, half, word, word] && p.scope == vk::ScopeKHR::SUBGROUP && [p.n_size, p.k_size] == [p.m_size; 2]
    };
    Ok(all.iter().filter(is).map(|p| p.m_size).collect())
}

/// Opens the device with what the kernels need.
fn device(instance: &ash::Instance, physical: vk::PhysicalDevice, matrices: bool) -> Result<ash::Device, vk::Result> {
    let queues = [vk::DeviceQueueCreateInfo::default().queue_family_index(0).queue_priorities(&[1.0])];
    let names = [khr::pipeline_executable_properties::NAME, khr::cooperative_matrix::NAME].map(CStr::as_ptr);
    let extensions = if matrices { &names[..] } else { &names[..1] };
    let mut executables =
        vk::PhysicalDevicePipelineExecutablePropertiesFeaturesKHR::default().pipeline_executable_info(true);
    let mut cooperative = vk::PhysicalDeviceCooperativeMatrixFeaturesKHR::default().cooperative_matrix(matrices);
    let mut v11 = vk::PhysicalDeviceVulkan11Features::default().storage_buffer16_bit_access(matrices);
    let v12 = vk::PhysicalDeviceVulkan12Features::default().vulkan_memory_model(true).shader_float16(matrices);
    let mut v12 = v12.vulkan_memory_model_device_scope(true);
    let mut v13 = vk::PhysicalDeviceVulkan13Features::default().maintenance4(true).subgroup_size_control(true);
    let info = vk::DeviceCreateInfo::default()
        .queue_create_infos(&queues)
        .enabled_extension_names(extensions)
        .push_next(&mut executables)
        .push_next(&mut v11)
        .push_next(&mut v12)
        .push_next(&mut v13);
    let info = if matrices { info.push_next(&mut cooperative) } else { info };
    // SAFETY: the physical device is one of the instance, and `info` and what it points to outlive the call.
    unsafe { instance.create_device(physical, &info, None) }
}
