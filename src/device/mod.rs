//! Every adapter of the machine, of any vendor, and the host itself, as one type: [`Device`].
//!
//! ```
//! use anygpu::{Device, try_gpu};
//!
//! let device = try_gpu(0);                      // gpu:0, or cpu where there is none
//! for d in Device::all() {
//!     println!("{d}: {} through {}", d.info().adapter, d.info().api);
//! }
//! assert_eq!("cpu".parse::<Device>()?, Device::cpu());
//! # Ok::<(), anygpu::Error>(())
//! ```
//!
//! # Names
//!
//! - `cpu` is the host.
//! - `gpu:0`, `gpu:1`, … are hardware adapters. `gpu` means `gpu:0`, as PyTorch's `cuda` means the first card.
//! - `soft:0`, `soft:1`, … are software adapters.
//!
//! Case does not matter. Names of other libraries (`cuda:0`, `mps`) are errors, since `cuda` would promise what
//! WebGPU does not use. The message states the name to write instead.
//!
//! `soft:0/1` is a second, independent *logical* device on the adapter of `soft:0`, which is also called
//! `soft:0/0`. `cpu/1` is a second logical device on the host. With logical devices, you can test code for several
//! devices on one adapter, or without any. A tensor on `cpu/1` is not on `cpu`. There are 16 of each, `/0` to
//! `/15`. The host's logical devices share its memory and threads. The rules of order and visibility are in
//! `registry.rs`.
//!
//! # Devices that fail
//!
//! `chaos:soft:0?lose=100` is one more logical device on the adapter of `soft:0`. It is lost when it has run 100
//! kernels, so that a program can test how it handles the loss. `oom=7` makes its seventh allocation fail for want
//! of memory. `slow=5` makes each of its submits take five milliseconds longer. `lose=100&slow=5` does both. The
//! name can be used wherever a device's name can. A device that was [opened again](Device::reopen) has no more
//! faults. Adapters on OpenGL and `cpu` cannot be lost. Like every device, a `chaos` device stays open until the
//! process ends, so each new name takes memory.
//!
//! ```
//! use anygpu::{Device, Tensor};
//!
//! # if Device::new("soft:0").is_err() { return Ok(()); }
//! let device = Device::new("chaos:soft:0?lose=20")?;
//! let mut x = Tensor::ones([4], &device)?;
//! let lost = (0..20).try_for_each(|_| { x = (&x + 1.0)?; x.to_vec::<f32>().map(drop) }).unwrap_err();
//! assert!(lost.is_device_lost());
//! assert_eq!(Tensor::ones([4], &device.reopen()?)?.to_vec::<f32>()?, [1.0; 4]);
//! # Ok::<(), anygpu::Error>(())
//! ```
//!
//! # `fork`
//!
//! A forked process (`fork` without `exec`) cannot use any device: its copies of the drivers' connections and of
//! the threads' locks belong to the parent. Start workers as separate programs (`std::process::Command`), or use
//! threads. CUDA has the same restriction.
//!
//! # `ANYGPU_VISIBLE_DEVICES`
//!
//! A comma-separated list of device names. It hides every other adapter and numbers the listed ones `gpu:0`,
//! `gpu:1`, … in the list's order, as `CUDA_VISIBLE_DEVICES` does. A software adapter in the list counts as a GPU;
//! it can still be called `soft:k` (the k-th software adapter of the list). An empty list hides all adapters. `cpu`
//! is always visible.

mod chaos;
mod compile_ahead;
pub(crate) mod cpu;
pub(crate) mod gpu;
mod info;
#[cfg(test)]
pub(crate) mod injected_faults;
mod list;
mod loss;
mod memory;
mod memory_report;
mod name;
mod pool;
pub(crate) mod profile;
mod registry;
mod storage;

use std::sync::{Arc, Mutex, OnceLock};

pub use compile_ahead::{CompileAhead, KernelList};
#[doc(hidden)]
pub use compile_ahead::{kernels_to_compile, tuned_variants};
pub use info::{DeviceInfo, DeviceKind, Limits, Quirk, Vendor};
pub use list::Devices;
pub use memory::{DriverMemory, MemoryStats};
pub use memory_report::{HeldMemory, MemoryReport, memory_label};
pub use name::IntoDevice;

pub(crate) use gpu::{Part, PartReads, has_begun, kept, transfer, wait_for_other};
pub(crate) use memory_report::{labelled_by_default, set_method};
pub(crate) use storage::Storage;

use crate::error::{Error, Result};
use crate::util::{sync, waiting};

/// A place where tensors are stored and ops run: the host, or one adapter.
///
/// Clones are cheap. Equal handles are the same device.
///
/// An adapter is opened once, at its first use.
#[derive(Clone)]
pub struct Device(Arc<Inner>);

struct Inner {
    info: DeviceInfo,
    backend: BackendHandle,
}

/// The handle that reaches a device.
enum BackendHandle {
    Cpu(cpu::Cpu),
    Gpu { handle: gpu::Handle, opened: OnceLock<Arc<gpu::Gpu>>, opening: Mutex<()> },
}

impl BackendHandle {
    fn unopened(handle: gpu::Handle) -> BackendHandle {
        BackendHandle::Gpu { handle, opened: OnceLock::new(), opening: Mutex::new(()) }
    }
}

/// An opened device. Every op matches on this once.
pub(crate) enum Backend<'a> {
    /// The host.
    Cpu(&'a cpu::Cpu),
    /// An adapter.
    Gpu(&'a Arc<gpu::Gpu>),
}

impl Device {
    /// Returns the host: native code on all cores. Every machine has it.
    #[must_use]
    pub fn cpu() -> Device {
        registry::cpu()
    }

    /// Returns the device called `name`, opened. See the [module](crate::device) for names.
    ///
    /// # Errors
    ///
    /// [`Error::UnknownDevice`], which lists the devices of this machine; [`Error::DeviceUnavailable`] if its driver
    /// refuses.
    ///
    /// ```
    /// use anygpu::Device;
    /// assert!(Device::new("cpu")?.is_cpu());
    /// let error = Device::new("gpu:99").unwrap_err();
    /// assert!(error.to_string().starts_with("unknown device 'gpu:99': this machine has"));
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn new(name: &str) -> Result<Device> {
        let device = registry::find(name)?;
        device.backend()?;
        Ok(device)
    }

    /// Asynchronous form of [`Device::new`]. In a browser, only this and [`init`] open a device.
    ///
    /// # Errors
    /// The errors of [`Device::new`].
    ///
    /// ```
    /// use anygpu::Device;
    /// # pollster::block_on(async {
    /// let device = Device::new_async("cpu").await?;
    /// assert!(device.is_cpu());
    /// # Ok::<(), anygpu::Error>(())
    /// # })?;
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub async fn new_async(name: &str) -> Result<Device> {
        registry::find_adapters().await;
        let device = registry::find(name)?;
        device.open().await?;
        Ok(device)
    }

    /// Returns the devices of a comma-separated list of names, such as `gpu:0,soft:1,cpu`, in its order.
    ///
    /// # Errors
    /// The errors of [`Device::new`]; [`Error::InvalidArgument`] for a list without a name.
    ///
    /// ```
    /// use anygpu::Device;
    ///
    /// let devices = Device::list("cpu/0, cpu/1")?;
    /// assert_eq!((devices.len(), devices[1].name()), (2, "cpu/1"));
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn list(names: &str) -> Result<Vec<Device>> {
        let names = names.split(',').map(str::trim).filter(|name| !name.is_empty());
        let devices = names.map(Device::new).collect::<Result<Vec<_>>>()?;
        if devices.is_empty() {
            return Err(Error::argument("Device::list", "there is no name: write a list such as gpu:0,cpu"));
        }
        Ok(devices)
    }

    /// Returns every visible device: adapters in the order of their names, then `cpu`.
    ///
    /// This opens none of them. Of each adapter, only the first logical device is listed.
    #[must_use]
    pub fn all() -> Devices {
        Devices(registry::all())
    }

    /// Returns the device's name: `cpu`, `gpu:0`, `soft:0/1`, …
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.info.name
    }

    /// Returns the description of the device.
    #[must_use]
    pub fn info(&self) -> &DeviceInfo {
        &self.0.info
    }

    /// Returns whether this is the host.
    #[must_use]
    pub fn is_cpu(&self) -> bool {
        matches!(self.0.backend, BackendHandle::Cpu(_))
    }

    /// Submits the recorded work and waits until the device has done it.
    ///
    /// # Errors
    ///
    /// Any error of the device since the last call: [`Error::DeviceLost`], [`Error::OutOfMemory`], [`Error::Gpu`].
    pub fn synchronize(&self) -> Result<()> {
        let done = self.opened().map_or(Ok(()), |gpu| gpu.synchronize());
        done.map_err(|error| error.instead("Device::synchronize", "Device::synchronize_async"))
    }

    /// Asynchronous form of [`Device::synchronize`].
    ///
    /// Use it on a thread that must not wait, such as the thread of a page in a browser. Outside a browser, it waits
    /// when it is polled.
    ///
    /// # Errors
    ///
    /// Same as [`Device::synchronize`].
    ///
    /// ```
    /// # use anygpu::{Device, Tensor};
    /// # pollster::block_on(async {
    /// for device in &Device::all() {
    ///     let y = Tensor::ones([64, 64], device)?.exp()?;
    ///     device.synchronize_async().await?; // y is computed
    /// #   drop(y);
    /// }
    /// # Ok::<(), anygpu::Error>(())
    /// # })?;
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub async fn synchronize_async(&self) -> Result<()> {
        match self.opened() {
            Some(gpu) => gpu.synchronized().await,
            None => Ok(()),
        }
    }

    /// Submits the recorded work without waiting for it.
    ///
    /// Ops are recorded first. The device begins with them when there are enough, or when something waits for it. Call
    /// this before other work of the host, or before commands of your own that need their results.
    ///
    /// # Errors
    ///
    /// The errors of [`Device::synchronize`], as far as they are known.
    pub fn flush(&self) -> Result<()> {
        self.opened().map_or(Ok(()), |gpu| gpu.submit_recorded())
    }

    /// Returns the number of kernels that this crate has recorded for the device since it was opened, including the
    /// kernels of [`WgslKernel`](crate::WgslKernel).
    ///
    /// Returns 0 for `cpu`. The difference of two calls is the number of kernels between them, including the trial of a
    /// kernel variant before its first use. With `RUST_LOG=anygpu::kernels=trace`, programs that initialise
    /// `env_logger` print a line for each kernel: the device, the kernel's name, and the bytes of its buffers.
    ///
    /// ```
    /// use anygpu::{Device, Tensor};
    /// for device in Device::all().iter().filter(|device| !device.is_cpu()) {
    ///     let x = Tensor::ones([4], device)?;
    ///     let before = device.dispatches();
    ///     x.add(&x)?;
    ///     assert_eq!(device.dispatches() - before, 1);
    /// }
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    #[must_use]
    pub fn dispatches(&self) -> u64 {
        self.opened().map_or(0, |gpu| gpu.dispatches())
    }

    /// Returns the quirks of the driver that the probe found. Opens the device.
    ///
    /// # Errors
    ///
    /// [`Error::DeviceUnavailable`] if its driver refuses.
    pub fn quirks(&self) -> Result<Vec<Quirk>> {
        Ok(match self.backend()? {
            Backend::Cpu(_) => Vec::new(),
            Backend::Gpu(gpu) => gpu.caps().quirks(),
        })
    }

    /// Returns the result of `f`, which reads from this device, without blocking. In a browser, `f` runs again when
    /// what it reads has arrived, and must do the same each time.
    pub(crate) async fn rerun<T>(&self, f: impl FnMut() -> Result<T>) -> Result<T> {
        rerun(std::slice::from_ref(self), f).await
    }

    /// Returns the adapter's device, if this is one and it is open.
    fn opened(&self) -> Option<&Arc<gpu::Gpu>> {
        match &self.0.backend {
            BackendHandle::Cpu(_) => None,
            BackendHandle::Gpu { opened, .. } => opened.get(),
        }
    }

    /// Opens the device, if it is not open, without waiting for it in a browser.
    async fn open(&self) -> Result<()> {
        match &self.0.backend {
            BackendHandle::Gpu { handle, opened, .. } if !waiting::CAN_BLOCK && opened.get().is_none() => {
                let gpu = gpu::Gpu::open(handle, self.name()).await?;
                opened.get_or_init(|| Arc::new(gpu));
                Ok(())
            }
            _ => self.backend().map(drop),
        }
    }

    /// Opens the device, if it is not open, and returns its backend.
    pub(crate) fn backend(&self) -> Result<Backend<'_>> {
        match &self.0.backend {
            BackendHandle::Cpu(cpu) => Ok(Backend::Cpu(cpu)),
            BackendHandle::Gpu { handle, opened, opening } => {
                if !waiting::CAN_BLOCK && opened.get().is_none() {
                    let opening = waiting::wait_for(self.open());
                    opening.map_err(|error| error.instead("Device::new", "Device::new_async"))?;
                }
                if opened.get().is_none() {
                    let _one_at_a_time = sync::lock(opening);
                    if opened.get().is_none() {
                        let gpu = Arc::new(waiting::wait_for(gpu::Gpu::open(handle, self.name()))?);
                        gpu.wait_at_exit();
                        return Ok(Backend::Gpu(opened.get_or_init(|| gpu)));
                    }
                }
                opened.get().map(Backend::Gpu).ok_or_else(|| self.unavailable("it was not opened"))
            }
        }
    }

    /// Returns another device on the same adapter and with the same name, without faults, not opened; `None` for the host.
    fn unopened(&self) -> Option<Device> {
        match &self.0.backend {
            BackendHandle::Cpu(_) => None,
            BackendHandle::Gpu { handle, .. } => {
                let handle = handle.clone().with(chaos::Chaos::default());
                let (info, backend) = (self.0.info.clone(), BackendHandle::unopened(handle));
                Some(Device(Inner { info, backend }.into()))
            }
        }
    }

    fn unavailable(&self, reason: &str) -> Error {
        Error::DeviceUnavailable { device: self.name().into(), reason: reason.into() }
    }
}

impl Default for Device {
    /// Returns the host.
    fn default() -> Self {
        Device::cpu()
    }
}

/// Finds the adapters of the machine and opens them.
///
/// Returns all devices, as [`Device::all`] does. An adapter that does not open is logged.
///
/// In a browser, call this once before anything else: until then, `cpu` is the only device. There, it also tries
/// every variant of a kernel that the adapter could run, which takes a second on a software adapter. Outside a
/// browser, devices are found and opened when they are needed, so a program need not call this.
///
/// ```
/// # pollster::block_on(async {
/// let devices = anygpu::init().await;
/// assert!(devices.last().is_some_and(|device| device.is_cpu()));
/// # });
/// ```
pub async fn init() -> Devices {
    registry::find_adapters().await;
    let devices = registry::all();
    for device in &devices {
        if let Err(error) = device.open().await {
            log::warn!("{error}");
        }
    }
    Devices(devices)
}

/// As [`Device::rerun`], for work that reads from several devices, which may be listed more than once.
pub(crate) async fn rerun<T>(devices: &[Device], f: impl FnMut() -> Result<T>) -> Result<T> {
    let gpus: Vec<&gpu::Gpu> = devices.iter().filter_map(Device::opened).map(|gpu| &**gpu).collect();
    gpu::rerun(&gpus, f).await
}

/// Returns `gpu:i`, opened, or `cpu` if there is none or it does not open (which is logged).
pub fn try_gpu(i: usize) -> Device {
    registry::gpus().into_iter().nth(i).filter(opens).unwrap_or_default()
}

/// Returns all GPUs that open, in order, or `[cpu]` if there is none.
pub fn try_all_gpus() -> Vec<Device> {
    let gpus: Vec<Device> = registry::gpus().into_iter().filter(opens).collect();
    if gpus.is_empty() { vec![Device::cpu()] } else { gpus }
}

/// Returns the number of GPUs: hardware adapters, or the adapters that `ANYGPU_VISIBLE_DEVICES` names.
///
/// This opens none of them.
#[must_use]
pub fn device_count() -> usize {
    registry::gpus().len()
}

/// Returns whether there is a GPU.
#[must_use]
pub fn is_available() -> bool {
    device_count() > 0
}

fn opens(device: &Device) -> bool {
    match device.backend() {
        Ok(_) => true,
        Err(error) => {
            log::warn!("{error}");
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_is_always_there() -> Result<()> {
        assert_eq!(Device::new("cpu")?, Device::cpu());
        assert_eq!(Device::default().to_string(), "cpu");
        assert_eq!(format!("{:?}", Device::cpu()), "Device(cpu)");
        assert!(Device::all().last().is_some_and(Device::is_cpu));
        assert!(Device::cpu().quirks()?.is_empty());
        Ok(())
    }

    #[test]
    fn an_unknown_name_lists_what_there_is() {
        for name in ["gpu:77", "soft:77", "tpu", "", "gpu:-1", "soft:0/99", "cpu:1", "cpu/16", "cuda"] {
            let error = Device::new(name).unwrap_err();
            assert!(matches!(&error, Error::UnknownDevice { available, .. } if available.ends_with(&["cpu".into()])));
            assert!(error.to_string().starts_with(&format!("unknown device '{name}': this machine has ")), "{error}");
        }
    }

    #[test]
    fn the_host_has_logical_devices() -> Result<()> {
        let (first, second) = (Device::new("cpu/0")?, Device::new("CPU/1")?);
        assert_eq!([&first, &Device::new("cpu:0")?], [&Device::cpu(); 2]);
        assert_eq!((second.name(), second.info().kind), ("cpu/1", DeviceKind::Cpu));
        assert!(second != first && second.is_cpu() && second == Device::new("cpu/1")?);
        assert!(!Device::all().contains(&second));
        Ok(())
    }

    #[test]
    fn handles_of_one_device_are_equal() -> Result<()> {
        for device in Device::all() {
            let again = Device::new(device.name())?;
            assert_eq!(device, again);
            assert_eq!(device.info(), again.info());
        }
        Ok(())
    }
}
