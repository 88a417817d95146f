//! Repeated runs on one device give the same bits, also beside other work: every reduction has a fixed order, and no
//! sum uses atomics.

mod common;

use std::sync::Mutex;

use anygpu::nn::{Linear, Module};
use anygpu::{Device, Result, Tensor, manual_seed, nn, optim};
use common::devices;

/// The generator is the process's: one test at a time.
static GENERATOR: Mutex<()> = Mutex::new(());

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
    let _alone = GENERATOR.lock();
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
    let _alone = GENERATOR.lock();
    for device in devices() {
        assert_eq!(run(&device)?, run(&device)?, "{device}");
    }
    Ok(())
}
