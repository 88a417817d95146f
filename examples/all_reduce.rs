//! Measures an all-reduce over 2, 3, … of the given devices, and for comparison the copies alone.
//!
//! ```text
//! cargo run --release --example all_reduce -- cpu soft:0 soft:0/1 soft:1
//! ```

use std::env;
use std::thread;
use std::time::Instant;

use anygpu::parallel::{ReduceOp, all_reduce};
use anygpu::{Device, Result, Tensor};

/// The number of ResNet-18's parameters.
const ELEMENTS: usize = 11_000_000;
const REPEATS: usize = 7;

fn main() -> Result<()> {
    let names: Vec<String> = env::args().skip(1).collect();
    let devices = match names.is_empty() {
        true => anygpu::try_all_gpus().to_vec(),
        false => names.iter().map(|name| Device::new(name)).collect::<Result<_>>()?,
    };
    for device in devices.iter().filter(|device| !device.is_cpu()) {
        let [down, up] = copies(std::slice::from_ref(device))?;
        println!("{device}: {:.2} GB/s from the device, {:.2} GB/s to it", rate(down), rate(up));
    }
    for count in 2..=devices.len() {
        let devices = &devices[..count];
        let [down, up] = copies(devices)?;
        let tensors = devices.iter().map(|d| Tensor::full(ELEMENTS, 1.0, d)).collect::<Result<Vec<_>>>()?;
        let time = median(|| {
            all_reduce(&tensors, ReduceOp::Mean)?;
            devices.iter().try_for_each(Device::synchronize)
        })?;
        assert_eq!(tensors[0].narrow(0, ELEMENTS - 1, 1)?.item::<f32>()?, 1.0);
        let names: Vec<&str> = devices.iter().map(Device::name).collect();
        println!(
            "{count} devices ({}): all-reduce {:.1} ms; all copies from adapters at once {:.1} ms, to them {:.1} ms: {:.2} of their sum",
            names.join(", "),
            1e3 * time,
            1e3 * down,
            1e3 * up,
            time / (down + up)
        );
    }
    Ok(())
}

fn rate(seconds: f64) -> f64 {
    4.0 * ELEMENTS as f64 / seconds * 1e-9
}

/// Returns the seconds of reading a tensor of each adapter, all at once, and of writing one to each.
fn copies(devices: &[Device]) -> Result<[f64; 2]> {
    let adapters: Vec<&Device> = devices.iter().filter(|device| !device.is_cpu()).collect();
    let tensors = adapters.iter().map(|d| Tensor::full(ELEMENTS, 1.0, *d)).collect::<Result<Vec<_>>>()?;
    let host = vec![1.0f32; ELEMENTS];
    let down = median(|| on_threads(&tensors, |tensor| tensor.to_vec::<f32>().map(drop)))?;
    let up = median(|| {
        on_threads(&adapters, |device| {
            let written = Tensor::from_slice(&host, ELEMENTS, *device)?;
            device.synchronize()?;
            drop(written);
            Ok(())
        })
    })?;
    Ok([down, up])
}

fn on_threads<T: Sync>(list: &[T], work: impl Fn(&T) -> Result<()> + Sync) -> Result<()> {
    thread::scope(|scope| {
        let threads: Vec<_> = list.iter().map(|item| scope.spawn(|| work(item))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("no panic"))
    })
}

/// Returns the median time of repeats, after two that are not counted.
fn median(mut work: impl FnMut() -> Result<()>) -> Result<f64> {
    work()?;
    work()?;
    let mut times = Vec::new();
    for _ in 0..REPEATS {
        let start = Instant::now();
        work()?;
        times.push(start.elapsed().as_secs_f64());
    }
    times.sort_by(f64::total_cmp);
    Ok(times[REPEATS / 2])
}
