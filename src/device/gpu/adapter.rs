//! Lists the adapters of the machine and opens one.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use wgpu::{Backends, DownlevelFlags, Features};

#[cfg(feature = "wgpu")]
use super::launches::as_on_hardware;
use super::{
    Caps, Gpu, conformance, driver_memory, gl::GlLock, health::Health, pipeline, probe, queue, rerun::rerun, transfer,
    tuned, variants,
};
use crate::device::chaos::{self, Chaos};
use crate::device::registry::{AdapterInfo, Api};
use crate::device::{DeviceKind, Limits};
use crate::error::{Error, Result};
use crate::util::waiting;

/// An adapter that can be opened, and the index of a logical device on it.
#[derive(Clone)]
pub(crate) struct Handle {
    pub(super) adapter: wgpu::Adapter,
    logical: usize,
    chaos: Chaos,
    /// Whether a device was opened on it: an adapter of a browser serves for one.
    used: Arc<AtomicBool>,
}

impl Handle {
    pub(super) fn new(adapter: wgpu::Adapter) -> Handle {
        Handle { adapter, logical: 0, chaos: Chaos::default(), used: Arc::default() }
    }

    /// Returns the same adapter as another logical device.
    pub(crate) fn logical(&self, logical: usize) -> Handle {
        Handle { logical, ..self.clone() }
    }

    /// Returns the same device with faults.
    pub(in crate::device) fn with(self, chaos: Chaos) -> Handle {
        Handle { chaos, ..self }
    }
}

/// Returns all adapters that can compute, in the order of the drivers; a card appears once for each API. Returns none
/// if there is no driver, or if a driver panics.
///
/// # Errors
/// [`Error::WouldBlock`] in a browser.
pub(crate) fn enumerate() -> Result<Vec<(AdapterInfo, Handle)>> {
    let adapters = catch_unwind(AssertUnwindSafe(|| waiting::block_on(adapters())));
    adapters.unwrap_or_else(|_| {
        log::warn!("a driver panicked while listing its adapters; continuing without adapters");
        Ok(Vec::new())
    })
}

/// Asynchronous form of [`enumerate`].
pub(crate) async fn adapters() -> Vec<(AdapterInfo, Handle)> {
    let adapters = instance().enumerate_adapters(Backends::all()).await;
    let found: Vec<_> = adapters.into_iter().filter_map(inspect).collect();
    if found.is_empty() {
        log::info!("no adapter can compute: only the cpu is available");
    }
    found
}

fn instance() -> wgpu::Instance {
    wgpu::Instance::new(wgpu::InstanceDescriptor {
        backends: Backends::VULKAN | Backends::METAL | Backends::DX12 | Backends::GL | Backends::BROWSER_WEBGPU,
        // No validation layers in debug builds: they check wgpu itself and are slow. Adapters whose drivers are not conformant
        // are listed, and told apart.
        flags: wgpu::InstanceFlags::ALLOW_UNDERLYING_NONCOMPLIANT_ADAPTER,
        ..wgpu::InstanceDescriptor::new_without_display_handle()
    })
}

fn inspect(adapter: wgpu::Adapter) -> Option<(AdapterInfo, Handle)> {
    let info = describe(&adapter, &adapter.limits(), adapter.features())?;
    Some((info, Handle::new(adapter)))
}

/// Returns the description of an adapter that can compute, for a device with these limits and features.
pub(super) fn describe(adapter: &wgpu::Adapter, limits: &wgpu::Limits, features: Features) -> Option<AdapterInfo> {
    let info = adapter.get_info();
    let api = match info.backend {
        wgpu::Backend::Vulkan => Api::Vulkan,
        wgpu::Backend::Metal => Api::Metal,
        wgpu::Backend::Dx12 => Api::Dx12,
        wgpu::Backend::Gl => Api::Gl,
        wgpu::Backend::BrowserWebGpu => Api::WebGpu,
        wgpu::Backend::Noop => return None,
    };
    let computes = adapter.get_downlevel_capabilities().flags.contains(DownlevelFlags::COMPUTE_SHADERS);
    if !computes || limits.max_storage_buffers_per_shader_stage < 4 {
        log::info!("{} ({}) cannot run compute kernels", info.name, info.backend);
        return None;
    }
    Some(AdapterInfo {
        api,
        kind: kind_of(&info),
        conformant: conformance::states(adapter),
        memory_total: driver_memory::total(adapter),
        features: names_of(features),
        limits: Limits {
            max_binding: limits.max_storage_buffer_binding_size,
            max_buffer: limits.max_buffer_size,
            workgroups_per_dimension: limits.max_compute_workgroups_per_dimension,
            invocations_per_workgroup: limits.max_compute_invocations_per_workgroup,
            workgroup_memory: limits.max_compute_workgroup_storage_size,
            storage_buffers: limits.max_storage_buffers_per_shader_stage,
            subgroup_size: (info.subgroup_min_size, info.subgroup_max_size),
        },
        // A browser may keep the name to itself.
        name: if info.name.is_empty() { format!("{} adapter", api.name()) } else { info.name },
        vendor_id: info.vendor,
        device_id: info.device,
        pci: info.device_pci_bus_id,
        driver: info.driver,
        driver_info: info.driver_info,
    })
}

fn kind_of(info: &wgpu::AdapterInfo) -> DeviceKind {
    let name = info.name.to_lowercase();
    let software = ["llvmpipe", "lavapipe", "softpipe", "swiftshader", "basic render"];
    match info.device_type {
        _ if software.iter().any(|word| name.contains(word)) => DeviceKind::Software,
        wgpu::DeviceType::Cpu => DeviceKind::Software,
        wgpu::DeviceType::DiscreteGpu => DeviceKind::Discrete,
        wgpu::DeviceType::IntegratedGpu => DeviceKind::Integrated,
        wgpu::DeviceType::VirtualGpu => DeviceKind::Virtual,
        // GL does not report a device type, and a browser only whether it computes on the CPU.
        wgpu::DeviceType::Other if name.contains("virgl") || name.contains("svga3d") => DeviceKind::Virtual,
        wgpu::DeviceType::Other if name.contains("nvidia") => DeviceKind::Discrete,
        wgpu::DeviceType::Other => DeviceKind::Integrated,
    }
}

fn names_of(features: Features) -> Vec<String> {
    let known = [
        (Features::SHADER_F16, "f16"),
        (Features::SUBGROUP, "subgroups"),
        (Features::EXPERIMENTAL_COOPERATIVE_MATRIX, "cooperative-matrix"),
        (Features::TIMESTAMP_QUERY, "timestamps"),
    ];
    known.iter().filter(|(feature, _)| features.contains(*feature)).map(|(_, name)| name.to_string()).collect()
}

impl Gpu {
    /// Opens a logical device with the adapter's own limits, and probes it.
    ///
    /// # Errors
    ///
    /// [`Error::DeviceUnavailable`] with the message of the driver.
    pub(crate) async fn open(handle: &Handle, name: &str) -> Result<Gpu> {
        let unavailable = |reason: String| Error::DeviceUnavailable { device: name.into(), reason };
        let info = handle.adapter.get_info();
        if info.backend == wgpu::Backend::Gl && (handle.logical > 0 || handle.chaos != Chaos::default()) {
            return Err(unavailable("a GL driver has one logical device per process".into()));
        }
        let wanted = Features::SHADER_F16
            | Features::SUBGROUP
            | Features::SUBGROUP_BARRIER
            | Features::TIMESTAMP_QUERY
            | Features::IMMEDIATES;
        let adapter = match info.backend {
            wgpu::Backend::BrowserWebGpu if handle.used.swap(true, Ordering::Relaxed) => {
                let again = instance().request_adapter(&wgpu::RequestAdapterOptions::default()).await;
                again.map_err(|error| unavailable(error.to_string()))?
            }
            _ => handle.adapter.clone(),
        };
        let plain = wgpu::DeviceDescriptor {
            label: Some(name),
            required_features: adapter.features() & wanted,
            required_limits: adapter.limits(),
            ..Default::default()
        };
        let (device, queue) = request(&adapter, plain).await.map_err(|error| unavailable(error.to_string()))?;
        let health = Health::watch(&device);
        let gpu = Self::probed(&adapter, device, queue, name, health).await?;
        Ok(Gpu { chaos: chaos::Faults::new(handle.chaos), ..gpu })
    }

    /// Returns a device of wgpu as one of this crate, after it has been probed. In a browser, all variants of kernels have been tried then;
    /// elsewhere, that happens when one is needed.
    pub(super) async fn probed(
        adapter: &wgpu::Adapter,
        device: wgpu::Device,
        queue: wgpu::Queue,
        name: &str,
        health: Arc<Health>,
    ) -> Result<Gpu> {
        let unavailable = |error: Error| Error::DeviceUnavailable { device: name.into(), reason: error.to_string() };
        let info = adapter.get_info();
        let mut gpu = Gpu {
            name: name.into(),
            caps: caps(&device, &info, cooperative_size(adapter)),
            gl: GlLock::new(info.backend),
            faults: Default::default(),
            pool: Arc::default(),
            kernels: pipeline::Cache::default(),
            chains: Default::default(),
            recorder: queue::Recorder::new(&device).into(),
            staging: transfer::Staging::default(),
            reader: Default::default(),
            patience: Default::default(),
            chaos: Default::default(),
            timestamps: Default::default(),
            pacing: Default::default(),
            #[cfg(feature = "wgpu")]
            programs: Default::default(),
            tuned: tuned::Tuned::of(&info.name, &format!("{:?} {} {}", info.backend, info.driver, info.driver_info)),
            variants: variants::Choices::default(),
            health,
            device,
            queue,
        };
        gpu.caps.loop_budget = rerun(&[&gpu], || probe::loop_budget(&gpu)).await.map_err(unavailable)?;
        gpu.caps.flushes_subnormals = rerun(&[&gpu], || probe::flushes_subnormals(&gpu)).await.map_err(unavailable)?;
        for quirk in gpu.caps.quirks() {
            log::info!("{name} ({}, {}): {quirk}", info.name, info.driver_info);
        }
        if !waiting::CAN_BLOCK {
            gpu.try_variants().await?;
        }
        Ok(gpu)
    }
}

/// Opens a device, with cooperative matrices if the adapter has the sizes that the kernels take. If that fails,
/// opens it without them.
async fn request(
    adapter: &wgpu::Adapter,
    plain: wgpu::DeviceDescriptor<'_>,
) -> Result<(wgpu::Device, wgpu::Queue), wgpu::RequestDeviceError> {
    if cooperative_size(adapter).is_some() {
        // SAFETY: of the experimental features, only cooperative matrices are requested, and only the kernel of
        // `matmul_cooperative.wgsl` uses them: `WgslKernel` refuses them in kernels of users. All of its subgroups run its loads,
        // products and stores together, and these stay within the panels. It is tried on the device before its first use.
        #[expect(unsafe_code, reason = "wgpu has cooperative matrices as an experiment only")]
        let experimental_features = unsafe { wgpu::ExperimentalFeatures::enabled() };
        let mut with = plain.clone();
        with.required_features |= Features::EXPERIMENTAL_COOPERATIVE_MATRIX;
        with.experimental_features = experimental_features;
        match adapter.request_device(&with).await {
            Ok(opened) => return Ok(opened),
            Err(error) => log::info!("{} opens without cooperative matrices only: {error}", adapter.get_info().name),
        }
    }
    adapter.request_device(&plain).await
}

/// Returns the rows and columns of an adapter's cooperative matrices of f16 with sums of f32: the larger size, if
/// there are two. A workgroup of 64 invocations must consist of whole subgroups, of at least 8 invocations.
fn cooperative_size(adapter: &wgpu::Adapter) -> Option<u32> {
    use wgpu::CooperativeScalarType::{F16, F32};
    let needed = Features::EXPERIMENTAL_COOPERATIVE_MATRIX | Features::SHADER_F16 | Features::SUBGROUP;
    let info = adapter.get_info();
    if !adapter.features().contains(needed) || info.subgroup_min_size < 8 || info.subgroup_max_size > 64 {
        return None;
    }
    let all = adapter.cooperative_matrix_properties();
    let has = |size: &u32| {
        all.iter().any(|p| [p.m_size, p.n_size, p.k_size] == [*size; 3] && [p.ab_type, p.cr_type] == [F16, F32])
    };
    [16, 8].into_iter().find(has)
}

/// Without a tool that wants otherwise.
#[cfg(not(feature = "wgpu"))]
fn as_on_hardware() -> bool {
    false
}

fn caps(device: &wgpu::Device, info: &wgpu::AdapterInfo, cooperative_size: Option<u32>) -> Caps {
    let (limits, features) = (device.limits(), device.features());
    let one_size = info.subgroup_min_size == info.subgroup_max_size;
    // On OpenGL, wgpu sets each word by a call of its own; DirectX's root constants are not for arrays that are indexed at run
    // time.
    let immediates = features.contains(Features::IMMEDIATES) && info.backend == wgpu::Backend::Vulkan;
    let words = |bytes: u64| usize::try_from(bytes / 16 * 4).unwrap_or(usize::MAX - 3);
    Caps {
        max_binding_words: words(limits.max_storage_buffer_binding_size.min(limits.max_buffer_size)),
        max_buffer_words: words(limits.max_buffer_size),
        max_workgroups: limits.max_compute_workgroups_per_dimension,
        subgroup: (features.contains(Features::SUBGROUP) && one_size).then_some(info.subgroup_min_size),
        software: kind_of(info) == DeviceKind::Software && !as_on_hardware(),
        loop_budget: None,
        flushes_subnormals: false,
        fxc: info.backend == wgpu::Backend::Dx12 && probe::compiles_with_fxc(),
        f16: features.contains(Features::SHADER_F16),
        cooperative: cooperative_size.filter(|_| features.contains(Features::EXPERIMENTAL_COOPERATIVE_MATRIX)),
        max_invocations: limits.max_compute_invocations_per_workgroup,
        max_storage_buffers: limits.max_storage_buffers_per_shader_stage,
        // naga has a word of 64 bits for the immediates that a kernel reads.
        max_immediates: if immediates { limits.max_immediate_size.min(64 * 4) } else { 0 },
        workgroup_memory: limits.max_compute_workgroup_storage_size,
        gl: info.backend == wgpu::Backend::Gl,
    }
}
