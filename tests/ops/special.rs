//! Cases that central differences do not cover: gradients that are a convention or too slow for them, and NaN.

use anygpu::{DType, Result, Tensor};

use crate::common::{devices, uniform, values};

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
fn a_sum_with_nan_is_nan() -> Result<()> {
    for device in devices() {
        let mut x = vec![1.0f32; 5000];
        x[4321] = f32::NAN;
        let x = Tensor::from_slice(&x, 5000, &device)?;
        assert!(x.sum_all()?.item::<f32>()?.is_nan(), "sum on {device}");
        assert_eq!(x.argmax(0)?.item::<u32>()?, 4321, "argmax on {device}: NaN wins");
    }
    Ok(())
}

/// The gradient through a long row, checked by its sum: the rows of a softmax add up to 1, so their gradients add up to 0.
#[test]
fn the_gradient_of_long_rows() -> Result<()> {
    for device in devices() {
        for count in [20_000, 40_000] {
            let start = uniform(&[1, count], -4.0, 4.0, 61).tensor(DType::F32, &device)?.requires_grad();
            let first = start.softmax(1)?.narrow(1, 0, 1)?;
            let p = f64::from(first.detach().sum_all()?.item::<f32>()?);
            first.sum_all()?.backward()?;
            let grad = values(&start.grad().expect("a gradient"))?;
            // dp₀/dx₀ = p₀ (1 − p₀), and the whole gradient adds up to 0.
            assert!((grad[0] / (p * (1.0 - p)) - 1.0).abs() < 1e-3, "{count} on {device}: {} for p = {p}", grad[0]);
            assert!(grad.iter().sum::<f64>().abs() < 1e-3 * p, "{count} on {device}");
        }
    }
    Ok(())
}

/// Sums by index are added up in one order: two runs give the same bits.
#[test]
fn sums_by_index_do_not_vary() -> Result<()> {
    for device in devices() {
        let src = uniform(&[5000, 3], -1.0, 1.0, 7).tensor(DType::F32, &device)?;
        let index = anygpu::check::nd::whole(&[5000], 0, 4, 8).tensor(DType::U32, &device)?;
        let sum = || Tensor::zeros([4, 3], &device)?.index_add(0, &index, &src)?.to_vec::<f32>();
        assert_eq!(sum()?, sum()?, "{device}");
    }
    Ok(())
}
