//! A device is lost: its first error says so, and the others keep the model.

use std::time::{Duration, Instant};

use anygpu::checkpoint::TrainingState;
use anygpu::nn::{self, BatchNorm1d, Linear, Sequential, StateDict};
use anygpu::optim::{Optimizer, SGD};
use anygpu::parallel::Shares;
use anygpu::{DataParallel, Device, Error, Result, Tensor};

use crate::common::{alone, devices, values};

/// Logical devices with this number, of every adapter that has a device of its own for each. Other tests use others.
fn to_lose(number: usize) -> Vec<Device> {
    let own = |device: &Device| !device.is_cpu() && device.info().api != "GL" && !device.name().contains('/');
    let names = devices().into_iter().filter(own).map(|device| format!("{device}/{number}"));
    names.map(|name| Device::new(&name).expect("a logical device")).collect()
}

fn net() -> Result<Sequential> {
    Ok(Sequential::new().add("a", Linear::new(4, 6)?).add("norm", BatchNorm1d::new(6)?).add("b", Linear::new(6, 3)?))
}

fn batch() -> Result<(Tensor, Tensor)> {
    Ok((Tensor::rand([12, 4], None)?, Tensor::from_slice(&[0u32, 1, 2].repeat(4), 12, None)?))
}

fn named(error: &Error, device: &Device) {
    assert!(error.is_device_lost() && error.to_string().contains(device.name()), "{device}: {error}");
}

#[test]
fn the_first_step_after_a_loss_says_so() -> Result<()> {
    let _alone = alone();
    for device in to_lose(3) {
        let (net, (x, y)) = (DataParallel::new(net()?, std::slice::from_ref(&device))?, batch()?);
        net.train_batch(&x, &y, nn::cross_entropy)?.item::<f32>()?;
        assert!(!device.is_lost());
        device.lose()?;
        named(&net.train_batch(&x, &y, nn::cross_entropy).unwrap_err(), &device);
        assert!(device.is_lost());
        named(&net.state_dict().to(Device::cpu()).unwrap_err(), &device);
    }
    Ok(())
}

#[test]
fn the_first_prediction_after_a_loss_says_so() -> Result<()> {
    let _alone = alone();
    for device in to_lose(4) {
        let (net, (x, _)) = (DataParallel::new(net()?, std::slice::from_ref(&device))?, batch()?);
        net.predict(&x)?;
        device.lose()?;
        named(&net.predict(&x).unwrap_err(), &device);
    }
    Ok(())
}

fn all(state: &StateDict) -> Result<Vec<(String, Vec<f64>)>> {
    state.iter().map(|(name, tensor)| Ok((name.to_string(), values(tensor)?))).collect()
}

fn assert_close(got: &StateDict, expected: &[(String, Vec<f64>)], what: &str) -> Result<()> {
    let got = all(got)?;
    assert_eq!(got.len(), expected.len(), "{what}");
    for ((name, got), (expected_name, expected)) in got.iter().zip(expected) {
        let close = got.iter().zip(expected).all(|(g, e)| (g - e).abs() <= 1e-4 * (1.0 + e.abs()));
        assert!(name == expected_name && got.len() == expected.len() && close, "{what}: {name}");
    }
    Ok(())
}

/// The first device is lost between two steps. The model, its statistics and the momentum are as before, and the run goes on.
#[test]
fn the_model_survives_the_loss_of_the_first_device() -> Result<()> {
    let _alone = alone();
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("run.safetensors");
    for first in to_lose(5) {
        let net = DataParallel::new(net()?, &[first.clone(), Device::cpu()])?.with_shares(Shares::Even)?;
        let mut sgd = SGD::new(net.parameters(), 0.1).momentum(0.9);
        let (x, y) = batch()?;
        for _ in 0..3 {
            net.train_batch(&x, &y, nn::cross_entropy)?;
            sgd.step()?;
        }
        let (expected, momentum) = (all(&net.state_dict())?, all(&sgd.state_dict()?)?);
        first.lose()?;
        let what = format!("after the loss of {first}");
        assert_close(&net.state_dict(), &expected, &what)?;
        assert_close(&net.module().state_dict(), &expected, &what)?;
        assert_close(&sgd.state_dict()?, &momentum, &what)?;

        TrainingState::new().module(&net).optimizer(&sgd)?.save(&path)?;
        let on = DataParallel::new(self::net()?, &[Device::cpu()])?;
        let mut sgd = SGD::new(on.parameters(), 9.0);
        TrainingState::load(&path)?.restore_module(&on)?.restore_optimizer(&mut sgd)?;
        assert_close(&on.state_dict(), &expected, &what)?;
        let expected = on.train_batch(&x, &y, nn::cross_entropy)?.item::<f32>()?;
        let loss = net.train_batch(&x, &y, nn::cross_entropy)?.item::<f32>()?;
        assert!((loss - expected).abs() < 1e-5, "{what}: {loss}, expected {expected}");
        assert!(
            matches!(&net.left_out()[..], [(device, error)] if device == &first && error.is_device_lost()),
            "{what}"
        );
        assert_eq!((net.shares(), net.output_device()), (vec![0.0, 1.0], Device::cpu()), "{what}");
    }
    Ok(())
}

/// Returns a product that takes a tenth of a second at least, not waited for.
fn long_work(device: &Device) -> Result<Tensor> {
    let x = Tensor::full([768, 768], 1.0 / 768.0, device)?;
    let mut y = x.clone();
    for _ in 0..4 {
        y = y.matmul(&x)?;
    }
    Ok(y)
}

/// A wait can end before the device does, which goes on with its work.
#[test]
fn a_wait_with_a_limit_loses_nothing() -> Result<()> {
    let _alone = alone();
    let (mut waited, mut all) = (0, 0);
    for device in to_lose(11) {
        long_work(&device)?.i((0, 0))?.item::<f32>()?; // compiles the kernels
        let y = long_work(&device)?;
        let start = Instant::now();
        let done = device.synchronize_timeout(Duration::from_millis(5))?;
        assert!(start.elapsed() < Duration::from_secs(5), "{device}: {:?}", start.elapsed());
        assert!(device.synchronize_timeout(Duration::from_secs(300))? && !device.is_lost(), "{device}");
        let value: f32 = y.i((767, 767))?.item()?;
        assert!((value - 1.0 / 768.0).abs() < 1e-6, "{device}: {value}");
        (waited, all) = (waited + usize::from(!done), all + 1);
    }
    assert!(all == 0 || waited > 0, "no device was waited for");
    assert!(Device::cpu().synchronize_timeout(Duration::ZERO)?);
    Ok(())
}

/// A device that takes longer than its limit is lost, at once and for ever after, and the others go on.
#[test]
fn a_device_that_does_not_answer_in_time_is_lost() -> Result<()> {
    let _alone = alone();
    let (mut lost, mut all) = (0, 0);
    for device in to_lose(12) {
        long_work(&device)?.i((0, 0))?.item::<f32>()?;
        device.set_wait_limit(Duration::from_millis(5))?;
        let y = long_work(&device)?;
        let start = Instant::now();
        // One word: lavapipe takes a submit only when it has computed the one before, and a long read has several submits.
        if let Err(error) = y.i((0, 0))?.item::<f32>() {
            named(&error, &device);
            assert!(error.to_string().contains("no answer for 0.005 s"), "{error}");
            assert!(start.elapsed() < Duration::from_secs(5), "{device}: {:?}", start.elapsed());
            assert!(device.is_lost());
            named(&Tensor::ones([2], &device).and_then(|x| x.to_vec::<f32>()).unwrap_err(), &device);
            lost += 1;
        }
        all += 1;
        assert_eq!(Tensor::ones([2], Device::cpu())?.to_vec::<f32>()?, [1.0; 2]);
    }
    assert!(all == 0 || lost > 0, "no device was lost");
    Ok(())
}

/// The name of a lost device means a new device after `reopen`, and the old one stays lost.
#[test]
fn a_lost_device_is_opened_again() -> Result<()> {
    let _alone = alone();
    for device in to_lose(14) {
        assert_eq!(device.reopen()?, device, "it is not lost");
        let x = Tensor::ones([3], &device)?;
        device.lose()?;
        named(&x.to_vec::<f32>().unwrap_err(), &device);
        let again = device.reopen()?;
        assert_eq!((again.name(), again.info()), (device.name(), device.info()));
        assert!(again != device && again.cmp(&device).is_ne() && !again.is_lost() && device.is_lost());
        assert_eq!([device.reopen()?, Device::new(device.name())?], [again.clone(), again.clone()]);

        let y = Tensor::ones([3], &again)?;
        named(&x.to_vec::<f32>().unwrap_err(), &device);
        named(&x.to(&again).unwrap_err(), &device);
        assert!(matches!(y.add(&x).unwrap_err(), Error::DeviceMismatch { .. }));
        assert_eq!(y.add(&y)?.to_vec::<f32>()?, [2.0; 3]);
    }
    assert_eq!(Device::cpu().reopen()?, Device::cpu());
    Ok(())
}

/// A checkpoint of a run whose only device is lost goes on, on the device that is opened again.
#[test]
fn training_goes_on_where_the_device_is_opened_again() -> Result<()> {
    let _alone = alone();
    for device in to_lose(15) {
        let (x, y) = batch()?;
        let step = |net: &DataParallel, sgd: &mut SGD| -> Result<f32> {
            let loss = net.train_batch(&x, &y, nn::cross_entropy)?.item::<f32>()?;
            sgd.step()?;
            Ok(loss)
        };
        let begin = |device: &Device| -> Result<_> {
            let net = DataParallel::new(net()?, std::slice::from_ref(device))?;
            let sgd = SGD::new(net.parameters(), 0.1).momentum(0.9);
            Ok((net, sgd))
        };
        let (first, mut sgd) = begin(&device)?;
        step(&first, &mut sgd)?;
        let saved = first.state_dict().to(Device::cpu())?;
        device.lose()?;
        assert!(step(&first, &mut sgd).unwrap_err().is_device_lost());
        let (second, mut sgd) = begin(&device.reopen()?)?;
        second.load_state_dict(&saved, true)?;
        assert!(step(&second, &mut sgd)?.is_finite());
    }
    Ok(())
}
