//! Writes to existing storage, outside the graph: filling and copying.
//!
//! Each write increases the version of the storage. A gradient that needs the old values is then an error.

use crate::device::cpu::with_room;
use crate::device::gpu::{Buffer, Kernel, params, shader};
use crate::device::{Backend, Device, Storage};
use crate::dtype::{DType, Element};
use crate::error::{Error, Result};
use crate::ops::elementwise::cast::{narrowed, widened};
use crate::ops::inputs::lock_all;
use crate::ops::long::{self, pairs};
use crate::ops::parts::{Part, copies, fills};
use crate::ops::shape::copy::{duplicate, strided_copy};
use crate::ops::traced::note_write;
use crate::ops::{CpuIn, GpuIn, Operand, Scalar, Strided, expect_dtype, named, same_device};
use crate::shape::{Layout, broadcast_shapes, checked_elem_count};
use crate::tensor::Tensor;

params! {
    struct FillParams { count: usize, offset: usize, value: u32 }
}
shader!(FILL: FillParams = "fill");

/// Returns the kernel that writes one word `count` times.
pub(super) fn fill_kernel(out: &Buffer, offset: usize, count: usize, value: u32) -> Kernel {
    Kernel::build(FILL, "fill", FillParams { count, offset, value }).output(out).each(count)
}

/// Returns a new tensor in which every element is `value`.
pub(crate) fn filled<T: Element>(shape: &[usize], value: T, device: &Device) -> Result<Tensor> {
    if T::DTYPE.is_long() {
        checked_elem_count("full", shape)?;
        return duplicate(&long::scalar(value.bits(), T::DTYPE, device)?.broadcast_to(shape)?);
    }
    let word = T::pack(&[value; 4], with_room)?[0]; // a word of any type has at most 4 elements
    filled_words(shape, word, T::DTYPE, device)
}

/// Returns a new tensor in which every word is `word`.
pub(crate) fn filled_words(shape: &[usize], word: u32, dtype: DType, device: &Device) -> Result<Tensor> {
    long::held("full", dtype, device)?;
    let count = dtype.words(checked_elem_count("full", shape)?);
    let storage = match device.backend()? {
        Backend::Cpu(cpu) => {
            let buffer = cpu.alloc(count)?;
            buffer.write()[..count].fill(word);
            Storage::Cpu(buffer)
        }
        Backend::Gpu(gpu) => {
            let buffer = gpu.alloc(count)?;
            if count > 0 {
                fills(gpu, &buffer, count, word).into_iter().try_for_each(|kernel| gpu.run(kernel))?;
            }
            Storage::Gpu(buffer)
        }
    };
    Ok(Tensor::from_storage(storage, shape, dtype, device.clone()))
}

/// Returns 0, 1, … as u32, made on the device.
pub(crate) fn iota(count: u32, device: &Device) -> Result<Tensor> {
    let size = count as usize;
    let storage = match device.backend()? {
        Backend::Cpu(cpu) => {
            let buffer = cpu.alloc(size)?;
            buffer.write().iter_mut().zip(0..count).for_each(|(word, i)| *word = i);
            Storage::Cpu(buffer)
        }
        Backend::Gpu(gpu) => {
            let buffer = gpu.alloc(size)?;
            let params = FillParams { count: size, offset: 0, value: 0 };
            gpu.run(Kernel::build(FILL, "iota", params).output(&buffer).each(size))?;
            Storage::Gpu(buffer)
        }
    };
    Ok(Tensor::from_storage(storage, &[size], DType::U32, device.clone()))
}

/// Copies `src` to `dst`, which has the same shape, type and device, and another storage.
pub(crate) fn copy_(dst: &Tensor, src: &Tensor) -> Result<()> {
    same_device("copy_", &[dst, src])?;
    expect_dtype("copy_", src, dst.dtype())?;
    if dst.shape() != src.shape() {
        return Err(Error::shapes("copy_", dst.shape(), src.shape(), "the shapes must be equal"));
    }
    if dst.storage().id() == src.storage().id() {
        return Err(Error::argument("copy_", "source and destination share their elements"));
    }
    if dst.elem_count() == 0 {
        return Ok(());
    }
    note_write("copy_", dst, Some(src));
    if dst.dtype().is_long() {
        return copy_(&pairs(dst), &pairs(src));
    }
    if dst.dtype().is_packed() {
        return copy_packed(dst, src);
    }
    match dst.device().backend()? {
        Backend::Cpu(_) => {
            let (read, mut written) = lock_all(&[src], &[dst])?;
            strided_copy(&CpuIn::new(src, &read)?, &mut written[0], dst.layout());
        }
        Backend::Gpu(gpu) => {
            let (from, target) = (Part::of(&GpuIn::<Strided>::new(src)?), GpuIn::<Strided>::new(dst)?);
            copies(gpu, &from, target.buffer(), dst.layout())?.into_iter().try_for_each(|kernel| gpu.run(kernel))?;
        }
    }
    dst.storage().bump();
    Ok(())
}

/// Returns an error if a tensor is in the gradient graph. `what` names the role of the tensor in `op`.
fn refuse_graph(op: &'static str, what: &str, tensor: &Tensor) -> Result<()> {
    if !tensor.is_tracked() || !crate::autograd::is_recording() {
        return Ok(());
    }
    let detail =
        format!("{what} is in the gradient graph, which an in-place write would break: detach() it, or use no_grad");
    Err(Error::argument(op, detail))
}

/// Copies `src` to `dst` for a user: broadcasts and converts `src`, and duplicates it first if both have one storage.
fn assign(op: &'static str, dst: &Tensor, src: &Tensor) -> Result<()> {
    refuse_graph(op, "the tensor", dst)?;
    refuse_graph(op, "the source", src)?;
    same_device(op, &[dst, src])?;
    if broadcast_shapes(op, dst.shape(), src.shape())? != dst.shape() {
        return Err(Error::shapes(op, dst.shape(), src.shape(), "the source must broadcast to the tensor"));
    }
    let repeats = |(&size, &stride): (&usize, &usize)| size > 1 && stride == 0;
    if dst.layout().shape.iter().zip(&dst.layout().strides).any(repeats) {
        return Err(Error::argument(
            op,
            "the tensor shows some elements more than once (it was broadcast): it cannot be written",
        ));
    }
    let _guard = crate::NoGrad::new();
    named(op, || {
        let mut src = src.detach().to_dtype(dst.dtype())?.broadcast_to(dst.shape())?;
        if src.storage().id() == dst.storage().id() {
            src = duplicate(&src)?;
        }
        copy_(dst, &src)
    })
}

/// Copies `src` to `dst` if elements share words. A view may begin and end within a word, so this widens all words from
/// the first of the view to the last, copies, and narrows them again.
fn copy_packed(dst: &Tensor, src: &Tensor) -> Result<()> {
    let (layout, per_word) = (dst.layout(), dst.dtype().per_word());
    let reach: usize = layout.shape.iter().zip(&layout.strides).map(|(size, stride)| (size - 1) * stride).sum();
    let first = layout.offset / per_word;
    let words = (layout.offset + reach) / per_word + 1 - first;
    let wide = widened(&dst.tensor_at_word(first, &[words * per_word], dst.dtype())?)?;
    let place = Layout { offset: layout.offset - first * per_word, ..layout.clone() };
    copy_(&wide.with_layout(place), &widened(src)?)?;
    let back = narrowed(&wide, dst.dtype())?;
    copy_(&dst.tensor_at_word(first, &[words], DType::U32)?, &back.tensor_at_word(0, &[words], DType::U32)?)
}

/// Defines methods that replace the elements of `self` by the elements of `self ∘ other`.
macro_rules! assigning {
    ($($(#[$doc:meta])* $name:ident = $method:ident;)*) => {
        impl Tensor {
            $(
                $(#[$doc])*
                ///
                /// `other`, a tensor or a number, is broadcast to this tensor. The result must have the type of this
                /// tensor. On a view, this writes the elements that the view shows.
                ///
                /// # Errors
                /// Same as [`Tensor::copy_`]; [`Error::DTypeMismatch`] if the result has another type.
                pub fn $name<'a>(&self, other: impl Into<Operand<'a>>) -> Result<()> {
                    let other = other.into();
                    refuse_graph(stringify!($name), "the tensor", self)?;
                    if let Operand::Tensor(other) = other {
                        refuse_graph(stringify!($name), "the other operand", other)?;
                    }
                    let result = named(stringify!($name), || crate::no_grad(|| self.$method(other)))?;
                    expect_dtype(stringify!($name), &result, self.dtype())?;
                    assign(stringify!($name), self, &result)
                }
            )*
        }
    };
}

assigning! {
    /// Adds `other` in place: `self ← self + other`.
    ///
    /// ```
    /// use anygpu::{Tensor, s};
    ///
    /// let data = Tensor::zeros([2, 3], None)?;
    /// data.i(s![0])?.add_(&Tensor::new([1.0, 2.0, 3.0], None)?)?; // data[0][:] += …
    /// assert_eq!(data.to_vec::<f32>()?, [1.0, 2.0, 3.0, 0.0, 0.0, 0.0]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    add_ = add;
    /// Subtracts `other` in place: `self ← self − other`.
    sub_ = sub;
    /// Multiplies by `other` in place: `self ← self · other`.
    mul_ = mul;
    /// Divides by `other` in place: `self ← self / other`.
    div_ = div;
}

impl Tensor {
    /// Overwrites the elements with the elements of `src`. `src` is broadcast to this tensor's shape and converted to
    /// its type.
    ///
    /// All tensors that share the elements change too. On a view, this writes the elements that the view shows. If a
    /// gradient needs the old values, computing it is an error.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if either tensor is in the gradient graph (outside of [`no_grad`](crate::no_grad)),
    /// or this one shows some elements more than once; [`Error::ShapeMismatch`]; [`Error::DeviceMismatch`].
    ///
    /// ```
    /// use anygpu::{Tensor, s};
    ///
    /// let x = Tensor::zeros([2, 2], None)?;
    /// x.i(s![.., 1])?.copy_(&Tensor::new([5.0, 6.0], None)?)?;
    /// assert_eq!(x.to_vec::<f32>()?, [0.0, 5.0, 0.0, 6.0]);
    /// assert!(x.requires_grad().copy_(&x).is_err());
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn copy_(&self, src: &Tensor) -> Result<()> {
        assign("copy_", self, src)
    }

    /// Overwrites all elements with the number `value`. For integer tensors, a fraction is cut off.
    ///
    /// # Errors
    /// Same as [`Tensor::copy_`]; [`Error::InvalidArgument`] for a whole number outside this tensor's type.
    ///
    /// ```
    /// # use anygpu::{Tensor, s};
    /// let x = Tensor::ones([4], None)?;
    /// x.i(s![..;2])?.fill_(7)?;
    /// assert_eq!(x.to_vec::<f32>()?, [7.0, 1.0, 7.0, 1.0]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn fill_(&self, value: impl Into<Scalar>) -> Result<()> {
        let value = match value.into() {
            Scalar::Float(value) if self.dtype() == DType::F64 => {
                long::scalar(value.to_bits(), DType::F64, self.device())?
            }
            Scalar::Float(value) if self.dtype() == DType::I64 => Tensor::scalar(value as i64, self.device())?,
            Scalar::Float(value) => Tensor::scalar(value as f32, self.device())?,
            whole => whole.tensor("fill_", self.dtype(), self.device())?,
        };
        assign("fill_", self, &value)
    }

    /// Overwrites all elements with 0.
    ///
    /// # Errors
    /// Same as [`Tensor::copy_`].
    pub fn zero_(&self) -> Result<()> {
        named("zero_", || self.fill_(0.0))
    }
}
