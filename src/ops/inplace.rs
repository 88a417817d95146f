//! Writes into existing storage, outside the graph: filling, and copying over.
//!
//! Each bumps the storage's version, so that a gradient that still needs the old values is refused.

use crate::device::gpu::{Buffer, Kernel};
use crate::device::{Backend, Device, Storage};
use crate::dtype::{DType, Element};
use crate::error::{Error, Result};
use crate::ops::copy::{SHADER, strided_copy, strided_kernel};
use crate::ops::dispatch::{cpu_buffer, gpu_view, grid, read_all, view};
use crate::shape::checked_elem_count;
use crate::tensor::Tensor;

/// The kernel that writes one word `count` times.
pub(super) fn fill_kernel(out: &Buffer, offset: usize, count: usize, value: u32) -> Kernel {
    Kernel {
        shader: SHADER,
        entry: "fill",
        header: "",
        constants: vec![],
        params: vec![count as u32, offset as u32, value],
        inputs: vec![],
        outputs: vec![out.clone()],
        groups: grid(count),
    }
}

/// A new tensor with one value everywhere.
pub(crate) fn filled<T: Element>(shape: &[usize], value: T, device: &Device) -> Result<Tensor> {
    let word = T::pack(&[value; 4])[0]; // as many copies as a word of any type has
    filled_words(shape, word, T::DTYPE, device)
}

/// A new tensor with one word everywhere.
pub(crate) fn filled_words(shape: &[usize], word: u32, dtype: DType, device: &Device) -> Result<Tensor> {
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
                gpu.run(fill_kernel(&buffer, 0, count, word))?;
            }
            Storage::Gpu(buffer)
        }
    };
    Ok(Tensor::from_storage(storage, shape, dtype, device.clone()))
}

/// `dst ← src`: the same shape, type and device, in storages of their own.
pub(crate) fn copy_(dst: &Tensor, src: &Tensor) -> Result<()> {
    super::same_device("copy_", &[dst, src])?;
    super::expect_dtype("copy_", src, dst.dtype())?;
    if dst.shape() != src.shape() {
        return Err(Error::shapes("copy_", dst.shape(), src.shape(), "the shapes must be equal"));
    }
    if dst.storage().id() == src.storage().id() {
        return Err(Error::argument("copy_", "source and destination share their elements"));
    }
    if dst.elem_count() == 0 {
        return Ok(());
    }
    match dst.device().backend()? {
        Backend::Cpu(_) => {
            let guards = read_all(&[src])?;
            strided_copy(&view(src, &guards)?, &mut cpu_buffer(dst)?.write(), dst.layout());
        }
        Backend::Gpu(gpu) => {
            let target = gpu_view(dst)?;
            gpu.run(strided_kernel(&gpu_view(src)?, target.buffer, dst.layout())?)?;
        }
    }
    dst.storage().bump();
    Ok(())
}
