//! Gradients that travel as halves: losses near those of floats, nearer with error feedback, and the same after failures.

use anygpu::nn::{self, BatchNorm1d, Linear, ReLU, Sequential};
use anygpu::optim::SGD;
use anygpu::parallel::Shares;
use anygpu::{DType, DataParallel, Device, Error, Result, Tensor, manual_seed};

use crate::common::{self, alone};

const STEPS: usize = 30;

fn net(devices: &[Device], dtype: DType) -> Result<DataParallel> {
    manual_seed(3);
    let net =
        Sequential::new().push(Linear::new(5, 40)?).push(BatchNorm1d::new(40)?).push(ReLU).push(Linear::new(40, 3)?);
    DataParallel::new(net, devices)?.with_shares(Shares::Even)?.with_bucket_bytes(400).with_wire(dtype)
}

/// The losses of a run, with `before` called before each step.
fn losses(net: &DataParallel, mut before: impl FnMut(usize, &DataParallel) -> Result<()>) -> Result<Vec<f64>> {
    let mut sgd = SGD::new(net.parameters(), 0.1);
    let mut losses = Vec::new();
    for step in 0..STEPS {
        before(step, net)?;
        let values: Vec<f32> = (0..60).map(|i| ((i * 37 + step * 11) % 29) as f32 / 14.5 - 1.0).collect();
        let labels: Vec<u32> = (0..12).map(|i| (i * 5 + step as u32) % 3).collect();
        let (x, y) = (Tensor::from_vec(values, [12, 5], None)?, Tensor::from_vec(labels, 12, None)?);
        losses.push(f64::from(net.train_batch(&x, &y, nn::cross_entropy)?.item::<f32>()?));
        sgd.step()?;
    }
    Ok(losses)
}

fn nothing(_: usize, _: &DataParallel) -> Result<()> {
    Ok(())
}

/// The largest relative difference of two runs.
fn distance(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| (a - b).abs() / b.abs()).fold(0.0, f64::max)
}

/// The difference of the parameters of two nets.
fn apart(a: &DataParallel, b: &DataParallel) -> Result<f64> {
    let mut sum = 0.0;
    for (a, b) in a.parameters().iter().zip(b.parameters().iter()) {
        sum += a.sub(b)?.to_vec::<f32>()?.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>();
    }
    Ok(sum.sqrt())
}

fn mixes() -> Result<Vec<Vec<Device>>> {
    let mut mixes = vec![vec![Device::new("cpu/0")?, Device::new("cpu/1")?, Device::new("cpu/2")?]];
    for device in common::devices_in_turn().into_iter().filter(|device| !device.is_cpu()) {
        mixes.push(vec![device, Device::cpu()]);
    }
    Ok(mixes)
}

#[test]
fn losses_are_near_those_of_floats_and_nearer_with_feedback() -> Result<()> {
    let _alone = alone();
    for mix in mixes()? {
        let floats = net(&mix, DType::F32)?;
        let expected = losses(&floats, nothing)?;
        assert!(expected[STEPS - 1] < expected[0]);
        let halves = net(&mix, DType::F16)?;
        let got = losses(&halves, nothing)?;
        assert!(distance(&got, &expected) < 1e-3, "{mix:?}: {got:?}, expected {expected:?}");
        // The first loss is of the same parameters, and exact.
        assert_eq!(got[0], expected[0], "{mix:?}");
        if mix.iter().any(|device| !device.is_cpu()) {
            continue; // the tests of the format compare the devices
        }
        // Loading a net forgets what was lost.
        let forgetful = net(&mix, DType::F16)?;
        losses(&forgetful, |_, net| net.load_state_dict(&net.state_dict(), true).map(drop))?;
        let distances = (apart(&halves, &floats)?, apart(&forgetful, &floats)?);
        assert!(distances.0 > 0.0 && distances.0 < distances.1 / 1.5, "{mix:?}: {distances:?}");
    }
    Ok(())
}

/// A step that is repeated begins with what was lost before it, not with what its first attempt has lost.
#[test]
fn a_repeated_step_has_the_residuals_of_the_step_before() -> Result<()> {
    let _alone = alone();
    let (a, b) = (Device::new("cpu/0")?, Device::new("cpu/1")?);
    let run = |fails: bool| -> Result<Vec<f64>> {
        let net = net(&[a.clone(), b.clone(), Device::new("cpu/2")?], DType::F16)?;
        let mut sgd = SGD::new(net.parameters(), 0.1);
        let mut losses = Vec::new();
        for step in 0..STEPS {
            let x = Tensor::from_vec(
                (0..60).map(|i| ((i * 37 + step * 11) % 29) as f32 / 14.5 - 1.0).collect(),
                [12, 5],
                None,
            )?;
            let y = Tensor::from_vec((0..12).map(|i| (i * 5 + step as u32) % 3).collect::<Vec<u32>>(), 12, None)?;
            let third = Device::new("cpu/2")?;
            losses.push(f64::from(
                net.train_batch(&x, &y, move |logits, labels| {
                    assert!(!fails || step != 10 || logits.device() != &third, "on purpose");
                    nn::cross_entropy(logits, labels)
                })?
                .item::<f32>()?,
            ));
            sgd.step()?;
            if step == 10 && fails {
                assert_eq!(net.left_out().len(), 1);
                net.rejoin()?;
            }
        }
        Ok(losses)
    };
    let floats = losses(&net(&[Device::cpu()], DType::F32)?, nothing)?;
    let (whole, repeated) = (run(false)?, run(true)?);
    assert!(
        distance(&whole, &floats) < 1e-3 && distance(&repeated, &floats) < 1e-3,
        "{whole:?}\n{repeated:?}\n{floats:?}"
    );
    Ok(())
}

/// Devices that are lost or full anywhere in a run.
#[test]
fn a_run_survives_failures() -> Result<()> {
    let _alone = alone();
    let expected = losses(&net(&[Device::cpu()], DType::F32)?, nothing)?;
    let own = |device: &&Device| !device.is_cpu() && device.info().api != "GL" && !device.name().contains('/');
    let all = common::devices_in_turn();
    for (run, adapter) in all.iter().filter(own).enumerate() {
        let fault = if run % 2 == 1 { "oom=150".into() } else { format!("lose={}", 200 + 400 * run) };
        let device = Device::new(&format!("chaos:{adapter}?{fault}"))?;
        let net = net(&[device.clone(), Device::new("cpu/1")?, Device::new("cpu/2")?], DType::F16)?;
        let got = losses(&net, nothing)?;
        assert!(distance(&got, &expected) < 1e-3, "{device}: {got:?}, expected {expected:?}");
        if run % 2 == 0 {
            assert_eq!(net.left_out().len(), 1, "{device}");
        }
    }
    Ok(())
}

#[test]
fn other_formats_are_refused() -> Result<()> {
    let _alone = alone();
    let error = DataParallel::new(Linear::new(2, 2)?, &[Device::cpu()])?.with_wire(DType::I32).unwrap_err();
    assert!(matches!(error, Error::DTypeMismatch { op: "with_wire", .. }), "{error}");
    Ok(())
}
