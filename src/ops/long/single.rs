//! Functions of one 64-bit element, on the host.

use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI, PI};
use std::sync::Arc;

use super::{Long, host_only, of_pairs, pairs, unsupported, untracked};
use crate::device::gpu::{Buffer, Gpu, Kernel};
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::elementwise::unary::CHUNK;
use crate::ops::{CpuIn, CpuOut, Dense, Elements, GpuIn, Op, Output, apply};
use crate::tensor::Tensor;
use anygpu_host::tasks::share;

/// A function of pairs of words `[.., 2]`; the result is pairs, or words of 0 and 1 that become booleans.
#[derive(Debug)]
struct OfOne {
    name: &'static str,
    args: [f64; 2],
    truth: bool,
    dtype: DType,
}

fn each<S: Long, R: Send>(x: &CpuIn<Dense>, out: &mut [R], f: impl Fn(S) -> R + Sync) {
    let x = x.slice::<u32>().as_chunks().0;
    let convert = |(out, x): (&mut [R], &[[u32; 2]])| out.iter_mut().zip(x).for_each(|(out, &x)| *out = f(S::of(x)));
    share(out.chunks_mut(CHUNK).zip(x.chunks(CHUNK)), 1, convert);
}

impl Op for OfOne {
    type Layout = Dense;
    const ELEMENTS: Elements = Elements::Any;

    fn name(&self) -> &'static str {
        self.name
    }

    fn output(&self, inputs: &[&Tensor]) -> Result<Output> {
        let shape = inputs[0].shape();
        let rank = shape.len() - usize::from(self.truth);
        Ok((shape[..rank].to_vec(), if self.truth { DType::Bool } else { DType::U32 }))
    }

    fn cpu(&self, inputs: &[CpuIn<Dense>], out: CpuOut) -> Result<()> {
        let x = &inputs[0];
        match (self.truth, self.dtype) {
            (true, DType::I64) => each(x, out.0, |v: i64| u32::from(v == 0)),
            (true, _) => {
                let test = test(self.name).unwrap_or(|_| false);
                each(x, out.0, move |v: f64| u32::from(test(v)));
            }
            (_, DType::I64) => {
                let f = integer(self.name).unwrap_or(|v| v);
                each(x, out.0.as_chunks_mut().0, move |v: i64| f(v).pair());
            }
            _ => {
                let (f, args) = (float(self.name).unwrap_or(|v, _| v), self.args);
                each(x, out.0.as_chunks_mut().0, move |v: f64| f(v, args).pair());
            }
        }
        Ok(())
    }

    fn gpu(&self, _gpu: &Arc<Gpu>, _inputs: &[GpuIn<Dense>], _out: &Buffer) -> Result<Vec<Kernel>> {
        host_only(self.name, self.dtype)
    }
}

fn test(name: &str) -> Option<fn(f64) -> bool> {
    Some(match name {
        "isnan" => f64::is_nan,
        "isinf" => f64::is_infinite,
        "isfinite" => f64::is_finite,
        "logical_not" => |x| x == 0.0,
        _ => return None,
    })
}

fn integer(name: &str) -> Option<fn(i64) -> i64> {
    Some(match name {
        "neg" => i64::wrapping_neg,
        "abs" => i64::wrapping_abs,
        "sign" => i64::signum,
        "square" => |x| x.wrapping_mul(x),
        "bitwise_not" => |x| !x,
        _ => return None,
    })
}

/// A function of a number and of two arguments.
type Float = fn(f64, [f64; 2]) -> f64;

fn float(name: &str) -> Option<Float> {
    Some(match name {
        "neg" => |x, _| -x,
        "abs" => |x, _| x.abs(),
        "sign" => |x, _| {
            if x > 0.0 {
                1.0
            } else if x < 0.0 {
                -1.0
            } else {
                0.0
            }
        },
        "square" => |x, _| x * x,
        "recip" => |x, _| 1.0 / x,
        "exp" => |x, _| x.exp(),
        "exp2" => |x, _| x.exp2(),
        "expm1" => |x, _| x.exp_m1(),
        "log" => |x, _| x.ln(),
        "log2" => |x, _| x.log2(),
        "log1p" => |x, _| x.ln_1p(),
        "sqrt" => |x, _| x.sqrt(),
        "rsqrt" => |x, _| 1.0 / x.sqrt(),
        "sin" => |x, _| x.sin(),
        "cos" => |x, _| x.cos(),
        "tan" => |x, _| x.tan(),
        "asin" => |x, _| x.asin(),
        "acos" => |x, _| x.acos(),
        "atan" => |x, _| x.atan(),
        "sinh" => |x, _| x.sinh(),
        "cosh" => |x, _| x.cosh(),
        "asinh" => |x, _| x.asinh(),
        "acosh" => |x, _| x.acosh(),
        "atanh" => |x, _| x.atanh(),
        "tanh" => |x, _| x.tanh(),
        "sigmoid" => |x, _| sigmoid(x),
        "erf" => |x, _| erf(x),
        "floor" => |x, _| x.floor(),
        "ceil" => |x, _| x.ceil(),
        "round" => |x, _| x.round_ties_even(),
        "trunc" => |x, _| x.trunc(),
        "clamp" | "hardtanh" => limited,
        "relu" => |x, _| if x <= 0.0 { 0.0 } else { x },
        "leaky_relu" => |x, p| if x > 0.0 { x } else { p[0] * x },
        "elu" => |x, p| if x > 0.0 { x } else { p[0] * x.exp_m1() },
        "gelu" => |x, _| x * 0.5 * erfc(-x * FRAC_1_SQRT_2),
        "gelu_tanh" => |x, _| 0.5 * x * (1.0 + ((2.0 / PI).sqrt() * (x + 0.044715 * x * x * x)).tanh()),
        "silu" => |x, _| x * sigmoid(x),
        "softplus" => |x, p| if x * p[0] > p[1] { x } else { softplus(x * p[0]) / p[0] },
        "log_sigmoid" => |x, _| -softplus(-x),
        "mish" => |x, _| x * softplus(x).tanh(),
        "hardswish" => |x, _| x * limited(x + 3.0, [0.0, 6.0]) / 6.0,
        "hardsigmoid" => |x, _| limited(x + 3.0, [0.0, 6.0]) / 6.0,
        "softsign" => |x, _| x / (1.0 + x.abs()),
        _ => return None,
    })
}

/// Not `clamp`, which panics if the bounds are exchanged.
fn limited(x: f64, [low, high]: [f64; 2]) -> f64 {
    if x.is_nan() { x } else { x.max(low).min(high) }
}

fn sigmoid(x: f64) -> f64 {
    let e = (-x.abs()).exp();
    if x < 0.0 { e / (1.0 + e) } else { 1.0 / (1.0 + e) }
}

fn softplus(x: f64) -> f64 {
    if x.is_nan() { x } else { x.max(0.0) + (-x.abs()).exp().ln_1p() }
}

/// Up to here erf is a sum of powers, and beyond it erfc is a continued fraction.
const CENTRE: f64 = 2.0;

/// Returns `erf x` for `|x| ≤ CENTRE` as `2/√π · e^(−x²) · Σ 2ⁿ x²ⁿ⁺¹ / (1 · 3 · … · (2n + 1))`, all of one sign.
fn erf_sum(x: f64) -> f64 {
    let (mut term, mut sum, mut n) = (x, x, 0.0);
    while term.abs() > sum.abs() * 1e-17 {
        n += 1.0;
        term *= 2.0 * x * x / (2.0 * n + 1.0);
        sum += term;
    }
    FRAC_2_SQRT_PI * (-x * x).exp() * sum
}

/// Returns `erfc x` for `x ≥ CENTRE` as `e^(−x²) / √π · 1 / (x + ½ / (x + 1 / (x + 3/2 / (x + …))))`.
fn erfc_fraction(x: f64) -> f64 {
    let fraction = (1..=80).rev().fold(x, |rest, n| x + 0.5 * f64::from(n) / rest);
    0.5 * FRAC_2_SQRT_PI * (-x * x).exp() / fraction
}

fn erf(x: f64) -> f64 {
    match x.abs() {
        size if size <= CENTRE => erf_sum(x),
        size if size < 6.0 => (1.0 - erfc_fraction(size)).copysign(x),
        _ if x.is_nan() => x,
        _ => 1f64.copysign(x),
    }
}

fn erfc(x: f64) -> f64 {
    match x {
        _ if x.is_nan() => x,
        x if x >= 28.0 => 0.0,
        x if x >= CENTRE => erfc_fraction(x),
        x => 1.0 - erf(x),
    }
}

/// Computes a function of the elementwise table, by its name.
pub(in crate::ops) fn of_one(name: &'static str, args: [f32; 2], truth: bool, x: &Tensor) -> Result<Tensor> {
    let dtype = x.dtype();
    let known = match (truth, dtype) {
        (true, DType::I64) => name == "logical_not",
        (true, _) => test(name).is_some(),
        (_, DType::I64) => integer(name).is_some(),
        _ => float(name).is_some(),
    };
    if !known || !x.device().is_cpu() {
        return Err(unsupported(name, x));
    }
    if !truth {
        untracked(name, &[x])?;
    }
    let out = apply(OfOne { name, args: args.map(f64::from), truth, dtype }, &[&pairs(x)])?;
    if truth { Ok(out) } else { of_pairs(&out, dtype) }
}
