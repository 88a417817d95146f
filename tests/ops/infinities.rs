//! Values and gradients at NaN, ±∞, ±0 and where the pieces of functions meet, by PyTorch 2.15. Where its vectorised loops
//! and those for the last few elements differ, as for `relu6` at NaN, by the vectorised ones. One difference is meant:
//! `gelu(∞)` is ∞, not NaN.

use anygpu::{Attention, Device, Result, Tensor};

use crate::common::devices;

const NAN: f32 = f32::NAN;
const INF: f32 = f32::INFINITY;

/// Functions of one element as the table names them, those with arguments with these.
fn of_one(name: &str, x: &Tensor) -> Option<Result<Tensor>> {
    Some(match name {
        "neg" => x.neg(),
        "abs" => x.abs(),
        "sign" => x.sign(),
        "square" => x.square(),
        "recip" => x.recip(),
        "exp" => x.exp(),
        "exp2" => x.exp2(),
        "expm1" => x.expm1(),
        "log" => x.log(),
        "log2" => x.log2(),
        "log1p" => x.log1p(),
        "sqrt" => x.sqrt(),
        "rsqrt" => x.rsqrt(),
        "sin" => x.sin(),
        "cos" => x.cos(),
        "tan" => x.tan(),
        "tanh" => x.tanh(),
        "sigmoid" => x.sigmoid(),
        "erf" => x.erf(),
        "floor" => x.floor(),
        "ceil" => x.ceil(),
        "round" => x.round(),
        "trunc" => x.trunc(),
        "relu" => x.relu(),
        "relu6" => x.relu6(),
        "gelu" => x.gelu(),
        "gelu_tanh" => x.gelu_tanh(),
        "silu" => x.silu(),
        "log_sigmoid" => x.log_sigmoid(),
        "mish" => x.mish(),
        "hardswish" => x.hardswish(),
        "hardsigmoid" => x.hardsigmoid(),
        "softsign" => x.softsign(),
        "elu" => x.elu(1.0),
        "softplus" => x.softplus(1.0, 20.0),
        "leaky_relu" => x.leaky_relu(0.5),
        "hardtanh" => x.hardtanh(-1.0, 1.0),
        "clamp" => x.clamp(Some(-1.0), Some(1.0)),
        "clamp_min" => x.clamp(Some(0.0), None),
        _ => return None,
    })
}

fn of_two(name: &str, a: &Tensor, b: &Tensor) -> Option<Result<Tensor>> {
    Some(match name {
        "add" => a.add(b),
        "sub" => a.sub(b),
        "mul" => a.mul(b),
        "div" => a.div(b),
        "rem" => a.rem(b),
        "fmod" => a.fmod(b),
        "pow" => a.pow(b),
        "maximum" => a.maximum(b),
        "minimum" => a.minimum(b),
        "atan2" => a.atan2(b),
        _ => return None,
    })
}

/// What PyTorch has, by function: operands, value and gradients of each point.
fn table() -> Vec<(&'static str, Vec<Vec<f32>>)> {
    let mut table: Vec<(&str, Vec<Vec<f32>>)> = Vec::new();
    for line in include_str!("infinities.txt").lines() {
        let mut words = line.split(' ');
        let name = words.next().unwrap_or_default();
        let numbers = words.map(|word| word.parse().expect("a number")).collect();
        match table.last_mut().filter(|(last, _)| *last == name) {
            Some((_, rows)) => rows.push(numbers),
            None => table.push((name, vec![numbers])),
        }
    }
    table
}

/// Where this library means to differ.
fn is_meant(name: &str, row: &[f32]) -> bool {
    match name {
        "gelu" => row[0] == INF,
        _ => false,
    }
}

/// The same numbers, NaN and infinities, to a few units in the last place.
fn alike(got: &[f32], expected: &[f32]) -> bool {
    let near =
        |(&g, &e): (&f32, &f32)| (g.is_nan() && e.is_nan()) || g == e || (g - e).abs() <= 1e-5 * e.abs().max(0.1);
    got.len() == expected.len() && got.iter().zip(expected).all(near)
}

/// The values of `f`, and the gradient of their sum.
fn both(values: &[f32], f: impl Fn(&Tensor) -> Result<Tensor>, device: &Device) -> Result<[Vec<f32>; 2]> {
    let x = Tensor::from_slice(values, values.len(), device)?.requires_grad();
    let y = f(&x)?;
    y.sum_all()?.backward()?;
    Ok([y.to_vec()?, x.grad().expect("a gradient").to_vec()?])
}

#[test]
fn functions_are_those_of_pytorch() -> Result<()> {
    let (table, mut wrong) = (table(), Vec::new());
    assert_eq!(table.iter().map(|(_, rows)| rows.len()).sum::<usize>(), 39 * 10 + 10 * 64);
    for device in devices() {
        for (name, rows) in &table {
            let column = |i: usize| rows.iter().map(|row| row[i]).collect::<Vec<_>>();
            let leaf = |i: usize| Ok(Tensor::from_vec(column(i), rows.len(), &device)?.requires_grad());
            let leaves = if rows[0].len() == 3 { vec![leaf(0)?] } else { vec![leaf(0)?, leaf(1)?] };
            let y = match &leaves[..] {
                [x] => of_one(name, x),
                [a, b] => of_two(name, a, b),
                _ => None,
            };
            let y = y.expect("a function of the table")?;
            y.sum_all()?.backward()?;
            let mut got = vec![y.to_vec::<f32>()?];
            for leaf in &leaves {
                got.push(leaf.grad().expect("a gradient").to_vec()?);
            }
            for (i, row) in rows.iter().enumerate() {
                let got: Vec<f32> = got.iter().map(|column| column[i]).collect();
                let (at, expected) = row.split_at(leaves.len());
                if !alike(&got, expected) && !is_meant(name, row) {
                    wrong.push(format!("{name}{at:?} on {device}: {got:?}, not {expected:?}"));
                }
            }
        }
        let [y, _] = both(&[INF], |x| x.gelu(), &device)?;
        assert_eq!(y, [INF], "{device}");
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

/// As `prod(dim)` of PyTorch: a zero times an infinity or NaN is NaN, in gradients too.
#[test]
fn gradients_of_products() -> Result<()> {
    for device in devices() {
        for (x, slopes) in [
            ([1.0, NAN, 2.0], [NAN, NAN, NAN]),
            ([0.0, NAN, 2.0], [NAN, 0.0, NAN]),
            ([0.0, INF, 2.0], [INF, 0.0, NAN]),
            ([-INF, 2.0, 0.0], [0.0, NAN, -INF]),
            ([INF, 2.0, 3.0], [NAN, INF, INF]),
            ([INF, INF, 3.0], [NAN, NAN, INF]),
            ([0.0, 0.0, INF], [NAN, NAN, 0.0]),
            ([0.0, NAN, 0.0], [NAN, 0.0, NAN]),
            ([0.0, 0.0, 2.0], [0.0, 0.0, 0.0]),
            ([0.0, 3.0, 2.0], [6.0, 0.0, 0.0]),
        ] {
            let [_, got] = both(&x, |x| x.prod([0], false), &device)?;
            assert!(alike(&got, &slopes), "{x:?} on {device}: {got:?}, not {slopes:?}");
        }
    }
    Ok(())
}

#[test]
fn extremes_that_are_no_numbers() -> Result<()> {
    for device in devices() {
        for (x, slopes) in
            [([1.0, NAN, 2.0], [NAN; 3]), ([INF, INF, 1.0], [0.5, 0.5, 0.0]), ([-INF; 3], [1.0 / 3.0; 3])]
        {
            let [_, got] = both(&x, |x| x.max([0], false), &device)?;
            assert!(alike(&got, &slopes), "{x:?} on {device}: {got:?}, not {slopes:?}");
        }
    }
    Ok(())
}

#[test]
fn softmax_of_one_value() -> Result<()> {
    for device in devices() {
        for (x, p, log) in [(3.0, 1.0, 0.0), (NAN, NAN, NAN), (INF, NAN, NAN)] {
            let x = Tensor::scalar(x, &device)?.requires_grad();
            let y = x.softmax(0)?;
            assert!(alike(&y.to_vec()?, &[p]) && alike(&x.log_softmax(0)?.to_vec()?, &[log]), "{device}");
            assert_eq!(y.rank(), 0);
            assert!(x.softmax(1).is_err());
            y.backward()?;
            let slope = x.grad().expect("a gradient").item::<f32>()?;
            assert!(alike(&[slope], &[log]), "{slope} on {device}");
        }
    }
    Ok(())
}

/// A query that sees no key gives zeros, and what it would have seen gets no gradient from it.
#[test]
fn attention_without_a_key() -> Result<()> {
    for device in devices() {
        let numbers = |shape: [usize; 3], first: f32| {
            let count = shape.iter().product::<usize>() as f32;
            Tensor::arange(first, first + count, 1.0, &device)?.reshape(shape)?.sin()
        };
        let seen = Tensor::from_slice(&[true, false, true, false, false, false], [2, 3], &device)?;
        let added = seen.where_cond(0.0, -INF)?;
        let ahead = Tensor::from_slice(&[true, true, true, false, false, true], [2, 3], &device)?; // no key of the past
        for (mask, causal) in [(&seen, false), (&added, false), (&seen, true), (&ahead, true)] {
            let [q, k, v] = [numbers([1, 2, 4], 1.0)?, numbers([1, 3, 4], 20.0)?, numbers([1, 3, 2], 40.0)?];
            let leaves = [q.requires_grad(), k.requires_grad(), v.requires_grad()];
            let mut options = Attention::new().mask(mask);
            if causal {
                options = options.causal();
            }
            let out = leaves[0].attention(&leaves[1], &leaves[2], &options)?;
            out.sum_all()?.backward()?;
            let out = out.to_vec::<f32>()?;
            assert!(out[..2].iter().all(|v| v.is_finite() && *v != 0.0), "{device}: {out:?}");
            assert_eq!(out[2..], [0.0; 2], "{device}");
            let [dq, dk, dv] = leaves.map(|leaf| leaf.grad().expect("a gradient").to_vec::<f32>());
            let (dq, dk, dv) = (dq?, dk?, dv?);
            assert_eq!(dq[4..], [0.0; 4], "{device}");
            assert!([&dq, &dk, &dv].iter().all(|g| g.iter().all(|v| v.is_finite())), "{device}");
            // The first query's weights add up to 1: so do the gradients of the values.
            assert!((dv.iter().sum::<f32>() - 2.0).abs() < 1e-5, "{device}: {dv:?}");
        }
        let none = Tensor::zeros([1, 0, 4], &device)?;
        let all = Tensor::full([2, 0], true, &device)?;
        let out = numbers([1, 2, 4], 0.0)?.attention(&none, &none, &Attention::new().mask(&all))?;
        assert_eq!(out.to_vec::<f32>()?, [0.0; 8], "{device}");
    }
    Ok(())
}
