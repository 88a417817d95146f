//! What ops see of their inputs on either backend, and the arithmetic of grids that their kernels share.

use std::sync::Arc;

use crate::device::Storage;
use crate::device::cpu::{CpuBuffer, ReadGuard};
use crate::device::gpu::Buffer;
use crate::dtype::{DType, Word};
use crate::error::{Error, Result};
use crate::shape::Layout;
use crate::tensor::Tensor;

/// Invocations per workgroup of all one-dimensional kernels (`WG` in the shaders).
pub(crate) const WORKGROUP: usize = 64;

/// The most workgroups in one dimension that every WebGPU adapter takes.
const MAX_GROUPS: usize = 65_535;

/// The most dimensions that a strided kernel walks (after neighbouring dimensions were merged).
pub(crate) const MAX_RANK: usize = 8;

/// Headers for shaders that are written once for all element types.
pub(crate) const SCALAR_HEADERS: [&str; 3] = ["alias T = f32;\n", "alias T = i32;\n", "alias T = u32;\n"];

/// The header that makes `T` the given type, or that in which packed types are computed.
pub(crate) fn scalar_header(dtype: DType) -> &'static str {
    match dtype.wide() {
        DType::F32 => SCALAR_HEADERS[0],
        DType::I32 => SCALAR_HEADERS[1],
        _ => SCALAR_HEADERS[2],
    }
}

/// An input on the host: its whole storage and where its elements lie.
pub(crate) struct CpuIn<'a> {
    pub words: &'a [u32],
    pub layout: &'a Layout,
    pub dtype: DType,
}

impl<'a> CpuIn<'a> {
    /// The whole storage as elements of one type; index it through the layout.
    pub fn all<T: Word>(&self) -> &'a [T] {
        bytemuck::cast_slice(self.words)
    }

    /// The elements of a contiguous input.
    pub fn slice<T: Word>(&self) -> &'a [T] {
        debug_assert!(self.layout.is_contiguous());
        &self.all()[self.layout.offset..self.layout.offset + self.layout.elem_count()]
    }
}

/// The output's elements on the host.
pub(crate) struct CpuOut<'a>(pub &'a mut [u32]);

impl<'a> CpuOut<'a> {
    pub fn slice<T: Word>(self) -> &'a mut [T] {
        bytemuck::cast_slice_mut(self.0)
    }
}

/// An input on an adapter.
pub(crate) struct GpuIn<'a> {
    pub buffer: &'a Buffer,
    pub layout: &'a Layout,
    pub dtype: DType,
}

impl GpuIn<'_> {
    /// Where the first element lies, as a kernel parameter.
    pub fn offset(&self) -> u32 {
        self.layout.offset as u32
    }
}

/// Read locks by storage identity.
pub(crate) type Guards<'a> = Vec<(usize, ReadGuard<'a>)>;

/// Locks each distinct storage of the inputs once: taking one lock twice could deadlock with a waiting writer.
pub(crate) fn read_all<'a>(inputs: &[&'a Tensor]) -> Result<Guards<'a>> {
    let mut guards: Guards<'a> = Vec::with_capacity(inputs.len());
    for tensor in inputs {
        if guards.iter().all(|(id, _)| *id != tensor.storage().id()) {
            guards.push((tensor.storage().id(), cpu_buffer(tensor)?.read()));
        }
    }
    Ok(guards)
}

/// The input as its op sees it on the host.
pub(crate) fn view<'a>(tensor: &'a Tensor, guards: &'a Guards<'_>) -> Result<CpuIn<'a>> {
    let guard = guards.iter().find(|(id, _)| *id == tensor.storage().id());
    let (_, words) = guard.ok_or_else(|| misplaced(tensor))?;
    Ok(CpuIn { words, layout: tensor.layout(), dtype: tensor.dtype() })
}

pub(crate) fn gpu_view(tensor: &Tensor) -> Result<GpuIn<'_>> {
    match tensor.storage() {
        Storage::Gpu(buffer) => Ok(GpuIn { buffer, layout: tensor.layout(), dtype: tensor.dtype() }),
        Storage::Cpu(_) => Err(misplaced(tensor)),
    }
}

pub(crate) fn cpu_buffer(tensor: &Tensor) -> Result<&Arc<CpuBuffer>> {
    match tensor.storage() {
        Storage::Cpu(buffer) => Ok(buffer),
        Storage::Gpu(_) => Err(misplaced(tensor)),
    }
}

/// A tensor whose storage is not where its device says: a bug in this crate, reported instead of a panic.
fn misplaced(tensor: &Tensor) -> Error {
    let (device, shape) = (tensor.device(), tensor.shape());
    Error::internal(format!("the storage of a tensor of shape {shape:?} is not on its device, {device}"))
}

/// The workgroups for `invocations` of a one-dimensional kernel, folded over y where x is not enough.
///
/// The shaders undo this with `(wid.y * nwg.x + wid.x) * WG + lid`; surplus invocations check their index.
pub(crate) fn grid(invocations: usize) -> [u32; 3] {
    fold(invocations.div_ceil(WORKGROUP))
}

/// `groups` workgroups folded over x and y.
pub(crate) fn fold(groups: usize) -> [u32; 3] {
    let rows = groups.div_ceil(MAX_GROUPS).max(1);
    [groups.div_ceil(rows) as u32, rows as u32, 1]
}

/// Checks that element indices of a kernel fit the shader's 32 bits.
pub(crate) fn fits_u32(op: &'static str, count: usize) -> Result<u32> {
    u32::try_from(count).map_err(|_| Error::argument(op, format!("{count} elements exceed the 2^32 of one kernel")))
}

/// Merges neighbouring dimensions that all given stride sets walk without a gap; drops those of size 1.
pub(crate) fn collapse<const K: usize>(shape: &[usize], strides: [&[usize]; K]) -> (Vec<usize>, [Vec<usize>; K]) {
    let mut dims: Vec<usize> = Vec::new();
    let mut merged: [Vec<usize>; K] = std::array::from_fn(|_| Vec::new());
    for d in 0..shape.len() {
        if shape[d] == 1 {
            continue;
        }
        let joins = !dims.is_empty()
            && (0..K).all(|k| merged[k].last().is_some_and(|&s| s == strides[k][d].wrapping_mul(shape[d])));
        if joins {
            let last = dims.len() - 1;
            dims[last] *= shape[d];
            (0..K).for_each(|k| merged[k][last] = strides[k][d]);
        } else {
            dims.push(shape[d]);
            (0..K).for_each(|k| merged[k].push(strides[k][d]));
        }
    }
    if dims.is_empty() {
        dims.push(1);
        merged.iter_mut().for_each(|s| s.push(0));
    }
    (dims, merged)
}

/// The parameters of a kernel that walks two strided operands: counts, offsets, then shape and strides in eight slots each.
pub(crate) fn strided_params(
    op: &'static str,
    shape: &[usize],
    a: (&[usize], usize),
    b: (&[usize], usize),
) -> Result<Vec<u32>> {
    let (dims, [sa, sb]) = collapse(shape, [a.0, b.0]);
    if dims.len() > MAX_RANK {
        return Err(Error::argument(op, format!("a layout of more than {MAX_RANK} separate dimensions: {shape:?}")));
    }
    let count = fits_u32(op, shape.iter().product())?;
    let mut params = vec![count, dims.len() as u32, a.1 as u32, b.1 as u32];
    for list in [&dims, &sa, &sb] {
        params.extend((0..MAX_RANK).map(|d| list.get(d).map_or(0, |&v| v as u32)));
    }
    Ok(params)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn collapse_merges_what_all_operands_walk_alike() {
        let (dims, [a, b]) = collapse(&[2, 3, 4], [&[12, 4, 1], &[12, 4, 1]]);
        assert_eq!((dims, a, b), (vec![24], vec![1], vec![1]));
        let (dims, [a, b]) = collapse(&[2, 3, 4], [&[12, 4, 1], &[0, 4, 1]]);
        assert_eq!((dims, a, b), (vec![2, 12], vec![12, 1], vec![0, 1]));
        let (dims, [a]) = collapse(&[1, 1], [&[5, 5]]);
        assert_eq!((dims, a), (vec![1], vec![0]));
    }

    #[test]
    fn a_misplaced_storage_is_a_bug_of_the_crate_not_of_the_driver() {
        let error = misplaced(&Tensor::zeros([2], None).unwrap());
        assert!(matches!(error, Error::Internal { .. }), "{error:?}");
        let text = error.to_string();
        assert!(text.contains("[2]") && text.contains("cpu") && text.contains("bug in anygpu"), "{text}");
    }

    #[test]
    fn large_grids_fold_over_y() {
        assert_eq!(grid(1), [1, 1, 1]);
        assert_eq!(grid(64 * 65_535), [65_535, 1, 1]);
        let [x, y, _] = grid(64 * 65_536);
        assert!(x <= 65_535 && y == 2 && x * y >= 65_536);
    }
}
