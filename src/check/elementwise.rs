//! Functions of one element.

use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI, PI};

use super::prelude::*;

pub(super) fn cases() -> Vec<Case> {
    [unary(), everywhere(), more_elements_than_one_row_of_workgroups(), whole_numbers(), properties(), to_dtype()]
        .into_iter()
        .flatten()
        .collect()
}

/// A function, and the interval of its operands.
#[derive(Clone, Copy)]
struct Unary {
    name: &'static str,
    op: fn(&Tensor) -> Result<Tensor>,
    oracle: fn(f64) -> f64,
    range: [f64; 2],
    /// Whether its gradient is tested with f16 and bf16 too, as its value is.
    half_gradient: bool,
}

impl Unary {
    const fn new(
        name: &'static str,
        op: fn(&Tensor) -> Result<Tensor>,
        oracle: fn(f64) -> f64,
        range: [f64; 2],
    ) -> Unary {
        Unary { name, op, oracle, range, half_gradient: true }
    }

    /// Marks a function with steps or corners: a half may be on one, where the oracle's difference is not the gradient.
    const fn with_steps(self) -> Unary {
        Unary { half_gradient: false, ..self }
    }
}

type Function = (&'static str, fn(&Tensor) -> Result<Tensor>, fn(f64) -> f64);
type Property = (&'static str, fn(&Tensor) -> Result<Tensor>, fn(f64) -> bool);

/// Computes 1 − erf x by the series of erf, whose terms are all positive, and by its continued fraction.
fn erfc(x: f64) -> f64 {
    if x < 0.0 {
        return 2.0 - erfc(-x);
    }
    if x < 2.5 {
        let (mut term, mut sum) = (x, x);
        for n in 1..80 {
            term *= 2.0 * x * x / f64::from(2 * n + 1);
            sum += term;
        }
        return 1.0 - FRAC_2_SQRT_PI * (-x * x).exp() * sum;
    }
    let fraction = (1..120).rev().fold(x, |rest, n| x + f64::from(n) / 2.0 / rest);
    (-x * x).exp() / fraction / PI.sqrt()
}

fn erf(x: f64) -> f64 {
    if x.abs() < 0.5 {
        let (mut term, mut sum) = (x, x);
        for n in 1..30 {
            term *= 2.0 * x * x / f64::from(2 * n + 1);
            sum += term;
        }
        return FRAC_2_SQRT_PI * (-x * x).exp() * sum;
    }
    1.0 - erfc(x)
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

fn softplus(x: f64) -> f64 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

fn gelu_tanh(x: f64) -> f64 {
    x * sigmoid(2.0 * (2.0 / PI).sqrt() * (x + 0.044715 * x.powi(3)))
}

fn mish(x: f64) -> f64 {
    x * softplus(x).tanh()
}

/// The functions whose values and gradients are tested in all layouts.
const UNARY: &[Unary] = &[
    Unary::new("neg", |x| x.neg(), |v| -v, [-2.0, 2.0]),
    Unary::new("abs", |x| x.abs(), f64::abs, [-2.0, 2.0]),
    Unary::new("sign", |x| x.sign(), f64::signum, [-2.0, 2.0]),
    Unary::new("square", |x| x.square(), |v| v * v, [-2.0, 2.0]),
    Unary::new("recip", |x| x.recip(), f64::recip, [0.3, 2.0]),
    Unary::new("exp", |x| x.exp(), f64::exp, [-3.0, 3.0]),
    Unary::new("exp2", |x| x.exp2(), f64::exp2, [-3.0, 3.0]),
    Unary::new("expm1", |x| x.expm1(), f64::exp_m1, [-3.0, 3.0]),
    Unary::new("log", |x| x.log(), f64::ln, [0.2, 4.0]),
    Unary::new("log2", |x| x.log2(), f64::log2, [0.2, 4.0]),
    Unary::new("log1p", |x| x.log1p(), f64::ln_1p, [-0.8, 4.0]),
    Unary::new("sqrt", |x| x.sqrt(), f64::sqrt, [0.2, 4.0]),
    Unary::new("rsqrt", |x| x.rsqrt(), |v| v.sqrt().recip(), [0.3, 4.0]),
    Unary::new("sin", |x| x.sin(), f64::sin, [-10.0, 10.0]),
    Unary::new("cos", |x| x.cos(), f64::cos, [-10.0, 10.0]),
    Unary::new("tan", |x| x.tan(), f64::tan, [-1.2, 1.2]),
    Unary::new("asin", |x| x.asin(), f64::asin, [-0.95, 0.95]),
    Unary::new("acos", |x| x.acos(), f64::acos, [-0.95, 0.95]),
    Unary::new("atan", |x| x.atan(), f64::atan, [-4.0, 4.0]),
    Unary::new("sinh", |x| x.sinh(), f64::sinh, [-3.0, 3.0]),
    Unary::new("cosh", |x| x.cosh(), f64::cosh, [-3.0, 3.0]),
    Unary::new("asinh", |x| x.asinh(), f64::asinh, [-4.0, 4.0]),
    Unary::new("acosh", |x| x.acosh(), f64::acosh, [1.1, 4.0]),
    Unary::new("atanh", |x| x.atanh(), f64::atanh, [-0.9, 0.9]),
    Unary::new("tanh", |x| x.tanh(), f64::tanh, [-3.0, 3.0]),
    Unary::new("sigmoid", |x| x.sigmoid(), sigmoid, [-5.0, 5.0]),
    Unary::new("erf", |x| x.erf(), erf, [-3.0, 3.0]),
    Unary::new("floor", |x| x.floor(), f64::floor, [-5.0, 5.0]).with_steps(),
    Unary::new("ceil", |x| x.ceil(), f64::ceil, [-5.0, 5.0]).with_steps(),
    Unary::new("round", |x| x.round(), f64::round_ties_even, [-5.0, 5.0]).with_steps(),
    Unary::new("trunc", |x| x.trunc(), f64::trunc, [-5.0, 5.0]).with_steps(),
    Unary::new("clamp", |x| x.clamp(Some(-1.0), Some(0.5)), |v| v.clamp(-1.0, 0.5), [-2.0, 2.0]),
    Unary::new("clamp below", |x| x.clamp(Some(-1.0), None), |v| v.max(-1.0), [-2.0, 2.0]),
    Unary::new("clamp above", |x| x.clamp(None, Some(0.5)), |v| v.min(0.5), [-2.0, 2.0]),
    Unary::new("hardtanh", |x| x.hardtanh(-1.0, 1.0), |v| v.clamp(-1.0, 1.0), [-2.0, 2.0]),
    Unary::new("relu", |x| x.relu(), |v| v.max(0.0), [-2.0, 2.0]),
    Unary::new("relu6", |x| x.relu6(), |v| v.clamp(0.0, 6.0), [-3.0, 9.0]).with_steps(),
    Unary::new("leaky_relu", |x| x.leaky_relu(0.125), |v| if v > 0.0 { v } else { 0.125 * v }, [-2.0, 2.0]),
    Unary::new("elu", |x| x.elu(1.5), |v| if v > 0.0 { v } else { 1.5 * v.exp_m1() }, [-2.0, 2.0]),
    Unary::new("gelu", |x| x.gelu(), |v| v * 0.5 * erfc(-v * FRAC_1_SQRT_2), [-4.0, 4.0]),
    Unary::new("gelu_tanh", |x| x.gelu_tanh(), gelu_tanh, [-4.0, 4.0]),
    Unary::new("silu", |x| x.silu(), |v| v * sigmoid(v), [-4.0, 4.0]),
    Unary::new("softplus", |x| x.softplus(1.0, 20.0), softplus, [-4.0, 30.0]),
    Unary::new("softplus sharp", |x| x.softplus(4.0, 20.0), |v| softplus(4.0 * v) / 4.0, [-2.0, 4.0]),
    Unary::new("log_sigmoid", |x| x.log_sigmoid(), |v| -softplus(-v), [-4.0, 4.0]),
    Unary::new("mish", |x| x.mish(), mish, [-4.0, 4.0]),
    Unary::new("hardswish", |x| x.hardswish(), |v| v * (v + 3.0).clamp(0.0, 6.0) / 6.0, [-5.0, 5.0]),
    Unary::new("hardsigmoid", |x| x.hardsigmoid(), |v| (v + 3.0).clamp(0.0, 6.0) / 6.0, [-5.0, 5.0]),
    Unary::new("softsign", |x| x.softsign(), |v| v / (1.0 + v.abs()), [-4.0, 4.0]),
    Unary::new("add_scalar", |x| x.add_scalar(1.5), |v| v + 1.5, [-2.0, 2.0]),
    Unary::new("sub_scalar", |x| x.sub_scalar(1.5), |v| v - 1.5, [-2.0, 2.0]),
    Unary::new("mul_scalar", |x| x.mul_scalar(-2.5), |v| v * -2.5, [-2.0, 2.0]),
    Unary::new("div_scalar", |x| x.div_scalar(-2.5), |v| v / -2.5, [-2.0, 2.0]),
    Unary::new("sub of a number", |x| 1.5 - x, |v| 1.5 - v, [-2.0, 2.0]),
    Unary::new("div of a number", |x| 1.5 / x, |v| 1.5 / v, [0.3, 2.0]),
    Unary::new("pow to a number", |x| x.pow(2.5), |v| v.powf(2.5), [0.3, 2.0]),
    Unary::new("pow of a number", |x| Tensor::full((), 2.5f32, x.device())?.pow(x), |v| 2.5f64.powf(v), [-2.0, 2.0]),
    Unary::new("rem by a number", |x| x % 0.75, |v| v.rem_euclid(0.75), [-2.0, 2.0]).with_steps(),
    Unary::new("maximum with a number", |x| x.maximum(0.5), |v| v.max(0.5), [-2.0, 2.0]),
];

fn unary() -> Vec<Case> {
    let mut cases = Vec::new();
    for &Unary { name, op, oracle: f, range: [lo, hi], .. } in UNARY {
        let mut push = |layout: &str, input: Input| {
            let case = Case::new(format!("{name} {layout}"), [input], move |t| op(&t[0]), move |x| x[0].map(f));
            cases.push(case.within(1e-6, 1e-6));
        };
        // Not close to a point where a function is not differentiable.
        let smooth = |v: f64| if (v * 4.0 - (v * 4.0).round()).abs() < 0.02 { v + 0.01 } else { v };
        let x = |shape: &[usize]| uniform(shape, lo, hi, 1).map(|v| f64::from(smooth(v) as f32));
        for shape in [&[][..], &[1], &[17, 33], &[257], &[3, 0, 2]] {
            push("dense", dense(x(shape)));
        }
        push("transposed", transposed(x(&[7, 17]), 0, 1));
        push("narrowed", narrowed(x(&[17]), 0));
        push("narrowed with gaps", narrowed(x(&[3, 7]), 1));
        push("broadcast", broadcast(x(&[7, 1]), &[2, 7, 3]));
    }
    for (dtype, rtol) in [(DType::F16, 1e-3), (DType::BF16, 8e-3)] {
        for &Unary { name, op, oracle: f, range: [lo, hi], half_gradient } in UNARY {
            let input = narrowed(uniform(&[3, 7], lo, hi, 1), 1).of(dtype);
            let case = Case::new(format!("{name} {dtype}"), [input], move |t| op(&t[0]), move |x| x[0].map(f));
            let case = case.result_dtype(dtype).within(rtol, rtol);
            cases.push(if half_gradient { case } else { case.no_gradient() });
        }
    }
    cases
}

/// Returns numbers of every size and sign, numbers near which functions change, infinities and NaN.
fn numbers() -> Nd {
    let mut all =
        vec![f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.0, 1.0, 20.0, 88.7, 88.8, 1e4, PI, 355.0, 16_777_216.0];
    all.extend((0..40).map(|i| 0.05 * f64::from(i)));
    all.extend((1..60).map(|i| f64::from(i) * PI / 2.0));
    all.extend((1..60).map(|i| 1.0 + f64::from(i) * 1.7 - 1.6));
    all.extend((-44..45).map(|i| 10f64.powf(f64::from(i) * 0.84)));
    let negative: Vec<f64> = all.iter().map(|v| -v).collect();
    all.extend(negative);
    Nd::new(&[all.len()], all).rounded(DType::F32)
}

/// Name, op, oracle. The tolerance is a few units in the last place wherever the result is a normal number.
const EVERYWHERE: &[Function] = &[
    ("neg", |x| x.neg(), |v| -v),
    ("abs", |x| x.abs(), f64::abs),
    ("sign", |x| x.sign(), |v| if v.is_nan() || v == 0.0 { 0.0 } else { v.signum() }),
    ("square", |x| x.square(), |v| v * v),
    ("recip", |x| x.recip(), f64::recip),
    ("exp", |x| x.exp(), f64::exp),
    ("exp2", |x| x.exp2(), f64::exp2),
    ("expm1", |x| x.expm1(), f64::exp_m1),
    ("log", |x| x.log(), f64::ln),
    ("log2", |x| x.log2(), f64::log2),
    ("log1p", |x| x.log1p(), f64::ln_1p),
    ("sqrt", |x| x.sqrt(), f64::sqrt),
    ("rsqrt", |x| x.rsqrt(), |v| v.sqrt().recip()),
    ("sin", |x| x.sin(), f64::sin),
    ("cos", |x| x.cos(), f64::cos),
    ("tan", |x| x.tan(), f64::tan),
    ("tanh", |x| x.tanh(), f64::tanh),
    ("sigmoid", |x| x.sigmoid(), sigmoid),
    ("erf", |x| x.erf(), erf),
    ("floor", |x| x.floor(), f64::floor),
    ("ceil", |x| x.ceil(), f64::ceil),
    ("round", |x| x.round(), f64::round_ties_even),
    ("trunc", |x| x.trunc(), f64::trunc),
    ("clamp", |x| x.clamp(Some(-1.0), Some(0.5)), |v| v.clamp(-1.0, 0.5)),
    ("relu", |x| x.relu(), |v| if v <= 0.0 { 0.0 } else { v }),
    ("leaky_relu", |x| x.leaky_relu(0.125), |v| if v > 0.0 { v } else { 0.125 * v }),
    ("elu", |x| x.elu(1.5), |v| if v > 0.0 { v } else { 1.5 * v.exp_m1() }),
    ("softplus", |x| x.softplus(1.0, 20.0), |v| if v.is_nan() { v } else { softplus(v) }),
    ("add_scalar", |x| x.add_scalar(2.0), |v| v + 2.0),
    ("mul_scalar", |x| x.mul_scalar(2.0), |v| v * 2.0),
];

fn everywhere() -> Vec<Case> {
    let smallest = f64::from(f32::MIN_POSITIVE);
    let case = |&(name, op, f): &Function| {
        let oracle = move |x: &[&Nd]| x[0].map(f).rounded(DType::F32);
        Case::new(format!("{name} everywhere"), [dense(numbers())], move |t| op(&t[0]), oracle)
            .within(smallest, 1e-6)
            .no_gradient()
    };
    EVERYWHERE.iter().map(case).collect()
}

/// Returns a case with one invocation per element, and more elements than 65 535 workgroups of one dimension hold.
fn more_elements_than_one_row_of_workgroups() -> Vec<Case> {
    let x = uniform(&[65_535 * 64 + 77], -1.0, 1.0, 2);
    let relu = Case::new("relu large", [dense(x)], |t| t[0].relu(), |x| x[0].map(|v| v.max(0.0)));
    vec![relu.exact().no_gradient()]
}

/// Returns the cases of functions that keep integers, and of one that makes them f32.
fn whole_numbers() -> Vec<Case> {
    let keep = [
        Unary::new("neg", |x| x.neg(), |v| -v, [-40.0, 40.0]),
        Unary::new("abs", |x| x.abs(), f64::abs, [-40.0, 40.0]),
        Unary::new("sign", |x| x.sign(), |v| if v == 0.0 { 0.0 } else { v.signum() }, [-2.0, 3.0]),
        Unary::new("square", |x| x.square(), |v| v * v, [-15.0, 15.0]),
        Unary::new("relu", |x| x.relu(), |v| v.max(0.0), [-40.0, 40.0]),
        Unary::new("clamp", |x| x.clamp(Some(2.5), Some(9.5)), |v| v.clamp(3.0, 9.0), [-20.0, 20.0]),
        Unary::new("round", |x| x.round(), |v| v, [-20.0, 20.0]),
        Unary::new("add_scalar", |x| x.add_scalar(7), |v| v + 7.0, [-20.0, 20.0]),
        Unary::new("mul_scalar", |x| x.mul_scalar(3), |v| v * 3.0, [-20.0, 20.0]),
    ];
    let mut cases = Vec::new();
    for dtype in [DType::I32, DType::U32, DType::U8] {
        for Unary { name, op, oracle: f, range: [lo, hi], .. } in keep {
            if name == "neg" && dtype != DType::I32 {
                continue; // wraps around
            }
            let lo = if dtype == DType::I32 { lo } else { 0.0 };
            let x = whole(&[7, 17], lo as i32, hi as i32, 5);
            for input in [dense(x.clone()).of(dtype), transposed(x, 0, 1).of(dtype)] {
                let case = Case::new(format!("{name} {dtype}"), [input], move |t| op(&t[0]), move |x| x[0].map(f));
                cases.push(case.result_dtype(dtype));
            }
        }
    }
    for dtype in [DType::I32, DType::U8, DType::Bool] {
        let input = dense(whole(&[33], 0, 5, 6)).of(dtype);
        cases
            .push(Case::new(format!("exp {dtype}"), [input], |t| t[0].exp(), |x| x[0].map(f64::exp)).within(0.0, 1e-6));
    }
    cases
}

/// Returns the cases of functions whose results are booleans.
fn properties() -> Vec<Case> {
    let asked: [Property; 4] = [
        ("isnan", |x| x.isnan(), f64::is_nan),
        ("isinf", |x| x.isinf(), f64::is_infinite),
        ("isfinite", |x| x.isfinite(), f64::is_finite),
        ("logical_not", |x| x.logical_not(), |v| v == 0.0),
    ];
    let mut cases = Vec::new();
    for (name, op, f) in asked {
        let oracle = move |x: &[&Nd]| x[0].map(|v| f64::from(u8::from(f(v))));
        cases.push(Case::new(name, [dense(numbers())], move |t| op(&t[0]), oracle).result_dtype(DType::Bool));
        for dtype in [DType::I32, DType::U32, DType::U8, DType::Bool, DType::F16] {
            let input = transposed(whole(&[7, 5], 0, 3, 4), 0, 1).of(dtype);
            let case = Case::new(format!("{name} {dtype}"), [input], move |t| op(&t[0]), oracle);
            cases.push(case.result_dtype(DType::Bool));
        }
    }
    cases
}

fn to_dtype() -> Vec<Case> {
    let mut cases = Vec::new();
    let numbers = uniform(&[7, 5], 0.0, 100.0, 9);
    for from in DType::COMPUTED {
        for to in DType::COMPUTED {
            for input in [dense(numbers.clone()), transposed(numbers.clone(), 0, 1), narrowed(numbers.clone(), 1)] {
                let name = format!("to_dtype {from} to {to}");
                let case = Case::new(name, [input.of(from)], move |t| t[0].to_dtype(to), move |x| x[0].rounded(to));
                cases.push(case.result_dtype(to).exact().no_gradient());
            }
        }
    }
    let negative = Nd::new(&[3], vec![-1.75, -0.5, 2.9]);
    let truncated = |x: &[&Nd]| x[0].map(f64::trunc);
    cases.push(
        Case::new("to_dtype towards 0", [dense(negative)], |t| t[0].to_dtype(DType::I32), truncated)
            .result_dtype(DType::I32),
    );
    cases.push(
        Case::new("to_dtype f32 stays", [dense(numbers)], |t| t[0].to_dtype(DType::F32), |x| x[0].clone()).exact(),
    );
    cases
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Device, Error};

    /// Returns operands of a function.
    fn operands(row: &Unary) -> Nd {
        uniform(&[257], row.range[0], row.range[1], 1)
    }

    /// The tolerance suits softplus, which is x above its threshold.
    #[test]
    fn functions_of_f64_are_right_or_refused() -> Result<()> {
        let mut refused = 0;
        for row in UNARY {
            let x = operands(row);
            let y = match (row.op)(&Tensor::from_f64(&x.data, [257], None)?) {
                Err(Error::DTypeMismatch { .. }) => {
                    refused += 1;
                    continue;
                }
                y => y?.to_vec_f64()?,
            };
            for (x, y) in x.data.iter().zip(y) {
                let expected = (row.oracle)(*x);
                assert!(
                    (y - expected).abs() <= 1e-10 * (1.0 + expected.abs()),
                    "{} of {x}: {y}, not {expected}",
                    row.name
                );
            }
        }
        assert!(refused < UNARY.len() / 2, "{refused} of {} functions have no f64", UNARY.len());
        Ok(())
    }

    /// What the export writes is read and computed as what the function computes.
    #[cfg(feature = "onnx")]
    #[test]
    fn functions_survive_onnx() -> Result<()> {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("function.onnx");
        for row in UNARY {
            let x = operands(row).tensor(DType::F32, &Device::cpu())?;
            let exporter = crate::onnx::Exporter::new();
            exporter.export_with(&crate::nn::Identity, &[&x], &path, |_, x| Ok(vec![(row.op)(&x[0])?]))?;
            let model = crate::onnx::load(&path)?;
            let y = model.run(&[(&model.inputs()[0].name, &x)])?.into_vec().remove(0);
            let (y, expected) = (y.to_vec::<f32>()?, (row.op)(&x)?.to_vec::<f32>()?);
            for (y, expected) in y.iter().zip(expected) {
                assert!((y - expected).abs() <= 3e-6 * (1.0 + expected.abs()), "{}: {y}, not {expected}", row.name);
            }
        }
        Ok(())
    }
}
