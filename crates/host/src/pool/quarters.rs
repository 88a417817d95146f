//! Windows of 2 × 2 pixels that are 2 apart, on the host: the pooling of most nets. The results have the same bits
//! as the results of the general loops.

use super::Mode;
use crate::window::{Window, WindowParams};

/// The windows that are computed at a time. A step may write some results past the end of its row, which the next row
/// overwrites.
const LANES: usize = 16;

/// Returns whether the functions of this file compute these windows.
pub(super) fn fits(window: &Window) -> bool {
    window.params == WindowParams { kernel: [2, 2], stride: [2, 2], padding: [0, 0], dilation: [1, 1] }
        && [0, 1].iter().all(|&d| window.out[d] == window.size[d] / 2)
}

/// Returns the first window of each step, and its first pixels in the two rows.
fn steps(window: &Window) -> impl Iterator<Item = (usize, usize, [usize; 2])> {
    let (width, [height, across]) = (window.size[1], window.out);
    let of_row = move |y: usize| {
        let starts = (0..across).step_by(LANES);
        starts.map(move |x| (y * across + x, across - x, [2 * (y * width + x), 2 * (y * width + x) + width]))
    };
    (0..height).flat_map(of_row)
}

/// Computes the results of a plane.
#[inline(always)]
pub(super) fn forward(window: &Window, mode: Mode, x: &[f32], out: &mut [f32]) {
    let result = |a: f32, b: f32, c: f32, d: f32| match mode {
        Mode::Max => larger(larger(larger(a, b), c), d),
        Mode::Avg { .. } => (0.0 + a + b + c + d) / 4.0,
    };
    for (at, left, [above, below]) in steps(window) {
        let whole = [above, below].map(|from| x[from..].first_chunk::<{ 2 * LANES }>());
        if let ([Some(p), Some(q)], Some(out)) = (whole, out[at..].first_chunk_mut::<LANES>()) {
            for i in 0..LANES {
                out[i] = result(p[2 * i], p[2 * i + 1], q[2 * i], q[2 * i + 1]);
            }
        } else {
            for (i, out) in out[at..].iter_mut().take(left.min(LANES)).enumerate() {
                let (p, q) = (&x[above + 2 * i..], &x[below + 2 * i..]);
                *out = result(p[0], p[1], q[0], q[1]);
            }
        }
    }
}

/// Returns the larger number, the first of equal ones; NaN counts as the largest.
fn larger(best: f32, v: f32) -> f32 {
    if v > best || v.is_nan() { v } else { best }
}

/// Computes the gradient of a plane from the gradient of its results.
#[inline(always)]
pub(super) fn backward(window: &Window, mode: Mode, x: &[f32], g: &[f32], dx: &mut [f32]) {
    let parts = |x: [f32; 4], g: f32| match mode {
        Mode::Max => {
            let mut best = (x[0], 0);
            for (i, v) in (1..).zip(&x[1..]) {
                best = if *v > best.0 || v.is_nan() { (*v, i) } else { best };
            }
            [0, 1, 2, 3].map(|i| if best.1 == i { 0.0 + g } else { 0.0 })
        }
        Mode::Avg { .. } => [0.0 + g / 4.0; 4],
    };
    for (at, left, starts) in steps(window) {
        let whole = starts.map(|from| x[from..].first_chunk::<{ 2 * LANES }>());
        let [mut p, mut q] = [[0f32; 2 * LANES]; 2];
        let count = left.min(LANES);
        if let ([Some(above), Some(below)], Some(g)) = (whole, g[at..].first_chunk::<LANES>()) {
            for i in 0..LANES {
                let of = parts([above[2 * i], above[2 * i + 1], below[2 * i], below[2 * i + 1]], g[i]);
                (p[2 * i], p[2 * i + 1], q[2 * i], q[2 * i + 1]) = (of[0], of[1], of[2], of[3]);
            }
        } else {
            for i in 0..count {
                let (above, below) = (&x[starts[0] + 2 * i..], &x[starts[1] + 2 * i..]);
                let of = parts([above[0], above[1], below[0], below[1]], g[at + i]);
                (p[2 * i], p[2 * i + 1], q[2 * i], q[2 * i + 1]) = (of[0], of[1], of[2], of[3]);
            }
        }
        for (from, part) in starts.into_iter().zip([&p, &q]) {
            dx[from..from + 2 * count].copy_from_slice(&part[..2 * count]);
        }
    }
    // The pixels that no window holds.
    let [height, width] = window.size;
    if width % 2 > 0 {
        dx.iter_mut().skip(width - 1).step_by(width).for_each(|dx| *dx = 0.0);
    }
    dx[height / 2 * 2 * width..].fill(0.0);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Result;

    /// The results and the gradient, window by window.
    fn plain(window: &Window, mode: Mode, x: &[f32], g: &[f32]) -> (Vec<f32>, Vec<f32>) {
        let ([_, width], [_, across]) = (window.size, window.out);
        let (mut out, mut dx) = (Vec::new(), vec![0f32; x.len()]);
        for (o, g) in g.iter().enumerate() {
            let at = [0, 1, width, width + 1].map(|i| 2 * (o / across * width + o % across) + i);
            let mut best = at[0];
            for i in at {
                best = if x[i] > x[best] || x[i].is_nan() { i } else { best };
            }
            match mode {
                Mode::Max => dx[best] += g,
                Mode::Avg { .. } => at.iter().for_each(|&i| dx[i] += g / 4.0),
            }
            let mean = at.iter().fold(0.0, |sum, &i| sum + x[i]) / 4.0;
            out.push(if mode == Mode::Max { x[best] } else { mean });
        }
        (out, dx)
    }

    #[test]
    fn planes_of_any_size_are_pooled() -> Result<()> {
        for size in [[2, 2], [3, 5], [26, 26], [7, 33], [5, 66], [40, 3]] {
            let params = WindowParams { kernel: [2, 2], stride: [2, 2], padding: [0, 0], dilation: [1, 1] };
            let window = params.over(size, false).expect("windows");
            assert!(fits(&window) && !(size[0] % 2 > 0 && fits(&params.over(size, true).expect("windows"))));
            let mut x: Vec<f32> = (0..size[0] * size[1]).map(|i| (i * 7 % 11) as f32).collect();
            x[1] = f32::NAN;
            let g: Vec<f32> = (0..window.pixels()).map(|i| 1.0 + i as f32).collect();
            for mode in [Mode::Max, Mode::Avg { count_include_pad: true }] {
                let (mut out, mut dx) = (vec![-1.0; window.pixels()], vec![-1.0; x.len()]);
                forward(&window, mode, &x, &mut out);
                backward(&window, mode, &x, &g, &mut dx);
                let bits = |v: &[f32]| v.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
                let (results, gradient) = plain(&window, mode, &x, &g);
                assert_eq!((bits(&out), bits(&dx)), (bits(&results), bits(&gradient)), "{size:?}, {mode:?}");
            }
        }
        Ok(())
    }
}
