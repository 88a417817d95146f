//! Measures how close memory-bound ops come to a plain copy, and what an op on a small tensor costs, on each
//! device: `memory_speed [DEVICES [REPEATS]]`.
//!
//! Bytes are the bytes that must be read and written at least. On an adapter, the copy is a kernel without this
//! crate.

use std::time::Instant;

use anygpu::{Device, Result, Tensor};

/// Copies vectors of four elements, RUN neighbours in an invocation.
const COPY: &str = "
@group(0) @binding(0) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read_write> y: array<vec4<f32>>;
@compute @workgroup_size(64)
fn copy(@builtin(global_invocation_id) id: vec3<u32>) {
    for (var i = id.x * RUN; i < min((id.x + 1u) * RUN, arrayLength(&y)); i++) { y[i] = x[i]; }
}";

/// The copy through wgpu, without this crate: the rate of the best of several shapes.
fn copy(device: &Device, n: usize, repeats: usize) -> Option<(u32, f64)> {
    let instance = wgpu::Instance::new(wgpu::InstanceDescriptor::new_without_display_handle());
    let adapters = pollster::block_on(instance.enumerate_adapters(wgpu::Backends::all()));
    let same = |adapter: &&wgpu::Adapter| {
        let (info, wanted) = (adapter.get_info(), device.info());
        let api = info.backend == wgpu::Backend::Gl;
        info.name == wanted.adapter && wanted.driver.contains(&info.driver_info) && (wanted.api == "GL") == api
    };
    let adapter = adapters.iter().find(same)?;
    let descriptor = wgpu::DeviceDescriptor { required_limits: adapter.limits(), ..Default::default() };
    let (device, queue) = pollster::block_on(adapter.request_device(&descriptor)).ok()?;
    let [x, y] = [(); 2].map(|()| {
        let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_DST;
        device.create_buffer(&wgpu::BufferDescriptor {
            label: None,
            size: 4 * n as u64,
            usage,
            mapped_at_creation: false,
        })
    });
    queue.write_buffer(&x, 0, &vec![1; 4 * n]);
    let rates = [1, 4, 8, 16].map(|run| {
        let source = wgpu::ShaderSource::Wgsl(COPY.replace("RUN", &format!("{run}u")).into());
        let module = device.create_shader_module(wgpu::ShaderModuleDescriptor { label: None, source });
        let pipeline = device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: None,
            layout: None,
            module: &module,
            entry_point: None,
            compilation_options: Default::default(),
            cache: None,
        });
        let entries = [(0, &x), (1, &y)]
            .map(|(binding, buffer)| wgpu::BindGroupEntry { binding, resource: buffer.as_entire_binding() });
        let layout = pipeline.get_bind_group_layout(0);
        let group =
            device.create_bind_group(&wgpu::BindGroupDescriptor { label: None, layout: &layout, entries: &entries });
        let once = || {
            let start = Instant::now();
            let mut encoder = device.create_command_encoder(&Default::default());
            let mut pass = encoder.begin_compute_pass(&Default::default());
            pass.set_pipeline(&pipeline);
            pass.set_bind_group(0, &group, &[]);
            pass.dispatch_workgroups((n as u32 / 4).div_ceil(64 * run).min(65_535), 1, 1);
            drop(pass);
            queue.submit([encoder.finish()]);
            drop(device.poll(wgpu::PollType::wait_indefinitely()));
            8.0 * n as f64 / start.elapsed().as_secs_f64() / 1e9
        };
        (run, (0..=repeats).map(|_| once()).fold(0.0, f64::max))
    });
    rates.into_iter().max_by(|a, b| a.1.total_cmp(&b.1))
}

type Work<'a> = Box<dyn Fn() -> Result<Tensor> + 'a>;

/// The seconds that an op takes: the fastest and the median repeat.
fn seconds(device: &Device, bytes: usize, repeats: usize, work: &Work) -> Result<[f64; 2]> {
    let runs = ((32 << 20) / bytes).clamp(1, 1000);
    let mut times = Vec::new();
    for repeat in 0..=repeats {
        let start = Instant::now();
        for _ in 0..runs {
            work()?;
        }
        device.synchronize()?;
        if repeat > 0 {
            times.push(start.elapsed().as_secs_f64() / runs as f64);
        }
    }
    times.sort_by(f64::total_cmp);
    Ok([times[0], times[repeats / 2]])
}

fn measure(device: &Device, rows: usize, columns: usize, repeats: usize) -> Result<()> {
    let (n, shape) = (rows * columns, [rows, columns]);
    let x = Tensor::rand(shape, device)?.sub(0.5)?;
    let y = Tensor::rand(shape, device)?;
    let row = Tensor::rand([columns], device)?;
    let works: Vec<(&str, usize, Work)> = vec![
        ("copy()", 8 * n, Box::new(|| x.copy())),
        ("relu", 8 * n, Box::new(|| x.relu())),
        ("exp", 8 * n, Box::new(|| x.exp())),
        ("tanh", 8 * n, Box::new(|| x.tanh())),
        ("gelu", 8 * n, Box::new(|| x.gelu())),
        ("add number", 8 * n, Box::new(|| x.add(1.5))),
        ("add", 12 * n, Box::new(|| x.add(&y))),
        ("add row", 8 * n, Box::new(|| x.add(&row))),
        ("sum_all", 4 * n, Box::new(|| x.sum_all())),
        ("sum last dim", 4 * n, Box::new(|| x.sum([1], false))),
        ("sum first dim", 4 * n, Box::new(|| x.sum([0], false))),
        ("softmax", 8 * n, Box::new(|| x.softmax(1))),
        ("log_softmax", 8 * n, Box::new(|| x.log_softmax(1))),
        ("logsumexp", 4 * n, Box::new(|| x.logsumexp(1, false))),
    ];
    for (name, bytes, work) in &works {
        let [best, median] = seconds(device, *bytes, repeats, work)?;
        let rates = [best, median].map(|seconds| *bytes as f64 / seconds / 1e9);
        println!("{device}\t{rows}x{columns}\t{name}\t{:.2}\t{:.2}\t{:.2}", rates[0], rates[1], median * 1e6);
    }
    Ok(())
}

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let devices = args.next().unwrap_or("cpu".into());
    let repeats = args.next().and_then(|n| n.parse().ok()).unwrap_or(5).max(1);
    println!("device\tshape\twhat\tbest GB/s\tmedian GB/s\tmedian µs");
    for device in &Device::list(&devices)? {
        if let Some((run, best)) = copy(device, 16 << 20, repeats) {
            println!("{device}\t16384x1024\tcopy ({run} vectors)\t{best:.2}\t\t");
        }
        measure(device, 16 << 10, 1 << 10, repeats)?;
        measure(device, 4096, 1000, repeats)?;
        measure(device, 16, 1 << 10, repeats)?;
        measure(device, 1, 4, repeats)?;
    }
    Ok(())
}
