//! Copies of several dense tensors to neighbouring places, by one kernel for seven of them.

use crate::device::gpu::{Buffer, Gpu, Kernel, Slots, params, shader};
use crate::error::Result;
use crate::ops::inputs::elements_each;
use crate::ops::shape::copy::strided_kernel;
use crate::ops::{GpuIn, Strided};
use crate::shape::Layout;

params! {
    struct Params { count: usize, run: usize, first: usize, pieces: Slots }
}
shader!(SHADER: Params = "shape/join");

/// The operands of a kernel; with the output, it has as many buffers as every WebGPU adapter allows.
const OPERANDS: usize = 7;

/// A tensor with elements, and the layout of its place in the output.
pub(super) type Part<'a> = (&'a GpuIn<'a, Strided>, &'a Layout);

/// Returns the kernels that copy `parts`, whose places follow one another, to `out`.
pub(super) fn kernels(gpu: &Gpu, parts: &[Part], out: &Buffer) -> Result<Vec<Kernel>> {
    let dense = |(input, place): &Part| input.layout().is_contiguous() && place.is_contiguous();
    if (gpu.caps().max_storage_buffers as usize) < OPERANDS + 1 || !parts.iter().all(dense) {
        return parts.iter().map(|(input, place)| strided_kernel(gpu, input, out, place)).collect();
    }
    parts.chunks(OPERANDS).map(|parts| joined(gpu, parts, out)).collect()
}

fn joined(gpu: &Gpu, parts: &[Part], out: &Buffer) -> Result<Kernel> {
    let [(only, place)] = parts else { return Ok(several(gpu, parts, out)) };
    strided_kernel(gpu, only, out, place)
}

fn several(gpu: &Gpu, parts: &[Part], out: &Buffer) -> Kernel {
    let mut numbers = parts.iter().flat_map(|(input, place)| [input.offset(), input.elem_count(), place.offset]);
    let in_fours = numbers.all(|n| n.is_multiple_of(4));
    let unit = if in_fours { 4 } else { 1 };
    let first = parts.first().map_or(0, |(_, place)| place.offset);
    let mut end = 0;
    let piece = |(input, _): &Part| {
        let start = end;
        end += input.elem_count() / unit;
        [end, (input.offset() / unit).wrapping_sub(start), 0, 0]
    };
    let pieces: Vec<[usize; 4]> = parts.iter().map(piece).collect();
    let run = elements_each(gpu, true) / 4;
    let params = Params { count: end, run, first: first / unit, pieces: Slots::new(&pieces) };
    let entry = if in_fours { "fours" } else { "join" };
    // The kernel reads as many operands as there are pieces; the last one stands for those that there are not.
    let operands = (0..OPERANDS).filter_map(|i| parts.get(i).or(parts.last()));
    let kernel = operands.fold(Kernel::build(SHADER, entry, params), |kernel, (input, _)| kernel.input(*input));
    kernel.output(out).each(end.div_ceil(run))
}
