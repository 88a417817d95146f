//! A linear layer whose products are large ones: `cpu` computes them in other ways than small ones, above all those with
//! transposed operands.

use anygpu::nn::{Linear, Module};
use anygpu::{Result, Tensor, no_grad};

use crate::common::devices;

/// Of whole numbers, whose sums are exact.
#[test]
fn results_and_gradients_are_exact() -> Result<()> {
    let [batch, inputs, outputs] = [101, 300, 410];
    let numbers = |len: usize, seed: usize| -> Vec<f32> {
        (0..len).map(|i| ((i * 7 + i / 13 + seed) % 9) as f32 - 4.0).collect()
    };
    let (x, w) = (numbers(batch * inputs, 1), numbers(outputs * inputs, 2));
    let (bias, g) = (numbers(outputs, 3), numbers(batch * outputs, 4));
    let sum = |terms: usize, term: &dyn Fn(usize) -> f32| (0..terms).map(term).sum::<f32>();
    let y: Vec<f32> = (0..batch * outputs)
        .map(|i| bias[i % outputs] + sum(inputs, &|t| x[i / outputs * inputs + t] * w[i % outputs * inputs + t]))
        .collect();
    let dx: Vec<f32> = (0..batch * inputs)
        .map(|i| sum(outputs, &|t| g[i / inputs * outputs + t] * w[t * inputs + i % inputs]))
        .collect();
    let dw: Vec<f32> = (0..outputs * inputs)
        .map(|i| sum(batch, &|t| g[t * outputs + i / inputs] * x[t * inputs + i % inputs]))
        .collect();
    let db: Vec<f32> = (0..outputs).map(|i| sum(batch, &|t| g[t * outputs + i])).collect();
    for device in devices() {
        let tensor = |values: &[f32], shape: [usize; 2]| Tensor::from_slice(values, shape, &device);
        let layer = Linear::new(inputs, outputs)?.to(&device)?;
        let shift = layer.bias().expect("a bias");
        no_grad(|| {
            layer.weight().copy_(&tensor(&w, [outputs, inputs])?)?;
            shift.copy_(&Tensor::from_slice(&bias, outputs, &device)?)
        })?;
        let x = tensor(&x, [batch, inputs])?.requires_grad();
        let out = layer.forward(&x)?;
        assert_eq!(out.to_vec::<f32>()?, y, "{device}");
        out.mul(&tensor(&g, [batch, outputs])?)?.sum_all()?.backward()?;
        for (of, wanted) in [(&x, &dx), (layer.weight(), &dw), (shift, &db)] {
            let gradient = of.grad().map(|gradient| gradient.to_vec::<f32>()).transpose()?;
            assert!(gradient.as_ref() == Some(wanted), "a gradient of {:?} on {device}", of.shape());
        }
    }
    Ok(())
}
