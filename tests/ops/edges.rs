//! Cases at the limits of types, shapes and infinities that do not fit the op table.

use anygpu::nn::{CrossEntropyLoss, Reduction};
use anygpu::parallel::{ReduceOp, all_reduce};
use anygpu::{DType, Device, Padding, Result, Tensor, s};

use crate::common::devices;

fn floats(values: &[f32], device: &Device) -> Result<Tensor> {
    Tensor::from_slice(values, values.len(), device)
}

fn read(x: &Tensor) -> Result<Vec<f32>> {
    x.to_dtype(DType::F32)?.to_vec()
}

#[test]
fn halves_are_written_in_place_within_their_words() -> Result<()> {
    for device in devices() {
        let [a, b] =
            [[1.0, 2.0, 3.0], [10.0, 20.0, 30.0]].map(|v| floats(&v, &device).and_then(|t| t.to_dtype(DType::F16)));
        // Without an adapter, `devices` has cpu/1 too.
        let (a, b) = (a?, b?.to(Device::new("cpu/2")?)?);
        all_reduce(&[a.clone(), b.clone()], ReduceOp::Sum)?;
        assert_eq!((read(&a)?, read(&b)?), (vec![11.0, 22.0, 33.0], vec![11.0, 22.0, 33.0]), "{device}");

        let running = |value: f32| Tensor::full([3], value, &device)?.to_dtype(DType::BF16);
        let (mean, variance) = (running(0.0)?, running(1.0)?);
        let x = Tensor::from_slice(&[1.0, 2.0, 3.0, 3.0, 2.0, 5.0f32], [2, 3], &device)?;
        x.batch_norm(Some((&mean, &variance)), None, None, true, 0.5, 1e-5)?;
        assert_eq!(read(&mean)?, [1.0, 1.0, 2.0], "{device}");
        assert_eq!(read(&variance)?, [1.5, 0.5, 1.5], "{device}");
    }
    Ok(())
}

#[test]
fn values_that_a_type_does_not_have() -> Result<()> {
    for device in devices() {
        let bytes = Tensor::from_slice(&[7u8, 200], 2, &device)?;
        assert_eq!(bytes.pad(&[(1, 1)], Padding::Constant(300.0))?.to_vec::<u8>()?, [255, 7, 200, 255], "{device}");
        assert_eq!(bytes.clamp(Some(300.0), None)?.to_vec::<u8>()?, [255, 255], "{device}");
        let flags = Tensor::from_slice(&[false, true], 2, &device)?.pad(&[(1, 0)], Padding::Constant(0.5))?;
        assert_eq!(flags.logical_and(&flags)?.to_vec::<bool>()?, [true, false, true], "{device}");
    }
    Ok(())
}

#[test]
fn views_of_nothing_can_be_moved_and_joined() -> Result<()> {
    for device in devices() {
        let nothing = Tensor::zeros([3, 0], &device)?.narrow(0, 2, 1)?;
        assert_eq!(nothing.to(Device::cpu())?.shape(), [1, 0], "{device}");
        assert_eq!(
            Tensor::cat(&[&Tensor::ones([1, 4], &device)?, &nothing], 1)?.to_vec::<f32>()?,
            [1.0; 4],
            "{device}"
        );
        let (rows, two) = (Tensor::zeros([3, 0], &device)?, Tensor::ones([3, 2], &device)?);
        assert_eq!(Tensor::cat(&[&rows, &two, &rows], 1)?.to_vec::<f32>()?, [1.0; 6], "{device}");
        let x = two.requires_grad();
        x.narrow(1, 0, 0)?.mul_scalar(2.0)?.sum_all()?.backward()?;
        assert_eq!(x.grad().map(|grad| grad.to_vec::<f32>()).transpose()?, Some(vec![0.0; 6]), "{device}");
        let far = Tensor::ones([4, 3], &device)?.i(s![..;usize::MAX])?;
        assert_eq!(far.to_vec::<f32>()?, [1.0; 3], "{device}");
    }
    Ok(())
}

#[test]
fn many_dimensions_are_repeated() -> Result<()> {
    for device in devices() {
        let x = Tensor::arange(0.0, 162.0, 1.0, &device)?.reshape([2, 3, 3, 3, 3])?;
        let y = x.permute([4, 3, 2, 1, 0])?.repeat([1, 2, 2, 2, 2])?;
        assert_eq!(y.shape(), [3, 6, 6, 6, 4]);
        assert_eq!(y.i(s![1, 5, 4, 3, 2])?.item::<f32>()?, 1.0 + 3.0 * 2.0 + 9.0, "{device}");
    }
    Ok(())
}

/// PyTorch's amax: each of three equal maxima over dimensions 0 and 2 has a third.
#[test]
fn equal_extremes_share_over_dimensions_that_are_apart() -> Result<()> {
    for device in devices() {
        let x = Tensor::from_slice(&[1.0f32, 1.0, 1.0, 0.0], [2, 1, 2], &device)?.requires_grad();
        x.max([0, 2], false)?.sum_all()?.backward()?;
        let third = 1.0 / 3.0;
        assert_eq!(x.grad().unwrap().to_vec::<f32>()?, [third, third, third, 0.0], "{device}");
    }
    Ok(())
}

#[test]
fn what_is_ignored_leaks_no_infinity() -> Result<()> {
    for device in devices() {
        let logits = Tensor::from_slice(&[1.0, f32::NEG_INFINITY, 2.0, 0.5], [2, 2], &device)?;
        let labels = Tensor::from_slice(&[0u32, 1], 2, &device)?;
        let smoothed = CrossEntropyLoss::new().ignore_index(0).label_smoothing(0.1).reduction(Reduction::Sum);
        assert!(smoothed.forward(&logits, &labels)?.item::<f32>()?.is_finite(), "{device}");
        // A batch of which nothing is left: the loss is 0 / 0, but no gradient reaches the logits.
        let x = Tensor::zeros([2, 2], &device)?.requires_grad();
        let none = Tensor::from_slice(&[0u32, 0], 2, &device)?;
        CrossEntropyLoss::new().ignore_index(0).forward(&x, &none)?.backward()?;
        assert_eq!(x.grad().unwrap().to_vec::<f32>()?, [0.0; 4], "{device}");
        // A source that another replaced has no part in the result, whatever the gradient.
        let source = floats(&[1.0, 2.0], &device)?.requires_grad();
        let index = Tensor::from_slice(&[0u32, 0], 2, &device)?;
        let one = Tensor::zeros([1], &device)?.scatter(0, &index, &source)?;
        one.mul(f32::INFINITY)?.sum_all()?.backward()?;
        assert_eq!(source.grad().unwrap().to_vec::<f32>()?, [0.0, f32::INFINITY], "{device}");
        let huge = floats(&[0.0, 1e30, 1e30], &device)?.requires_grad();
        huge.prod([0], false)?.backward()?;
        assert_eq!(huge.grad().unwrap().to_vec::<f32>()?[1..], [0.0, 0.0], "{device}");
    }
    Ok(())
}

/// As in PyTorch, one NaN or infinity makes the whole row of a softmax NaN; −∞ beside numbers is a probability of 0.
#[test]
fn softmax_passes_on_what_is_no_number() -> Result<()> {
    for device in devices() {
        for odd in [f32::NAN, f32::INFINITY] {
            let x = floats(&[1.0, odd, 2.0], &device)?;
            assert!(x.softmax(0)?.to_vec::<f32>()?.iter().all(|v| v.is_nan()), "{odd} on {device}");
            assert!(x.log_softmax(0)?.to_vec::<f32>()?.iter().all(|v| v.is_nan()), "{odd} on {device}");
        }
        let hidden = floats(&[0.0, f32::NEG_INFINITY, 0.0], &device)?;
        assert_eq!(hidden.softmax(0)?.to_vec::<f32>()?, [0.5, 0.0, 0.5], "{device}");
        assert_eq!(hidden.log_softmax(0)?.to_vec::<f32>()?[1], f32::NEG_INFINITY, "{device}");
    }
    Ok(())
}

/// As in PyTorch: the sum of booleans is whether any is true, also of 256 of them.
#[test]
fn booleans_are_added_as_truth() -> Result<()> {
    for device in devices() {
        let truth = |values: &[bool]| Tensor::from_slice(values, values.len(), &device);
        let (base, src) = (truth(&[false, true, false])?, truth(&[true; 256])?);
        let index = Tensor::from_vec((0..256).map(|i| i % 2).collect::<Vec<u32>>(), 256, &device)?;
        for sum in [base.scatter_add(0, &index, &src)?, base.index_add(0, &index, &src)?] {
            assert_eq!(sum.to_vec::<bool>()?, [true, true, false], "{device}");
            assert_eq!(sum.to_dtype(DType::U8)?.to_vec::<u8>()?, [1, 1, 0], "{device}");
        }
    }
    Ok(())
}
