//! Resampling.

use super::prelude::*;
use crate::ops::Interpolation;

const MODES: [Interpolation; 4] = [
    Interpolation::Nearest,
    Interpolation::NearestExact,
    Interpolation::Linear { align_corners: false },
    Interpolation::Linear { align_corners: true },
];

/// Returns the weight of pixel `i` of `len` in pixel `o` of `size`: the hat function around the position.
fn weight(i: usize, o: usize, len: usize, size: usize, mode: Interpolation) -> f64 {
    let (at, scale) = (o as f64, len as f64 / size as f64);
    // In floating point, a fraction that should be whole may be slightly less.
    let nearest = |position: f64| f64::from(u8::from((position + 1e-9).floor() == i as f64));
    let position = match mode {
        Interpolation::Nearest => return nearest(at * scale),
        Interpolation::NearestExact => return nearest((at + 0.5) * scale),
        Interpolation::Linear { align_corners: false } => ((at + 0.5) * scale - 0.5).clamp(0.0, len as f64 - 1.0),
        Interpolation::Linear { align_corners: true } if size == 1 => 0.0,
        Interpolation::Linear { align_corners: true } => at * (len as f64 - 1.0) / (size as f64 - 1.0),
        Interpolation::Cubic { .. } => unreachable!("the cases of resample.rs"),
    };
    (1.0 - (position - i as f64).abs()).max(0.0)
}

/// Computes each pixel of the result as a sum over all pixels of `x`, one dimension after the other.
fn resized(x: &Nd, size: &[usize], mode: Interpolation) -> Nd {
    let mut out = x.clone();
    for (d, &size) in size.iter().enumerate() {
        let (dim, from) = (d + 2, out);
        let mut shape = from.shape.clone();
        let len = std::mem::replace(&mut shape[dim], size);
        out = Nd::from_fn(&shape, |index| {
            let mut at = index.to_vec();
            let pixels = (0..len).map(|i| {
                at[dim] = i;
                match weight(i, index[dim], len, size, mode) {
                    0.0 => 0.0,
                    weight => weight * from.at(&at),
                }
            });
            pixels.sum()
        });
    }
    out
}

fn case<const D: usize>(what: &str, input: Input, size: [usize; D], mode: Interpolation) -> Case {
    Case::new(
        format!("interpolate {what} {mode:?} to {size:?}"),
        [input],
        move |t| t[0].interpolate(size, mode),
        move |x| resized(x[0], &size, mode),
    )
}

pub(super) fn cases() -> Vec<Case> {
    let x = |shape: &[usize]| signed(shape, 73);
    let mut cases = Vec::new();
    for mode in MODES {
        for (image, size) in [
            ([1, 1, 1, 1], [1, 1]),
            ([2, 3, 4, 5], [8, 10]),
            ([2, 3, 7, 9], [3, 4]),
            ([2, 3, 3, 5], [7, 5]),
            ([1, 2, 5, 1], [1, 6]),
            ([1, 1, 6, 33], [4, 17]),
            ([3, 2, 3, 2], [33, 31]),
            ([0, 3, 4, 4], [2, 2]),
        ] {
            cases.push(case("dense", dense(x(&image)), size, mode));
        }
        cases.push(case("transposed", transposed(x(&[2, 3, 5, 4]), 1, 3), [9, 3], mode));
        cases.push(case("narrowed", narrowed(x(&[2, 3, 5, 4]), 3), [4, 7], mode));
        cases.push(case("broadcast", broadcast(x(&[1, 3, 1, 4]), &[2, 3, 5, 4]), [4, 7], mode));
        cases.push(case("line", dense(x(&[2, 3, 17])), [40], mode));
        cases.push(case("volume", dense(x(&[1, 2, 3, 4, 5])), [5, 4, 2], mode));
        let halves = case("halves", dense(x(&[1, 2, 3, 4])).of(DType::F16), [4, 7], mode);
        cases.push(halves.within(2e-3, 2e-3).result_dtype(DType::F16));
    }
    cases
}
