//! What the numbers do not tell: channels that are dropped, arguments that are refused.

use anygpu::nn::{
    self, CTCLoss, Dropout1d, Dropout2d, Dropout3d, EmbeddingBag, InstanceNorm1d, InstanceNorm2d, Module, PixelShuffle,
    PixelUnshuffle, ReLU, Reduction, WeightNorm,
};
use anygpu::optim::{Adadelta, Adagrad, AdamW, Ema, Lion};
use anygpu::{Attention, DType, Result, Tensor};

use crate::common::devices_in_turn;

#[test]
fn channels_are_dropped_whole() -> Result<()> {
    for d in &devices_in_turn() {
        let layers: [(Box<dyn Module>, Vec<usize>); 3] = [
            (Box::new(Dropout1d::new(0.25)?), vec![8, 40, 7]),
            (Box::new(Dropout2d::new(0.25)?), vec![8, 40, 3, 5]),
            (Box::new(Dropout3d::new(0.25)?), vec![8, 40, 2, 2, 3]),
        ];
        for (layer, shape) in layers {
            let x = Tensor::rand(shape.clone(), d)?.add(0.5)?.requires_grad();
            let y = layer.forward(&x)?;
            y.sum_all()?.backward()?;
            let size: usize = shape[2..].iter().product();
            let (x_values, y_values) = (x.to_vec::<f32>()?, y.to_vec::<f32>()?);
            let slopes = x.grad().expect("a gradient").to_vec::<f32>()?;
            let mut dropped = 0;
            for ((x, y), slopes) in x_values.chunks(size).zip(y_values.chunks(size)).zip(slopes.chunks(size)) {
                let factor = if y[0] == 0.0 { 0.0 } else { 1.0 / 0.75 };
                dropped += usize::from(factor == 0.0);
                let right = |(x, y): (&f32, &f32)| (x * factor - y).abs() < 1e-5;
                assert!(x.iter().zip(y).all(right) && slopes.iter().all(|slope| (slope - factor).abs() < 1e-6));
            }
            assert!((40..=120).contains(&dropped), "{dropped} of 320 channels on {d}");
            layer.eval();
            assert!(layer.forward(&x)?.is_same(&x));
        }
        let halves = Tensor::ones([1, 2, 3], d)?.to_dtype(DType::F16)?;
        assert_eq!(Dropout1d::new(0.5)?.forward(&halves)?.dtype(), DType::F16);
    }
    Ok(())
}

#[track_caller]
fn refused<T>(result: Result<T>, parts: &[&str]) {
    let error = result.err().expect("an error").to_string();
    assert!(parts.iter().all(|part| error.contains(part)), "{error}");
}

#[test]
fn what_does_not_fit_is_refused() -> Result<()> {
    let x = Tensor::zeros([2, 3, 4], None)?;
    refused(InstanceNorm1d::new(0), &["InstanceNorm1d", "at least one channel"]);
    refused(InstanceNorm1d::new(2)?.forward(&x), &["InstanceNorm1d", "2 channels"]);
    refused(InstanceNorm2d::new(2)?.forward(&Tensor::zeros(3, None)?), &["InstanceNorm2d", "[N, C, H, W]"]);
    refused(InstanceNorm1d::new(3)?.forward(&x.narrow(2, 0, 1)?), &["one element"]);
    assert_eq!(InstanceNorm1d::new(2)?.forward(&x.i(0)?.narrow(0, 0, 2)?)?.shape(), [2, 4]);
    refused(Dropout2d::new(0.5)?.forward(&x), &["Dropout2d", "[N, C, H, W]"]);
    refused(Dropout3d::new(1.5), &["Dropout3d", "probability"]);
    refused(PixelShuffle::new(2).forward(&x), &["PixelShuffle", "the 2 channels"]);
    refused(PixelShuffle::new(0).forward(&x), &["PixelShuffle"]);
    refused(PixelUnshuffle::new(2).forward(&x), &["PixelUnshuffle", "not multiples"]);
    refused(PixelUnshuffle::new(0).forward(&x), &["PixelUnshuffle"]);

    let (bag, ids) = (EmbeddingBag::new(4, 2)?, Tensor::try_from([0u32, 1])?);
    refused(bag.forward_with_offsets(&ids, &Tensor::try_from([1u32])?), &["offset 0 is 1"]);
    refused(bag.forward_with_offsets(&ids, &Tensor::try_from([0u32, 3])?), &["offset 1 is 3"]);
    refused(bag.forward_with_offsets(&ids, &Tensor::try_from([0, 2, 1])?), &["offset 2 is 1"]);
    refused(bag.forward_weighted(&ids, &Tensor::try_from([0u32])?, &x), &["mode(BagMode::Sum)"]);
    refused(bag.forward(&x), &["u32"]);
    assert_eq!(bag.forward(&Tensor::zeros([3, 0], None)?.to_dtype(DType::U32)?)?.to_vec::<f32>()?, [0.0; 6]);

    refused(nn::soft_cross_entropy(&x, &x.t()?, Reduction::Mean), &["soft_cross_entropy"]);
    let targets = Tensor::try_from([[1u32], [1], [0]])?;
    let ctc =
        |targets: &Tensor, inputs: &[usize], labels: &[usize]| CTCLoss::new().forward(&x, targets, inputs, labels);
    refused(ctc(&targets, &[2; 3], &[1; 3]), &["label 0 of sequence 2"]);
    refused(ctc(&targets, &[2; 2], &[1, 1, 0]), &["2 input lengths"]);
    refused(ctc(&targets, &[2, 2, 3], &[1, 1, 0]), &["input length 2 is 3"]);
    refused(ctc(&targets.narrow(0, 0, 2)?, &[2; 3], &[1, 1, 0]), &["one row of targets"]);
    refused(CTCLoss::new().blank(4).forward(&x, &targets, &[2; 3], &[0; 3]), &["blank, 4"]);

    refused(WeightNorm::new(ReLU), &["ReLU has no parameter called weight"]);
    let (q, padding) = (Tensor::zeros([2, 3, 4], None)?, Tensor::try_from([[true, false, true]])?);
    refused(q.attention(&q, &q, &Attention::new().key_padding_mask(&padding)), &["[N, S]"]);
    refused(q.attention(&q, &q, &Attention::new().key_padding_mask(&Tensor::zeros([2, 3], None)?)), &["bool"]);

    let p = || Ok::<_, anygpu::Error>(vec![Tensor::zeros(1, None)?.requires_grad()]);
    refused(AdamW::new(p()?, 0.1).betas(1.0, 0.5).step(), &["AdamW: betas is 1"]);
    refused(Lion::new(p()?, 0.1).betas(0.5, -1.0).step(), &["Lion: betas is -1"]);
    refused(Adagrad::new(p()?, 0.1).lr_decay(-1.0).step(), &["Adagrad: lr_decay is -1"]);
    refused(Adadelta::new(p()?, 0.1).rho(1.5).step(), &["Adadelta: rho is 1.5"]);
    refused(Ema::new(&nn::Linear::new(1, 1)?, 1.5), &["Ema: the decay is 1.5"]);
    refused(Ema::new(&ReLU, 0.5), &["no parameters"]);
    Ok(())
}
