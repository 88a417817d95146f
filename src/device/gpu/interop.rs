//! Devices, buffers and textures that programs which use wgpu themselves share with this crate.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;

use web_time::{Duration, Instant};

use super::pool::WeakBuffer;
use super::{Buffer, Gpu, Handle, adapter, health};
use crate::device::{Backend, BackendHandle, Device, Inner, registry};
use crate::error::{Error, Result};
use crate::util::{sync, waiting};

/// Direction of a copy between a buffer and a texture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Copy {
    ToTexture,
    FromTexture,
}

/// The buffers of programs that a device knows.
#[derive(Debug, Default)]
pub(super) struct Programs {
    /// The buffers that are tensors.
    adopted: Mutex<Vec<(wgpu::Buffer, WeakBuffer)>>,
    /// The layout of a bind group of one buffer, by which wgpu says whether it can be bound.
    layout: OnceLock<wgpu::BindGroupLayout>,
}

impl Device {
    /// Returns a device of wgpu as a device of this crate.
    ///
    /// The program that made the wgpu device shares it: tensors and the program's own buffers and textures are in the
    /// same memory, and nothing is copied between them. The device's name is `wgpu:0`, `wgpu:1` and so on;
    /// [`Device::new`] does not find it. Call this once for each device: a second call returns a handle that this crate
    /// takes for another device.
    ///
    /// The more of the adapter's limits and features the program requests, the more of this crate's kernels can
    /// run. With wgpu's default limits, no tensor can be larger than 128 MiB. The features `SHADER_F16`,
    /// `SUBGROUP`, `SUBGROUP_BARRIER` and `IMMEDIATES` are used if the device has them.
    ///
    /// The program's handlers for uncaptured errors and for the loss of the device stay in place. This crate's
    /// methods return the errors of its commands, with one exception: if the driver has no memory for something
    /// other than a tensor, that error goes to the program's handler. On OpenGL, wgpu panics in a thread that waits
    /// for 6 s while another thread calls the driver: use such a device in one thread.
    ///
    /// # Errors
    ///
    /// [`Error::DeviceUnavailable`] if the device cannot run compute kernels; [`Error::InvalidArgument`] if the
    /// queue belongs to another device.
    ///
    /// ```
    /// use anygpu::{Device, Tensor, wgpu};
    ///
    /// // As a program that draws opens its device.
    /// let instance = wgpu::Instance::new(wgpu::InstanceDescriptor::new_without_display_handle());
    /// let Ok(adapter) = pollster::block_on(instance.request_adapter(&wgpu::RequestAdapterOptions::default())) else {
    ///     return Ok(()); // no adapter on this machine
    /// };
    /// let wanted = wgpu::DeviceDescriptor { required_limits: adapter.limits(), ..Default::default() };
    /// let (device, queue) = pollster::block_on(adapter.request_device(&wanted)).unwrap();
    ///
    /// let shared = Device::from_wgpu(&adapter, &device, &queue)?;
    /// let x = Tensor::new([1.0, 2.0, 3.0], &shared)?;
    /// assert_eq!((&x * 2.0)?.to_vec::<f32>()?, [2.0, 4.0, 6.0]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn from_wgpu(adapter: &wgpu::Adapter, device: &wgpu::Device, queue: &wgpu::Queue) -> Result<Device> {
        let device = waiting::wait_for(Device::from_wgpu_async(adapter, device, queue));
        device.map_err(|error| error.instead("Device::from_wgpu", "Device::from_wgpu_async"))
    }

    /// Asynchronous form of [`Device::from_wgpu`], for a browser, where that call would wait.
    ///
    /// # Errors
    /// The errors of [`Device::from_wgpu`].
    pub async fn from_wgpu_async(
        adapter: &wgpu::Adapter,
        device: &wgpu::Device,
        queue: &wgpu::Queue,
    ) -> Result<Device> {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("wgpu:{}", NEXT.fetch_add(1, Ordering::Relaxed));
        let Some(described) = adapter::describe(adapter, &device.limits(), device.features()) else {
            let reason = format!("{} cannot run compute kernels", adapter.get_info().name);
            return Err(Error::DeviceUnavailable { device: name, reason });
        };
        if !is_queue_of(queue, device) {
            let detail = "the queue belongs to another device: pass the two that request_device has returned together";
            return Err(Error::argument("from_wgpu", detail));
        }
        let gpu = Arc::new(Gpu::shared(adapter, device, queue, &name).await?);
        gpu.wait_at_exit();
        let info = registry::describe(&described, name);
        let handle = Handle::new(adapter.clone());
        let backend = BackendHandle::Gpu { handle, opened: OnceLock::from(gpu), opening: Mutex::new(()) };
        Ok(Device(Inner { info, backend }.into()))
    }

    /// Returns the wgpu device and queue of this device.
    ///
    /// Opens the device. Use the wgpu device and queue for your own commands on the
    /// [buffers](crate::interop::WgpuBuffer) of its tensors; the order of commands is described there.
    ///
    /// If none of your error scopes captures an error of your commands, a later call of this crate on the device
    /// returns it.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for `cpu`; [`Error::DeviceUnavailable`] if the driver refuses.
    pub fn as_wgpu(&self) -> Result<(&wgpu::Device, &wgpu::Queue)> {
        match self.backend()? {
            Backend::Cpu(_) => Err(Error::argument("as_wgpu", format!("{self} is not a device of wgpu"))),
            Backend::Gpu(gpu) => Ok((&gpu.device, &gpu.queue)),
        }
    }
}

impl Gpu {
    /// Returns a device of a program as one of this crate. The program's handlers of errors stay.
    async fn shared(adapter: &wgpu::Adapter, device: &wgpu::Device, queue: &wgpu::Queue, name: &str) -> Result<Gpu> {
        let health = Arc::new(health::Health::without_handlers());
        Gpu::probed(adapter, device.clone(), queue.clone(), name, health).await
    }

    /// Returns a buffer of a program as one of this crate. The pool never takes it.
    ///
    /// # Errors
    ///
    /// [`Error::Gpu`] if the buffer belongs to another device, or cannot be bound.
    pub(crate) fn adopt(&self, raw: &wgpu::Buffer, words: usize) -> Result<Buffer> {
        self.check()?;
        let mut adopted = sync::lock(&self.programs.adopted);
        adopted.retain(|(_, buffer)| buffer.is_alive());
        // One handle for all tensors in a buffer, since the order of uses is known by handle.
        let same = adopted.iter().find(|(other, _)| other == raw).and_then(|(_, buffer)| buffer.upgrade());
        if let Some(same) = same {
            let (has, name) = (same.len() * 4, &self.name);
            let smaller = || {
                self.error(format!("the buffer is already a tensor of {has} bytes on {name}: make the longest first"))
            };
            return if same.len() >= words { Ok(same) } else { Err(smaller()) };
        }
        // What is not allowed is an error of this bind group, and otherwise of a whole batch later.
        if let Some(message) = self.refusal(raw) {
            return Err(self.failure(message));
        }
        let buffer = self.wrap(raw.clone(), words);
        adopted.push((raw.clone(), buffer.downgrade()));
        Ok(buffer)
    }

    /// Returns whether a buffer can still be bound: the program may have destroyed it.
    pub(super) fn is_usable(&self, raw: &wgpu::Buffer) -> bool {
        self.refusal(raw).is_none()
    }

    /// Returns why wgpu does not bind a buffer, if it does not.
    fn refusal(&self, raw: &wgpu::Buffer) -> Option<String> {
        let validation = self.device.push_error_scope(wgpu::ErrorFilter::Validation);
        let layout = self.programs.layout.get_or_init(|| {
            self.device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor {
                label: None,
                entries: &[wgpu::BindGroupLayoutEntry {
                    binding: 0,
                    visibility: wgpu::ShaderStages::COMPUTE,
                    ty: wgpu::BindingType::Buffer {
                        ty: wgpu::BufferBindingType::Storage { read_only: false },
                        has_dynamic_offset: false,
                        min_binding_size: None,
                    },
                    count: None,
                }],
            })
        });
        let _ = self.device.create_bind_group(&wgpu::BindGroupDescriptor {
            label: None,
            layout,
            entries: &[wgpu::BindGroupEntry { binding: 0, resource: raw.as_entire_binding() }],
        });
        self.health.popped(validation).map(|error| health::describe(&error))
    }

    /// Submits the recorded work, and then a copy of all of a texture's texels from or to a buffer.
    ///
    /// # Errors
    ///
    /// [`Error::Gpu`] if wgpu refuses the copy, for example because the texture belongs to another device.
    pub(crate) fn copy_texture(&self, copy: Copy, buffer: &Buffer, texture: &wgpu::Texture, row: u32) -> Result<()> {
        self.check()?;
        let mut recorder = self.recorder()?;
        self.submit(&mut recorder);
        let gl = self.gl.enter();
        let validation = self.device.push_error_scope(wgpu::ErrorFilter::Validation);
        let mut encoder = self.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        let layout = wgpu::TexelCopyBufferLayout { offset: 0, bytes_per_row: Some(row), rows_per_image: None };
        let texels = wgpu::TexelCopyBufferInfo { buffer: &buffer.page().raw, layout };
        match copy {
            Copy::ToTexture => encoder.copy_buffer_to_texture(texels, texture.as_image_copy(), texture.size()),
            Copy::FromTexture => encoder.copy_texture_to_buffer(texture.as_image_copy(), texels, texture.size()),
        }
        self.queue.submit([encoder.finish()]);
        let refused = self.health.popped(validation);
        drop(gl);
        match refused {
            Some(error) => Err(self.failure(health::describe(&error))),
            None => self.check(),
        }
    }
}

/// Returns whether a queue belongs to a device. If it does not, its work would be an error of another device, for
/// which wgpu's handler panics. But its end is reported when that other device is polled, and not when this one is.
fn is_queue_of(queue: &wgpu::Queue, device: &wgpu::Device) -> bool {
    /// Another thread that polls may have taken the call and not made it yet.
    const GRACE: Duration = Duration::from_millis(500);
    let done = Arc::new(AtomicBool::new(false));
    let told = done.clone();
    queue.on_submitted_work_done(move || told.store(true, Ordering::Release));
    if !waiting::CAN_BLOCK {
        return true; // it cannot be told
    }
    let mut idle = None;
    loop {
        let wait = wgpu::PollType::Wait { submission_index: None, timeout: Some(GRACE) };
        let polled = catch_unwind(AssertUnwindSafe(|| device.poll(wait)));
        match polled {
            _ if done.load(Ordering::Acquire) => return true,
            Err(_) => return true, // the device is lost, as the next call of this crate says
            Ok(Err(wgpu::PollError::Timeout)) => {} // it has other work
            Ok(_) if idle.get_or_insert_with(Instant::now).elapsed() > GRACE => return false,
            Ok(_) => thread::sleep(Duration::from_millis(2)),
        }
    }
}
