//! Operations on gradients between backward and step, on every device and on mixes of them: clipping by norm and by
//! value, and accumulation over several batches.

use anygpu::nn::{self, Linear, Module, ReLU, Sequential};
use anygpu::optim::{self, GradScaler, Optimizer, Parameters, SGD};
use anygpu::parallel::Shares;
use anygpu::{DataParallel, Device, Result, Tensor};

use crate::common::{device, devices_in_turn};

/// sin(i + k), of any shape.
fn wave(shape: &[usize], k: f64, device: &Device) -> Result<Tensor> {
    let values: Vec<f32> = (0..shape.iter().product()).map(|i: usize| (i as f64 + k).sin() as f32).collect();
    Tensor::from_vec(values, shape, device)
}

/// A net of the same values every time.
fn net() -> Result<Sequential> {
    let net = Sequential::new().push(Linear::new(5, 70)?).push(ReLU).push(Linear::new(70, 3)?);
    for (k, parameter) in net.parameters().iter().enumerate() {
        anygpu::no_grad(|| parameter.copy_(&wave(parameter.shape(), k as f64, &Device::cpu())?.mul(0.5)?))?;
    }
    Ok(net)
}

/// Twelve samples.
fn batch() -> Result<(Tensor, Tensor)> {
    let labels: Vec<u32> = (0..12).map(|i| i * 7 % 3).collect();
    Ok((wave(&[12, 5], 40.0, &Device::cpu())?, Tensor::from_vec(labels, 12, None)?))
}

fn mixes() -> Vec<Vec<Device>> {
    let names = [&["cpu"][..], &["soft:0"], &["soft:0", "soft:1"], &["soft:0", "cpu"], &["soft:0/0", "soft:0/1"]];
    names.iter().filter_map(|mix| mix.iter().map(|name| device(name)).collect()).collect()
}

fn grads(parameters: &[Tensor]) -> Result<Vec<Vec<f32>>> {
    parameters.iter().map(|parameter| parameter.grad().map_or(Ok(Vec::new()), |grad| grad.to_vec())).collect()
}

fn norm(grads: &[Vec<f32>]) -> f64 {
    grads.iter().flatten().map(|&g| f64::from(g).powi(2)).sum::<f64>().sqrt()
}

#[track_caller]
fn assert_near(what: &str, got: &[Vec<f32>], expected: &[Vec<f32>], tolerance: f32) {
    assert_eq!(got.len(), expected.len(), "{what}");
    for (i, (got, expected)) in got.iter().zip(expected).enumerate() {
        assert_eq!(got.len(), expected.len(), "{what}, gradient {i}");
        let worst = got.iter().zip(expected).fold(0f32, |worst, (g, e)| worst.max((g - e).abs()));
        assert!(worst <= tolerance, "{what}, gradient {i}: {worst} apart");
    }
}

/// Three leaves with gradients, one without, apart or (`flat`) in one buffer as a module's are.
fn leaves(flat: bool, device: &Device) -> Result<Vec<Tensor>> {
    let shapes = [&[3, 4][..], &[70], &[], &[2]];
    let block = Tensor::zeros([64 + 128 + 64 + 2], device)?;
    let mut leaves = Vec::new();
    for (i, shape) in shapes.into_iter().enumerate() {
        let count = shape.iter().product();
        let leaf = if flat {
            block.narrow(0, [0, 64, 192, 256][i], count)?.reshape(shape)?
        } else {
            Tensor::zeros(shape, device)?
        };
        leaves.push(leaf.requires_grad());
        if i != 3 {
            leaves[i].set_grad(Some(wave(shape, i as f64, device)?));
        }
    }
    Ok(leaves)
}

#[test]
fn norms_are_clipped_by_the_formula() -> Result<()> {
    for device in devices_in_turn() {
        for flat in [false, true] {
            let leaves = leaves(flat, &device)?;
            let before = grads(&leaves)?;
            let expected = norm(&before);
            // Above the norm: nothing changes, to the bit.
            let got = optim::clip_grad_norm(&leaves, 100.0)?;
            assert_eq!((got.device(), got.rank()), (&device, 0));
            assert!((f64::from(got.item::<f32>()?) - expected).abs() < 1e-5, "{device}");
            assert_eq!(grads(&leaves)?, before, "{device}");
            // Twice, since the second call finds the block that the first one made. A leaf given twice counts once.
            for max in [2.0f32, 0.5] {
                let of = norm(&grads(&leaves)?);
                let twice = [leaves.clone(), leaves[..2].to_vec()].concat();
                let got = f64::from(optim::clip_grad_norm(&twice, max)?.item::<f32>()?);
                assert!((got - of).abs() < 1e-5, "{got}, not {of}, on {device}");
                let factor = f64::from(max) / (expected + 1e-6);
                let scaled: Vec<Vec<f32>> =
                    before.iter().map(|g| g.iter().map(|g| (f64::from(*g) * factor) as f32).collect()).collect();
                assert_near(&format!("clipped to {max} on {device}"), &grads(&leaves)?, &scaled, 1e-6);
            }
            assert!(leaves[3].grad().is_none());
            leaves[0].set_grad(Some(Tensor::full([3, 4], f32::INFINITY, &device)?));
            assert_eq!(optim::clip_grad_norm(&leaves, 1.0)?.item::<f32>()?, f32::INFINITY);
            assert!(grads(&leaves)?[0][0].is_nan()); // ∞ · 0, as in PyTorch
        }
    }
    let nothing = optim::clip_grad_norm(&[Tensor::zeros([2], None)?.requires_grad()], 1.0)?;
    assert_eq!(nothing.item::<f32>()?, 0.0);
    assert!(optim::clip_grad_norm(&[], -1.0).is_err() && optim::clip_grad_value(&[], f32::NAN).is_err());
    Ok(())
}

#[test]
fn values_are_clipped() -> Result<()> {
    for device in devices_in_turn() {
        let leaves = leaves(true, &device)?;
        let before = grads(&leaves)?;
        optim::clip_grad_value(&leaves, 0.5)?;
        let expected: Vec<Vec<f32>> = before.iter().map(|g| g.iter().map(|g| g.clamp(-0.5, 0.5)).collect()).collect();
        assert_eq!(grads(&leaves)?, expected, "{device}");
    }
    Ok(())
}

#[test]
fn a_clipped_step_is_the_same_on_every_mix() -> Result<()> {
    let (x, labels) = batch()?;
    let mut expected: Option<(f64, Vec<Vec<f32>>)> = None;
    for mix in mixes() {
        let net = DataParallel::new(net()?, &mix)?.with_shares(Shares::Even)?;
        let parameters = net.parameters();
        net.train_batch(&x, &labels, nn::cross_entropy)?;
        let got = f64::from(optim::clip_grad_norm(&parameters, 0.1)?.item::<f32>()?);
        let mut sgd = SGD::new(parameters.clone(), 1.0);
        let clipped = grads(&parameters)?;
        sgd.step()?;
        let (norm_of_one, first) = expected.get_or_insert_with(|| (got, clipped.clone()));
        assert!(
            (got - *norm_of_one).abs() < 1e-5 * got,
            "{mix:?}: the norm is {got}, that of one device {norm_of_one}"
        );
        assert!((norm(&clipped) - 0.1).abs() < 1e-5);
        assert_near(&format!("{mix:?}"), &clipped, first, 1e-6);
        // Those of some parameters alone are clipped by their own norm.
        net.train_batch(&x, &labels, nn::cross_entropy)?;
        let last = &parameters[1..];
        let alone = norm(&grads(last)?);
        assert!((f64::from(optim::clip_grad_norm(last, 0.1)?.item::<f32>()?) - alone).abs() < 1e-5);
    }
    Ok(())
}

/// Replicas that a program keeps alike itself: each is clipped by its own norm, and one of them is asked whether all is
/// finite.
#[test]
fn replicas_have_the_norm_and_the_scale_of_one() -> Result<()> {
    for device in devices_in_turn() {
        let replicas = vec![leaves(true, &Device::cpu())?, leaves(false, &device)?];
        let parameters = Parameters::replicated(replicas)?;
        let of_one = norm(&grads(parameters.first_replica())?);
        let got = f64::from(optim::clip_grad_norm(&parameters, 0.5)?.item::<f32>()?);
        assert!((got - of_one).abs() < 1e-5 * of_one, "{device}: {got}, not {of_one}");
        for replica in parameters.replicas() {
            assert!((norm(&grads(replica)?) - 0.5).abs() < 1e-5, "{device}");
        }
        let matrices = parameters.filter(|parameter| parameter.rank() == 2);
        assert_eq!((matrices.len(), matrices.num_replicas()), (2, 2));
        let mut sgd = SGD::new(matrices, 0.5);
        let mut scaler = GradScaler::new().init_scale(2.0)?;
        let before = grads(sgd.parameters())?;
        scaler.unscale(&sgd)?;
        let halved: Vec<Vec<f32>> = before.iter().map(|g| g.iter().map(|g| g / 2.0).collect()).collect();
        assert_eq!(grads(sgd.parameters())?, halved, "{device}");
        assert!(scaler.step(&mut sgd)?);
    }
    Ok(())
}

#[test]
fn a_net_on_two_devices_has_one_norm() -> Result<()> {
    for other in devices_in_turn().into_iter().filter(|device| !device.is_cpu()) {
        let (mut a, mut b) = (Linear::new(4, 3)?, Linear::new(3, 2)?);
        a.to_(&Device::cpu())?;
        b.to_(&other)?;
        let x = wave(&[5, 4], 0.0, &Device::cpu())?;
        b.forward(&a.forward(&x)?.to(&other)?)?.square()?.sum_all()?.backward()?;
        let parameters = [a.parameters(), b.parameters()].concat();
        let before = norm(&grads(&parameters)?);
        let got = optim::clip_grad_norm(&parameters, 0.25)?;
        assert!((f64::from(got.item::<f32>()?) - before).abs() < 1e-4 * before, "{other}");
        assert!((norm(&grads(&parameters)?) - 0.25).abs() < 1e-5, "{other}");
    }
    Ok(())
}

#[test]
fn parts_of_a_batch_add_up() -> Result<()> {
    let (x, labels) = batch()?;
    for device in devices_in_turn() {
        let mut net = net()?;
        net.to_(&device)?;
        let (x, labels) = (x.to(&device)?, labels.to(&device)?);
        nn::cross_entropy(&net.forward(&x)?, &labels)?.backward()?;
        let whole = grads(&net.parameters())?;
        SGD::new(net.parameters(), 0.1).zero_grad();
        for part in 0..3 {
            let (x, labels) = (x.narrow(0, 4 * part, 4)?, labels.narrow(0, 4 * part, 4)?);
            nn::cross_entropy(&net.forward(&x)?, &labels)?.mul(1.0 / 3.0)?.backward()?;
        }
        assert_near(&device.to_string(), &grads(&net.parameters())?, &whole, 1e-6);
    }
    Ok(())
}

#[test]
fn parts_of_a_batch_add_up_on_every_mix() -> Result<()> {
    let (x, labels) = batch()?;
    for mix in mixes() {
        let net = DataParallel::new(net()?, &mix)?.with_shares(Shares::Even)?;
        let sgd = SGD::new(net.parameters(), 0.1);
        net.train_batch(&x, &labels, nn::cross_entropy)?;
        let whole = grads(sgd.parameters())?;
        sgd.zero_grad();
        for part in 0..3 {
            let (x, labels) = (x.narrow(0, 4 * part, 4)?, labels.narrow(0, 4 * part, 4)?);
            net.accumulate_batch(&x, &labels, |logits, labels| nn::cross_entropy(logits, labels)?.mul(1.0 / 3.0))?;
        }
        assert_near(&format!("{mix:?}"), &grads(sgd.parameters())?, &whole, 1e-6);
        // An error leaves the gradients of the earlier calls, so that this one can be made again.
        assert!(net.accumulate_batch(&x, &labels, |logits, _| logits.reshape([7])).is_err());
        assert_near(&format!("{mix:?}, after an error"), &grads(sgd.parameters())?, &whole, 1e-6);
    }
    Ok(())
}
