//! Errors of ops over long rows and far from 0, on every device, compared with f64.

use anygpu::{Attention, Device, Result, Tensor};

/// Returns the largest difference, for each unit of `scale`.
fn worst(got: &[f32], expected: impl Iterator<Item = f64>, scale: impl Fn(f64) -> f64) -> f64 {
    let off = got.iter().zip(expected).map(|(&got, expected)| (f64::from(got) - expected).abs() / scale(expected));
    // NaN must not vanish.
    off.fold(0.0, |most: f64, off| if most.is_nan() || off <= most { most } else { off })
}

/// Prints and checks an error on each device.
fn on_every_device(what: &str, most: f64, error: impl Fn(&Device) -> Result<f64>) -> Result<()> {
    for device in Device::all() {
        let off = error(&device)?;
        println!("{what} on {device}: {off:.1e}");
        assert!(off <= most, "{what} on {device}: off by {off:e}, of at most {most:e}");
    }
    Ok(())
}

#[test]
fn softmax_of_a_vocabulary_and_of_a_million_classes() -> Result<()> {
    for (rows, classes) in [(3, 50_257), (1, 1_000_000)] {
        let scores: Vec<f32> = (0..rows * classes).map(|i| (i * 7919 % 8191) as f32 * 2e-3 - 8.0).collect();
        let totals: Vec<f64> =
            scores.chunks(classes).map(|row| row.iter().map(|&v| f64::from(v).exp()).sum()).collect();
        let wide = |i: usize| f64::from(scores[i]);
        let all = 0..rows * classes;
        // A score less the largest is rounded, of up to 16 to 2⁻²⁰.
        on_every_device(&format!("softmax of {classes}"), 2e-6, |device| {
            let got = Tensor::from_slice(&scores, [rows, classes], device)?.softmax(1)?.to_vec::<f32>()?;
            Ok(worst(&got, all.clone().map(|i| wide(i).exp() / totals[i / classes]), |v| v))
        })?;
        on_every_device(&format!("log_softmax of {classes}"), 1e-6, |device| {
            let got = Tensor::from_slice(&scores, [rows, classes], device)?.log_softmax(1)?.to_vec::<f32>()?;
            Ok(worst(&got, all.clone().map(|i| wide(i) - totals[i / classes].ln()), f64::abs))
        })?;
        // Labels in the middle of the rows; the gradient of a class is (softmax − [it is the label]) / rows.
        let labels: Vec<u32> = (0..rows).map(|row| (classes / 2 + row) as u32).collect();
        let is_label = |i: usize| i % classes == labels[i / classes] as usize;
        on_every_device(&format!("gradient of the cross entropy of {classes}"), 2e-6, |device| {
            let x = Tensor::from_slice(&scores, [rows, classes], device)?.requires_grad();
            x.cross_entropy(&Tensor::from_slice(&labels, rows, device)?)?.backward()?;
            let got = x.grad().expect("a gradient").to_vec::<f32>()?;
            let expected = all
                .clone()
                .map(|i| (wide(i).exp() / totals[i / classes] - f64::from(u8::from(is_label(i)))) / rows as f64);
            Ok(worst(&got, expected, f64::abs))
        })?;
    }
    Ok(())
}

#[test]
fn layer_norm_far_from_zero() -> Result<()> {
    let (rows, features) = (5, 1023);
    for offset in [0.0, 1e2, 1e4] {
        let x: Vec<f32> = (0..rows * features).map(|i| (i * 7919 % 1009) as f32 * 2e-3 - 1.0 + offset).collect();
        let expected: Vec<f64> = x
            .chunks(features)
            .flat_map(|row| {
                let mean = row.iter().map(|&v| f64::from(v)).sum::<f64>() / features as f64;
                let variance = row.iter().map(|&v| (f64::from(v) - mean).powi(2)).sum::<f64>() / features as f64;
                row.iter().map(move |&v| (f64::from(v) - mean) / (variance + 1e-5).sqrt())
            })
            .collect();
        // Up to a unit in the last place of the mean, for a deviation of 0.58.
        let most = 1e-6 + f64::from(f32::EPSILON) * f64::from(offset) / 0.58;
        on_every_device(&format!("layer norm at {offset}"), most, |device| {
            let got = Tensor::from_slice(&x, [rows, features], device)?.layer_norm(&[features], None, None, 1e-5)?;
            Ok(worst(&got.to_vec::<f32>()?, expected.iter().copied(), |_| 1.0))
        })?;
    }
    Ok(())
}

#[test]
fn attention_over_many_keys() -> Result<()> {
    let (queries, keys, width) = (64, 4096, 32);
    let numbers = |count: usize, seed: usize| -> Vec<f32> {
        (0..count).map(|i| ((i + seed) * 7919 % 2003) as f32 * 1e-3 - 1.0).collect()
    };
    let (q, k, v) = (numbers(queries * width, 1), numbers(keys * width, 2), numbers(keys * width, 3));
    let scale = 1.0 / (width as f64).sqrt();
    let mut expected = Vec::new();
    for query in q.chunks(width) {
        let product = |key: &[f32]| query.iter().zip(key).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum::<f64>();
        let weights: Vec<f64> = k.chunks(width).map(|key| (product(key) * scale).exp()).collect();
        let total: f64 = weights.iter().sum();
        expected.extend((0..width).map(|at| {
            let sum: f64 =
                weights.iter().zip(v.chunks(width)).map(|(weight, value)| weight * f64::from(value[at])).sum();
            sum / total
        }));
    }
    on_every_device("attention", 3e-6, |device| {
        let of = |values: &[f32], count: usize| Tensor::from_slice(values, [1, 1, count, width], device);
        let got = of(&q, queries)?.attention(&of(&k, keys)?, &of(&v, keys)?, &Attention::new())?;
        Ok(worst(&got.to_vec::<f32>()?, expected.iter().copied(), |_| 1.0))
    })
}
