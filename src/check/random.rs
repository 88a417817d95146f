//! Random numbers, which are the same bits on every device, and dropout.

use super::prelude::*;
use crate::ops::random::{Distribution, drawn_from, dropout_from};
use crate::philox::{Stream, below, unit};

pub(super) fn cases() -> Vec<Case> {
    [generated(), dropout()].into_iter().flatten().collect()
}

/// In the second stream, the upper half of the block's number increases by one.
const STREAMS: [Stream; 2] = [Stream { seed: 0x1234_5678_9abc_def0, first: 3 }, Stream { seed: 7, first: 0xffff_fff0 }];

fn expected(stream: Stream, skip: usize, shape: &[usize], f: impl Fn(u32) -> f64) -> Nd {
    let count = shape.iter().product();
    Nd::new(shape, stream.words().skip(skip).take(count).map(f).collect())
}

type Drawn = (&'static str, Distribution, DType, fn(u32) -> f64);

const LAWS: [Drawn; 5] = [
    ("rand", Distribution::Uniform, DType::F32, |word| f64::from(unit(word))),
    ("bernoulli", Distribution::Bernoulli(1 << 22), DType::F32, |word| f64::from(u8::from(word < 1 << 30))),
    ("bernoulli always", Distribution::Bernoulli(1 << 24), DType::F32, |_| 1.0),
    ("randint", Distribution::Integer(-7, 13), DType::I32, |word| f64::from(below(word, 13)) - 7.0),
    ("randint of all", Distribution::Integer(i32::MIN, u32::MAX), DType::I32, |word| {
        f64::from(below(word, u32::MAX)) + f64::from(i32::MIN)
    }),
];

fn generated() -> Vec<Case> {
    let mut cases = Vec::new();
    for (name, distribution, dtype, f) in LAWS {
        for (stream, skip) in STREAMS.into_iter().zip([0, 3]) {
            for shape in [&[1][..], &[7], &[17, 33], &[257], &[0], &[5, 20_001]] {
                // The operand is only used for its device.
                let op = move |t: &[Tensor]| drawn_from((stream, skip), distribution, shape, t[0].device());
                let oracle = move |_: &[&Nd]| expected(stream, skip, shape, f);
                cases.push(
                    Case::new(name, [dense(Nd::new(&[], vec![0.0]))], op, oracle)
                        .result_dtype(dtype)
                        .exact()
                        .no_gradient(),
                );
            }
        }
    }
    cases
}

fn dropout() -> Vec<Case> {
    let mut cases = Vec::new();
    for p in [0.25f32, 0.5, 1.0] {
        for (stream, skip) in STREAMS.into_iter().flat_map(|stream| [(stream, 0), (stream, 1), (stream, 3)]) {
            let mut push = |what: &str, input: Input| {
                let oracle = move |x: &[&Nd]| {
                    let kept = expected(stream, skip, &x[0].shape, |word| {
                        let kept = f64::from(word >> 8) >= f64::from(p) * f64::from(1 << 24);
                        if kept { 1.0 / (1.0 - f64::from(p)) } else { 0.0 }
                    });
                    oracle::binary(x[0], &kept, |x, k| x * k)
                };
                let dtype = input.dtype;
                let op = move |t: &[Tensor]| dropout_from((stream, skip), &t[0], p);
                let case = Case::new(format!("dropout {what} of {p}"), [input], op, oracle).result_dtype(dtype);
                cases.push(if dtype == DType::F32 { case.within(1e-6, 1e-6) } else { case.within(1e-2, 1e-2) });
            };
            for shape in [&[][..], &[7], &[17, 33], &[257], &[0]] {
                push("dense", dense(signed(shape, 181)));
            }
            push("transposed", transposed(signed(&[7, 5], 182), 0, 1));
            push("narrowed", narrowed(signed(&[7, 5], 183), 1));
            push("halves", dense(signed(&[7, 5], 184)).of(DType::BF16));
        }
    }
    cases
}
