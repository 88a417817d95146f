//! Devices and tensors, step by step: the devices of a machine, tensors on a device, copies between two devices, and a
//! net. It follows the "GPUs" chapter of *Dive into Deep Learning* (d2l.ai) and asserts each result.
//!
//! `cargo run --release --example devices_and_tensors` runs on any machine, even one with only a CPU.

use anygpu::nn::{self, Module};
use anygpu::{Device, Error, Result, Tensor, device_count, is_available, try_all_gpus, try_gpu};

/// Returns two different devices where possible: two GPUs, or two logical devices on one adapter; otherwise the CPU
/// twice.
fn two_devices() -> Result<(Device, Device)> {
    let adapters: Vec<Device> = Device::all().into_iter().filter(|device| !device.is_cpu()).collect();
    match adapters.as_slice() {
        [first, second, ..] => Ok((first.clone(), second.clone())),
        [only] => Ok((Device::new(&format!("{only}/0"))?, Device::new(&format!("{only}/1"))?)),
        [] => Ok((Device::cpu(), Device::cpu())),
    }
}

fn main() -> Result<()> {
    // --- The devices of a machine ----------------------------------------------------------------------------------
    for device in Device::all() {
        println!("{device}: {} ({}, {})", device.info().adapter, device.info().kind, device.info().api);
    }
    assert!(Device::all().contains(&Device::cpu())); // always, and last
    assert_eq!(is_available(), device_count() > 0);

    // A device is opened by name. For an unknown name, the error lists the existing ones.
    assert_eq!("cpu".parse::<Device>()?, Device::cpu());
    let unknown = Device::new("gpu:99").unwrap_err();
    assert!(matches!(&unknown, Error::UnknownDevice { available, .. } if available.contains(&"cpu".to_string())));
    println!("{unknown}");

    // These two functions never fail: without a GPU, they return the CPU.
    assert_eq!(try_gpu(0).is_cpu(), !is_available());
    assert_eq!(try_gpu(99), Device::cpu());
    assert_eq!(try_all_gpus().len(), device_count().max(1));

    // --- Tensors on a device ---------------------------------------------------------------------------------------
    let x = Tensor::new([1.0, 2.0, 3.0], None)?;
    assert_eq!(x.device(), &Device::cpu()); // the default

    let (a, b) = two_devices()?;
    println!("on {a} and {b}:");
    let x = Tensor::ones([2, 3], &a)?;
    println!("{x}");
    assert_eq!(x.device(), &a);
    let y = Tensor::rand([2, 3], &b)?;
    println!("{y}");

    // --- Copies ----------------------------------------------------------------------------------------------------
    // An op needs its tensors on one device. There are no implicit copies, which would slow a program down unnoticed.
    if a != b {
        let mixed = (&x + &y).unwrap_err();
        let expected = format!(
            "Expected all tensors to be on the same device, but found at least two devices, {a} and {b}! (add: move one with .to(&device))"
        );
        assert_eq!(mixed.to_string(), expected);
    }
    let z = x.to(&b)?;
    assert_eq!((z.device(), x.device()), (&b, &a)); // a copy: x is unchanged
    let sum = (&y + &z)?;
    println!("{sum}");
    let expected: Vec<f32> = y.to_vec::<f32>()?.iter().map(|v| v + 1.0).collect();
    assert_eq!(sum.to_vec::<f32>()?, expected);

    // `to` the tensor's own device copies nothing and returns the same tensor.
    assert!(z.to(&b)?.is_same(&z));

    // --- A net on a device -----------------------------------------------------------------------------------------
    let net = nn::Sequential::new().add("fc", nn::Linear::new(3, 1)?).to(&a)?; // all parameters in one copy
    assert!(net.parameters().iter().all(|parameter| parameter.device() == &a));
    let output = net.forward(&x)?;
    println!("{output}");
    assert_eq!((output.device(), output.shape()), (&a, &[2, 1][..]));
    if a != b {
        assert!(matches!(net.forward(&z), Err(Error::DeviceMismatch { .. }))); // parameters on a, input on b
    }
    println!("all as expected");
    Ok(())
}
