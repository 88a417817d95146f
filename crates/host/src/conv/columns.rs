//! A convolution on the host as a product of matrices. The pixels under its kernels are copied into panels for it, a few
//! at a time, which stay in a cache.

use std::ops::Range;

use super::Sizes;
use super::patches::Patches;
use crate::matmul::plan::SMALL;
use crate::matmul::tiles::{Left, Start, panel_width};
use crate::memory::{Result, scratch};
use crate::tasks::{share, try_map, try_share};

/// The approximate number of output pixels of a task.
const COLUMNS: usize = 256;

/// The approximate number of elements of the panels that a task multiplies at a time (at least one panel), and of
/// the columns that it adds to an image (at least the columns of one channel).
const PANELS: usize = 64 << 10;
const ADDED: usize = 128 << 10;

/// The output pixels of which the weight's gradient is added up at a time.
const TERMS: usize = 256;

/// The fewest rows of a product for which a task of its own is worth the panels that each task writes.
const FEWEST_ROWS: usize = 16;

/// `PART`: the approximate number of output pixels that one part of the weight's gradient adds. Then the most parts,
/// and the most elements of all parts together. As constants they keep the order of additions, and so the result,
/// independent of the number of cores.
const PART: usize = 1024;
const MOST_PARTS: usize = 16;
const MOST_PARTIAL: usize = 4 << 20;

/// A part of the result: some planes of a group, of one image or of several.
pub(super) struct Task<'a> {
    pub images: Range<usize>,
    pub group: usize,
    pub planes: Range<usize>,
    /// The place of the part among the parts of an image.
    pub part: usize,
    /// The planes of each image.
    pub out: Vec<&'a mut [f32]>,
}

impl Sizes {
    /// Returns the images of a task, at most `most`: about [`COLUMNS`] output pixels, which leave little of their last panel
    /// unused.
    fn images_each(&self, most: usize) -> usize {
        let (pixels, width, most) = (self.window.pixels(), panel_width(), most.min(self.images).max(1));
        let least = (COLUMNS / pixels).clamp(1, most);
        let unused = |images: &usize| (images * pixels).next_multiple_of(width) * 1000 / (images * pixels);
        (least..=(2 * least - 1).min(most)).min_by_key(unused).unwrap_or(least)
    }

    /// Returns how many columns of a matrix `[depth, _]` a task multiplies at a time: whole panels.
    fn columns_each(depth: usize) -> usize {
        let width = panel_width();
        (PANELS / (depth * width).max(1)).clamp(1, COLUMNS / width) * width
    }
}

/// Cuts `[groups, rows]` into ranges of rows of a group: at most `most` rows each, and enough ranges to keep all threads
/// busy if there are `tasks` tasks without this.
fn ranges(groups: usize, rows: usize, most: usize, tasks: usize) -> Vec<(usize, Range<usize>)> {
    let threads = rayon::current_num_threads().div_ceil((tasks * groups).max(1));
    let count = rows.div_ceil(most.max(1)).max(threads.min(rows / FEWEST_ROWS)).max(1);
    let of_group = |group| (0..count).map(move |i| (group, i * rows / count..(i + 1) * rows / count));
    (0..groups).flat_map(of_group).collect()
}

/// Cuts images `[N, C, H, W]` into tasks.
pub(super) fn tasks<'a>(
    out: &'a mut [f32],
    (image, plane): (usize, usize),
    images: usize,
    parts: &[(usize, Range<usize>)],
) -> Vec<Task<'a>> {
    let mut tasks: Vec<Task> = Vec::new();
    for (n, mut rest) in out.chunks_mut(image).enumerate() {
        for (part, (group, planes)) in parts.iter().enumerate() {
            let (out, others) = rest.split_at_mut(planes.len() * plane);
            rest = others;
            let at = n / images * parts.len() + part;
            if n % images == 0 {
                let (group, planes) = (*group, planes.clone());
                tasks.push(Task { images: n..n, group, planes, part, out: Vec::with_capacity(images) });
            }
            if let Some(task) = tasks.get_mut(at) {
                task.images.end = n + 1;
                task.out.push(out);
            }
        }
    }
    tasks
}

/// As [`super::forward`], without what follows.
pub fn forward(g: &Sizes, x: &[f32], w: &[f32], bias: Option<&[f32]>, out: &mut [f32]) -> Result<()> {
    let (depth, wide, each) = (g.depth(), g.group_out(), g.images_each(g.most_images()));
    let parts = ranges(g.groups, wide, wide, g.images.div_ceil(each));
    let weights = |(group, rows): &(usize, Range<usize>)| {
        Left::from(&w[(group * wide + rows.start) * depth..], [depth, 1], [rows.len(), depth])
    };
    let small = g.images * g.out_image() * depth <= SMALL;
    let weights: Vec<Left> = match small {
        true => parts.iter().map(weights).collect::<Result<_>>()?,
        false => try_map(&parts, weights)?,
    };
    let tasks = tasks(out, (g.out_image(), g.window.pixels()), each, &parts);
    let compute = |task: Task| {
        let first = task.group * wide + task.planes.start;
        let bias = bias.map_or(Start::Zero, |bias| Start::Rows(&bias[first..first + task.planes.len()]));
        forward_task(g, x, &weights[task.part], bias, task)
    };
    match small {
        true => tasks.into_iter().try_for_each(compute),
        false => try_share(tasks, 1, compute),
    }
}

fn forward_task(g: &Sizes, x: &[f32], weights: &Left, bias: Start, mut task: Task) -> Result<()> {
    let (depth, pixels, width) = (g.depth(), g.window.pixels(), panel_width());
    let patches = Patches::of_images(g, x, task.images.clone(), task.group)?;
    let step = Sizes::columns_each(depth);
    let mut panels = scratch(step * depth)?;
    if pixels >= COLUMNS {
        for (n, out) in task.out.iter_mut().enumerate() {
            for first in (0..pixels).step_by(step) {
                let columns = step.min(pixels - first);
                patches.columns(n * pixels + first..n * pixels + first + columns, width, &mut panels);
                weights.multiply(&panels, columns, bias, &mut out[first..], pixels);
            }
        }
        return Ok(());
    }
    let mut sums = scratch(step * task.planes.len())?;
    let all = task.out.len() * pixels;
    for first in (0..all).step_by(step) {
        let columns = step.min(all - first);
        patches.columns(first..first + columns, width, &mut panels);
        weights.multiply(&panels, columns, bias, &mut sums, step);
        for (n, out) in task.out.iter_mut().enumerate() {
            let [from, to] = [n * pixels, (n + 1) * pixels].map(|q| q.clamp(first, first + columns));
            if from == to {
                continue;
            }
            for (out, sums) in out.chunks_exact_mut(pixels).zip(sums.chunks_exact(step)) {
                out[from.saturating_sub(n * pixels)..][..to - from].copy_from_slice(&sums[from - first..to - first]);
            }
        }
    }
    Ok(())
}

/// As [`super::input_grad`].
pub fn input_grad(g: &Sizes, dy: &[f32], w: &[f32], dx: &mut [f32]) -> Result<()> {
    let (depth, taps, wide, each) = (g.depth(), g.window.taps(), g.group_out(), g.images_each(g.images));
    let columns = each * g.window.pixels();
    let parts = ranges(g.groups, g.group_channels(), ADDED / (taps * columns), g.images.div_ceil(each));
    let weights = |(group, channels): &(usize, Range<usize>)| {
        let w = w.get(group * g.group_weights() + channels.start * taps..).unwrap_or_default();
        Left::from(w, [1, depth], [channels.len() * taps, wide])
    };
    let weights: Vec<Left> = try_map(&parts, weights)?;
    let tasks = tasks(dx, (g.image(), g.window.plane()), each, &parts);
    try_share(tasks, 1, |task| {
        let (pixels, width) = (g.window.pixels(), panel_width());
        let columns = task.out.len() * pixels;
        let step = Sizes::columns_each(wide);
        let mut panels = scratch(step * wide)?;
        let patches = Patches::of_results(g, dy, task.images.clone(), task.group);
        let [before, after] = g.margins();
        let mut cols = scratch(before + task.planes.len() * taps * columns + after)?;
        for first in (0..columns).step_by(step) {
            let some = first..columns.min(first + step);
            patches.columns(some.clone(), width, &mut panels);
            weights[task.part].multiply(&panels, some.len(), Start::Zero, &mut cols[before + first..], columns);
        }
        for (n, dx) in task.out.into_iter().enumerate() {
            g.col2im(&cols[n * pixels..], columns, dx);
        }
        Ok(())
    })
}

/// As [`super::weight_grad`].
pub fn weight_grad(g: &Sizes, dy: &[f32], x: &[f32], dw: &mut [f32]) -> Result<()> {
    by_parts(g, dw, |images, parts, dw| {
        let ranges = ranges(g.groups, g.group_out(), g.group_out(), parts);
        let tasks = tasks(dw, (g.groups * g.group_weights(), g.depth()), 1, &ranges);
        try_share(tasks, 1, |mut task| match &mut task.out[..] {
            [dw] => add_rows(g, dy, x, images.clone(), (task.group, task.planes), dw),
            _ => Ok(()),
        })
    })
}

/// Computes a gradient of the weight as a sum over parts of the batch: each in its own buffer, or in `dw` if there
/// is only one. `add` is given the images of a part, at least one, and the number of parts.
pub(super) fn by_parts(
    g: &Sizes,
    dw: &mut [f32],
    add: impl Fn(Range<usize>, usize, &mut [f32]) -> Result<()> + Sync,
) -> Result<()> {
    if g.images == 0 {
        dw.fill(0.0);
        return Ok(());
    }
    let most = (MOST_PARTIAL / dw.len().max(1)).clamp(1, MOST_PARTS).min(g.images);
    let parts = (g.images * g.window.pixels() / PART).clamp(1, most);
    if parts == 1 {
        return add(0..g.images, 1, dw);
    }
    let len = dw.len();
    let mut sums = scratch(parts * len)?;
    try_share(sums.chunks_mut(len).enumerate(), 1, |(part, sums)| {
        add(part * g.images / parts..(part + 1) * g.images / parts, parts, sums)
    })?;
    add_parts(&sums, dw);
    Ok(())
}

/// Writes the sum of parts, each as long as the result.
pub(super) fn add_parts(parts: &[f32], out: &mut [f32]) {
    let len = out.len();
    share(out.chunks_mut(4096).enumerate(), 1, |(i, out)| {
        out.copy_from_slice(&parts[i * 4096..][..out.len()]);
        for part in parts[len..].chunks_exact(len) {
            out.iter_mut().zip(&part[i * 4096..]).for_each(|(out, v)| *out += v);
        }
    });
}

/// Computes some rows of a group's part of the weight's gradient, `[rows, depth]`.
fn add_rows(
    g: &Sizes,
    dy: &[f32],
    x: &[f32],
    images: Range<usize>,
    (group, rows): (usize, Range<usize>),
    dw: &mut [f32],
) -> Result<()> {
    let (depth, pixels, width) = (g.depth(), g.window.pixels(), panel_width());
    let all = images.len().saturating_mul(pixels);
    // All at once, if there are a few more: each block reads and writes the gradient again.
    let terms = if all <= TERMS + TERMS / 4 { all.max(TERMS) } else { TERMS };
    let block = (terms / pixels).clamp(1, g.most_images());
    let step = (PANELS / (terms * width)).max(1) * width;
    let mut panels = scratch(step * terms)?;
    let mut start = Start::Zero;
    for first in images.clone().step_by(block) {
        let some = first..(first + block).min(images.end);
        let patches = Patches::of_images(g, x, some.clone(), group)?;
        for from in (0..some.len() * pixels).step_by(terms) {
            let windows = from..(from + terms).min(some.len() * pixels);
            let mut grads = Left::new(rows.len(), windows.len())?;
            for n in windows.start / pixels..windows.end.div_ceil(pixels) {
                let [from, to] = [n * pixels, (n + 1) * pixels].map(|q| q.clamp(windows.start, windows.end));
                let plane = (first + n) * g.out_channels + group * g.group_out() + rows.start;
                let dy = &dy[plane * pixels + from - n * pixels..];
                grads.fill(from - windows.start..to - windows.start, dy, [pixels, 1]);
            }
            for weight in (0..depth).step_by(step) {
                let weights = weight..(weight + step).min(depth);
                patches.transposed(windows.clone(), weights.clone(), width, &mut panels);
                grads.multiply(&panels, weights.len(), start, &mut dw[weight..], depth);
            }
            start = Start::Result;
        }
    }
    Ok(())
}
