//! Convolutions of few images, or of few channels in each group, on the host, by products that read the pixels where they lie.
//!
//! The windows of several lines of the result are numbered in sequence, as if each line were as long as the line of pixels that it
//! reads. Then neighbouring windows read neighbouring pixels at any position of the kernel, and no columns are written. A padding,
//! and the pixels between the windows of a stride, need a copy of the image: for each remainder of the coordinates by the stride
//! a plane of its own, a phase. What the products compute at the end of a line, where no windows are, is left out.

#[cfg(test)]
mod tests;

use std::ops::Range;

use pulp::{Simd, WithSimd};

use super::{Activation, Sizes};
use crate::matmul::lines::Lines;
use crate::matmul::plan::SMALL;
use crate::matmul::tiles::{VECTORS, panel_width, tile_rows};
use crate::memory::{Result, scratch};
use crate::tasks::try_share;
use crate::vectors::with_vectors;
use crate::window::Window;

/// The approximate number of elements of the phases that a task copies at a time, at most: they stay in a cache.
const COPIED: usize = 128 << 10;

/// The approximate number of sums that are computed at a time.
const SUMS: usize = 4 << 10;

/// How the windows of a convolution are numbered.
struct Plan<'a> {
    g: &'a Sizes,
    window: Window,
    /// Whether the products read copies of the images.
    copies: bool,
    /// The phases in each direction.
    phases: [usize; 2],
    /// The lines of a phase beyond the lines of the windows.
    more: usize,
    /// The pixels of a line.
    pitch: usize,
}

/// A part of the work: some lines of some output channels of an image, which are in one group or are whole groups.
struct Part {
    channels: Range<usize>,
    lines: Range<usize>,
}

/// A part of an image, with the lines of each of its output channels.
struct Task<'a> {
    image: usize,
    part: &'a Part,
    out: Vec<&'a mut [f32]>,
}

/// Returns whether the numbering leaves few numbers unused, and a line of the copies of a group stays in a cache.
pub(super) fn copies_are_small(g: &Sizes) -> bool {
    let plan = Plan::new(g);
    let wasted = plan.window.out[0] > 1 && plan.pitch > 2 * plan.window.out[1];
    !wasted && plan.copied(1) <= 4 * COPIED
}

impl<'a> Plan<'a> {
    fn new(g: &'a Sizes) -> Plan<'a> {
        let mut window = g.window;
        let params = &mut window.params;
        let copies = params.stride != [1, 1] || params.padding != [0, 0];
        if !copies && window.taps() == 1 {
            // The windows of an image of any size are one column.
            (window.size, window.out) = ([window.plane(), 1], [window.pixels(), 1]);
        }
        if !copies {
            return Plan { g, window, copies, phases: [1, 1], more: 0, pitch: window.size[1] };
        }
        let spans = [0, 1].map(|d| window.params.span(d));
        let [more, across] = [0, 1].map(|d| (spans[d] - 1) / window.params.stride[d]);
        let phases = [0, 1].map(|d| window.params.stride[d].min(spans[d]));
        Plan { g, window, copies, phases, more, pitch: window.out[1].saturating_add(across) }
    }

    /// Returns the elements of a channel's phases for some lines of windows, which may not fit in a number.
    fn plane(&self, lines: usize) -> usize {
        let phase = lines.saturating_add(self.more).saturating_mul(self.pitch);
        phase.saturating_mul(self.phases[0]).saturating_mul(self.phases[1])
    }

    /// Returns the elements of the copies of a group for some lines of windows.
    fn copied(&self, lines: usize) -> usize {
        if self.copies { self.plane(lines).saturating_mul(self.g.group_channels()) } else { 0 }
    }

    /// Returns the number of windows of some lines, at least one.
    fn windows(&self, lines: usize) -> usize {
        (lines - 1) * self.pitch + self.window.out[1]
    }

    /// Returns where the pixels of each weight of an output channel begin.
    fn places(&self, lines: usize) -> Vec<usize> {
        let (params, plane) = (&self.window.params, self.window.plane());
        let taps = (0..self.window.taps()).map(|tap| {
            let [y, x] = [tap / params.kernel[1] * params.dilation[0], tap % params.kernel[1] * params.dilation[1]];
            if !self.copies {
                return y * self.window.size[1] + x;
            }
            let [stride_y, stride_x] = params.stride;
            let phase = y % stride_y * self.phases[1] + x % stride_x;
            (phase * (lines + self.more) + y / stride_y) * self.pitch + x / stride_x
        });
        let taps: Vec<usize> = taps.collect();
        let step = if self.copies { self.plane(lines) } else { plane };
        (0..self.g.group_channels()).flat_map(|c| taps.iter().map(move |tap| c * step + tap)).collect()
    }

    /// Cuts an image into parts, about `wanted` ones of the same size.
    fn parts(&self, wanted: usize) -> Vec<Part> {
        let (g, lines) = (self.g, self.window.out[0]);
        let (groups, rows) = (g.groups, g.group_out());
        let cut = |i: usize, count: usize, of: usize| i * of / count..(i + 1) * of / count;
        let ranges = wanted.clamp(1, groups);
        let wanted = wanted.div_ceil(ranges);
        // Lines for which the copies of a group fit in a cache, and the parts of a group: of its lines or of its rows.
        let most = (1..=lines).rev().find(|&lines| self.copied(lines) <= COPIED).unwrap_or(1);
        let [of_lines, of_rows] = [lines.div_ceil(most), 1];
        let (by_lines, by_rows) = (of_lines.max(wanted).min(lines), wanted.min(rows.div_ceil(tile_rows())));
        let lanes = panel_width() / VECTORS;
        let width = |parts: usize| self.windows(lines.div_ceil(parts)).next_multiple_of(lanes);
        let cost = [width(by_lines) * rows * wanted.div_ceil(by_lines), width(of_lines) * rows.div_ceil(by_rows)];
        let weights_are_larger = rows > lines * self.pitch;
        let rows_first = wanted > 1 && (cost[1] < cost[0] || cost[1] == cost[0] && weights_are_larger);
        let (of_lines, of_rows) = if rows_first { (of_lines, by_rows) } else { (by_lines, of_rows) };
        let mut parts = Vec::new();
        for range in 0..ranges {
            let groups = cut(range, ranges, groups);
            for r in 0..of_rows {
                let channels = match of_rows {
                    1 => groups.start * rows..groups.end * rows,
                    // As many ranges as groups.
                    _ => groups.start * rows + r * rows / of_rows..groups.start * rows + (r + 1) * rows / of_rows,
                };
                parts
                    .extend((0..of_lines).map(|l| Part { channels: channels.clone(), lines: cut(l, of_lines, lines) }));
            }
        }
        parts
    }
}

pub(super) fn forward(
    g: &Sizes,
    x: &[f32],
    w: &[f32],
    bias: Option<&[f32]>,
    then: Option<Activation>,
    out: &mut [f32],
) -> Result<()> {
    let plan = Plan::new(g);
    let small = out.len().saturating_mul(g.depth()) <= SMALL;
    let threads = if small { 1 } else { rayon::current_num_threads() };
    // Few images that the threads cannot share equally are cut.
    let even = g.images.is_multiple_of(threads) || g.images >= 4 * threads;
    let parts = plan.parts(if even { 1 } else { threads });
    let tasks = tasks(&plan, &parts, out);
    let compute = |task| compute(&plan, [x, w], (bias, then), task);
    if small { tasks.into_iter().try_for_each(compute) } else { try_share(tasks, 1, compute) }
}

fn tasks<'a>(plan: &Plan, parts: &'a [Part], out: &'a mut [f32]) -> Vec<Task<'a>> {
    let (pixels, channels) = (plan.window.pixels(), plan.g.out_channels);
    let mut tasks = Vec::with_capacity(plan.g.images * parts.len());
    for image in 0..plan.g.images {
        tasks.extend(parts.iter().map(|part| Task { image, part, out: Vec::with_capacity(part.channels.len()) }));
    }
    for (at, mut plane) in out.chunks_exact_mut(pixels).enumerate() {
        let (image, channel) = (at / channels, at % channels);
        for (task, part) in tasks[image * parts.len()..].iter_mut().zip(parts) {
            if part.channels.contains(&channel) {
                let (lines, others) = plane.split_at_mut(part.lines.len() * plan.window.out[1]);
                task.out.push(lines);
                plane = others;
            }
        }
    }
    tasks
}

fn compute(
    plan: &Plan,
    [x, w]: [&[f32]; 2],
    (bias, then): (Option<&[f32]>, Option<Activation>),
    mut task: Task,
) -> Result<()> {
    let (g, lines, across) = (plan.g, task.part.lines.clone(), plan.window.out[1]);
    let (depth, wide, windows) = (g.depth(), g.group_out(), plan.windows(lines.len()));
    let places = plan.places(lines.len());
    // Whole vectors may reach past the last window.
    let mut copy = scratch(plan.copied(lines.len()) + if plan.copies { 2 * panel_width() } else { 0 })?;
    copy.fill(0.0);
    let mut rest = &mut task.out[..];
    let mut channel = task.part.channels.start;
    let rows = wide.min(rest.len());
    let panel = 2 * panel_width();
    let step = (SUMS / rows.max(1)).clamp(panel, windows.next_multiple_of(panel).max(panel)) / panel * panel;
    let mut sums = scratch(2 * rows * step)?;
    let (sums, results) = sums.split_at_mut(rows * step);
    while !rest.is_empty() {
        let (out, others) = rest.split_at_mut(rows);
        rest = others;
        let image = task.image * g.image() + channel / wide * g.group_image();
        let data = match plan.copies {
            true => {
                with_vectors(Copy { plan, x: &x[image..][..g.group_image()], lines: lines.clone(), to: &mut copy });
                &copy[..]
            }
            false => &x[image + lines.start * plan.pitch..],
        };
        let start = bias.map(|bias| &bias[channel..channel + rows]);
        let product = Lines { left: &w[channel * depth..], step: depth, rows, data, places: &places, start };
        for first in (0..windows).step_by(step) {
            let columns = first..windows.min(first + step);
            product.compute(columns.clone(), sums, step)?;
            let sums = match then {
                Some(then) => {
                    then(sums, results);
                    &*results
                }
                None => &*sums,
            };
            with_vectors(Spread { sums, step, columns, pitch: plan.pitch, across, out });
        }
        channel += rows;
    }
    Ok(())
}

/// Copies the pixels that some lines of windows read to the phases of a group. The padding has zeros already.
struct Copy<'a> {
    plan: &'a Plan<'a>,
    x: &'a [f32],
    lines: Range<usize>,
    to: &'a mut [f32],
}

impl WithSimd for Copy<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Copy { plan, x, lines, to } = self;
        let ([height, width], params) = (plan.window.size, &plan.window.params);
        let [[stride_y, stride_x], [top, left]] = [params.stride, params.padding];
        let (rows, mut at) = (lines.len() + plan.more, 0);
        for plane in x.chunks_exact((height * width).max(1)) {
            for y in 0..plan.phases[0] {
                for first in 0..plan.phases[1] {
                    // The first pixel of a line that is in the image, and its place in the line.
                    let begin = left.saturating_sub(first).div_ceil(stride_x);
                    let pixel = (begin * stride_x + first).saturating_sub(left);
                    let count = width.saturating_sub(pixel).div_ceil(stride_x).min(plan.pitch.saturating_sub(begin));
                    for row in 0..rows {
                        let to = &mut to[at..at + plan.pitch];
                        at += plan.pitch;
                        let line = ((lines.start + row) * stride_y + y).checked_sub(top).filter(|line| *line < height);
                        if let Some(line) = line.filter(|_| count > 0) {
                            let from = &plane[line * width + pixel..(line + 1) * width];
                            copy(simd, from, stride_x, &mut to[begin..begin + count]);
                        }
                    }
                }
            }
        }
    }
}

/// Copies elements that are `step` apart.
#[inline(always)]
fn copy<S: Simd>(simd: S, from: &[f32], step: usize, to: &mut [f32]) {
    let count = to.len();
    if step > 1 {
        let (pairs, last) = from.as_chunks::<2>();
        if step == 2 {
            to.iter_mut().zip(pairs).for_each(|(to, pair)| *to = pair[0]);
            to.iter_mut().skip(pairs.len()).zip(last).for_each(|(to, v)| *to = *v);
        } else {
            to.iter_mut().zip(from.iter().step_by(step)).for_each(|(to, v)| *to = *v);
        }
        return;
    }
    let lanes = S::F32_LANES;
    if count < lanes {
        simd.partial_store_f32s(to, simd.partial_load_f32s(&from[..count]));
        return;
    }
    let mut at = 0;
    while at < count {
        let first = at.min(count - lanes); // the last ones are copied again
        S::as_mut_simd_f32s(&mut to[first..first + lanes]).0[0] = S::as_simd_f32s(&from[first..first + lanes]).0[0];
        at += lanes;
    }
}

/// Copies the sums of some windows, in rows that are `step` apart, to the lines of the output channels.
struct Spread<'a, 'b> {
    sums: &'a [f32],
    step: usize,
    columns: Range<usize>,
    /// The distance between lines of windows, and their length.
    pitch: usize,
    across: usize,
    out: &'a mut [&'b mut [f32]],
}

impl WithSimd for Spread<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Spread { sums, step, columns, pitch, across, out } = self;
        if pitch == across {
            for (out, sums) in out.iter_mut().zip(sums.chunks_exact(step)) {
                copy(simd, &sums[..columns.len()], 1, &mut out[columns.clone()]);
            }
            return;
        }
        for line in columns.start / pitch..columns.end.div_ceil(pitch) {
            let [from, to] = [line * pitch, line * pitch + across].map(|q| q.clamp(columns.start, columns.end));
            if from == to {
                continue;
            }
            let at = line * across + from - line * pitch;
            for (out, sums) in out.iter_mut().zip(sums.chunks_exact(step)) {
                copy(simd, &sums[from - columns.start..to - columns.start], 1, &mut out[at..at + to - from]);
            }
        }
    }
}
