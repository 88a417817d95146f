//! What nets of users do in a step over several devices: buffers, averages of weights.

use anygpu::nn::{self, BatchNorm1d, Buffer, Linear, Module};
use anygpu::parallel::{Shares, batch_mean};
use anygpu::prelude::*;
use anygpu::{DataParallel, Result, no_grad, optim};

fn two() -> Result<[Device; 2]> {
    Ok([Device::new("cpu/0")?, Device::new("cpu/1")?])
}

/// Every mix of two that the machine has, and two logical devices of the host.
fn mixes() -> Result<Vec<Vec<Device>>> {
    let others = super::devices_in_turn().into_iter().filter(|device| !device.is_cpu());
    Ok(others.map(|other| vec![Device::cpu(), other]).chain([two()?.to_vec()]).collect())
}

fn samples() -> Result<(Tensor, Tensor)> {
    Ok((
        Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0, 10.0, 20.0], [6, 1], None)?,
        Tensor::try_from([0u32, 1, 0, 1, 0, 1])?,
    ))
}

/// What the program writes to the buffers of the net is what the next call computes with.
#[test]
fn buffers_that_were_written_are_used() -> Result<()> {
    let (x, y) = samples()?;
    let mut expected = None;
    for devices in [vec![Device::cpu()]].into_iter().chain(mixes()?) {
        let net = DataParallel::new(BatchNorm1d::new(1)?, &devices)?.with_shares(Shares::Even)?;
        let loss = |y: &Tensor, _: &Tensor| y.square()?.mean_all();
        net.train_batch(&x, &y, loss)?;
        no_grad(|| {
            let start = |name: &str| if name == "running_mean" { 0.0 } else { 1.0 };
            net.module().named_buffers().iter().try_for_each(|(name, buffer)| buffer.fill_(start(name)))
        })?;
        let first = net.predict(&x)?.to_vec::<f32>()?[0];
        assert!((first - 0.999_995).abs() < 1e-5, "{devices:?}: {first}");
        net.train_batch(&x, &y, loss)?;
        let mean = net.state_dict().get("running_mean").expect("a buffer").to_vec::<f32>()?[0];
        let expected = *expected.get_or_insert(mean);
        assert!((mean - expected).abs() < 1e-5, "{devices:?}: {mean} instead of {expected}");
    }
    Ok(())
}

/// Subtracts a running mean: of the batch, or of what the device has of it.
#[derive(Clone)]
struct Centre {
    fc: Linear,
    mean: Buffer,
    of_batch: bool,
}

impl Module for Centre {
    anygpu::children!(fc, mean);

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let now = x.mean(0, false)?;
        let now = if self.of_batch { batch_mean(&now)? } else { now };
        no_grad(|| self.mean.0.copy_(&(self.mean.0.mul(0.5)? + now.mul(0.5)?)?))?;
        self.fc.forward(&x.sub(&self.mean.0)?)
    }
}

#[test]
fn buffers_of_a_part_of_the_batch_are_an_error_and_those_of_the_batch_are_right() -> Result<()> {
    let (x, y) = samples()?;
    let net = |of_batch| Ok(Centre { fc: Linear::new(1, 2)?, mean: Buffer(Tensor::zeros([1], None)?), of_batch });
    for devices in mixes()? {
        let wrong = DataParallel::new(net(false)?, &devices)?.with_shares(Shares::Even)?;
        let error = wrong.train_batch(&x, &y, nn::cross_entropy).unwrap_err().to_string();
        assert!(error.contains("\"mean\"") && error.contains("batch_mean"), "{error}");
        assert_eq!(wrong.state_dict().get("mean").expect("a buffer").to_vec::<f32>()?, [0.0], "as it was");

        let right = DataParallel::new(net(true)?, &devices)?.with_shares(Shares::Fixed(vec![1.0, 2.0]))?;
        for expected in [10.0 / 3.0, 5.0] {
            right.train_batch(&x, &y, nn::cross_entropy)?;
            let mean = right.state_dict().get("mean").expect("a buffer").to_vec::<f32>()?[0];
            assert!((mean - expected).abs() < 1e-5, "{devices:?}: {mean} instead of {expected}");
        }
    }
    Ok(())
}

#[test]
fn averages_of_a_net_that_was_moved_are_an_error() -> Result<()> {
    let net = Linear::new(1, 1)?;
    let mut early = optim::Ema::new(&net, 0.5)?;
    let net = DataParallel::new(net, &two()?)?;
    let error = early.update().unwrap_err().to_string();
    assert!(error.contains("DataParallel::new") && error.contains("after that"), "{error}");
    optim::Ema::new(net.module(), 0.5)?.update()
}
