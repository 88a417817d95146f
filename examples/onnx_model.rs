//! Runs an ONNX model on random inputs. Prints its time, including the copies of the inputs to the device and of the
//! outputs back, and its memory:
//! `cargo run --release --features onnx --example onnx_model -- model.onnx [device] [size of a dimension that the file leaves open …]`.

use std::time::Instant;

use anygpu::nn::Module;
use anygpu::onnx::{self, Dimension, ElementType};
use anygpu::{DType, Device, Result, Tensor, no_grad};

fn main() -> Result<()> {
    env_logger::init();
    let mut arguments = std::env::args().skip(1);
    let Some(path) = arguments.next() else {
        eprintln!("usage: onnx_model model.onnx [device] [sizes of open dimensions]");
        return Ok(());
    };
    let device = arguments.next().map_or(Ok(Device::cpu()), |name| Device::new(&name))?;
    let mut sizes = arguments.map(|size| size.parse::<usize>().unwrap_or(1));
    let model = onnx::load(&path)?.to(&device)?;
    println!("{model}");

    let mut inputs = Vec::new();
    for info in model.inputs() {
        let open = |dim: &Dimension| if let Dimension::Size(size) = dim { *size } else { sizes.next().unwrap_or(1) };
        let shape: Vec<usize> = info.shape.iter().flatten().map(open).collect();
        let x = match info.element_type {
            // Rates and other settings are for the host.
            ElementType::Int64 if shape.is_empty() => Tensor::scalar(16_000, None)?,
            kind if kind.dtype().is_float() => Tensor::randn(shape, None)?.mul_scalar(0.5)?.to_dtype(kind.dtype())?,
            kind => Tensor::randint(0, 256, shape, None)?.to_dtype(kind.dtype())?,
        };
        inputs.push((info.name.as_str(), x));
    }

    let (mut times, mut memory) = (Vec::new(), [0; 2]);
    for _ in 0..20 {
        device.reset_peak_memory();
        let held = device.memory().live;
        let start = Instant::now();
        let moved = inputs.iter().map(|(_, x)| if x.rank() == 0 { Ok(x.clone()) } else { x.to(&device) });
        let moved = moved.collect::<Result<Vec<Tensor>>>()?;
        let named: Vec<(&str, &Tensor)> = inputs.iter().map(|(name, _)| *name).zip(&moved).collect();
        let outputs = no_grad(|| model.run(&named))?;
        for (_, y) in outputs.iter() {
            y.to_dtype(DType::F32)?.to_vec::<f32>()?;
        }
        times.push(start.elapsed().as_secs_f64() * 1e3);
        memory = [held, device.memory().peak.saturating_sub(held)];
    }
    let first = times[0];
    times.sort_by(f64::total_cmp);
    println!("first {first:.1} ms, median {:.2} ms, least {:.2} ms on {device}", times[times.len() / 2], times[0]);
    let [held, more] = memory.map(|bytes| bytes as f64 / (1 << 20) as f64);
    println!("{held:.1} MiB held between runs, at most {more:.1} MiB more in a run");
    assert!(times.iter().all(|time| *time > 0.0));
    Ok(())
}
