//! Elementwise reductions of several lists of elements on the host, by all threads: the arithmetic of the collectives.

use anygpu_host::tasks::share;
use anygpu_host::vectorised;

use crate::dtype::DType;
use crate::error::{Error, Result};

/// The elements that one task computes. They stay in a core's cache for all terms.
const PART: usize = 1 << 12;

/// How two elements become one. Floats that are NaN stay NaN; whole numbers wrap around.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Combine {
    Add,
    Multiply,
    Min,
    Max,
}

/// Overwrites `out` with the combination of all terms, each multiplied by its weight, in the order of the list. There is at least
/// one term, a weight for each, and no term is shorter than `out`. The result has the same bits on every processor.
pub(crate) fn combine_floats(how: Combine, out: &mut [f32], terms: &[&[f32]], weights: &[f32]) {
    let first = |w: f32, v: f32| w * v;
    match how {
        Combine::Add => fold(out, terms, weights, first, |a, w, v| a + w * v),
        Combine::Multiply => fold(out, terms, weights, first, |a, w, v| a * (w * v)),
        Combine::Min => fold(out, terms, weights, first, |a, w, v| if w * v < a || v.is_nan() { w * v } else { a }),
        Combine::Max => fold(out, terms, weights, first, |a, w, v| if w * v > a || v.is_nan() { w * v } else { a }),
    }
}

/// Overwrites the words of elements of type `dtype` with the combination of all terms. Only floats take other weights than 1.
///
/// # Errors
/// [`Error::Internal`] for a type with several elements in a word, and for terms that are too short.
pub(crate) fn combine_words(
    dtype: DType,
    how: Combine,
    out: &mut [u32],
    terms: &[&[u32]],
    weights: &[f32],
) -> Result<()> {
    if terms.is_empty() || weights.len() != terms.len() || terms.iter().any(|term| term.len() < out.len()) {
        return Err(Error::internal(format!("{} terms and {} weights of a reduction", terms.len(), weights.len())));
    }
    match dtype {
        DType::F32 => {
            let terms: Vec<&[f32]> = terms.iter().map(|term| bytemuck::cast_slice(term)).collect();
            combine_floats(how, bytemuck::cast_slice_mut(out), &terms, weights);
        }
        DType::I32 => {
            let terms: Vec<&[i32]> = terms.iter().map(|term| bytemuck::cast_slice(term)).collect();
            let out = bytemuck::cast_slice_mut(out);
            match how {
                Combine::Add => fold(out, &terms, weights, |_, v| v, |a: i32, _, v| a.wrapping_add(v)),
                Combine::Multiply => fold(out, &terms, weights, |_, v| v, |a: i32, _, v| a.wrapping_mul(v)),
                Combine::Min => fold(out, &terms, weights, |_, v| v, |a: i32, _, v| a.min(v)),
                Combine::Max => fold(out, &terms, weights, |_, v| v, |a: i32, _, v| a.max(v)),
            }
        }
        DType::U32 => match how {
            Combine::Add => fold(out, terms, weights, |_, v| v, |a: u32, _, v| a.wrapping_add(v)),
            Combine::Multiply => fold(out, terms, weights, |_, v| v, |a: u32, _, v| a.wrapping_mul(v)),
            Combine::Min => fold(out, terms, weights, |_, v| v, |a: u32, _, v| a.min(v)),
            Combine::Max => fold(out, terms, weights, |_, v| v, |a: u32, _, v| a.max(v)),
        },
        packed => return Err(Error::internal(format!("a reduction of words of {packed}"))),
    }
    Ok(())
}

#[inline(always)]
fn fold<T: Copy + Send + Sync>(
    out: &mut [T],
    terms: &[&[T]],
    weights: &[f32],
    first: impl Fn(f32, T) -> T + Sync,
    next: impl Fn(T, f32, T) -> T + Sync,
) {
    share(out.chunks_mut(PART).enumerate(), 1, |(i, out)| {
        vectorised!({
            for (k, (term, &weight)) in terms.iter().zip(weights).enumerate() {
                let term = &term[i * PART..][..out.len()];
                if k == 0 {
                    for (out, v) in out.iter_mut().zip(term) {
                        *out = first(weight, *v);
                    }
                } else {
                    for (out, v) in out.iter_mut().zip(term) {
                        *out = next(*out, weight, *v);
                    }
                }
            }
        });
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_those_of_a_loop() {
        for len in [0, 1, 17, PART, 3 * PART + 5] {
            let term = |k: usize| (0..len).map(|i| ((i * 7 + k * 31) % 101) as f32 - 50.0).collect::<Vec<f32>>();
            let (terms, weights) = ([term(0), term(1), term(2)], [0.5, 2.0, -1.0]);
            let terms: Vec<&[f32]> = terms.iter().map(Vec::as_slice).collect();
            type Two = fn(f32, f32) -> f32;
            let all: [(Combine, Two); 4] = [
                (Combine::Add, |a, b| a + b),
                (Combine::Multiply, |a, b| a * b),
                (Combine::Min, f32::min),
                (Combine::Max, f32::max),
            ];
            for (how, two) in all {
                let mut out = vec![f32::NAN; len];
                combine_floats(how, &mut out, &terms, &weights);
                let expected = |i: usize| two(two(0.5 * terms[0][i], 2.0 * terms[1][i]), -terms[2][i]);
                assert!(out.iter().enumerate().all(|(i, v)| *v == expected(i)), "{how:?} of {len}");
            }
        }
        let nan: [&[f32]; 2] = [&[f32::NAN, 1.0], &[1.0, f32::NAN]];
        for how in [Combine::Add, Combine::Multiply, Combine::Min, Combine::Max] {
            let mut out = [0.0; 2];
            combine_floats(how, &mut out, &nan, &[1.0, 1.0]);
            assert!(out.iter().all(|v| v.is_nan()), "{how:?}");
        }
    }

    #[test]
    fn whole_numbers_wrap_and_have_signs() -> Result<()> {
        let (a, b) = ([u32::MAX, 3], [2, 5]);
        let of = |dtype, how| {
            let mut out = [0; 2];
            combine_words(dtype, how, &mut out, &[&a, &b], &[1.0, 1.0]).map(|()| out)
        };
        assert_eq!(of(DType::U32, Combine::Add)?, [1, 8]);
        assert_eq!(of(DType::I32, Combine::Multiply)?, [(-2i32) as u32, 15]);
        assert_eq!((of(DType::U32, Combine::Min)?, of(DType::I32, Combine::Min)?), ([2, 3], [u32::MAX, 3]));
        assert_eq!((of(DType::U32, Combine::Max)?, of(DType::I32, Combine::Max)?), ([u32::MAX, 5], [2, 5]));
        assert!(of(DType::F16, Combine::Add).is_err());
        assert!(combine_words(DType::U32, Combine::Add, &mut [0; 3], &[&a], &[1.0]).is_err());
        Ok(())
    }
}
