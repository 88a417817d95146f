//! A machine without any adapter. CI runs this with `VK_DRIVER_FILES=/nonexistent` and no EGL; elsewhere, it shows that
//! these operations need no adapter.

use anygpu::nn::{self, Linear, Module, ReLU, Sequential};
use anygpu::optim::SGD;
use anygpu::{DataParallel, Device, Error, Result, Tensor, device_count, is_available, try_all_gpus, try_gpu};

/// Whether the environment hides every driver.
fn bare() -> bool {
    std::env::var("VK_DRIVER_FILES").is_ok_and(|files| files == "/nonexistent")
}

#[test]
fn only_the_host_is_there() {
    if !bare() {
        return eprintln!("NOT TESTED: VK_DRIVER_FILES is not /nonexistent");
    }
    assert_eq!(Device::all().to_vec(), [Device::cpu()]);
    assert_eq!((device_count(), is_available()), (0, false));
    assert_eq!(try_gpu(0), Device::cpu());
    assert_eq!(try_all_gpus(), [Device::cpu()]);
    let error = Device::new("gpu:0").unwrap_err();
    assert!(matches!(error, Error::UnknownDevice { .. }), "{error:?}");
    let text = "unknown device 'gpu:0': this machine has cpu; there is no GPU here, and try_gpu(0) returns cpu then";
    assert_eq!(error.to_string(), text);
}

#[test]
fn what_is_not_there_falls_back_to_the_host() {
    assert_eq!(try_gpu(99), Device::cpu());
    assert!(!try_all_gpus().is_empty());
}

/// A few steps on whatever `try_gpu` gives lower the loss.
#[test]
fn training_works_all_the_same() -> Result<()> {
    for device in [Device::cpu(), try_gpu(0)] {
        let mut net =
            Sequential::new().add("fc1", Linear::new(2, 16)?).add("relu", ReLU).add("fc2", Linear::new(16, 2)?);
        net.to_(&device)?;
        let mut sgd = SGD::new(net.parameters(), 0.5);
        let x = Tensor::from_slice(&[0.0f32, 0.0, 0.0, 1.0, 1.0, 0.0, 1.0, 1.0], [4, 2], &device)?;
        let labels = Tensor::from_slice(&[0u32, 1, 1, 1], 4, &device)?;
        let mut losses = Vec::new();
        for _ in 0..30 {
            sgd.zero_grad();
            let loss = nn::cross_entropy(&net.forward(&x)?, &labels)?;
            loss.backward()?;
            sgd.step()?;
            losses.push(loss.item::<f32>()?);
        }
        assert!(losses[29] < 0.5 * losses[0], "{device}: {losses:?}");
    }
    Ok(())
}

#[test]
fn the_parallel_way_works_on_the_host_alone() -> Result<()> {
    let net = DataParallel::new(Linear::new(3, 2)?, &[Device::cpu()])?;
    let labels = Tensor::from_slice(&[0u32, 1], 2, None)?;
    let loss = net.train_batch(&Tensor::ones([2, 3], None)?, &labels, nn::cross_entropy)?;
    assert!(loss.item::<f32>()?.is_finite());
    Ok(())
}
