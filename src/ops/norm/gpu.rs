//! The kernels of normalisations on adapters.

use anygpu_host::norm::{NormShape, Then};

use crate::device::gpu::{Buffer, FOURS, Gpu, Kernel, KernelBuilder, Shader, params, shader, wgsl};
use crate::error::{Error, Result};
use crate::ops::inputs::{elements_each, neighbours_each};
use crate::ops::reduction::plan::{Rows, Way, way};
use crate::ops::reduction::reduce::sum_parts;
use crate::ops::reduction::softmax::{LINES, ROWS};
use crate::ops::{Dense, GpuIn};

params! {
    #[derive(Default)]
    pub(super) struct Params {
        outer: usize,
        channels: usize,
        inner: usize,
        chunks: usize,
        span: usize,
        features: usize,
        run: usize,
        x_offset: usize,
        stats_offset: usize,
        w_offset: usize,
        last_offset: usize,
        residual_offset: usize,
        eps: f32,
    }
}
/// The text that precedes the shaders.
const PLACES: &str = wgsl!("norm/norm_places");
shader!(SHADER: Params = "norm/norm", after [PLACES]);
shader!(SUMS: Params = "norm/norm_sums", after [PLACES]);
shader!(IN_FOURS: Params = "norm/norm_fours", after [PLACES, FOURS]);

params! {
    struct MergeParams { channels: usize, chunks: usize, count: usize, lanes: usize }
}
shader!(MERGE: MergeParams = "norm/norm_merge", after [LINES, ROWS]);

/// A shader with one of its entry points.
pub(super) type Entry = (Shader<Params>, &'static str);

/// Elements that one invocation of an adapter adds to one part, if this makes no more than `PARTS` parts.
const PART: usize = 32;
const PARTS: usize = 1024;

/// The most elements that one invocation reads: twice this is half of what the strictest adapter allows.
const LONGEST: usize = 16 * 1024;

/// Images of fewer pixels are so short that neighbouring invocations have parts of several channels; `SHORT` in the shader.
const SHORT: usize = 32;

/// Returns the parts of the elements of each c. Part k has the elements k, k + K, …: where there are many short
/// images, pixels of one place.
pub(super) fn chunks(norm: &NormShape) -> Result<usize> {
    let (count, inner) = (norm.count(), norm.sizes[2]);
    let mut chunks = count.div_ceil(PART).clamp(1, PARTS).max(count.div_ceil(LONGEST / 2));
    if (2..SHORT).contains(&inner) && chunks >= inner {
        chunks = chunks.next_multiple_of(inner);
    }
    if chunks <= LONGEST {
        return Ok(chunks);
    }
    let most = LONGEST * LONGEST / 2;
    Err(Error::argument("norm", format!("statistics over {count} elements: an adapter's kernel takes {most}")))
}

/// Starts a kernel of this normalisation. The offsets of operands that it does not read are 0.
pub(super) fn kernel(norm: &NormShape, (shader, entry): Entry, offsets: Params) -> Result<KernelBuilder> {
    let [outer, channels, inner] = norm.sizes;
    let NormShape { span, features, eps, .. } = *norm;
    let params = Params { outer, channels, inner, chunks: chunks(norm)?, span, features, eps, ..offsets };
    let kernel = Kernel::build(shader, entry, params).constant("CENTRE", norm.centre);
    let kernel = kernel.constant("FEATURE", feature(norm));
    let kernel = kernel.constant("FIXED", norm.fixed).constant("WEIGHT", norm.weight).constant("BIAS", norm.bias);
    Ok(kernel.constant("RELU", norm.then as u8))
}

/// Starts a kernel with x, the statistics, the weight if there is one, and `last`: the bias or a gradient. The
/// residual, if there is one, has the offset of `residual`.
pub(super) fn over<'a>(
    norm: &NormShape,
    entry: Entry,
    run: usize,
    [x, stats, last]: [&'a GpuIn<'a, Dense>; 3],
    [weight, residual]: [Option<&'a GpuIn<'a, Dense>>; 2],
) -> Result<KernelBuilder> {
    let weight = weight.filter(|_| norm.weight).unwrap_or(stats); // not read without a weight
    let (x_offset, stats_offset) = (x.offset(), stats.offset());
    let (w_offset, last_offset) = (weight.offset(), last.offset());
    let residual_offset = residual.map_or(0, GpuIn::offset);
    let offsets = Params { run, x_offset, stats_offset, w_offset, last_offset, residual_offset, ..Params::default() };
    Ok(kernel(norm, entry, offsets)?.input(x).input(stats).input(weight).input(last))
}

/// Starts a kernel that computes an element from an element, in vectors of four if they can be read so, and returns
/// the number of its invocations, and whether it reads vectors.
pub(super) fn by_element<'a>(
    norm: &NormShape,
    gpu: &Gpu,
    entry: &'static str,
    [x, stats, last]: [&'a GpuIn<'a, Dense>; 3],
    further: [Option<&'a GpuIn<'a, Dense>>; 2],
) -> Result<(KernelBuilder, usize, bool)> {
    let mut operands = [x, stats, last].into_iter().chain(further.into_iter().flatten());
    let aligned = operands.all(|operand| operand.offset().is_multiple_of(4));
    let in_fours = aligned && feature(norm) != 0 && norm.sizes[2].is_multiple_of(4);
    let each = if in_fours { elements_each(gpu, true) } else { neighbours_each(gpu, elements(norm)) };
    let (shader, run) = if in_fours { (IN_FOURS, each / 4) } else { (SHADER, each) };
    let kernel = over(norm, (shader, entry), run, [x, stats, last], further)?;
    Ok((kernel, elements(norm).div_ceil(each), in_fours))
}

/// Returns where a weight's index is, see `shaders/norm/norm_places.wgsl`.
pub(super) fn feature(norm: &NormShape) -> u8 {
    match norm.sizes {
        _ if norm.by_channel() || !(norm.weight || norm.bias) => 1,
        [_, _, inner] if norm.span == 1 && norm.features == inner => 2,
        _ => 0,
    }
}

pub(super) fn elements(norm: &NormShape) -> usize {
    norm.sizes.iter().product()
}

/// Returns the kernels that compute the means and the variances `[2, C]` of x.
pub(super) fn moments(norm: &NormShape, gpu: &Gpu, x: &GpuIn<Dense>, out: &Buffer) -> Result<Vec<Kernel>> {
    let (channels, chunks) = (norm.sizes[1], chunks(norm)?);
    let parts = gpu.alloc(2 * channels * chunks)?;
    let moments = kernel(norm, (SUMS, "moments"), Params { x_offset: x.offset(), ..Params::default() })?;
    let merge = match way(gpu, Rows { sizes: [channels, chunks, 1], width: 1 })? {
        Way::Shared { lanes, .. } => {
            let params = MergeParams { channels, chunks, count: norm.count(), lanes };
            let kernel = Kernel::build(MERGE, "merge", params).input(&parts).output(out);
            kernel.workgroups(Way::workgroups(channels, lanes))
        }
        Way::Alone => kernel(norm, (SUMS, "merge"), Params::default())?.input(&parts).output(out).each(channels),
    };
    Ok(vec![moments.input(x).output(&parts).each(channels * chunks), merge])
}

/// Returns the kernels that compute Σ t and Σ t · x̂ of each c, `[2, C]`: see `GradientSums`.
pub(super) fn gradient_sums(
    norm: &NormShape,
    gpu: &Gpu,
    [x, stats, g]: [&GpuIn<Dense>; 3],
    [weight, y]: [Option<&GpuIn<Dense>>; 2],
    out: &Buffer,
) -> Result<Vec<Kernel>> {
    let parts = norm.sizes[1] * chunks(norm)?;
    let target = gpu.alloc(2 * parts)?;
    // One pipeline for both: whether there is a residual does not matter.
    let norm = NormShape { then: if y.is_some() { Then::Relu } else { Then::Nothing }, ..*norm };
    let kernel = over(&norm, (SUMS, "gradient_sums"), 1, [x, stats, g], [weight, None])?;
    let mut kernels = vec![kernel.input(y.unwrap_or(g)).output(&target).each(parts)];
    kernels.extend(sum_parts(gpu, &target, [2 * norm.sizes[1], chunks(&norm)?, 1], out)?);
    Ok(kernels)
}
