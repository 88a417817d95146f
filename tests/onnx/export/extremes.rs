//! Functions where operators of ONNX differ from ours, or runtimes refuse them: limits of types, 0, infinity, NaN, size 0.

use super::*;

/// Each sample is this row.
fn rows(name: &str, row: &[f32], f: impl Fn(&Tensor) -> Result<Vec<Tensor>>) -> Result<()> {
    let inputs = |n: usize| Ok(vec![Tensor::from_slice(row, [1, row.len()], None)?.repeat([n, 1])?]);
    check(name, &Identity, inputs, |_, x| f(&x[0]))
}

#[test]
fn floats_that_integers_cannot_hold() -> Result<()> {
    let (inf, nan) = (f32::INFINITY, f32::NAN);
    let row =
        [-1.5, 255.5, 256.0, 300.0, -2.5e9, 2.5e9, 4.3e9, 1e20, -1e20, inf, -inf, nan, 2147483647.0, 4294967295.0];
    rows("integers_of_floats", &row, |x| {
        let types = [DType::U8, DType::U32, DType::I32, DType::Bool];
        let mut all = types.map(|dtype| x.to_dtype(dtype)).into_iter().collect::<Result<Vec<_>>>()?;
        all.push(x.to_dtype(DType::F16)?.to_dtype(DType::I32)?);
        all.push(x.to_dtype(DType::U8)?.to_dtype(DType::F32)?);
        Ok(all)
    })
}

#[test]
fn quotients_and_remainders_of_floats() -> Result<()> {
    let (inf, nan) = (f32::INFINITY, f32::NAN);
    let pairs: &[(f32, f32)] = &[
        (7.0, 3.0),
        (-7.0, 3.0),
        (7.0, -3.0),
        (-7.0, -3.0),
        (1.0, 0.1),
        (-1.0, 0.1),
        (1e10, 3.0),
        (-1e10, 7.0),
        (0.3, 0.1),
        (6.0, 3.0),
        (-6.0, 3.0),
        (0.0, 2.0),
        (1.0, inf),
        (-1.0, inf),
        (inf, 2.0),
        (1.0, 0.0),
        (-1.0, 0.0),
        (0.0, 0.0),
        (nan, 1.0),
        (1e-3, 1e6),
        (-1e-3, 1e6),
        (3.0, 1e-3),
    ];
    let inputs = |n: usize| {
        let side = |f: fn(&(f32, f32)) -> f32| {
            let row: Vec<f32> = pairs.iter().map(f).collect();
            Tensor::from_slice(&row, [1, row.len()], None)?.repeat([n, 1])
        };
        Ok(vec![side(|pair| pair.0)?, side(|pair| pair.1)?])
    };
    check("float_divisions", &Identity, inputs, |_, x| {
        let (a, b) = (&x[0], &x[1]);
        Ok(vec![a.rem(b)?, a.fmod(b)?, a.div_floor(b)?, a.div_trunc(b)?, a.rem(0.7)?, a.div_floor(-0.7)?])
    })
}

#[test]
fn integers_divided_by_zero_and_by_minus_one() -> Result<()> {
    let a = [7, -7, 7, -7, 0, i32::MIN, i32::MIN, i32::MAX, i32::MIN, 5];
    let b = [3, 3, -3, 0, 0, -1, 3, -1, 0, 1];
    let inputs = |n: usize| {
        let row = |row: &[i32]| Tensor::from_slice(row, [1, row.len()], None)?.repeat([n, 1]);
        Ok(vec![row(&a)?, row(&b)?])
    };
    check("integer_divisions", &Identity, inputs, |_, x| {
        let (a, b) = (&x[0], &x[1]);
        let [c, d] = [a.to_dtype(DType::U32)?, b.to_dtype(DType::U32)?];
        let mut all = vec![a.rem(3)?, a.div_floor(-3)?];
        for (a, b) in [(a, b), (&c, &d)] {
            all.extend([a.rem(b)?, a.fmod(b)?, a.div_floor(b)?]);
        }
        Ok(all)
    })
}

#[test]
fn small_numbers_keep_their_digits() -> Result<()> {
    // Times 2²⁰ and more, so that a relative error is seen as one.
    let row = [1e-6, -1e-6, 1e-4, -3e-3, 0.0, 1e-7, -1e-7, 2e-5];
    rows("near_zero", &row, |x| Ok(vec![x.expm1()?.div(&x.add(1e-30)?)?, x.log1p()?.div(&x.add(1e-30)?)?]))?;
    let (inf, nan) = (f32::INFINITY, f32::NAN);
    rows("far_from_zero", &[0.49, 0.5, 0.51, -0.49, -0.5, -0.51, 3.0, 20.0, 80.0, 200.0, -80.0, inf, -inf, nan], |x| {
        Ok(vec![x.expm1()?, x.log1p()?, x.abs()?.log1p()?])
    })
}

#[test]
fn bounds_at_infinity() -> Result<()> {
    let inf = f32::INFINITY;
    rows("bounds", &[-2.0, -0.5, 0.0, 0.5, 2.0, inf, -inf], |x| {
        Ok(vec![
            x.clamp(Some(inf), None)?,
            x.clamp(None, Some(-inf))?,
            x.clamp(Some(-inf), Some(1.0))?,
            x.clamp(Some(-1.0), Some(inf))?,
            x.clamp(Some(1.0), Some(-1.0))?,
        ])
    })
}

fn of_integers(x: &Tensor) -> Result<Vec<Tensor>> {
    let signed = x.to_dtype(DType::I32)?;
    let bytes = x.to_dtype(DType::U8)?;
    Ok(vec![
        x.sum(1, false)?,
        x.sum([1, 2], true)?,
        x.prod(1, false)?,
        x.max(2, false)?,
        x.cumsum(2)?,
        x.neg()?,
        x.gt(9u32)?.where_cond(x, &x.add(1u32)?)?,
        x.masked_fill(&x.gt(9u32)?, 3.0)?,
        x.tril(0)?,
        signed.triu(1)?,
        signed.sum(2, false)?,
        signed.gt(0)?.where_cond(&signed, &signed.neg()?)?,
        bytes.tril(0)?,
        bytes.gt(3u32)?.where_cond(&bytes, &bytes)?,
        x.clamp(Some(5.0), Some(100.0))?,
    ])
}

#[test]
fn unsigned_and_signed_integers() -> Result<()> {
    let inputs =
        |row: [u32; 6]| move |n: usize| Ok(vec![Tensor::from_slice(&row, [1, 2, 3], None)?.repeat([n, 1, 1])?]);
    let forward = |_: &Identity, x: &[Tensor]| of_integers(&x[0]);
    check("unsigned", &Identity, inputs([70_000, 300, 7, 0, 511, 2]), forward)?;
    let large = inputs([4_000_000_000, 3_000_000_000, 7, 0, u32::MAX, 2]);
    exported("unsigned_large", &Identity, large, forward, false)
}

#[test]
fn sizes_of_zero_and_biases_that_broadcast() -> Result<()> {
    functions("empty", &[3, 4], |x| {
        let n = x.shape()[0];
        let none = x.narrow(1, 0, 0)?;
        Ok(vec![
            none.clone(),
            none.reshape([n, 0, 2, 2])?,
            none.reshape([n, 4, 0])?.sum(2, false)?,
            Tensor::cat(&[&none, x], 1)?,
            none.relu()?.add(1.0)?,
        ])
    })?;
    let weight = numbers(&[5, 4])?;
    functions("biases", &[4], |x| {
        let product = x.matmul(&weight.t()?)?;
        let one = product.narrow(1, 0, 1)?;
        Ok(vec![
            product.add(&numbers(&[5])?)?,
            product.add(&numbers(&[1])?)?,
            one.add(&numbers(&[5])?)?,
            x.matmul(&weight.narrow(0, 0, 1)?.t()?)?.add(&numbers(&[5])?)?,
        ])
    })
}

#[test]
fn causal_layers_share_a_mask() -> Result<()> {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("net.onnx");
    let layer = || Ok::<_, Error>(MultiheadAttention::new(8, 2)?.causal());
    let net = Sequential::new().add("one", layer()?).add("two", layer()?);
    onnx::export(&net, &numbers(&[1, 37, 8])?, &path)?;
    let file = std::fs::read(&path).expect("the file");
    let file: crate::proto::Model = prost::Message::decode(&file[..]).expect("a model");
    let masks = file.graph.expect("a graph").initializer.iter().filter(|tensor| tensor.dims == [37, 37]).count();
    assert_eq!(masks, 1);
    Ok(())
}
