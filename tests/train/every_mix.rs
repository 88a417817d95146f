//! The same losses on every mix of devices, for every way to share a batch: those of one device over the whole batch.
//!
//! By default a few mixes, which differ between nets and ways to share. `ANYGPU_EVERY_MIX=1` takes all of them.

use anygpu::nn::{self, Module};
use anygpu::optim::SGD;
use anygpu::parallel::Shares;
use anygpu::{DataParallel, Device, Result, Tensor, manual_seed};
use proptest::prelude::*;

use crate::common::{alone, device, property};

/// Two logical devices of lavapipe, SwiftShader, OpenGL and the host, as far as the machine has them.
fn devices() -> Vec<Device> {
    ["cpu", "soft:0/0", "soft:0/1", "soft:2", "soft:3"].iter().filter_map(|name| device(name)).collect()
}

fn all_mixes() -> bool {
    std::env::var_os("ANYGPU_EVERY_MIX").is_some()
}

/// All subsets of at least two devices.
fn subsets() -> Vec<Vec<Device>> {
    let devices = devices();
    let chosen =
        |bits: u32| devices.iter().enumerate().filter(|(i, _)| bits >> i & 1 == 1).map(|(_, d)| d.clone()).collect();
    (0..1u32 << devices.len()).filter(|bits| bits.count_ones() >= 2).map(chosen).collect()
}

/// Measured, fixed, and wildly uneven shares.
fn shares(devices: usize) -> [Shares; 3] {
    let fixed = (0..devices).map(|i| 1.0 + i as f64).collect();
    let uneven = (0..devices).map(|i| 1e-4f64.powi(i as i32)).collect();
    [Shares::Measured, Shares::Fixed(fixed), Shares::Fixed(uneven)]
}

/// The losses of a run with momentum.
fn losses(net: DataParallel, batches: &[(Tensor, Tensor)], lr: f32) -> Result<Vec<f64>> {
    let mut sgd = SGD::new(net.parameters(), lr).momentum(0.9);
    let mut losses = Vec::new();
    for (images, labels) in batches {
        losses.push(f64::from(net.train_batch(images, labels, nn::cross_entropy)?.item::<f32>()?));
        sgd.step()?;
    }
    assert!(net.left_out().is_empty());
    Ok(losses)
}

/// The largest difference of two lists of losses, relative to the expected ones.
fn difference(got: &[f64], expected: &[f64]) -> f64 {
    assert_eq!(got.len(), expected.len());
    got.iter().zip(expected).map(|(g, e)| (g - e).abs() / e.abs()).fold(0.0, f64::max)
}

/// Runs every `step`-th of all pairs of a mix and shares, and then says which of them differ. Returns the losses of `cpu`.
fn compare(
    net: &dyn Fn() -> Result<DataParallelSource>,
    batches: &[(Tensor, Tensor)],
    lr: f32,
    step: usize,
) -> Result<Vec<f64>> {
    let expected = losses(DataParallel::new(net()?, &[Device::cpu()])?, batches, lr)?;
    let step = if all_mixes() { 1 } else { step };
    let pairs = subsets().into_iter().flat_map(|mix| shares(mix.len()).map(|shares| (mix.clone(), shares)));
    let (mut count, mut worst, mut wrong) = (0, 0.0f64, Vec::new());
    for (mix, shares) in pairs.collect::<Vec<_>>().into_iter().rev().step_by(step) {
        let names: Vec<&str> = mix.iter().map(Device::name).collect();
        let what = format!("{}, {shares:?}", names.join(" + "));
        let got = losses(DataParallel::new(net()?, &mix)?.with_shares(shares)?, batches, lr)?;
        let apart = difference(&got, &expected);
        println!("{what}: {apart:.1e}");
        if apart.is_nan() || apart > 1e-4 {
            wrong.push(format!("{what}: {apart:e}\n{got:?}, expected\n{expected:?}"));
        }
        worst = worst.max(apart);
        count += 1;
    }
    println!("the losses of cpu: {expected:?}");
    println!("{count} pairs of devices and shares, {} steps: losses differ by at most {worst:.1e}", batches.len());
    assert!(wrong.is_empty(), "{} of {count} pairs differ:\n{}", wrong.len(), wrong.join("\n"));
    Ok(expected)
}

type DataParallelSource = Box<dyn Module>;

#[test]
fn twenty_steps_of_lenet() -> Result<()> {
    let _alone = alone();
    let batches = anygpu::data::mnist_5k()?.loaders(20, 0)?.0.epoch(0).take(20).collect::<Result<Vec<_>>>()?;
    let net = || -> Result<DataParallelSource> {
        manual_seed(0);
        Ok(Box::new(nn::models::lenet()?))
    };
    compare(&net, &batches, 0.02, 13)?;
    Ok(())
}

/// Five times the same batch of digits, at a size at which the planes of the last layers are 2 × 2.
fn digits() -> Result<Vec<(Tensor, Tensor)>> {
    let loader = anygpu::data::mnist_5k()?.resize(48).loaders(16, 0)?.0;
    let batch = loader.epoch(0).take(1).collect::<Result<Vec<_>>>()?;
    Ok(batch.into_iter().cycle().take(5).collect())
}

/// The rate for [`digits`]: the loss falls by 4 %, and [`rounding_moves_the_losses_little`].
const RATE: f32 = 2e-5;

fn resnet18() -> Result<DataParallelSource> {
    manual_seed(2);
    Ok(Box::new(nn::models::resnet18(1, 10)?))
}

#[test]
fn five_steps_of_resnet18() -> Result<()> {
    let _alone = alone();
    let expected = compare(&resnet18, &digits()?, RATE, 77)?;
    assert!(expected[4] < 0.97 * expected[0], "the steps change too little to compare: {expected:?}");
    Ok(())
}

/// A unit that is almost 0, or two almost equal elements of a window, may be on either side after rounding. The gradients of
/// all earlier layers then differ by a hundredth, and the next losses by more than devices may. This is how much the rounding of
/// f32 changes the losses of [`five_steps_of_resnet18`] on one device: a bound on what their comparison can say.
#[test]
#[ignore = "61 runs, which measure the workload and no device"]
fn rounding_moves_the_losses_little() -> Result<()> {
    let _alone = alone();
    let batches = digits()?;
    let run = |batches: &[_]| losses(DataParallel::new(resnet18()?, &[Device::cpu()])?, batches, RATE);
    let expected = run(&batches)?;
    let mut apart = Vec::new();
    for seed in 0..60 {
        manual_seed(1000 + seed);
        let noisy = |(images, labels): &(Tensor, Tensor)| {
            let noise = ((Tensor::rand(images.shape(), None)? - 0.5)? * 1.2e-7)?;
            Ok(((images + noise)?, labels.clone()))
        };
        apart.push(difference(&run(&batches.iter().map(noisy).collect::<Result<Vec<_>>>()?)?, &expected));
    }
    apart.sort_by(f64::total_cmp);
    let [median, worst] = [apart[30], apart[59]];
    println!(
        "noise of 6e-8 in the images, 60 runs: the median moves the losses by {median:.1e}, the worst by {worst:.1e}"
    );
    assert!(worst < 2e-5, "rounding alone moves the losses by {worst:e}");
    Ok(())
}

proptest! {
    #![proptest_config(property(24))]

    /// Any shares, batch sizes, bucket sizes and lists of devices.
    #[test]
    fn a_step_is_that_of_one_device(
        chosen in proptest::collection::vec(0usize..8, 2..5),
        weights in proptest::collection::vec(1e-3f64..1e3, 5),
        samples in 3usize..40,
        bucket in prop_oneof![Just(1usize), 1usize..2000, Just(usize::MAX)],
        measured in any::<bool>(),
    ) {
        let _alone = alone();
        let mut all = devices();
        all.extend(["cpu/1", "cpu/2", "cpu/3"].iter().filter_map(|name| device(name)));
        let mut mix: Vec<Device> = Vec::new();
        for index in chosen {
            let device = &all[index % all.len()];
            if !mix.contains(device) {
                mix.push(device.clone());
            }
        }
        let run = |devices: &[Device]| -> Result<Vec<f64>> {
            manual_seed(7);
            let net = nn::Sequential::new()
                .push(nn::Linear::new(6, 20)?)
                .push(nn::BatchNorm1d::new(20)?)
                .push(nn::ReLU)
                .push(nn::Dropout::new(0.4)?)
                .push(nn::Linear::new(20, 4)?);
            let shares = if measured { Shares::Measured } else { Shares::Fixed(weights[..devices.len()].to_vec()) };
            let net = DataParallel::new(net, devices)?.with_shares(shares)?.with_bucket_bytes(bucket);
            let batch = |step: usize| {
                // No samples at equal distances: of three, batch norm makes the middle one 0, and rounding decides what ReLU does.
                let values = (0..samples * 6).map(|i| ((i * i * 5 + i * 31 + step * 7) % 23) as f32 / 11.5 - 1.0).collect();
                let labels = (0..samples).map(|i| ((i + step) % 4) as u32).collect();
                Ok((Tensor::from_vec(values, [samples, 6], None)?, Tensor::from_vec(labels, samples, None)?))
            };
            losses(net, &(0..3).map(batch).collect::<Result<Vec<_>>>()?, 0.05)
        };
        let (got, expected) = (run(&mix).unwrap(), run(&[Device::cpu()]).unwrap());
        for (got, expected) in got.iter().zip(&expected) {
            prop_assert!((got - expected).abs() <= 1e-4 * expected.abs() + 1e-6, "{:?}: {}, expected {}", mix, got, expected);
        }
    }
}
