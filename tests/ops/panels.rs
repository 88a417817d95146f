//! Attention on `cpu` without a mask is an op of its own, in panels of queries; with a mask that hides nothing it is a
//! composition. Both must agree.

use anygpu::{Attention, Result, Tensor};

/// Numbers between −1 and 1.
fn numbers(shape: &[usize], seed: usize) -> Result<Tensor> {
    let count = shape.iter().product();
    let values = (0..count).map(|i| ((i + seed) * 7919 % 1999) as f32 / 1000.0 - 1.0).collect();
    Tensor::from_vec(values, shape, None)
}

/// Returns the result and the gradients of queries, keys and values, all weighted alike.
fn computed(inputs: &[Tensor; 3], options: &Attention) -> Result<[Vec<f32>; 4]> {
    let [q, k, v] = inputs.each_ref().map(|x| x.detach().requires_grad());
    let out = q.attention(&k, &v, options)?;
    out.mul(&numbers(out.shape(), 5)?)?.sum_all()?.backward()?;
    let gradient = |x: &Tensor| x.grad().expect("a gradient").to_vec::<f32>();
    Ok([out.to_vec()?, gradient(&q)?, gradient(&k)?, gradient(&v)?])
}

#[track_caller]
fn assert_agree(what: &str, inputs: &[Tensor; 3], options: &Attention) -> Result<()> {
    let all = Tensor::full([1, 1], true, None)?;
    let (fused, composed) = (computed(inputs, options)?, computed(inputs, &options.clone().mask(&all))?);
    for (part, (got, expected)) in ["out", "q", "k", "v"].iter().zip(fused.iter().zip(&composed)) {
        assert_eq!(got.len(), expected.len(), "{what}: {part}");
        for (i, (a, b)) in got.iter().zip(expected).enumerate() {
            let near = (a - b).abs() <= 2e-5 * b.abs().max(1.0) || (a.is_nan() && b.is_nan());
            assert!(near, "{what}: {part}[{i}] is {a}, not {b}");
        }
    }
    assert_eq!(fused, computed(inputs, options)?, "{what}: another run has other bits");
    Ok(())
}

#[test]
fn attention_in_panels_is_that_of_the_composition() -> Result<()> {
    // Batch, queries, keys, elements of a key and of a value.
    let sizes = [
        [&[2, 3][..], &[1, 1, 1, 1]],
        [&[1], &[33, 31, 7, 12]],
        [&[], &[64, 96, 16, 33]],
        [&[5], &[70, 600, 9, 8]],
        [&[2, 2], &[100, 20, 64, 65]],
        [&[20], &[40, 40, 32, 32]],
        [&[1], &[700, 65, 24, 5]],
    ];
    for [batch, sides] in sizes {
        let shape = |rows: usize, columns: usize| [batch, &[sides[rows], sides[columns]]].concat();
        let inputs = [numbers(&shape(0, 2), 1)?, numbers(&shape(1, 2), 2)?, numbers(&shape(1, 3), 3)?];
        for options in [Attention::new(), Attention::new().causal(), Attention::new().scale(1.5)] {
            assert_agree(&format!("{batch:?} {sides:?} {options:?}"), &inputs, &options)?;
        }
    }
    Ok(())
}

#[test]
fn attention_in_panels_reads_views_and_broadcasts() -> Result<()> {
    let heads = numbers(&[3, 50, 2 * 3 * 12], 1)?.reshape([3, 50, 6, 12])?.transpose(1, 2)?;
    let inputs = [heads.narrow(1, 0, 2)?, heads.narrow(1, 2, 2)?, heads.narrow(1, 4, 2)?];
    assert_agree("views", &inputs, &Attention::new().causal())?;
    let turned = [numbers(&[9, 40], 1)?.t()?, numbers(&[9, 50], 2)?.t()?, numbers(&[3, 7, 50], 3)?.transpose(1, 2)?];
    assert_agree("turned", &turned, &Attention::new())?;
    assert_agree(
        "broadcasts",
        &[numbers(&[2, 1, 4, 5], 1)?, numbers(&[3, 6, 5], 2)?, numbers(&[6, 7], 3)?],
        &Attention::new(),
    )
}

/// A score that is too large for exp alone, and elements that are no numbers, have the results of the composition.
#[test]
fn attention_in_panels_of_large_scores_and_no_numbers() -> Result<()> {
    let inputs = || Ok::<_, anygpu::Error>([numbers(&[40, 8], 1)?, numbers(&[45, 8], 2)?, numbers(&[45, 6], 3)?]);
    let large = inputs()?.each_ref().map(|x| x.mul_scalar(300.0));
    let [q, k, _] = large;
    let large = [q?, k?, inputs()?[2].clone()];
    for options in [Attention::new(), Attention::new().causal()] {
        let rows: Vec<f32> = large[0].attention(&large[1], &large[2], &options)?.to_vec()?;
        assert!(rows.iter().all(|v| v.is_finite() && v.abs() <= 1.0 + 1e-5), "{rows:?}");
        for (input, row) in [(0, 3), (1, 7)] {
            for value in [f32::NAN, f32::INFINITY] {
                let odd = inputs()?;
                odd[input].narrow(0, row, 1)?.fill_(value)?;
                let plain = odd[0].attention(&odd[1], &odd[2], &options)?.to_vec::<f32>()?;
                let all = Tensor::full([1, 1], true, None)?;
                let composed = odd[0].attention(&odd[1], &odd[2], &options.clone().mask(&all))?.to_vec::<f32>()?;
                let kinds = |v: &[f32]| v.iter().map(|v| v.is_nan()).collect::<Vec<_>>();
                assert_eq!(kinds(&plain), kinds(&composed), "{value} in input {input}, {options:?}");
            }
        }
    }
    Ok(())
}
