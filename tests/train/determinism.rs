//! Repeated runs on one device give the same bits, also beside other work: every reduction has a fixed order, and no
//! sum uses atomics.

use anygpu::nn::{Dropout, Linear, Module};
use anygpu::parallel::Shares;
use anygpu::{DataParallel, Device, Error, Result, Tensor, manual_seed, nn, optim};

use crate::common::{alone, devices};

fn bits(x: &Tensor) -> Result<Vec<u32>> {
    Ok(x.to_vec::<f32>()?.into_iter().map(f32::to_bits).collect())
}

/// Values of many magnitudes, so that another order of additions shows.
fn uneven(shape: &[usize], device: &Device) -> Result<Tensor> {
    let x = Tensor::randn(shape, device)?;
    &x * &(&x * &x)?.exp()?
}

fn all_kinds(device: &Device) -> Result<Vec<Vec<u32>>> {
    manual_seed(11);
    let x = uneven(&[33, 257], device)?.requires_grad();
    let w = uneven(&[257, 65], device)?.requires_grad();
    let images = uneven(&[5, 3, 17, 19], device)?.requires_grad();
    let kernels = uneven(&[7, 3, 3, 3], device)?.requires_grad();
    let ids = Tensor::from_vec((0..3000u32).map(|i| i * i % 33).collect(), 3000, device)?;

    let product = x.matmul(&w)?;
    let filtered = images.conv2d(&kernels, None, anygpu::Conv::new())?;
    let rows = x.index_select(0, &ids)?; // its gradient adds many rows to one
    let total = (&product.softmax(1)?.sum_all()? + &filtered.sum_all()?)?;
    let total = (&total + &rows.log_softmax(1)?.mean_all()?)?;
    total.backward()?;

    let mut found =
        vec![bits(&product)?, bits(&filtered)?, bits(&total)?, bits(&uneven(&[100_003], device)?.sum_all()?)?];
    for leaf in [&x, &w, &images, &kernels] {
        found.push(bits(&leaf.grad().expect("a gradient"))?);
    }
    Ok(found)
}

#[test]
fn ops_and_gradients() -> Result<()> {
    let _alone = alone();
    for device in devices() {
        let first = all_kinds(&device)?;
        for _ in 0..3 {
            assert!(all_kinds(&device)? == first, "{device}: another run gave other bits");
        }
    }
    Ok(())
}

#[test]
fn training() -> Result<()> {
    let _alone = alone();
    let run = |device: &Device| -> Result<Vec<u32>> {
        manual_seed(5);
        let mut net = Linear::new(40, 7)?;
        net.to_(device)?;
        let mut sgd = optim::SGD::new(net.parameters(), 0.5).momentum(0.9);
        for step in 0..5u32 {
            let x = Tensor::rand([64, 40], device)?;
            let labels = Tensor::from_vec((0..64).map(|i| (i * 3 + step) % 7).collect(), 64, device)?;
            sgd.zero_grad();
            nn::cross_entropy(&net.forward(&x)?, &labels)?.backward()?;
            sgd.step()?;
        }
        bits(&net.parameters()[0])
    };
    for device in devices() {
        assert_eq!(run(&device)?, run(&device)?, "{device}");
    }
    Ok(())
}

/// Draws some numbers for all samples together, then drops elements of each.
#[derive(Clone)]
struct Noisy {
    fc: Linear,
    drop: Dropout,
    draws: usize,
}

impl Module for Noisy {
    anygpu::children!(fc, drop);

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let factor = Tensor::rand([self.draws], x.device())?.mean_all()?;
        self.drop.forward(&self.fc.forward(x)?.mul(&factor)?)
    }
}

/// One number is for all samples, also where a device has one sample, or as many as there are numbers.
#[test]
fn draws_for_all_samples_are_those_of_one_device() -> Result<()> {
    let _alone = alone();
    let (x, y) = (Tensor::rand([8, 5], None)?, Tensor::rand([8, 64], None)?);
    let others = devices().into_iter().filter(|device| !device.is_cpu());
    let mixes: Vec<Vec<Device>> = others.map(|other| vec![Device::cpu(), other]).collect();
    let weights = Linear::new(5, 64)?.state_dict();
    for draws in [1, 3, 7, 8] {
        let losses = |devices: &[Device], shares: Shares| -> Result<Vec<f32>> {
            let net = Noisy { fc: Linear::new(5, 64)?, drop: Dropout::new(0.5)?, draws };
            net.fc.load_state_dict(&weights, true)?;
            let net = DataParallel::new(net, devices)?.with_shares(shares)?;
            manual_seed(3);
            let step =
                || net.train_batch(&x, &y, |y, target| nn::mse_loss(y, target, nn::Reduction::Mean))?.item::<f32>();
            (0..3).map(|_| step()).collect()
        };
        let expected = losses(&[Device::cpu()], Shares::Even)?;
        for devices in &mixes {
            for shares in [[1.0, 7.0], [3.0, 5.0], [7.0, 1.0]] {
                let got = losses(devices, Shares::Fixed(shares.to_vec()))?;
                let near = got.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-5);
                assert!(near, "{draws} draws, {devices:?} {shares:?}: {got:?} instead of {expected:?}");
            }
        }
    }
    Ok(())
}

#[test]
fn one_seed_gives_the_same_numbers_everywhere() -> Result<()> {
    let _alone = alone();
    let draw = |device: &Device| {
        manual_seed(42);
        Ok::<_, Error>((Tensor::rand([7, 5], device)?.to_vec::<f32>()?, Tensor::randn([33], device)?.to_vec::<f32>()?))
    };
    let expected = draw(&Device::cpu())?;
    assert!(expected.0.iter().all(|v| (0.0..1.0).contains(v)));
    for device in devices() {
        assert_eq!(draw(&device)?, expected, "{device}");
    }
    Ok(())
}
