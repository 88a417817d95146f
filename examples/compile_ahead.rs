//! Measures the first step of training, with and without kernels that are compiled ahead of it.
//!
//! `cargo run --release --example compile_ahead [device] [lenet|resnet18]`: a first process trains a net for two
//! steps and prints its list of kernels. A second process compiles the list on all cores before it does the same.

use std::process::{Command, Stdio};
use std::time::Instant;

use anygpu::nn::{self, Module};
use anygpu::optim::SGD;
use anygpu::{Device, KernelList, Result, Tensor};

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let default = Device::all().into_iter().find(|device| !device.is_cpu()).unwrap_or_default();
    let device = args.next().unwrap_or_else(|| default.name().to_owned());
    let net = args.next().unwrap_or_else(|| "lenet".into());
    if let Some(path) = args.next() {
        let text = std::fs::read_to_string(&path)?;
        let list = if text.is_empty() { KernelList::default() } else { text.parse()? };
        std::fs::write(&path, train(&device, &net, &list)?.to_string())?;
        return Ok(());
    }
    // Each run is a process of its own, since a device keeps its kernels.
    let path = std::env::temp_dir().join(format!("anygpu-kernels-{}", std::process::id()));
    std::fs::write(&path, "")?;
    let run = || Command::new(std::env::current_exe()?).args([&device, &net]).arg(&path).stdin(Stdio::null()).status();
    let ended = run()?.success() && run()?.success();
    let kept = std::fs::read_to_string(&path).map(|text| text.parse::<KernelList>());
    std::fs::remove_file(&path)?;
    assert!(ended && kept??.is_empty() == device.starts_with("cpu"));
    Ok(())
}

/// Trains for two steps, and returns the kernels that the device has compiled.
fn train(device: &str, net: &str, list: &KernelList) -> Result<KernelList> {
    let start = Instant::now();
    let device = Device::new(device)?;
    let compiling = device.compile_ahead(list)?;
    let (net, side): (Box<dyn Module>, usize) = match net {
        "resnet18" => (Box::new(nn::models::resnet18(1, 10)?), 96),
        _ => (Box::new(nn::models::lenet()?), 28),
    };
    let net = net.to(&device)?;
    let images = Tensor::rand([8, 1, side, side], &device)?;
    let labels = Tensor::randint(0, 10, [8], &device)?;
    let compiled = compiling.wait()?;
    let ready = start.elapsed().as_secs_f64();
    let mut sgd = SGD::new(net.parameters(), 0.01).momentum(0.9);
    let mut seconds = Vec::new();
    for _ in 0..2 {
        let start = Instant::now();
        sgd.zero_grad();
        let loss = nn::cross_entropy(&net.forward(&images)?, &labels)?;
        loss.backward()?;
        sgd.step()?;
        assert!(loss.item::<f32>()?.is_finite());
        device.synchronize()?;
        seconds.push(start.elapsed().as_secs_f64());
    }
    println!(
        "{device}: {compiled} kernels compiled ahead; ready after {ready:.2} s, first step {:.2} s, second step {:.2} s",
        seconds[0], seconds[1]
    );
    Ok(device.compiled_kernels())
}
