//! A process may end at any time. A software adapter that compiles a kernel of submitted work meanwhile does not crash it.
//! `ANYGPU_TEST_EXITS=40` tries more often.
//!
//! The child process is this binary.

use std::fmt::Write;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anygpu::kernel::Output;
use anygpu::{DType, Device, Result, Tensor, WgslKernel};

use crate::common::{self, alone};

/// The device of a child, and how long it works.
const DEVICE: &str = "ANYGPU_TEST_EXIT_DEVICE";
const MILLIS: &str = "ANYGPU_TEST_EXIT_MILLIS";

/// Submits a kernel that a driver compiles for long, and does not wait for it.
fn submit_long_kernel(device: &Device, x: &Tensor, seed: u32) -> Result<Tensor> {
    let mut steps = String::new();
    for i in 0..100 {
        let _ = writeln!(steps, "v = v * sin(v + {seed}.{i}) + exp(-v * v) * cos(v * {i}.5);");
    }
    let source = format!(
        "@group(0) @binding(0) var<storage, read> x: array<f32>;
         @group(0) @binding(1) var<storage, read_write> y: array<f32>;
         @compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3<u32>) {{
             if id.x >= arrayLength(&x) {{ return; }}
             var v = x[id.x];
             {steps}
             y[id.x] = v;
         }}"
    );
    let kernel = WgslKernel::new(&source, "main")?;
    let launch = kernel.on(device).input("x", x).output("y", Output::zeros([256], DType::F32));
    let y = launch.dispatch(256)?.remove(0);
    device.flush()?;
    Ok(y)
}

/// What the child does; without its variables this is no child.
#[test]
fn child() {
    let _alone = alone();
    let (Ok(device), Ok(millis)) = (std::env::var(DEVICE), std::env::var(MILLIS)) else { return };
    let device = Device::new(&device).unwrap();
    let x = Tensor::ones([256], &device).unwrap();
    // One thread works until the end, another one ends the process.
    thread::spawn(move || {
        for seed in 0.. {
            std::mem::forget(submit_long_kernel(&device, &x, seed).unwrap());
        }
    });
    thread::sleep(Duration::from_millis(millis.parse().unwrap()));
    std::process::exit(7);
}

#[test]
fn the_end_of_the_process_waits_for_software_adapters() {
    let _alone = alone();
    let exits = std::env::var("ANYGPU_TEST_EXITS").map_or(4, |text| text.parse().unwrap());
    for device in common::devices().iter().filter(|device| !device.is_cpu() && !device.name().contains('/')) {
        for i in 0..exits {
            let begin = Instant::now();
            let mut child = Command::new(std::env::current_exe().unwrap());
            let millis = 105 + 35 * i;
            child.args(["process_exit::child", "--exact"]).env(DEVICE, device.name()).env(MILLIS, millis.to_string());
            // See `src/device/gpu/process_exit.rs` for what a cache changes.
            child.env("MESA_SHADER_CACHE_DISABLE", "true");
            let output = child.output().unwrap();
            let log = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(7), "{device}, {millis} ms: {} {log}", output.status);
            let took = begin.elapsed();
            assert!(took < Duration::from_secs(60), "{device}: the process ended after {took:?}");
            println!("{device} {millis} ms: {took:?}");
        }
    }
}
