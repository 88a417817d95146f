//! Steps of a program's own over several devices: several inputs, layers that stay in evaluation mode, batches that do not fit, and
//! what a run knows of its devices.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::sleep;
use std::time::Duration;

use anygpu::nn::{self, BatchNorm1d, Dropout, Linear, Module, ReLU, Sequential};
use anygpu::optim::SGD;
use anygpu::parallel::Shares;
use anygpu::{DataParallel, Device, Error, Result, Tensor, manual_seed};

use crate::common::{self, alone};

fn logical(count: usize) -> Result<Vec<Device>> {
    (0..count).map(|i| Device::new(&format!("cpu/{i}"))).collect()
}

/// The devices of the machine together, and logical ones of `cpu`.
fn mixes() -> Result<Vec<Vec<Device>>> {
    let mut all = common::devices_in_turn();
    all.push(Device::new("cpu/1")?);
    Ok(vec![all, logical(3)?])
}

fn numbers(shape: &[usize], seed: usize) -> Result<Tensor> {
    let count: usize = shape.iter().product();
    let value = |i: usize| ((i * 37 + seed * 11) % 29) as f32 / 14.5 - 1.0;
    Tensor::from_vec((0..count).map(value).collect(), shape, None)
}

fn gradients(net: &DataParallel) -> Result<Vec<Option<Vec<f32>>>> {
    net.parameters().iter().map(|parameter| parameter.grad().map(|grad| grad.to_vec()).transpose()).collect()
}

#[track_caller]
fn assert_close(got: &[Option<Vec<f32>>], expected: &[Option<Vec<f32>>], what: &str) {
    assert_eq!(got.len(), expected.len(), "{what}");
    for (got, expected) in got.iter().zip(expected) {
        let (Some(got), Some(expected)) = (got, expected) else {
            assert_eq!((got, expected), (&None, &None), "{what}");
            continue;
        };
        let most = expected.iter().fold(1e-3f32, |most, v| most.max(v.abs()));
        let apart = got.iter().zip(expected).fold(0f32, |apart, (g, e)| apart.max((g - e).abs()));
        assert!(got.len() == expected.len() && apart <= 1e-5 * most, "{what}: {apart} of {most}");
    }
}

/// A net with two inputs and two outputs.
#[derive(Clone)]
struct Two {
    left: Linear,
    right: Linear,
}

impl Two {
    fn both(&self, a: &Tensor, b: &Tensor) -> Result<(Tensor, Tensor)> {
        let (left, right) = (self.left.forward(a)?, self.right.forward(b)?);
        Ok(((&left + &right)?, (&left * &right)?))
    }
}

impl Module for Two {
    anygpu::children!(left, right);

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        Ok(self.both(x, x)?.0)
    }
}

/// A step with three inputs on every mix has the loss and gradients of one device.
#[test]
fn a_step_may_have_any_inputs_and_losses() -> Result<()> {
    let _alone = alone();
    manual_seed(1);
    let net = Two { left: Linear::new(4, 3)?, right: Linear::new(7, 3)? };
    let inputs = [numbers(&[11, 4], 1)?, numbers(&[11, 7], 2)?, numbers(&[11, 3], 3)?];
    let inputs: Vec<&Tensor> = inputs.iter().collect();
    let step = |net: &dyn Module, part: &[Tensor]| {
        let net = net.downcast_ref::<Two>().ok_or_else(|| Error::Autograd("another net".into()))?;
        let (sum, product) = net.both(&part[0], &part[1])?;
        nn::mse_loss(&sum, &part[2], nn::Reduction::Mean)? + nn::l1_loss(&product, &part[2], nn::Reduction::Mean)?
    };
    let one = DataParallel::new(net.clone(), &[Device::cpu()])?;
    let expected = one.step(&inputs, step)?.item::<f32>()?;
    for mix in mixes()? {
        let many = DataParallel::new(net.clone(), &mix)?.with_shares(Shares::Even)?;
        let loss = many.step(&inputs, step)?.item::<f32>()?;
        assert!((loss - expected).abs() < 1e-5 * expected, "{mix:?}: {loss}, expected {expected}");
        assert_close(&gradients(&many)?, &gradients(&one)?, &format!("{mix:?}"));
        let outputs = |net: &DataParallel| {
            let work = |net: &dyn Module, part: &[Tensor]| {
                let net = net.downcast_ref::<Two>().ok_or_else(|| Error::Autograd("another net".into()))?;
                let (sum, product) = net.both(&part[0], &part[1])?;
                Ok(vec![sum.sum(1, false)?, product])
            };
            net.predict_with(&inputs[..2], work)?.iter().map(|output| Ok(Some(output.to_vec::<f32>()?))).collect()
        };
        let (got, expected): (Result<Vec<_>>, Result<Vec<_>>) = (outputs(&many), outputs(&one));
        assert_close(&got?, &expected?, &format!("outputs on {mix:?}"));
        let uneven = |_: &dyn Module, part: &[Tensor]| Ok(vec![part[0].clone(); part[0].shape()[0]]);
        assert!(
            many.predict_with(&inputs[..1], uneven)
                .is_err_and(|error| error.to_string().contains("number of outputs differs"))
        );
    }
    let short = numbers(&[10, 7], 2)?;
    let error = one.step(&[inputs[0], &short], step).unwrap_err().to_string();
    assert!(error.contains("step") && error.contains("[11, 4]") && error.contains("[10, 7]"), "{error}");
    assert!(one.step(&[], step).is_err());
    assert!(one.step(&[&Tensor::scalar(1.0, None)?], step).is_err());
    Ok(())
}

/// A batch norm that is kept in evaluation mode has its statistics after training, on one device and on many.
#[test]
fn layers_that_are_kept_in_evaluation_mode_stay_so() -> Result<()> {
    let _alone = alone();
    manual_seed(2);
    let net = Sequential::new()
        .add("fc", Linear::new(5, 8)?)
        .add("frozen", BatchNorm1d::new(8)?)
        .add("relu", ReLU)
        .add("drop", Dropout::new(0.5)?)
        .add("norm", BatchNorm1d::new(8)?)
        .add("last", Linear::new(8, 3)?);
    for early in [true, false] {
        let mut losses: Vec<f32> = Vec::new();
        for mix in [vec![Device::cpu()]].into_iter().chain(mixes()?) {
            manual_seed(3);
            let copy: Sequential = net.clone();
            copy.train();
            copy["frozen"].keep_eval(early);
            copy["drop"].keep_eval(early);
            let many = DataParallel::new(copy, &mix)?.with_shares(Shares::Even)?;
            if !early {
                many.each_replica(|net| {
                    ["frozen", "drop"]
                        .iter()
                        .for_each(|name| net.get_submodule(name).expect("a layer").keep_eval(true));
                });
            }
            let mut sgd = SGD::new(many.parameters(), 0.1);
            let mut last = 0.0;
            for step in 0..4 {
                let labels = Tensor::from_vec((0..14).map(|i| (i + step as u32) % 3).collect(), 14, None)?;
                last = many.train_batch(&numbers(&[14, 5], step)?, &labels, nn::cross_entropy)?.item::<f32>()?;
                sgd.step()?;
                many.predict(&numbers(&[2, 5], 9)?)?; // switches to evaluation mode and, in the next step, back
            }
            let mean = |name: &str| many.state_dict().get(name).expect("a buffer").to_vec::<f32>();
            assert_eq!(mean("frozen.running_mean")?, [0.0; 8], "{mix:?}");
            assert!(mean("norm.running_mean")?.iter().any(|mean| *mean != 0.0), "{mix:?}");
            losses.push(last);
            // Without dropout, every draw would change the loss; no longer kept, it does.
            many.each_replica(|net| net.get_submodule("drop").expect("a layer").keep_eval(false));
            assert!(many.module().get_submodule("drop").is_some());
        }
        assert!(losses.iter().all(|loss| (loss - losses[0]).abs() < 1e-4 * losses[0]), "{losses:?}");
    }
    Ok(())
}

/// Devices that hold a few samples at a time compute a large batch in parts, with the gradients of the whole.
#[test]
fn a_batch_that_does_not_fit_is_computed_in_parts() -> Result<()> {
    let _alone = alone();
    manual_seed(4);
    let net = Sequential::new().push(Linear::new(5, 40)?).push(ReLU).push(Linear::new(40, 3)?);
    let (x, y) = (numbers(&[41, 5], 0)?, Tensor::from_vec((0..41u32).map(|i| i % 3).collect(), 41, None)?);
    let one = DataParallel::new(net.clone(), &[Device::cpu()])?;
    let expected = one.train_batch(&x, &y, nn::cross_entropy)?.item::<f32>()?;
    for mix in mixes()? {
        let many = DataParallel::new(net.clone(), &mix)?;
        let calls = Arc::new(AtomicUsize::new(0));
        for round in 0..2 {
            let counted = calls.clone();
            let loss = many.train_batch(&x, &y, move |logits, labels| {
                counted.fetch_add(1, Ordering::Relaxed);
                if logits.shape()[0] > 3 {
                    let device = logits.device().to_string();
                    return Err(Error::OutOfMemory { device, requested: 1, in_use: 0, available: None, held: vec![] });
                }
                nn::cross_entropy(logits, labels)
            })?;
            let loss = loss.item::<f32>()?;
            assert!((loss - expected).abs() < 1e-5 * expected, "{mix:?}: {loss}, expected {expected}");
            assert_close(&gradients(&many)?, &gradients(&one)?, &format!("{mix:?}, round {round}"));
            if round == 0 {
                calls.store(0, Ordering::Relaxed);
            }
        }
        // What fits is known in the second step: no part of it fails.
        assert!(calls.load(Ordering::Relaxed) <= 41, "{mix:?}: {calls:?}");
        assert!(many.left_out().is_empty());
        assert_eq!(many.predict(&x)?.to(Device::cpu())?.shape(), [41, 3]);
        let lost = |_: &Tensor, _: &Tensor| Err(Error::Autograd("on purpose".into()));
        assert!(many.train_batch(&x, &y, lost).unwrap_err().to_string().contains("on purpose"));
    }
    Ok(())
}

/// A step in which each device sleeps for its samples: seconds a sample, by device.
fn throttled(net: &DataParallel, x: &Tensor, y: &Tensor, speeds: Vec<(Device, f64)>) -> Result<()> {
    net.train_batch(x, y, move |logits, labels| {
        let seconds = speeds.iter().find(|(device, _)| device == logits.device()).map_or(0.0, |(_, seconds)| *seconds);
        sleep(Duration::from_secs_f64(seconds * logits.shape()[0] as f64));
        nn::cross_entropy(logits, labels)
    })
    .map(drop)
}

/// Devices with speeds of 1 : 2 : 5 reach at least 90 % of the sum of their speeds.
#[test]
fn unequal_devices_add_up() -> Result<()> {
    let _alone = alone();
    let devices = logical(3)?;
    let seconds = [8e-3, 4e-3, 1.6e-3];
    let sum: f64 = seconds.iter().map(|seconds| 1.0 / seconds).sum();
    let speeds: Vec<(Device, f64)> = devices.iter().cloned().zip(seconds).collect();
    let (x, y) = (numbers(&[160, 4], 0)?, Tensor::from_vec((0..160u32).map(|i| i % 3).collect(), 160, None)?);
    let rate = |net: &DataParallel, steps: u64| -> Result<f64> {
        let before = net.report();
        (0..steps).try_for_each(|_| throttled(net, &x, &y, speeds.clone()))?;
        let after = net.report();
        Ok((after.samples - before.samples) as f64 / (after.seconds - before.seconds))
    };
    let measured = DataParallel::new(Linear::new(4, 3)?, &devices)?;
    rate(&measured, 8)?; // the shares settle
    // The best of a few, since other processes take the cores at times.
    let best = (0..4).map(|_| rate(&measured, 4)).collect::<Result<Vec<f64>>>()?.into_iter().fold(0.0, f64::max);
    assert!(best >= 0.9 * sum, "{best:.0} samples/s of {sum:.0}; shares {:?}", measured.shares());
    let even = DataParallel::new(Linear::new(4, 3)?, &devices)?.with_shares(Shares::Even)?;
    let slowest = 3.0 / seconds[0];
    let rate = rate(&even, 3)?;
    assert!(rate < 1.1 * slowest, "{rate:.0} samples/s, where the slowest of three even shares allows {slowest:.0}");
    let report = measured.report();
    println!("{best:.0} of {sum:.0} samples/s; with even shares {rate:.0}\n{report}");
    let speed_up = report.speed_up().expect("steps");
    assert!(speed_up > 1.0 && report.devices.iter().all(|device| device.takes_part), "{report}");
    // Another run begins with the shares of this one.
    let resumed = DataParallel::new(Linear::new(4, 3)?, &devices)?;
    resumed.load_balance_state(&measured.balance_state());
    assert_eq!(resumed.shares(), measured.shares());
    Ok(())
}

/// A device whose single sample takes longer than the step of the others gets none, and is named.
#[test]
fn a_device_that_does_not_pay_gets_no_samples() -> Result<()> {
    let _alone = alone();
    let devices = logical(2)?;
    let speeds = vec![(devices[1].clone(), 0.05)];
    let (x, y) = (numbers(&[16, 4], 0)?, Tensor::from_vec((0..16u32).map(|i| i % 3).collect(), 16, None)?);
    let net = DataParallel::new(Linear::new(4, 3)?, &devices)?;
    for _ in 0..6 {
        throttled(&net, &x, &y, speeds.clone())?;
    }
    let report = net.report();
    assert_eq!(net.shares(), [1.0, 0.0], "{report}");
    assert!(!report.devices[1].takes_part && report.to_string().contains("(takes no part)"), "{report}");
    assert!(net.left_out().is_empty(), "it has not failed");
    Ok(())
}

/// The trace has a row for each device, and the events of each step.
#[test]
fn a_trace_has_what_each_device_did() -> Result<()> {
    let _alone = alone();
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("steps.json");
    for mix in mixes()? {
        let net = DataParallel::new(Linear::new(4, 3)?, &mix)?.with_shares(Shares::Even)?;
        assert!(net.save_trace(&path).unwrap_err().to_string().contains("start_trace"));
        let (x, y) = (numbers(&[16, 4], 0)?, Tensor::from_vec((0..16u32).map(|i| i % 3).collect(), 16, None)?);
        net.train_batch(&x, &y, nn::cross_entropy)?;
        net.start_trace();
        for _ in 0..2 {
            net.train_batch(&x, &y, nn::cross_entropy)?;
        }
        net.save_trace(&path)?;
        let trace: serde_json::Value =
            serde_json::from_slice(&std::fs::read(&path).expect("the file")).expect("a trace in JSON");
        let events = trace["traceEvents"].as_array().expect("a list");
        let count = |name: &str| events.iter().filter(|event| event["name"].as_str() == Some(name)).count();
        assert_eq!(count("thread_name"), 1 + 2 * mix.len());
        assert_eq!((count("compute"), count("gradients 0"), count("step 3")), (2 * mix.len(), 2 * mix.len(), 1));
        assert_eq!((net.report().steps, net.report().samples), (3, 48));
    }
    Ok(())
}
