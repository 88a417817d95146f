//! What central differences do not tell: gradients that are a convention or too long for them, NaN, labels out of range.

use anygpu::{DType, Result, Tensor};

use crate::common::{devices, uniform, values};

/// Over several passes the weight's gradient is a sum of parts; for a conv of ones it can be told without an oracle.
#[test]
fn conv2d_gradient_in_several_passes() -> Result<()> {
    for device in devices().iter().filter(|d| ["cpu", "soft:0"].contains(&d.name())) {
        let x = Tensor::ones([520, 1, 62, 62], device)?.requires_grad();
        let w = Tensor::ones([2, 1, 3, 3], device)?.requires_grad();
        let bias = Tensor::zeros([2], device)?.requires_grad();
        x.conv2d(&w, Some(&bias), [1, 1], [0, 0])?.mean_all()?.backward()?;
        // The mean of 2 · P results, each a sum of nine pixels: d/dw = P ones of weight 1 / 2P; the bias likewise.
        for grad in [w.grad(), bias.grad()] {
            let values = values(&grad.expect("a gradient"))?;
            assert!(values.iter().all(|v| (v - 0.5).abs() < 1e-3), "{device}: {values:?}");
        }
        // An inner pixel is in nine windows, for both channels: 18 / 2P; a corner in one: 2 / 2P.
        let dx = values(&x.grad().expect("a gradient"))?;
        let one = 1.0 / f64::from(520 * 60 * 60);
        for image in [0, 1, 259, 518, 519] {
            let at = |y: usize, x: usize| dx[(image * 62 + y) * 62 + x] / one;
            let got = [at(0, 0), at(0, 61), at(61, 0), at(61, 61), at(30, 30), at(0, 30)];
            let close = got.iter().zip([1.0, 1.0, 1.0, 1.0, 9.0, 3.0]).all(|(g, e)| (g - e).abs() < 1e-3);
            assert!(close, "{device}, image {image}: {got:?}");
        }
    }
    Ok(())
}

/// Of equal largest pixels the first gets the whole gradient, as in PyTorch.
#[test]
fn max_pool_of_equal_pixels() -> Result<()> {
    for device in devices() {
        let x = Tensor::ones([1, 1, 2, 4], &device)?.requires_grad();
        x.max_pool2d([2, 2], [2, 2], [0, 0])?.sum_all()?.backward()?;
        let grad = x.grad().expect("a gradient").to_vec::<f32>()?;
        assert_eq!(grad, [1.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0], "{device}");
    }
    Ok(())
}

/// Equal maxima share the gradient, as torch.amax has it: d max(1, 5, 5) = (0, ½, ½).
#[test]
fn equal_maxima_share_the_gradient() -> Result<()> {
    for device in devices() {
        let x = Tensor::from_slice(&[1.0f32, 5.0, 5.0], 3, &device)?.requires_grad();
        x.max_all()?.backward()?;
        assert_eq!(x.grad().expect("a gradient").to_vec::<f32>()?, [0.0, 0.5, 0.5], "{device}");
    }
    Ok(())
}

#[test]
fn a_sum_hides_no_nan() -> Result<()> {
    for device in devices() {
        let mut x = vec![1.0f32; 5000];
        x[4321] = f32::NAN;
        let x = Tensor::from_slice(&x, 5000, &device)?;
        assert!(x.sum_all()?.item::<f32>()?.is_nan(), "sum on {device}");
        assert_eq!(x.argmax(0)?.item::<u32>()?, 4321, "argmax on {device}: NaN wins");
    }
    Ok(())
}

/// The gradient through a long row, told by its sum: a softmax's rows add up to 1, so it cannot move any of their sums.
#[test]
fn the_gradient_of_long_rows() -> Result<()> {
    for device in devices() {
        for count in [20_000, 40_000] {
            let start = uniform(&[1, count], -4.0, 4.0, 61).tensor(DType::F32, &device)?.requires_grad();
            let first = start.softmax(1)?.narrow(1, 0, 1)?;
            let p = f64::from(first.detach().sum_all()?.item::<f32>()?);
            first.sum_all()?.backward()?;
            let grad = values(&start.grad().expect("a gradient"))?;
            // dp₀/dx₀ = p₀ (1 − p₀), and all slopes add up to 0.
            assert!((grad[0] / (p * (1.0 - p)) - 1.0).abs() < 1e-3, "{count} on {device}: {} for p = {p}", grad[0]);
            assert!(grad.iter().sum::<f64>().abs() < 1e-3 * p, "{count} on {device}");
        }
    }
    Ok(())
}

/// A host says so; an adapter cannot, and gives NaN rather than another row's number.
#[test]
fn a_label_that_is_no_class() -> Result<()> {
    for device in devices() {
        let labels = Tensor::from_slice(&[0u32, 4], 2, &device)?;
        let loss = Tensor::zeros([2, 4], &device)?.cross_entropy(&labels);
        match device.is_cpu() {
            true => {
                let error = loss.unwrap_err().to_string();
                assert_eq!(error, "nll: label 4 of row 1 is none of 4 classes");
            }
            false => assert!(loss?.item::<f32>()?.is_nan(), "{device}"),
        }
    }
    Ok(())
}
