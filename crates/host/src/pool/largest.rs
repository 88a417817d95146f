//! The largest elements of windows over a plane, and their positions, on the host.

use std::ops::Range;

use crate::memory::{Result, Scratch, scratch};
use crate::window::Window;

/// The position of a window's maximum if the window holds no pixel.
pub const NONE: u32 = u32::MAX;

/// The windows of a row that are computed at a time.
const LANES: usize = 16;

/// The most elements of a plane with its padding, for [`Slide`].
const PADDED: usize = 1 << 20;

/// The largest elements of windows that are one pixel apart, without their positions: first along the lines, then across them.
pub(super) struct Slide<'a> {
    window: &'a Window,
    /// The plane between −∞, and the largest elements along its lines.
    padded: Scratch,
    along: Scratch,
}

impl<'a> Slide<'a> {
    /// Returns the sizes of a plane with its padding, if this is a way to compute the windows.
    pub fn size(window: &Window) -> Option<[usize; 2]> {
        let params = &window.params;
        let size = [0, 1].map(|d| (window.out[d] - 1).saturating_add(params.span(d)));
        let few = size[0].saturating_mul(size[1]) <= PADDED.min(4 * window.plane() + LANES);
        (params.stride == [1, 1] && few).then_some(size)
    }

    /// Fails if there is no memory for two planes.
    pub fn new(window: &'a Window, [height, width]: [usize; 2]) -> Result<Slide<'a>> {
        let lowest = || {
            let mut plane = scratch(height * width)?;
            plane.fill(f32::NEG_INFINITY);
            Ok(plane)
        };
        Ok(Slide { window, padded: lowest()?, along: lowest()? })
    }

    /// For loops in `vectorised!`. NaN counts as the largest.
    #[inline(always)]
    pub fn compute(&mut self, x: &[f32], out: &mut [f32]) {
        let Slide { window, padded, along } = self;
        let (params, [out_y, out_x]) = (&window.params, window.out);
        let (pitch, [top, left]) = (out_x - 1 + params.span(1), params.padding);
        let lines = padded.chunks_exact_mut(pitch).skip(top);
        for (to, x) in lines.zip(x.chunks_exact(window.size[1].max(1))) {
            to[left..].iter_mut().zip(x).for_each(|(to, v)| *to = *v);
        }
        let all = padded.len() - (params.span(1) - 1);
        along[..all].copy_from_slice(&padded[..all]);
        for k in 1..params.kernel[1] {
            take_larger(&mut along[..all], &padded[k * params.dilation[1]..]);
        }
        for (y, out) in out.chunks_exact_mut(out_x).take(out_y).enumerate() {
            out.copy_from_slice(&along[y * pitch..][..out_x]);
            for k in 1..params.kernel[0] {
                take_larger(out, &along[(y + k * params.dilation[0]) * pitch..]);
            }
        }
    }
}

#[inline(always)]
fn take_larger(to: &mut [f32], from: &[f32]) {
    for (to, v) in to.iter_mut().zip(from) {
        *to = if *v > *to || v.is_nan() { *v } else { *to };
    }
}

/// Computes the largest element of every window of a plane and its position, the first of equal ones; −∞ and [`NONE`] for a
/// window that holds no pixel. NaN counts as the largest. For loops in `vectorised!`.
#[inline(always)]
pub(super) fn largest(window: &Window, x: &[f32], best: &mut [f32], at: &mut [u32]) {
    let width = window.out[1].max(1);
    let inner = inner_columns(window);
    for (y, (best, at)) in best.chunks_mut(width).zip(at.chunks_mut(width)).enumerate() {
        let [mut from, stride] = [inner.start, window.params.stride[1]];
        let whole = inner.len() >= LANES && stride <= 2;
        while whole && from < inner.end {
            let first = from.min(inner.end - LANES); // the last ones are computed again
            let (best, at) = (&mut best[first..first + LANES], &mut at[first..first + LANES]);
            match stride {
                1 => some::<1>(window, x, [y, first], best, at),
                _ => some::<2>(window, x, [y, first], best, at),
            }
            from += LANES;
        }
        let rest = if whole { inner.clone() } else { inner.start..inner.start };
        for column in (0..rest.start).chain(rest.end..width) {
            (best[column], at[column]) = one(window, x, [y, column]);
        }
    }
}

/// Returns the columns of windows that hold no padding to their left and right.
fn inner_columns(window: &Window) -> Range<usize> {
    let (params, width) = (&window.params, window.size[1]);
    let (stride, padding) = (params.stride[1], params.padding[1]);
    let end = (width + padding).checked_sub(params.span(1)).map_or(0, |room| room / stride + 1).min(window.out[1]);
    padding.div_ceil(stride).min(end)..end
}

/// Returns the rows of pixels that the windows of row `y` hold.
#[inline(always)]
fn rows(window: &Window, y: usize) -> impl Iterator<Item = usize> {
    let (params, height) = (&window.params, window.size[0]);
    let (first, padding, dilation) = (y * params.stride[0], params.padding[0], params.dilation[0]);
    let row = move |k: usize| (first + k * dilation).checked_sub(padding).filter(|row| *row < height);
    (0..params.kernel[0]).filter_map(row)
}

/// Computes [`LANES`] neighbouring windows of a row, from `column` on, that are `S` pixels apart.
#[inline(always)]
fn some<const S: usize>(window: &Window, x: &[f32], [y, column]: [usize; 2], best: &mut [f32], at: &mut [u32]) {
    let (params, width) = (&window.params, window.size[1]);
    let left = column * S - params.padding[1];
    let (mut largest, mut places) = ([f32::NEG_INFINITY; LANES], [NONE; LANES]);
    let mut is_first = true;
    for row in rows(window, y) {
        for k in 0..params.kernel[1] {
            let from = row * width + left + k * params.dilation[1];
            let pixels = &x[from..from + (LANES - 1) * S + 1];
            for i in 0..LANES {
                let v = pixels[i * S];
                let takes = is_first | (v > largest[i]) | v.is_nan();
                largest[i] = if takes { v } else { largest[i] };
                places[i] = if takes { (from + i * S) as u32 } else { places[i] };
            }
            is_first = false;
        }
    }
    best.copy_from_slice(&largest);
    at.copy_from_slice(&places);
}

/// Returns the largest element of a window, and its position.
#[inline(always)]
fn one(window: &Window, x: &[f32], [y, column]: [usize; 2]) -> (f32, u32) {
    let (params, width) = (&window.params, window.size[1]);
    let mut best = (f32::NEG_INFINITY, NONE);
    for row in rows(window, y) {
        for k in 0..params.kernel[1] {
            let pixel = (column * params.stride[1] + k * params.dilation[1]).checked_sub(params.padding[1]);
            let Some(pixel) = pixel.filter(|pixel| *pixel < width) else { continue };
            let v = x[row * width + pixel];
            if v > best.0 || v.is_nan() || best.1 == NONE {
                best = (v, (row * width + pixel) as u32);
            }
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Result;
    use crate::vectorised;
    use crate::window::WindowParams;

    #[test]
    fn windows_of_all_kinds_are_those_of_plain_loops() -> Result<()> {
        for (size, kernel, stride, padding, dilation) in [
            ([48, 48], [3, 3], [2, 2], [1, 1], [1, 1]),
            ([7, 40], [2, 3], [1, 1], [0, 1], [1, 2]),
            ([9, 17], [3, 2], [2, 2], [1, 0], [2, 1]),
            ([5, 70], [5, 5], [3, 3], [2, 2], [1, 1]),
            ([1, 1], [3, 3], [1, 1], [1, 1], [1, 1]),
            ([4, 33], [1, 18], [1, 1], [0, 9], [1, 1]),
            ([10, 10], [5, 5], [1, 1], [2, 2], [1, 1]),
            ([20, 19], [3, 4], [1, 1], [1, 2], [3, 2]),
        ] {
            let params = WindowParams { kernel, stride, padding, dilation };
            let window = params.over(size, true).expect("a kernel within the image");
            let value = |i: usize| match i * 7919 % 31 {
                0 => f32::NAN,
                1 => f32::NEG_INFINITY,
                v => (v % 5) as f32,
            };
            let x: Vec<f32> = (0..window.plane()).map(value).collect();
            let (mut best, mut at) = (vec![0.0; window.pixels()], vec![0; window.pixels()]);
            vectorised!(largest(&window, &x, &mut best, &mut at));
            if let Some(size) = Slide::size(&window) {
                let mut slide = Slide::new(&window, size).unwrap();
                for x in [vec![f32::NAN; x.len()], x.clone()] {
                    let mut found = vec![0.0; best.len()];
                    vectorised!(slide.compute(&x, &mut found));
                    let wanted = (0..best.len()).map(|o| one(&window, &x, [o / window.out[1], o % window.out[1]]).0);
                    assert!(found.iter().zip(wanted).all(|(a, b)| *a == b || a.is_nan() && b.is_nan()), "{window:?}");
                }
            }
            for (o, found) in best.iter().map(|v| v.to_bits()).zip(&at).enumerate() {
                let (v, place) = one(&window, &x, [o / window.out[1], o % window.out[1]]);
                assert_eq!(found, (v.to_bits(), &place), "{window:?} at {o}");
            }
        }
        Ok(())
    }
}
