//! The pixels under a convolution's kernels, copied into the panels of a matrix product on the host.

use std::ops::Range;

use super::Sizes;
use crate::memory::{Result, Scratch, scratch};
use crate::vectorised;

/// Elements that are copied at a time. A copy of fewer writes some elements after them, which the next copy overwrites.
const GRAIN: usize = 8;

/// The most elements of a group's images that are copied with their padding at a time, if the padding is most of them.
const PADDED: usize = 1 << 20;

/// A matrix that lies in images: one row for each of `offsets`, one column for each window of each image.
pub(super) struct Patches<'a> {
    x: &'a [f32],
    /// The images with their padding, if they have any.
    padded: Option<Scratch>,
    /// The distance between images, rows of windows and windows.
    steps: [usize; 3],
    /// The number of windows of an image, and of a row.
    windows: [usize; 2],
    /// The distance of each row's elements from the first pixel of the window.
    offsets: Vec<usize>,
    /// The convolution, if its images have a padding that is too large to be copied. Then `offsets` are the offsets
    /// of the planes.
    apart: Option<&'a Sizes>,
}

/// Neighbouring elements of a row of a panel: `len` of them from `to` on, which are `from` and so on in the images.
struct Run {
    to: usize,
    from: usize,
    len: usize,
}

impl Sizes {
    /// Returns the sizes of a plane with its padding.
    fn padded_size(&self) -> [usize; 2] {
        [0, 1].map(|d| self.window.params.padding[d].saturating_mul(2).saturating_add(self.window.size[d]))
    }

    /// Returns the number of elements of a group's part of an image with its padding, or 0 if there is no padding.
    fn padded_image(&self) -> usize {
        let [height, width] = self.padded_size();
        let padded = self.group_channels().saturating_mul(height).saturating_mul(width);
        if self.window.params.padding == [0, 0] { 0 } else { padded }
    }

    /// Returns whether the padding is too large to be copied with the images.
    pub(super) fn mostly_padding(&self) -> bool {
        self.padded_image() > PADDED.max(4 * self.group_image())
    }

    /// Returns the most images that [`Patches::of_images`] takes at a time, at least one: more are too many to be copied.
    pub(super) fn most_images(&self) -> usize {
        (PADDED / self.padded_image().max(1)).max(1)
    }

    /// Returns the pixel of a plane that each of these windows reads at a position of the kernel, with its image; `None` for
    /// the padding.
    fn pixels_of(&self, windows: Range<usize>, tap: usize) -> impl Iterator<Item = Option<(usize, usize)>> {
        let (window, params) = (&self.window, &self.window.params);
        let tap = [tap / params.kernel[1], tap % params.kernel[1]];
        windows.map(move |q| {
            let o = [q % window.pixels() / window.out[1], q % window.out[1]];
            let at = |d: usize| {
                let at = (o[d] * params.stride[d] + tap[d] * params.dilation[d]).checked_sub(params.padding[d])?;
                (at < window.size[d]).then_some(at)
            };
            Some((q / window.pixels(), at(0)? * window.size[1] + at(1)?))
        })
    }
}

impl<'a> Patches<'a> {
    /// Returns the columns of a group of some images: a row for each weight of an output channel.
    pub fn of_images(g: &'a Sizes, x: &'a [f32], images: Range<usize>, group: usize) -> Result<Patches<'a>> {
        let (params, channels) = (&g.window.params, g.group_channels());
        let x = &x[images.start * g.image() + group * g.group_image()..];
        let windows = [g.window.pixels(), g.window.out[1]];
        if g.mostly_padding() {
            let offsets = (0..channels).map(|c| c * g.window.plane()).collect();
            return Ok(Patches { x, padded: None, steps: [g.image(), 0, 0], windows, offsets, apart: Some(g) });
        }
        let size = g.padded_size();
        let plane = size[0] * size[1];
        let padded = (params.padding != [0, 0]).then(|| pad(g, x, images.len(), size)).transpose()?;
        let [rows, columns] = params.kernel;
        let place = |k: usize| k / columns * params.dilation[0] * size[1] + k % columns * params.dilation[1];
        let weights: Vec<usize> = (0..rows * columns).map(place).collect();
        Ok(Patches {
            x,
            steps: [
                if padded.is_some() { channels * plane } else { g.image() },
                params.stride[0] * size[1],
                params.stride[1],
            ],
            padded,
            windows,
            offsets: (0..channels).flat_map(|c| weights.iter().map(move |place| c * plane + place)).collect(),
            apart: None,
        })
    }

    /// Returns a group's results of some images, or their gradients: a row for each output channel.
    pub fn of_results(g: &Sizes, y: &'a [f32], images: Range<usize>, group: usize) -> Patches<'a> {
        let (pixels, wide) = (g.window.pixels(), g.group_out());
        Patches {
            x: &y[images.start * g.out_image() + group * wide * pixels..],
            padded: None,
            steps: [g.out_image(), pixels, 1],
            windows: [pixels, pixels],
            offsets: (0..wide).map(|o| o * pixels).collect(),
            apart: None,
        }
    }

    fn data(&self) -> &[f32] {
        self.padded.as_deref().unwrap_or(self.x)
    }

    /// Returns the first pixel of each of these windows.
    fn positions(&self, windows: Range<usize>) -> impl Iterator<Item = usize> {
        let ([image, row, step], [each, across]) = (self.steps, self.windows);
        windows.map(move |q| q / each * image + q % each / across * row + q % each % across * step)
    }

    /// Returns the runs of a panel of these windows' columns.
    fn window_runs(&self, windows: Range<usize>) -> Vec<Run> {
        let (mut runs, [_, across], mut at) = (Vec::new(), self.windows, windows.start);
        while at < windows.end {
            let len = (across - at % self.windows[0] % across).min(windows.end - at);
            let from = self.positions(at..at + 1).sum();
            join(&mut runs, Run { to: at - windows.start, from, len }, self.steps[2]);
            at += len;
        }
        runs
    }

    /// Writes panels of these windows' columns: `[rows, width]` each.
    pub fn columns(&self, windows: Range<usize>, width: usize, to: &mut [f32]) {
        if let Some(g) = self.apart {
            let panel = self.offsets.len() * g.window.taps() * width;
            let place = |row: usize, q: usize| q / width * panel + row * width + q % width;
            return self.copy_apart(g, windows, 0..self.offsets.len() * g.window.taps(), place, to);
        }
        let (panel, step) = (self.offsets.len() * width, self.steps[2]);
        for (i, first) in windows.clone().step_by(width).enumerate() {
            let runs = self.window_runs(first..(first + width).min(windows.end));
            let to = &mut to[i * panel..];
            if step == 1 {
                vectorised!(copy_runs(self.data(), &self.offsets, &runs, width, to));
                continue;
            }
            vectorised!(copy_apart_runs(self.data(), &self.offsets, &runs, (width, step), to));
        }
    }

    /// Writes panels of the transpose, for some rows: `[windows, width]` each.
    pub fn transposed(&self, windows: Range<usize>, rows: Range<usize>, width: usize, to: &mut [f32]) {
        let panel = windows.len() * width;
        if let Some(g) = self.apart {
            let place = |row: usize, q: usize| row / width * panel + q * width + row % width;
            return self.copy_apart(g, windows, rows, place, to);
        }
        let positions: Vec<usize> = self.positions(windows).collect();
        for (i, offsets) in self.offsets[rows].chunks(width).enumerate() {
            let (mut runs, to) = (Vec::new(), &mut to[i * panel..]);
            offsets.iter().enumerate().for_each(|(to, &from)| join(&mut runs, Run { to, from, len: 1 }, 1));
            vectorised!(copy_runs(self.data(), &positions, &runs, width, to));
        }
    }

    /// Writes some rows of these windows' columns one element at a time. `place` returns the place of an element from its
    /// row and its window, both counted from the first one.
    fn copy_apart(
        &self,
        g: &Sizes,
        windows: Range<usize>,
        rows: Range<usize>,
        place: impl Fn(usize, usize) -> usize,
        to: &mut [f32],
    ) {
        let taps = g.window.taps();
        for tap in 0..taps {
            let first = rows.start + (tap + taps - rows.start % taps) % taps;
            for (q, pixel) in g.pixels_of(windows.clone(), tap).enumerate() {
                for row in (first..rows.end).step_by(taps) {
                    let from = |(n, pixel)| self.x[n * self.steps[0] + self.offsets[row / taps] + pixel];
                    to[place(row - rows.start, q)] = pixel.map_or(0.0, from);
                }
            }
        }
    }
}

/// Copies a group of some images with their padding: zeros around every plane.
fn pad(g: &Sizes, x: &[f32], images: usize, [height, width]: [usize; 2]) -> Result<Scratch> {
    let (channels, [top, left]) = (g.group_channels(), g.window.params.padding);
    let mut padded = scratch(images.saturating_mul(g.padded_image()).saturating_add(GRAIN))?;
    padded.fill(0.0);
    for (n, to) in padded.chunks_exact_mut((channels * height * width).max(1)).take(images).enumerate() {
        let x = x[n * g.image()..].chunks_exact(g.window.plane());
        for (x, to) in x.zip(to.chunks_exact_mut(height * width)) {
            for (x, to) in x.chunks_exact(g.window.size[1]).zip(to[top * width..].chunks_exact_mut(width)) {
                to[left..left + x.len()].copy_from_slice(x);
            }
        }
    }
    Ok(padded)
}

/// Adds a run, whose elements are `step` apart in the images, to the last one if it continues it.
fn join(runs: &mut Vec<Run>, run: Run, step: usize) {
    match runs.last_mut() {
        Some(last) if last.from + last.len * step == run.from => last.len += run.len,
        _ => runs.push(run),
    }
}

/// Copies runs as [`copy_runs`] does, whose elements are `step` apart.
#[inline(always)]
fn copy_apart_runs(data: &[f32], places: &[usize], runs: &[Run], (width, step): (usize, usize), to: &mut [f32]) {
    for (place, to) in places.iter().zip(to.chunks_mut(width)) {
        for &Run { to: at, from, len } in runs {
            let (mut to, mut from) = (&mut to[at..at + len], &data[from + place..]);
            while step == 2 && from.len() >= 2 * GRAIN && to.len() >= GRAIN {
                let (some, rest) = to.split_at_mut(GRAIN);
                for i in 0..GRAIN {
                    some[i] = from[2 * i];
                }
                (to, from) = (rest, &from[2 * GRAIN..]);
            }
            for (to, v) in to.iter_mut().zip(from.iter().step_by(step)) {
                *to = *v;
            }
        }
    }
}

/// Copies the same runs, moved by each of `places`, to the rows of a panel in turn.
#[inline(always)]
fn copy_runs(data: &[f32], places: &[usize], runs: &[Run], width: usize, to: &mut [f32]) {
    for (row, place) in places.iter().enumerate() {
        for &Run { to: at, from, len } in runs {
            for done in (0..len).step_by(GRAIN) {
                let (at, from) = (row * width + at + done, from + place + done);
                match (to.get_mut(at..at + GRAIN), data.get(from..from + GRAIN)) {
                    (Some(to), Some(from)) => to.copy_from_slice(from),
                    _ => {
                        let len = GRAIN.min(len - done);
                        to[at..at + len].copy_from_slice(&data[from..from + len]);
                    }
                }
            }
        }
    }
}
