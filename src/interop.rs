//! Devices, buffers and textures of wgpu as devices and tensors, for programs that use wgpu themselves: windows,
//! renderers, games. Needs the feature `wgpu`, with which [`wgpu`] is part of this crate's interface.
//!
//! [`Device::from_wgpu`] shares the program's device. [`Tensor::as_wgpu_buffer`] gives the program the memory of a
//! tensor, and [`Tensor::from_wgpu_buffer`] makes a tensor of a buffer. [`Tensor::from_texture`] and
//! [`Tensor::copy_to_texture`] copy texels on the device. None of them waits for the device.
//!
//! # The order of commands
//!
//! A device runs the work of its queue in the order of the submits, and wgpu makes writes visible to what follows.
//! This crate records ops, and submits them later. Hence these rules:
//!
//! - The results of ops are visible to commands that the program submits after [`Tensor::as_wgpu_buffer`],
//!   [`Tensor::copy_to_texture`] or [`Device::flush`]. These calls submit all ops before them.
//! - What the program writes is visible to ops that are called after the program has submitted the commands. Data
//!   written with `Queue::write_buffer` is visible after the next submit, which may be one of this crate.
//! - Before the program writes to the buffer of a tensor, it must call [`Device::flush`]. Otherwise ops that were
//!   called before may read what is written.
//! - A [`WgpuBuffer`] keeps the memory of its tensor. Hold it until the commands that use the buffer are submitted.
//!   After that, another tensor can get the memory.
//! - Functions that wgpu calls back (`map_async`, `on_submitted_work_done`, handlers of errors) must not call this
//!   crate, nor wait for a thread that does: they can be called within a call of this crate, which holds its locks.
//! - Buffers and textures must belong to the device of [`Device::as_wgpu`], or to the device given to
//!   [`Device::from_wgpu`]. Buffers and textures of another device of the same `wgpu::Instance` are errors. If they
//!   belong to another instance, this cannot be detected: wgpu panics, or takes them for something else.
//! - The buffer of [`Tensor::as_wgpu_buffer`] already belongs to a tensor: do not make another tensor of it.
//! - Do not destroy the buffer of a tensor (`wgpu::Buffer::destroy`) before the tensor is gone. Ops on a tensor
//!   whose buffer is destroyed are errors. Work that was recorded before is refused together with the rest of its
//!   submit; the next call returns the error.
//! - The program's writes are like methods whose names end in `_`, but the gradient graph does not notice them: do
//!   not write to tensors that a gradient needs.
//!
//! ```
//! use anygpu::{Device, Tensor, wgpu};
//!
//! for device in Device::all().iter().filter(|device| !device.is_cpu()) {
//!     let x = Tensor::arange(0.0, 4.0, 1.0, device)?;
//!     let y = (&x * 10.0)?;
//!     let (raw, queue) = device.as_wgpu()?;
//!     let (from, to) = (x.as_wgpu_buffer()?, y.as_wgpu_buffer()?);
//!
//!     let mut commands = raw.create_command_encoder(&Default::default());
//!     commands.copy_buffer_to_buffer(from.buffer(), from.offset(), to.buffer(), to.offset(), 8);
//!     queue.submit([commands.finish()]);
//!
//!     assert_eq!(y.to_vec::<f32>()?, [0.0, 1.0, 20.0, 30.0]);
//! }
//! # Ok::<(), anygpu::Error>(())
//! ```

#[doc(no_inline)]
pub use ::wgpu;

/// The kernels that run, for `tools/cards`.
#[doc(hidden)]
pub mod launches {
    pub use crate::device::gpu::launches::{
        BoundBuffer, KernelSource, Launch, Observer, ParamsPlace, choose_kernels_as_on_hardware, observe_launches,
    };
}

use crate::autograd::no_grad;
use crate::device::gpu::TextureCopy;
use crate::device::{Backend, Device, Storage};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::ops::traced::note_use;
use crate::shape::{Shape, checked_elem_count};
use crate::tensor::Tensor;

/// The wgpu buffer that holds the elements of a tensor, and where they are in it.
///
/// [`Tensor::as_wgpu_buffer`] returns it.
#[derive(Clone, Debug)]
pub struct WgpuBuffer {
    /// Keeps the memory.
    _tensor: Tensor,
    buffer: wgpu::Buffer,
    offset: u64,
    size: u64,
}

impl WgpuBuffer {
    /// Returns the buffer. It can hold other tensors before and after the elements of this one.
    #[must_use]
    pub fn buffer(&self) -> &wgpu::Buffer {
        &self.buffer
    }

    /// Returns the byte offset in the buffer at which the elements begin.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Returns the size of the elements in bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Returns the elements as the resource of a bind group: whole words, so up to three bytes more than [`size`](Self::size).
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if the tensor has no elements, or if they begin at a byte that is not a multiple
    /// of the device's `min_storage_buffer_offset_alignment`, where no binding can begin. If a tensor is not a
    /// view, the elements of its `contiguous()` begin at byte 0.
    pub fn binding(&self) -> Result<wgpu::BindingResource<'_>> {
        let alignment = u64::from(self._tensor.device().as_wgpu()?.0.limits().min_storage_buffer_offset_alignment);
        if !self.offset.is_multiple_of(alignment) {
            let offset = self.offset;
            let detail =
                format!("the elements begin at byte {offset}, which is not a multiple of {alignment}: bind a copy");
            return Err(Error::argument("binding", detail));
        }
        let size = wgpu::BufferSize::new(self.size.next_multiple_of(4));
        let size = size.ok_or_else(|| Error::argument("binding", "a tensor without elements cannot be bound"))?;
        let (buffer, offset) = (&self.buffer, self.offset);
        Ok(wgpu::BindingResource::Buffer(wgpu::BufferBinding { buffer, offset, size: Some(size) }))
    }
}

/// Usages that a tensor's buffer must have.
const USAGES: wgpu::BufferUsages =
    wgpu::BufferUsages::STORAGE.union(wgpu::BufferUsages::COPY_SRC).union(wgpu::BufferUsages::COPY_DST);

/// Kernels write whole vectors of this many bytes.
const VECTOR: u64 = 16;

/// Rows of texels in a buffer begin at multiples of this.
const ROW: usize = wgpu::COPY_BYTES_PER_ROW_ALIGNMENT as usize;

impl Tensor {
    /// Returns the wgpu buffer that holds the elements, without a copy, and submits all recorded work of the
    /// device. See [the module](crate::interop) for the order of commands.
    ///
    /// The elements are in row-major order. An f16 or bf16 takes two bytes; a u8 or a boolean takes one.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for a tensor on `cpu`, and for a tensor that is not contiguous; errors of earlier
    /// work on the device.
    pub fn as_wgpu_buffer(&self) -> Result<WgpuBuffer> {
        let Storage::Gpu(buffer) = self.storage() else {
            let detail = "a tensor on cpu is in no buffer of wgpu: move it with .to(&device)";
            return Err(Error::argument("as_wgpu_buffer", detail));
        };
        if !self.layout().is_contiguous() {
            return Err(Error::argument(
                "as_wgpu_buffer",
                "the elements are not in row-major order: call .contiguous()",
            ));
        }
        note_use(self, "are given to the program as a buffer of wgpu");
        self.device().flush()?;
        let size = self.dtype().size();
        Ok(WgpuBuffer {
            _tensor: self.detach(),
            buffer: buffer.share().clone(),
            offset: (self.layout().offset * size) as u64,
            size: (self.elem_count() * size) as u64,
        })
    }

    /// Returns a tensor over the beginning of a buffer of the program, without a copy.
    ///
    /// The tensor holds the buffer. See [the module](crate::interop) for the order of commands.
    ///
    /// The elements are in row-major order. Several tensors of one buffer share the elements; the first one must be
    /// the longest. Methods whose names end in `_` write to the buffer, including the bytes between the tensor's
    /// end and the next multiple of 16 bytes. The buffer must not be mapped while ops use it.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if the buffer lacks one of the usages `STORAGE`, `COPY_SRC` and `COPY_DST`, if it
    /// is smaller than the elements, rounded up to 16 bytes, and for `cpu`; [`Error::LimitExceeded`] if it is too
    /// large for a binding; [`Error::Gpu`] if it belongs to another device.
    ///
    /// ```
    /// use anygpu::{DType, Device, Tensor, wgpu};
    ///
    /// for device in Device::all().iter().filter(|device| !device.is_cpu()) {
    ///     let (raw, queue) = device.as_wgpu()?;
    ///     let vertices = raw.create_buffer(&wgpu::BufferDescriptor {
    ///         label: Some("vertices"),
    ///         size: 48,
    ///         usage: wgpu::BufferUsages::VERTEX
    ///             | wgpu::BufferUsages::STORAGE
    ///             | wgpu::BufferUsages::COPY_SRC
    ///             | wgpu::BufferUsages::COPY_DST,
    ///         mapped_at_creation: false,
    ///     });
    ///     let points = Tensor::from_wgpu_buffer(&vertices, [4, 3], DType::F32, device)?;
    ///     points.copy_(&Tensor::ones([4, 3], device)?)?; // the vertices are computed where they are drawn from
    ///     assert_eq!(points.sum_all()?.item::<f32>()?, 12.0);
    /// }
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn from_wgpu_buffer(
        buffer: &wgpu::Buffer,
        shape: impl Into<Shape>,
        dtype: DType,
        device: &Device,
    ) -> Result<Tensor> {
        const NAME: &str = "from_wgpu_buffer";
        let Backend::Gpu(gpu) = device.backend()? else {
            return Err(Error::argument(NAME, format!("{device} is not a device of wgpu")));
        };
        let shape = shape.into();
        crate::ops::long::held(NAME, dtype, device)?;
        let words = dtype.words(checked_elem_count(NAME, shape.dims())?);
        if !buffer.usage().contains(USAGES) {
            let detail = format!("the buffer has the usages {:?}; a tensor needs {USAGES:?}", buffer.usage());
            return Err(Error::argument(NAME, detail));
        }
        let needed = (words as u64).saturating_mul(4).max(4).next_multiple_of(VECTOR);
        if buffer.size() < needed {
            let (has, shape) = (buffer.size(), shape.dims());
            let detail =
                format!("{shape:?} of {dtype} needs {needed} bytes, a multiple of {VECTOR}; the buffer has {has}");
            return Err(Error::argument(NAME, detail));
        }
        let most = device.info().limits.max_binding;
        if buffer.size() > most {
            return Err(gpu.limit("max_storage_buffer_binding_size", buffer.size(), most));
        }
        let buffer = gpu.adopt(buffer, words)?;
        Ok(Tensor::from_storage(Storage::Gpu(buffer), shape.dims(), dtype, device.clone()))
    }

    /// Returns the texels of a 2-D texture as a tensor `[height, width, channels]`, copied on the device. See
    /// [the module](crate::interop) for the order of commands.
    ///
    /// The elements are what the texture stores, and its format sets their type: u8 from 0 to 255 for `Rgba8Unorm`,
    /// `Rgba8UnormSrgb` (without a conversion), `Bgra8Unorm` (blue first), `R8Unorm` and so on; f16 for
    /// `Rgba16Float`; f32 for `Rgba32Float` and `R32Float`; u32 and i32 for formats of such words. Only the first
    /// mip level is read.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for other formats, several layers or samples, a texture without the usage
    /// `COPY_SRC`, and for `cpu`; [`Error::Gpu`] if the texture belongs to another device.
    pub fn from_texture(texture: &wgpu::Texture, device: &Device) -> Result<Tensor> {
        const NAME: &str = "from_texture";
        let Texels { dtype, shape: [height, width, channels], row } =
            texels(NAME, texture, wgpu::TextureUsages::COPY_SRC)?;
        let Backend::Gpu(gpu) = device.backend()? else {
            return Err(Error::argument(NAME, format!("a texture is not on {device}")));
        };
        let buffer = gpu.alloc(row / 4 * height)?;
        gpu.copy_texture(TextureCopy::FromTexture, &buffer, texture, row as u32)?;
        let rows = Tensor::from_storage(Storage::Gpu(buffer), &[height, row / dtype.size()], dtype, device.clone());
        no_grad(|| rows.narrow(1, 0, width * channels)?.contiguous()?.reshape([height, width, channels]))
    }

    /// Copies a tensor to a 2-D texture of its device, on the device.
    ///
    /// The shape is `[height, width, channels]`, as [`Tensor::from_texture`] returns it, or `[height, width]` for one
    /// channel. See there for the elements, and [the module](crate::interop) for the order of commands.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if shape or element type differ from the texture's, if the texture lacks the
    /// usage `COPY_DST`, and for a tensor on `cpu`; [`Error::Gpu`] if the texture belongs to another device.
    ///
    /// ```
    /// use anygpu::{DType, Device, Tensor, wgpu};
    ///
    /// for device in Device::all().iter().filter(|device| !device.is_cpu()) {
    ///     let texture = device.as_wgpu()?.0.create_texture(&wgpu::TextureDescriptor {
    ///         label: None,
    ///         size: wgpu::Extent3d { width: 30, height: 20, depth_or_array_layers: 1 },
    ///         mip_level_count: 1,
    ///         sample_count: 1,
    ///         dimension: wgpu::TextureDimension::D2,
    ///         format: wgpu::TextureFormat::Rgba8Unorm,
    ///         usage: wgpu::TextureUsages::COPY_SRC | wgpu::TextureUsages::COPY_DST,
    ///         view_formats: &[],
    ///     });
    ///     let image = Tensor::rand([4, 20, 30], device)?; // channels first, from 0 to 1
    ///     let bytes = (&image * 255.0)?.permute([1, 2, 0])?.round()?.to_dtype(DType::U8)?;
    ///     bytes.copy_to_texture(&texture)?;
    ///     assert_eq!(Tensor::from_texture(&texture, device)?.to_vec::<u8>()?, bytes.to_vec::<u8>()?);
    /// }
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn copy_to_texture(&self, texture: &wgpu::Texture) -> Result<()> {
        const NAME: &str = "copy_to_texture";
        let Texels { dtype, shape, row } = texels(NAME, texture, wgpu::TextureUsages::COPY_DST)?;
        let [height, width, channels] = shape;
        if self.dtype() != dtype {
            let (expected, got) = (dtype.to_string(), self.dtype().to_string());
            return Err(Error::DTypeMismatch { op: NAME, expected, got });
        }
        if self.shape() != shape && (channels != 1 || self.shape() != [height, width]) {
            let detail = format!("the texture is {shape:?} [height, width, channels], the tensor {:?}", self.shape());
            return Err(Error::argument(NAME, detail));
        }
        let Backend::Gpu(gpu) = self.device().backend()? else {
            return Err(Error::argument(NAME, "the tensor is on cpu: move it with .to(&device)"));
        };
        note_use(self, "are copied to a texture");
        let rows = no_grad(|| {
            let (line, padded) = (width * channels, row / dtype.size());
            let lines = self.detach().reshape([height, line])?;
            if line == padded && lines.layout().offset == 0 {
                return lines.contiguous();
            }
            let rows = Storage::Gpu(gpu.alloc(row / 4 * height)?);
            let rows = Tensor::from_storage(rows, &[height, padded], dtype, self.device().clone());
            rows.narrow(1, 0, line)?.copy_(&lines)?;
            Ok(rows)
        })?;
        let Storage::Gpu(buffer) = rows.storage() else { return Err(rows.misplaced()) };
        gpu.copy_texture(TextureCopy::ToTexture, buffer, texture, row as u32)
    }
}

/// A texture as a tensor.
struct Texels {
    dtype: DType,
    /// Height, width and channels.
    shape: [usize; 3],
    /// Bytes from one row to the next in a buffer.
    row: usize,
}

fn texels(op: &'static str, texture: &wgpu::Texture, usage: wgpu::TextureUsages) -> Result<Texels> {
    let wrong = |detail: String| Err(Error::argument(op, detail));
    let format = texture.format();
    let Some((dtype, channels)) = elements(format) else {
        return wrong(format!("texels of {format:?} are not the elements of a tensor"));
    };
    let (layers, samples) = (texture.depth_or_array_layers(), texture.sample_count());
    if texture.dimension() != wgpu::TextureDimension::D2 || layers != 1 || samples != 1 {
        let dimension = texture.dimension();
        return wrong(format!(
            "a 2-D texture of one layer and one sample is needed, not {dimension:?}, {layers} and {samples}"
        ));
    }
    if !texture.usage().contains(usage) {
        return wrong(format!("the texture has the usages {:?}, without {usage:?}", texture.usage()));
    }
    let (height, width) = (texture.height() as usize, texture.width() as usize);
    let row = (width * channels * dtype.size()).next_multiple_of(ROW);
    Ok(Texels { dtype, shape: [height, width, channels], row })
}

/// Returns the element type and the number of channels of texels.
fn elements(format: wgpu::TextureFormat) -> Option<(DType, usize)> {
    use wgpu::TextureFormat as Format;

    Some(match format {
        Format::R8Unorm | Format::R8Uint => (DType::U8, 1),
        Format::Rg8Unorm | Format::Rg8Uint => (DType::U8, 2),
        Format::Rgba8Unorm | Format::Rgba8UnormSrgb | Format::Rgba8Uint => (DType::U8, 4),
        Format::Bgra8Unorm | Format::Bgra8UnormSrgb => (DType::U8, 4),
        Format::R16Float => (DType::F16, 1),
        Format::Rg16Float => (DType::F16, 2),
        Format::Rgba16Float => (DType::F16, 4),
        Format::R32Float => (DType::F32, 1),
        Format::Rg32Float => (DType::F32, 2),
        Format::Rgba32Float => (DType::F32, 4),
        Format::R32Uint => (DType::U32, 1),
        Format::Rg32Uint => (DType::U32, 2),
        Format::Rgba32Uint => (DType::U32, 4),
        Format::R32Sint => (DType::I32, 1),
        Format::Rg32Sint => (DType::I32, 2),
        Format::Rgba32Sint => (DType::I32, 4),
        _ => return None,
    })
}
