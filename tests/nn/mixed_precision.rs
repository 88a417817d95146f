//! Training in 16-bit floats: the types that autocast computes in, convergence like in f32, and a loss scale that
//! follows PyTorch's rules.

use anygpu::nn::{self, BatchNorm2d, Conv2d, Flatten, Linear, MaxPool2d, Module, ReLU, Sequential, init};
use anygpu::optim::{self, Adam, GradScaler, Optimizer, SGD};
use anygpu::parallel::Shares;
use anygpu::{Attention, Conv, DType, DataParallel, Device, Result, Tensor, autocast};

use crate::common::{device, devices_in_turn};

fn wave(shape: &[usize], k: f64, device: &Device) -> Result<Tensor> {
    let values: Vec<f32> = (0..shape.iter().product()).map(|i: usize| (i as f64 * 1.7 + k).sin() as f32).collect();
    Tensor::from_vec(values, shape, device)
}

/// A small convolutional net of the same values every time.
fn net() -> Result<Sequential> {
    let net = Sequential::new()
        .push(Conv2d::new(1, 4, 3)?.padding(1))
        .push(BatchNorm2d::new(4)?)
        .push(ReLU)
        .push(MaxPool2d::new(2))
        .push(Flatten)
        .push(Linear::new(64, 3)?);
    for (k, (name, parameter)) in net.named_parameters().into_iter().enumerate() {
        match parameter.rank() {
            1 if name.ends_with("bias") => init::zeros_(&parameter)?,
            1 => {} // the norm's weight is 1
            _ => anygpu::no_grad(|| parameter.copy_(&wave(parameter.shape(), k as f64, &Device::cpu())?.mul(0.3)?))?,
        }
    }
    Ok(net)
}

/// Twelve images of three classes: stripes of three widths.
fn batch(device: &Device) -> Result<(Tensor, Tensor)> {
    let labels: Vec<u32> = (0..12).map(|i| i % 3).collect();
    let pixel = |i: usize| {
        let (sample, column) = (i / 64, i % 8);
        let width = 1.0 + (sample % 3) as f64;
        (((column + sample / 3) as f64 / width).sin() + 0.3 * (i as f64 * 12.9).sin()) as f32
    };
    let images = Tensor::from_vec((0..12 * 64).map(pixel).collect::<Vec<f32>>(), [12, 1, 8, 8], device)?;
    Ok((images, Tensor::from_vec(labels, 12, device)?))
}

/// The losses of some steps; with a scale for f16.
fn losses(dtype: DType, device: &Device) -> Result<Vec<f32>> {
    let mut net = net()?;
    net.to_(device)?;
    let (x, labels) = batch(device)?;
    let mut adam = Adam::new(net.parameters(), 0.01);
    let mut scaler = GradScaler::new();
    let mut losses = Vec::new();
    for _ in 0..25 {
        adam.zero_grad();
        let loss = autocast(dtype, || nn::cross_entropy(&net.forward(&x)?, &labels))?;
        assert_eq!(loss.dtype(), DType::F32);
        scaler.scale(&loss)?.backward()?;
        scaler.step(&mut adam)?;
        scaler.update()?;
        losses.push(loss.item::<f32>()?);
    }
    assert!(net.parameters().iter().all(|parameter| parameter.dtype() == DType::F32));
    Ok(losses)
}

#[test]
fn halves_learn_as_f32_does_on_every_device() -> Result<()> {
    for device in devices_in_turn() {
        let full = losses(DType::F32, &device)?;
        assert!(full[24] < 0.25 * full[0], "the loss falls on {device}: {full:?}");
        for dtype in [DType::F16, DType::BF16] {
            let half = losses(dtype, &device)?;
            assert_ne!(half, full, "{dtype} on {device} computes in f32");
            let close = (half[0] - full[0]).abs() < 0.02 * full[0] && (half[24] - full[24]).abs() < 0.03 * full[0];
            assert!(close, "{dtype} on {device}: {half:?}, f32: {full:?}");
        }
    }
    Ok(())
}

#[test]
fn each_op_has_its_type() -> Result<()> {
    for device in devices_in_turn() {
        let x = wave(&[2, 3], 0.0, &device)?;
        let image = wave(&[1, 1, 4, 4], 0.0, &device)?;
        autocast(DType::BF16, || {
            let product = x.matmul(&x.t()?)?;
            assert_eq!(product.dtype(), DType::BF16);
            assert_eq!(product.relu()?.dtype(), DType::BF16);
            let sums =
                [product.sum_all()?, product.mean([0], false)?, product.norm_all(2.0)?, product.logsumexp([0], false)?];
            for summed in sums.into_iter().chain([product.softmax(1)?, product.log_softmax(1)?]) {
                assert_eq!(summed.dtype(), DType::F32);
            }
            assert_eq!(product.max([0], false)?.dtype(), DType::BF16);
            assert_eq!(product.add(&Tensor::ones([2, 2], &device)?)?.dtype(), DType::F32);
            assert_eq!(product.matmul(&Tensor::ones([2, 2], &device)?)?.dtype(), DType::BF16);
            let weight = Tensor::ones([2, 1, 3, 3], &device)?;
            assert_eq!(image.conv2d(&weight, Some(&Tensor::ones([2], &device)?), Conv::new())?.dtype(), DType::BF16);
            let (weight, bias) = (Tensor::ones([1, 2, 3, 3], &device)?, Tensor::ones([2], &device)?);
            let transposed = image.conv_transpose2d(&weight, Some(&bias), Conv::new())?;
            assert_eq!(transposed.dtype(), DType::BF16);
            assert_eq!(nn::mse_loss(&product, &product, nn::Reduction::Mean)?.dtype(), DType::F32);
            autocast(DType::F32, || {
                assert_eq!(x.matmul(&x.t()?)?.dtype(), DType::F32);
                Ok(())
            })?;
            assert_eq!(x.matmul(&x.t()?)?.dtype(), DType::BF16);
            // Integers are no halves.
            assert_eq!(Tensor::from_slice(&[1, 2], 2, &device)?.sum_all()?.dtype(), DType::I32);
            Ok(())
        })?;
        assert_eq!(x.matmul(&x.t()?)?.dtype(), DType::F32);
    }
    assert!(autocast(DType::I32, || Ok(())).is_err());
    // An error or a panic within leaves nothing switched on.
    let x = Tensor::ones([2, 2], None)?;
    assert!(autocast(DType::F16, || x.reshape([7])).is_err());
    assert!(std::panic::catch_unwind(|| autocast::<()>(DType::F16, || panic!("within"))).is_err());
    assert_eq!(x.matmul(&x)?.dtype(), DType::F32);
    Ok(())
}

#[test]
fn gradients_have_the_types_of_the_forward_pass() -> Result<()> {
    for device in devices_in_turn() {
        let x = wave(&[4, 3], 0.0, &device)?.requires_grad();
        let inside = autocast(DType::BF16, || {
            x.matmul(&wave(&[3, 2], 1.0, &device)?)?.square()?.sum_all()?.backward()?;
            Ok(x.grad())
        })?;
        x.set_grad(None);
        let loss = autocast(DType::BF16, || x.matmul(&wave(&[3, 2], 1.0, &device)?)?.square()?.sum_all())?;
        loss.backward()?;
        let (inside, outside) = (inside.expect("a gradient"), x.grad().expect("a gradient"));
        assert_eq!((inside.dtype(), outside.dtype()), (DType::F32, DType::F32));
        assert_eq!(inside.to_vec::<f32>()?, outside.to_vec::<f32>()?, "{device}");
    }
    Ok(())
}

#[test]
fn an_overflow_skips_the_step_and_halves_the_scale() -> Result<()> {
    for device in devices_in_turn() {
        let p = Tensor::ones([3], &device)?.requires_grad();
        let mut sgd = SGD::new(vec![p.clone()], 0.5);
        let mut scaler = GradScaler::new().init_scale(1024.0)?.growth_interval(3);
        let mut step = |gradient: f32| -> Result<(bool, f32, f32)> {
            p.set_grad(Some(Tensor::from_slice(&[0.0, gradient * scaler.get_scale(), 0.0], 3, &device)?));
            let stepped = scaler.step(&mut sgd)?;
            assert!(scaler.step(&mut sgd).is_err() && scaler.unscale(&sgd).is_err(), "a second time");
            scaler.update()?;
            Ok((stepped, scaler.get_scale(), p.to_vec::<f32>()?[1]))
        };
        assert_eq!(step(1.0)?, (true, 1024.0, 0.5), "{device}");
        assert_eq!(step(f32::INFINITY)?, (false, 512.0, 0.5), "{device}");
        assert_eq!(step(f32::NAN)?, (false, 256.0, 0.5), "{device}");
        assert_eq!(step(1.0)?, (true, 256.0, 0.0), "{device}");
        assert_eq!(step(-1.0)?, (true, 256.0, 0.5), "{device}");
        assert_eq!(step(-1.0)?, (true, 512.0, 1.0), "three in a row on {device}");
        assert_eq!(step(f32::NEG_INFINITY)?, (false, 256.0, 1.0), "{device}");
    }
    Ok(())
}

#[test]
fn a_scale_too_large_for_f16_finds_its_way_down() -> Result<()> {
    for device in devices_in_turn() {
        let mut net = net()?;
        net.to_(&device)?;
        let (x, labels) = batch(&device)?;
        let mut sgd = SGD::new(net.parameters(), 0.05);
        let before: Vec<f32> = net.parameters()[0].to_vec()?;
        let mut scaler = GradScaler::new().init_scale(2f32.powi(24))?;
        let mut skipped = 0;
        for _ in 0..20 {
            sgd.zero_grad();
            let loss = autocast(DType::F16, || nn::cross_entropy(&net.forward(&x)?, &labels))?;
            scaler.scale(&loss)?.backward()?;
            let stepped = scaler.step(&mut sgd)?;
            scaler.update()?;
            skipped += i32::from(!stepped);
            if skipped == 1 && !stepped {
                assert_eq!(net.parameters()[0].to_vec::<f32>()?, before, "{device}");
            }
        }
        assert!((1..15).contains(&skipped), "{skipped} skipped on {device}");
        assert_eq!(scaler.get_scale(), 2f32.powi(24 - skipped), "{device}");
        assert!(net.parameters()[0].to_vec::<f32>()?.iter().all(|w| w.is_finite()));
        assert_ne!(net.parameters()[0].to_vec::<f32>()?, before);
    }
    Ok(())
}

#[test]
fn a_scaler_goes_on_from_its_state() -> Result<()> {
    let p = Tensor::ones([1], None)?.requires_grad();
    let mut sgd = SGD::new(vec![p.clone()], 0.5);
    let good = |scaler: &mut GradScaler, sgd: &mut SGD| -> Result<()> {
        sgd.parameters()[0].set_grad(Some(Tensor::ones([1], None)?));
        scaler.step(sgd)?;
        scaler.update()
    };
    let new = || GradScaler::new().growth_interval(3).growth_factor(4.0).init_scale(8.0);
    let mut first = new()?;
    good(&mut first, &mut sgd)?;
    good(&mut first, &mut sgd)?;
    let mut second = new()?.init_scale(1.0)?;
    second.load_state(&first.state())?;
    good(&mut second, &mut sgd)?;
    assert_eq!(second.get_scale(), 32.0);
    second.update()?; // without a step, nothing changes
    assert_eq!(second.get_scale(), 32.0);
    assert!(second.load_state(&first.state()[..1]).is_err());
    for scale in [0.0, -1.0, f32::INFINITY, f32::NAN] {
        assert!(new()?.init_scale(scale).is_err(), "{scale}");
        let state = [("scale".to_string(), f64::from(scale)), ("good_steps".to_string(), 0.0)];
        assert!(second.load_state(&state).is_err(), "{scale}");
    }
    assert_eq!(second.get_scale(), 32.0);
    Ok(())
}

#[test]
fn a_mix_of_devices_trains_in_halves() -> Result<()> {
    let mut expected: Option<Vec<f32>> = None;
    let names = [&["cpu"][..], &["soft:0"], &["soft:0", "cpu"], &["soft:0/0", "soft:0/1"]];
    for mix in names.iter().filter_map(|mix| mix.iter().map(|name| device(name)).collect::<Option<Vec<_>>>()) {
        let net = DataParallel::new(net()?, &mix)?.with_shares(Shares::Even)?;
        let (x, labels) = batch(&Device::cpu())?;
        let mut sgd = SGD::new(net.parameters(), 0.05);
        let mut scaler = GradScaler::new().init_scale(256.0)?;
        let mut losses = Vec::new();
        for _ in 0..4 {
            let scale = scaler.get_scale();
            let loss = autocast(DType::F16, || {
                net.train_batch(&x, &labels, move |logits, labels| {
                    assert_eq!(logits.dtype(), DType::F16);
                    nn::cross_entropy(logits, labels)?.mul(scale)
                })
            })?;
            scaler.unscale(&sgd)?;
            optim::clip_grad_norm(sgd.parameters(), 1.0)?;
            assert!(scaler.step(&mut sgd)?);
            scaler.update()?;
            losses.push(loss.item::<f32>()? / scale);
        }
        let expected = expected.get_or_insert(losses.clone());
        let close = losses.iter().zip(expected.iter()).all(|(loss, expected)| (loss - *expected).abs() < 0.01);
        assert!(close, "{mix:?}: {losses:?}, expected {expected:?}");
    }
    Ok(())
}

/// 2048 + 1 + a bias of 1 is 2050, which f16 has; 2049, which it has not, would become 2048 before the bias.
#[test]
fn biases_are_added_before_the_sum_is_rounded() -> Result<()> {
    for device in devices_in_turn() {
        let half = |values: &[f32], shape: &[usize]| Tensor::from_slice(values, shape, &device)?.to_dtype(DType::F16);
        let bias = half(&[1.0], &[1])?;
        let (x, w) = (half(&[2048.0, 1.0], &[1, 2, 1, 1])?, half(&[1.0, 1.0], &[2, 1, 1, 1])?);
        let sum = x.conv_transpose2d(&w, Some(&bias), Conv::new())?;
        assert_eq!((sum.dtype(), sum.to_dtype(DType::F32)?.to_vec::<f32>()?), (DType::F16, vec![2050.0]), "{device}");
        let sum = x.squeeze(3)?.conv_transpose1d(&w.squeeze(3)?, Some(&bias), Conv::new())?;
        assert_eq!(sum.to_dtype(DType::F32)?.to_vec::<f32>()?, [2050.0], "{device}");

        let mut layer = Linear::new(2, 1)?;
        layer.to_(&device)?;
        init::ones_(layer.weight())?;
        init::ones_(layer.bias().expect("a bias"))?;
        let sum = autocast(DType::F16, || layer.forward(&Tensor::from_slice(&[2048.0, 1.0], [1, 2], &device)?))?;
        assert_eq!((sum.dtype(), sum.to_dtype(DType::F32)?.to_vec::<f32>()?), (DType::F16, vec![2050.0]), "{device}");
    }
    Ok(())
}

/// Scores and weights are f32: only the result is rounded, so it is the nearest half to the f32 result.
#[test]
fn attention_rounds_once() -> Result<()> {
    for device in devices_in_turn() {
        for dtype in [DType::F16, DType::BF16] {
            let [q, k, v] = [0.0, 1.0, 2.0].map(|phase| wave(&[2, 9, 16], phase, &device)?.mul(2.0)?.to_dtype(dtype));
            let (q, k, v) = (q?, k?, v?);
            let wide = |x: &Tensor| x.to_dtype(DType::F32);
            let got = wide(&q.attention(&k, &v, &Attention::default())?)?.to_vec::<f32>()?;
            let exact = wide(&q)?.attention(&wide(&k)?, &wide(&v)?, &Attention::default())?.to_vec::<f32>()?;
            // Half of the last place, and what f32 sums may differ by.
            let unit = if dtype == DType::F16 { 2f32.powi(-11) } else { 2f32.powi(-8) };
            for (got, exact) in got.iter().zip(&exact) {
                let most = unit * exact.abs().log2().floor().exp2() + 1e-5 * exact.abs() + 1e-7;
                assert!((got - exact).abs() <= most, "{dtype} on {device}: {got} for {exact}");
            }
        }
    }
    Ok(())
}

/// A row that is too long for the softmax kernel: the sum, 70 000, is more than f16 has.
#[test]
fn long_rows_of_halves_have_f32_sums() -> Result<()> {
    for device in devices_in_turn() {
        let x = Tensor::zeros([70_000], &device)?.to_dtype(DType::F16)?;
        let weights = x.softmax(0)?;
        assert_eq!(weights.dtype(), DType::F16);
        let weight = weights.to_dtype(DType::F32)?.to_vec::<f32>()?[69_999];
        assert!((weight * 70_000.0 - 1.0).abs() < 0.01, "{device}: {weight}");
        let log = x.log_softmax(0)?.to_dtype(DType::F32)?.to_vec::<f32>()?[0];
        assert!((log + 70_000f32.ln()).abs() < 0.01, "{device}: {log}");
    }
    Ok(())
}
