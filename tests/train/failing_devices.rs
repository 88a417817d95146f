//! Devices fail in the middle of a run on several devices: it goes on with the losses of a run without failures.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use anygpu::nn::{self, BatchNorm1d, Dropout, Linear, ReLU, Sequential};
use anygpu::optim::Adam;
use anygpu::parallel::Shares;
use anygpu::{DataParallel, Device, Result, Tensor, manual_seed};

use crate::common::{self, alone};

const STEPS: usize = 8;

/// The same net every time, with layers that compute over the whole batch.
fn net() -> Result<Sequential> {
    manual_seed(3);
    Ok(Sequential::new()
        .push(Linear::new(5, 40)?)
        .push(BatchNorm1d::new(40)?)
        .push(ReLU)
        .push(Dropout::new(0.3)?)
        .push(Linear::new(40, 3)?))
}

/// Twelve samples, others for each step.
fn batch(step: usize) -> Result<(Tensor, Tensor)> {
    let values: Vec<f32> = (0..60).map(|i| ((i * 37 + step * 11) % 29) as f32 / 14.5 - 1.0).collect();
    let labels: Vec<u32> = (0..12).map(|i| (i * 5 + step as u32) % 3).collect();
    Ok((Tensor::from_vec(values, [12, 5], None)?, Tensor::from_vec(labels, 12, None)?))
}

/// What fails: called with the step and the device in each loss function.
type Fault = Arc<dyn Fn(usize, &Device) + Send + Sync>;

/// The losses of some steps, and the number of failures that the run noticed.
fn losses(net: &DataParallel, fault: &Fault) -> Result<Vec<f64>> {
    let mut adam = Adam::new(net.parameters(), 0.01);
    let mut losses = Vec::new();
    for step in 0..STEPS {
        let (x, y) = batch(step)?;
        let fault = fault.clone();
        let loss = net.train_batch(&x, &y, move |logits, labels| {
            fault(step, logits.device());
            nn::cross_entropy(logits, labels)
        })?;
        losses.push(f64::from(loss.item::<f32>()?));
        adam.step()?;
    }
    Ok(losses)
}

fn nothing() -> Fault {
    Arc::new(|_, _| ())
}

fn expected() -> Result<Vec<f64>> {
    losses(&DataParallel::new(net()?, &[Device::cpu()])?, &nothing())
}

#[track_caller]
fn assert_losses(got: &[f64], expected: &[f64], what: &str) {
    let close = got.len() == expected.len() && got.iter().zip(expected).all(|(g, e)| (g - e).abs() <= 1e-4 * e.abs());
    assert!(close, "{what}:\n{got:?}, expected\n{expected:?}");
}

/// The names of adapters that can have further devices, for devices of chaos.
fn adapters() -> Vec<String> {
    let own = |device: &Device| !device.is_cpu() && device.info().api != "GL" && !device.name().contains('/');
    common::devices().into_iter().filter(own).map(|device| device.to_string()).collect()
}

/// A sequence of numbers that looks random, and is the same every time.
fn numbers(seed: usize) -> impl FnMut(usize) -> usize {
    let mut state = seed as u64;
    move |below| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    }
}

/// Twenty-six runs in which a device is lost, or an allocation of it fails, anywhere in the run.
#[test]
fn a_run_survives_lost_devices_and_full_ones() -> Result<()> {
    let _alone = alone();
    let (expected, adapters) = (expected()?, adapters());
    let (mut lost, mut full) = (0, 0);
    for run in 0..26 {
        let Some(adapter) = adapters.get(run % adapters.len().max(1)) else { return Ok(()) };
        let mut below = numbers(run);
        let fault = if run % 2 == 0 { format!("lose={}", 30 + below(300)) } else { format!("oom={}", 20 + below(300)) };
        let device = Device::new(&format!("chaos:{adapter}?{fault}"))?;
        let shares = Shares::Fixed(vec![1.0 + below(3) as f64, 1.0, 0.5 + below(2) as f64]);
        let devices = [device.clone(), Device::cpu(), Device::new("cpu/1")?];
        let net = DataParallel::new(net()?, &devices)?.with_shares(shares)?.with_bucket_bytes(100);
        assert_losses(&losses(&net, &nothing())?, &expected, &format!("{device}"));
        match &net.left_out()[..] {
            [] => full += usize::from(run % 2 == 1),
            [(out, error)] if out == &device && error.is_device_lost() => lost += 1,
            other => panic!("{device}: {other:?}"),
        }
    }
    assert!(lost >= 10 && full >= 10, "{lost} devices were lost, {full} runs with an allocation that failed");
    Ok(())
}

/// Fourteen runs in which the thread of any device panics.
#[test]
fn a_run_survives_panics() -> Result<()> {
    let _alone = alone();
    let (expected, all) = (expected()?, common::devices());
    for run in 0..14 {
        let mut below = numbers(100 + run);
        let mut devices = vec![all[run % all.len()].clone(), Device::new("cpu/1")?, Device::new("cpu/2")?];
        devices.rotate_left(below(3));
        let (when, which) = (below(STEPS), devices[below(3)].clone());
        let name = which.clone();
        let fault: Fault = Arc::new(move |step, device| assert!(step != when || device != &name, "on purpose"));
        let net = DataParallel::new(net()?, &devices)?.with_shares(Shares::Even)?; // all have samples in every step
        let what = format!("{which} of {devices:?} panics at step {when}");
        assert_losses(&losses(&net, &fault)?, &expected, &what);
        let out = net.left_out();
        assert!(out.len() == 1 && out[0].0 == which && out[0].1.to_string().contains("on purpose"), "{what}: {out:?}");
        assert_eq!(net.rejoin()?, [which], "{what}");
        assert!(net.left_out().is_empty() && net.shares().iter().all(|share| *share > 0.0), "{what}");
    }
    Ok(())
}

/// Ten runs in which a device does not end its part of a step.
#[test]
fn a_run_survives_devices_that_hang() -> Result<()> {
    let _alone = alone();
    let expected = expected()?;
    for run in 0..10 {
        let mut below = numbers(200 + run);
        let devices = [Device::cpu(), Device::new("cpu/1")?, Device::new("cpu/2")?];
        let (when, which) = (below(STEPS), devices[below(3)].clone());
        let (go_on, name) = (Arc::new(AtomicBool::new(false)), which.clone());
        let (end, ended) = (go_on.clone(), Arc::new(AtomicUsize::new(0)));
        let count = ended.clone();
        let fault: Fault = Arc::new(move |step, device| {
            if step == when && device == &name {
                while !end.load(Ordering::Acquire) {
                    std::thread::sleep(Duration::from_millis(5));
                }
                count.fetch_add(1, Ordering::AcqRel);
            }
        });
        let net = DataParallel::new(net()?, &devices)?
            .with_shares(Shares::Even)?
            .with_time_limit(Duration::from_millis(1500));
        let what = format!("{which} hangs at step {when}");
        assert_losses(&losses(&net, &fault)?, &expected, &what);
        let out = net.left_out();
        assert!(out.len() == 1 && out[0].0 == which && out[0].1.to_string().contains("for 1.5 s"), "{what}: {out:?}");
        assert!(net.rejoin()?.is_empty(), "{what}: its thread is still busy");
        go_on.store(true, Ordering::Release);
        let back = (0..1000).find_map(|_| {
            std::thread::sleep(Duration::from_millis(5));
            net.rejoin().ok().filter(|back| !back.is_empty())
        });
        assert_eq!((back, ended.load(Ordering::Acquire)), (Some(vec![which]), 1), "{what}");
        let (x, y) = batch(0)?;
        net.train_batch(&x, &y, nn::cross_entropy)?;
    }
    Ok(())
}

/// A lost device that the program opens again takes part in the next step, with the values of the others.
#[test]
fn a_device_that_is_opened_again_takes_part_again() -> Result<()> {
    let _alone = alone();
    let expected = expected()?;
    for adapter in adapters() {
        let device = Device::new(&format!("{adapter}/10"))?;
        let net = DataParallel::new(net()?, &[device.clone(), Device::cpu()])?.with_shares(Shares::Even)?;
        let lost = device.clone();
        let fault: Fault = Arc::new(move |step, device| match step {
            2 if device == &lost => lost.lose().expect("the device is lost"),
            5 if device.is_cpu() => drop(lost.reopen().expect("the device opens again")),
            _ => {}
        });
        assert_losses(&losses(&net, &fault)?, &expected, &adapter);
        assert!(net.left_out().is_empty() && net.shares() == [0.5, 0.5], "{adapter}: {:?}", net.left_out());
        let again = &net.devices()[0];
        assert!(again != &device && again.name() == device.name() && !again.is_lost(), "{adapter}");
        // Without a step, on request.
        again.lose()?;
        let (x, _) = batch(0)?;
        assert_eq!((net.predict(&x)?.device(), net.output_device()), (&Device::cpu(), Device::cpu()));
        assert_eq!((net.left_out().len(), net.rejoin()?.len(), net.left_out().len()), (1, 1, 0), "{adapter}");
        assert_eq!(net.predict(&x)?.device(), &net.devices()[0]);
    }
    Ok(())
}

/// When no device is left, the call has the error of the first one, and the next call works if the devices do.
#[test]
fn the_last_failure_is_an_error() -> Result<()> {
    let _alone = alone();
    let net = DataParallel::new(net()?, &[Device::cpu(), Device::new("cpu/1")?])?;
    let (x, y) = batch(0)?;
    let before = net.state_dict().to(Device::cpu())?;
    let error = net.train_batch(&x, &y, |_, _| panic!("everywhere")).unwrap_err().to_string();
    assert!(error.contains("cpu") && error.contains("everywhere"), "{error}");
    assert!(net.left_out().is_empty() && net.parameters().iter().all(|parameter| parameter.grad().is_none()));
    for ((name, tensor), (_, earlier)) in net.state_dict().iter().zip(before.iter()) {
        assert_eq!(tensor.to_vec::<f32>()?, earlier.to_vec::<f32>()?, "{name}");
    }
    net.train_batch(&x, &y, nn::cross_entropy)?;
    Ok(())
}
