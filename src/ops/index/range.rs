//! Indices that are out of range: an error at once on the host, and at the next wait on an adapter.

use crate::device::gpu::{Checked, Gpu, Kernel, params, shader};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::ops::named::caller_or;
use crate::ops::{Dense, GpuIn};

params! {
    struct Params { count: usize, offset: usize, size: usize, ignored: u32, op: u32 }
}
shader!(SHADER: Params = "index/index_check");

/// Checks that every index is less than `size`.
pub(in crate::ops) fn check_indices(op: &'static str, index: &[u32], size: usize) -> Result<()> {
    match index.iter().find(|&&i| i as usize >= size) {
        None => Ok(()),
        Some(i) => Err(Error::argument(op, format!("index {} is not within a dimension of {size}", *i as i32))),
    }
}

/// Returns the kernel that reports an index that is not less than `size` and not `ignored`.
pub(in crate::ops) fn check_on_adapter(
    gpu: &Gpu,
    op: &'static str,
    index: &GpuIn<Dense>,
    size: usize,
    ignored: Option<u32>,
) -> Result<Kernel> {
    kernel(gpu, (op, Checked::Index), index, size, ignored)
}

/// Returns the kernel that reports a label that is no class and not `ignored`. The user gave the labels in elements of `dtype`.
pub(in crate::ops) fn check_labels_on_adapter(
    gpu: &Gpu,
    (op, dtype): (&'static str, DType),
    labels: &GpuIn<Dense>,
    classes: usize,
    ignored: Option<u32>,
) -> Result<Kernel> {
    kernel(gpu, (op, Checked::Label(dtype)), labels, classes, ignored)
}

fn kernel(
    gpu: &Gpu,
    (op, checked): (&'static str, Checked),
    index: &GpuIn<Dense>,
    size: usize,
    ignored: Option<u32>,
) -> Result<Kernel> {
    let (record, number) = gpu.fault_record(caller_or(op), checked)?;
    let (count, offset) = (index.elem_count(), index.offset());
    let params = Params { count, offset, size, ignored: ignored.unwrap_or(0), op: number };
    let kernel = Kernel::build(SHADER, "index_check", params).constant("IGNORE", ignored.is_some());
    Ok(kernel.input(index).output(&record).each(count).checking())
}
