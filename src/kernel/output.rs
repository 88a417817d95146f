//! The outputs of a kernel, and their elements before it runs.

use crate::device::Storage;
use crate::device::gpu::{Buffer, Gpu};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::ops::traced::note_use;
use crate::shape::{Shape, checked_elem_count};
use crate::tensor::Tensor;

/// An output of a [`WgslKernel`](super::WgslKernel): its shape, its element type, and its elements when the kernel
/// starts.
///
/// A pair `(shape, dtype)` is an output too.
///
/// ```
/// use anygpu::kernel::{Output, WgslKernel};
/// use anygpu::{Device, Tensor};
///
/// let saxpy = WgslKernel::new(
///     "
///     struct Params { a: f32 }
///     @group(0) @binding(0) var<uniform> params: Params;
///     @group(0) @binding(1) var<storage, read> x: array<f32>;
///     @group(0) @binding(2) var<storage, read_write> y: array<f32>;
///     @compute @workgroup_size(64)
///     fn saxpy(@builtin(global_invocation_id) id: vec3<u32>) {
///         if id.x < arrayLength(&x) { y[id.x] = params.a * x[id.x] + y[id.x]; }
///     }
///     ",
///     "saxpy",
/// )?;
/// for device in Device::all().iter().filter(|device| !device.is_cpu()) {
///     let (x, y) = (Tensor::ones([4], device)?, Tensor::arange(0.0, 4.0, 1.0, device)?);
///     let sums = saxpy.run(&[&x], &[Output::copy_of(&y)], &[2f32.to_bits()], [1, 1, 1])?;
///     assert_eq!(sums[0].to_vec::<f32>()?, [2.0, 3.0, 4.0, 5.0]);
///     assert_eq!(y.to_vec::<f32>()?, [0.0, 1.0, 2.0, 3.0]); // unchanged
/// }
/// # Ok::<(), anygpu::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Output<'a> {
    pub(super) shape: Shape,
    pub(super) dtype: DType,
    pub(super) start: Start<'a>,
}

/// The elements of an output before the kernel runs.
#[derive(Clone, Copy, Debug)]
pub(super) enum Start<'a> {
    /// Zeros by default. A kernel that reads its output needs one of the other variants.
    Unspecified,
    /// Zeros, by the choice of the caller.
    Zeros,
    /// The elements of a tensor.
    CopyOf(&'a Tensor),
}

impl<'a> Output<'a> {
    /// Creates an output that starts as zeros, also for a kernel that reads it before it writes it.
    pub fn zeros(shape: impl Into<Shape>, dtype: DType) -> Output<'a> {
        Output { shape: shape.into(), dtype, start: Start::Zeros }
    }

    /// Creates an output that starts as a copy of a tensor, with its shape and element type. The tensor itself is not
    /// changed.
    #[must_use]
    pub fn copy_of(tensor: &'a Tensor) -> Output<'a> {
        Output { shape: tensor.shape().into(), dtype: tensor.dtype(), start: Start::CopyOf(tensor) }
    }
}

/// An output that starts as zeros, of a kernel that does not read it.
impl<S: Into<Shape>> From<(S, DType)> for Output<'_> {
    fn from((shape, dtype): (S, DType)) -> Self {
        Output { shape: shape.into(), dtype, start: Start::Unspecified }
    }
}

/// A new buffer for an output, with its starting elements.
pub(super) fn started(gpu: &Gpu, output: &Output) -> Result<Buffer> {
    let count = checked_elem_count("WgslKernel::run", output.shape.dims())?;
    let buffer = gpu.alloc(output.dtype.words(count))?;
    match output.start {
        Start::CopyOf(tensor) => gpu.copy(&dense(gpu, tensor)?, 0, &buffer, 0, buffer.len())?,
        Start::Zeros | Start::Unspecified => gpu.clear(&buffer)?,
    }
    Ok(buffer)
}

/// The elements of a tensor as a buffer of exactly their words.
pub(super) fn dense(gpu: &Gpu, tensor: &Tensor) -> Result<Buffer> {
    note_use(tensor, "are read by a kernel of the user");
    let dtype = tensor.dtype();
    // Elements that begin in the middle of a word have to be moved.
    let moved = !tensor.layout().offset.is_multiple_of(dtype.per_word());
    let tensor = if moved { tensor.copy()? } else { tensor.contiguous()? };
    let (offset, len) = (dtype.word_of(tensor.layout().offset), dtype.words(tensor.elem_count()));
    match tensor.storage() {
        Storage::Gpu(buffer) if offset == 0 && buffer.len() == len => Ok(buffer.clone()),
        Storage::Gpu(buffer) => {
            let copy = gpu.alloc(len)?;
            gpu.copy(buffer, offset, &copy, 0, len)?;
            Ok(copy)
        }
        Storage::Cpu(_) => {
            Err(Error::internal(format!("the storage of a tensor is not on its device, {}", tensor.device())))
        }
    }
}
