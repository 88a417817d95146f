//! Layers that use more than one sample or random numbers: on any mix of devices, their results are those of one
//! device.

use anygpu::nn::{self, BatchNorm1d, BatchNorm2d, Conv2d, Dropout, Flatten, Linear, Module, ReLU, Sequential};
use anygpu::optim::SGD;
use anygpu::parallel::Shares;
use anygpu::{DataParallel, Device, Error, Result, Tensor, manual_seed};

use crate::common::{alone, device, values};

const BATCH: usize = 13;
const STEPS: usize = 6;

/// Draws uniform and normal numbers, of which a replica needs its own.
#[derive(Clone)]
struct Noise(f32);

impl Module for Noise {
    anygpu::children!();

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let (uniform, normal) = (Tensor::rand(x.shape(), x.device())?, Tensor::randn(x.shape(), x.device())?);
        x.add(&uniform.add(&normal)?.mul(self.0)?)
    }
}

fn net(p: f32) -> Result<Sequential> {
    Ok(Sequential::new()
        .add("conv1", Conv2d::new(1, 6, 3)?.padding(1))
        .add("bn1", BatchNorm2d::new(6)?.momentum(0.3))
        .add("relu1", ReLU)
        .add("conv2", Conv2d::new(6, 4, 3)?.without_bias())
        .add("bn2", BatchNorm2d::new(4)?)
        .add("relu2", ReLU)
        .add("flatten", Flatten)
        .add("dropout", Dropout::new(p)?)
        .add("noise", Noise(p))
        .add("fc1", Linear::new(4 * 5 * 5, 15)?)
        .add("bn3", BatchNorm1d::new(15)?)
        .add("drop", Dropout::new(p)?)
        .add("fc2", Linear::new(15, 3)?))
}

/// Losses, then the parameters, the running statistics and an evaluation of the first replica.
fn train(devices: &[Device], shares: Option<Shares>, p: f32) -> Result<Vec<Vec<f64>>> {
    train_by(BATCH, devices, shares, p)
}

fn train_by(batch: usize, devices: &[Device], shares: Option<Shares>, p: f32) -> Result<Vec<Vec<f64>>> {
    manual_seed(3);
    let net = DataParallel::new(net(p)?, devices)?;
    let net = match shares {
        Some(shares) => net.with_shares(shares)?,
        None => net,
    };
    let mut sgd = SGD::new(net.parameters(), 0.05).momentum(0.9);
    let mut losses = Vec::new();
    for _ in 0..STEPS {
        let x = Tensor::rand([batch, 1, 7, 7], None)?;
        let labels: Vec<u32> = (0..batch as u32).map(|i| i % 3).collect();
        let y = Tensor::from_slice(&labels, batch, None)?;
        losses.push(f64::from(net.train_batch(&x, &y, nn::cross_entropy)?.item::<f32>()?));
        sgd.step()?;
    }
    let mut all = vec![losses];
    for (_, tensor) in net.module().named_parameters().into_iter().chain(net.module().named_buffers()) {
        all.push(values(&tensor)?);
    }
    all.push(values(&net.predict(&Tensor::rand([5, 1, 7, 7], None)?)?)?);
    Ok(all)
}

#[track_caller]
fn assert_alike(what: &str, got: &[Vec<f64>], expected: &[Vec<f64>], tolerance: f64) {
    assert_eq!(got.len(), expected.len(), "{what}");
    for (i, (got, expected)) in got.iter().zip(expected).enumerate() {
        let close = |(g, e): (&f64, &f64)| (g - e).abs() <= tolerance * e.abs().max(1.0);
        assert!(got.iter().zip(expected).all(close), "{what}: tensor {i}: {got:?}, expected {expected:?}");
    }
}

fn mixes() -> Vec<Vec<Device>> {
    let names = [&["soft:0", "cpu"][..], &["cpu", "soft:2", "soft:1"], &["soft:0/0", "soft:0/1"]];
    names.iter().filter_map(|mix| mix.iter().map(|name| device(name)).collect()).collect()
}

#[test]
fn batch_norm_over_a_mix_is_that_of_one_device() -> Result<()> {
    let _alone = alone();
    let expected = train(&[Device::cpu()], None, 0.0)?;
    for mix in mixes() {
        assert_alike(&format!("{mix:?}"), &train(&mix, None, 0.0)?, &expected, 2e-4);
        let mut uneven = vec![1.0; mix.len()];
        uneven[0] = 5.5;
        assert_alike(&format!("{mix:?} unevenly"), &train(&mix, Some(Shares::Fixed(uneven)), 0.0)?, &expected, 2e-4);
    }
    Ok(())
}

#[test]
fn dropout_and_noise_over_a_mix_are_those_of_one_device() -> Result<()> {
    let _alone = alone();
    let expected = train(&[Device::cpu()], None, 0.5)?;
    assert_ne!(expected[0], train(&[Device::cpu()], None, 0.0)?[0], "nothing is dropped");
    for mix in mixes() {
        let got = train(&mix, Some(Shares::Fixed((1..=mix.len()).map(|n| n as f64).collect())), 0.5)?;
        assert_alike(&format!("{mix:?}"), &got, &expected, 2e-4);
    }
    Ok(())
}

/// Frozen layers have no gradient on any device, and their values stay.
#[test]
fn frozen_layers_stay_over_a_mix() -> Result<()> {
    let _alone = alone();
    for mix in mixes().into_iter().chain([vec![Device::cpu()]]) {
        manual_seed(5);
        let mut body = Linear::new(4, 6)?;
        body.requires_grad_(false);
        let net = Sequential::new().add("head", Linear::new(4, 4)?).add("body", body).add("tail", Linear::new(6, 3)?);
        let net = DataParallel::new(net, &mix)?;
        let before = net.module().state_dict().copied()?;
        let mut sgd = SGD::new(net.parameters(), 0.5).momentum(0.9);
        let (x, y) = (Tensor::rand([6, 4], None)?, Tensor::from_slice(&[0u32, 1, 2, 0, 1, 2], 6, None)?);
        for _ in 0..3 {
            net.train_batch(&x, &y, nn::cross_entropy)?;
            sgd.step()?;
        }
        for (name, tensor) in net.module().state_dict() {
            let same = before.get(&name).map(values).transpose()? == Some(values(&tensor)?);
            assert_eq!(same, name.starts_with("body"), "{name} on {mix:?}");
        }
    }
    Ok(())
}

/// So many devices that some have no sample: they keep up all the same.
#[test]
fn a_device_without_samples_has_the_running_statistics() -> Result<()> {
    let _alone = alone();
    let (Some(soft), Some(other)) = (device("soft:0"), device("soft:0/1")) else { return Ok(()) };
    let expected = train_by(2, &[Device::cpu()], None, 0.0)?;
    let shares = Shares::Fixed(vec![1e-9, 1.0, 1.0]);
    let got = train_by(2, &[soft, Device::cpu(), other], Some(shares), 0.0)?;
    // Two samples: their standardised values are nearly ±1 whatever they are, and what tells them apart is rounded.
    assert_alike("the first idle", &got, &expected, 5e-3);
    Ok(())
}

/// A layer that fails on one device, after a batch norm or before it, must not leave the others waiting.
#[test]
fn a_replica_that_fails_releases_the_others() -> Result<()> {
    let _alone = alone();
    #[derive(Clone)]
    struct Fails(Device);
    impl Module for Fails {
        anygpu::children!();

        fn forward(&self, x: &Tensor) -> Result<Tensor> {
            if *x.device() == self.0 { x.reshape([1, 1]) } else { Ok(x.clone()) }
        }
    }
    for mix in mixes() {
        for bad in &mix {
            let norm = || BatchNorm1d::new(4);
            let net = Sequential::new().add("bn1", norm()?).add("bad", Fails(bad.clone())).add("bn2", norm()?);
            let net = DataParallel::new(net, &mix)?.with_shares(Shares::Fixed(vec![1.0; mix.len()]))?;
            let (x, y) = (Tensor::rand([12, 4], None)?, Tensor::zeros([12], None)?.to_dtype(anygpu::DType::U32)?);
            let error = net.train_batch(&x, &y, nn::cross_entropy).unwrap_err();
            assert!(matches!(&error, Error::Replica { device, .. } if device == bad.name()), "{error}");
            assert!(error.to_string().contains("reshape"), "{error}");
        }
    }
    Ok(())
}
