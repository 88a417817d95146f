//! Tests of the runtime on every visible adapter.

mod loss;
mod pool;

use web_time::Instant;

use super::{Buffer, Gpu, Kernel, LARGEST_BINDING, ParamWords, Shader, ShaderText, params};
use crate::device::{Backend, Device, DeviceKind, Storage, transfer};
use crate::error::{Error, Result};

params! {
    struct Params { len: usize, factor: u32, summand: u32 }
}

const SHADER: Shader<Params> = Shader::new(
    "device-tests",
    &["
        struct Params { len: u32, factor: u32, summand: u32 }
        @group(0) @binding(0) var<uniform> p: Params;
        @group(0) @binding(1) var<storage, read> x: array<u32>;
        @group(0) @binding(2) var<storage, read_write> y: array<u32>;
        @compute @workgroup_size(64)
        fn affine(@builtin(global_invocation_id) id: vec3<u32>) {
            if id.x < p.len { y[id.x] = x[id.x] * p.factor + p.summand; }
        }
    "],
    || vec![""],
);

/// Returns the kernel `y ← factor·x + summand`.
fn affine(x: &Buffer, y: &Buffer, factor: u32, summand: u32) -> Kernel {
    let params = Params { len: x.len(), factor, summand };
    Kernel::build(SHADER, "affine", params).input(x).output(y).each(x.len())
}

/// Returns every visible device and, if the driver allows it, a second logical device on the same adapter.
fn devices() -> Vec<Device> {
    let _ = env_logger::builder().is_test(true).try_init();
    let first: Vec<Device> = Device::all().into_iter().collect();
    let second: Vec<Device> = first.iter().filter_map(|d| Device::new(&format!("{d}/1")).ok()).take(2).collect();
    [first, second].concat()
}

/// Runs a test on each adapter.
fn on_each(test: impl Fn(&Device, &Gpu) -> Result<()>) {
    for device in devices() {
        match device.backend() {
            Ok(Backend::Cpu(_)) => {}
            Ok(Backend::Gpu(gpu)) => test(&device, gpu).unwrap_or_else(|error| panic!("{device}: {error}")),
            Err(error) => panic!("{device}: {error}"),
        }
    }
}

/// Runs a test on a separate logical device of each adapter, for tests of the pool: other tests use the devices of
/// `on_each` too. GL has no second logical device.
fn on_each_alone(number: usize, test: impl Fn(&Device, &Gpu) -> Result<()>) {
    for device in Device::all().iter().filter(|device| !device.is_cpu() && device.info().api != "GL") {
        let device = Device::new(&format!("{device}/{number}")).unwrap_or_else(|error| panic!("{error}"));
        if let Ok(Backend::Gpu(gpu)) = device.backend() {
            test(&device, gpu).unwrap_or_else(|error| panic!("{device}: {error}"));
        }
    }
}

fn counting(len: usize) -> Vec<u32> {
    (0..len as u32).map(|i| i.wrapping_mul(2654435761)).collect()
}

#[test]
fn kernels_run_in_order_over_many_batches() {
    on_each(|_, gpu| {
        let (mut x, mut y) = (gpu.upload(&counting(1000))?, gpu.alloc(1000)?);
        let mut expected = counting(1000);
        for i in 0..700 {
            gpu.run(affine(&x, &y, 3, i))?;
            std::mem::swap(&mut x, &mut y);
            expected.iter_mut().for_each(|e| *e = e.wrapping_mul(3).wrapping_add(i));
        }
        assert_eq!(gpu.download(&x, 0, 1000)?, expected);
        Ok(())
    });
}

#[test]
fn every_pair_of_devices_copies_every_word() {
    let devices = devices();
    let chunk = 1 << 18;
    for (len, offset) in [(0, 0), (1, 0), (7, 3), (257, 1), (chunk, 0), (chunk + 1, 5), (4 * chunk + 33, 17)] {
        let words = counting(offset + len + 2);
        for (a, b) in devices.iter().flat_map(|a| devices.iter().map(move |b| (a, b))) {
            let copy = || -> Result<Vec<u32>> {
                let there = transfer::to(&on_cpu(&words), 0, words.len(), &Device::cpu(), a)?;
                let moved = transfer::to(&there, offset, len, a, b)?;
                assert_eq!(moved.len(), len);
                match transfer::to(&moved, 0, len, b, &Device::cpu())? {
                    Storage::Cpu(buffer) => Ok(buffer.read().to_vec()),
                    Storage::Gpu(_) => Ok(Vec::new()),
                }
            };
            let copied = copy().unwrap_or_else(|error| panic!("{a} → {b}: {error}"));
            assert!(copied == words[offset..offset + len], "{a} → {b}: {len} words from {offset}");
        }
    }
}

fn on_cpu(words: &[u32]) -> Storage {
    match Device::cpu().backend() {
        Ok(Backend::Cpu(cpu)) => Storage::Cpu(cpu.from_words(words.to_vec())),
        _ => panic!("cpu is not native"),
    }
}

#[test]
fn copies_on_the_device_may_overlap() {
    on_each(|_, gpu| {
        let x = gpu.upload(&counting(100))?;
        gpu.copy(&x, 0, &x, 10, 50)?;
        let mut expected = counting(100);
        expected.copy_within(0..50, 10);
        assert_eq!(gpu.download(&x, 0, 100)?, expected);
        Ok(())
    });
}

#[test]
fn what_does_not_fit_is_an_error_by_name_and_the_device_goes_on() {
    on_each(|device, gpu| {
        let (x, y) = (gpu.upload(&[5; 64])?, gpu.alloc(64)?);
        let limit_of = |error: Error| match error {
            Error::LimitExceeded { limit, .. } => limit,
            other => panic!("{other}"),
        };
        let too_long = gpu.alloc(gpu.caps().max_buffer_words + 1).map(|_| ()).unwrap_err();
        assert_eq!(limit_of(too_long), "max_buffer_size");
        LARGEST_BINDING.set(Some(63));
        let too_large = gpu.run(affine(&x, &y, 1, 0)).unwrap_err();
        LARGEST_BINDING.set(None);
        assert_eq!(limit_of(too_large), "max_storage_buffer_binding_size");
        let too_many = gpu.run(Kernel { groups: [1, 65_536, 1], ..affine(&x, &y, 1, 0) }).unwrap_err();
        assert_eq!(limit_of(too_many), "max_compute_workgroups_per_dimension");
        let words = |count| ParamWords { words: vec![0; count], ..ParamWords::default() };
        let too_wide = gpu.run(Kernel { params: words(5000), ..affine(&x, &y, 1, 0) }).unwrap_err();
        assert_eq!(limit_of(too_wide), "max_uniform_buffer_binding_size");

        let in_place = gpu.run(affine(&x, &x, 1, 0)).unwrap_err().to_string();
        assert!(in_place.contains("device-tests.affine") && in_place.contains(device.name()), "{in_place}");
        // One word less than the shader reads. wgpu knows the size of a uniform block, but not the size of immediates.
        if gpu.caps().max_immediates == 0 {
            let short = ShaderText { name: "short", ..SHADER.text };
            let short = gpu.run(Kernel { shader: short, params: words(2), ..affine(&x, &y, 1, 0) });
            assert!(short.unwrap_err().to_string().contains("short.affine does not compile"));
        }
        let large = ParamWords { too_large: Some(("len", 1 << 32)), ..words(3) };
        let large = gpu.run(Kernel { params: large, ..affine(&x, &y, 1, 0) }).unwrap_err().to_string();
        assert!(large.contains("len = 4294967296"), "{large}");
        assert!(large.contains("len = 4294967296"), "{large}");
        let broken = ShaderText { name: "broken", files: &["@compute fn affine() { nonsense }"], ..SHADER.text };
        let broken = gpu.run(Kernel { shader: broken, ..affine(&x, &y, 1, 0) }).unwrap_err().to_string();
        assert!(broken.contains("broken.affine does not compile"), "{broken}");
        let missing = gpu.run(Kernel { entry: "nowhere", ..affine(&x, &y, 1, 0) }).unwrap_err().to_string();
        assert!(missing.contains("nowhere"), "{missing}");
        let outside = gpu.download(&x, 60, 5).unwrap_err().to_string();
        assert!(outside.contains("words 60..+5 of a buffer of 64"), "{outside}");

        gpu.run(Kernel { groups: [0, 1, 1], ..affine(&x, &y, 0, 0) })?;
        gpu.run(affine(&x, &y, 2, 1))?;
        assert_eq!(gpu.download(&y, 0, 64)?, [11; 64]);
        Ok(())
    });
}

#[test]
fn a_buffer_of_another_device_is_refused() {
    let devices = devices();
    on_each(|device, gpu| {
        for other in devices.iter().filter(|other| *other != device) {
            if let Backend::Gpu(other) = other.backend()? {
                let foreign = other.upload(&[1; 64])?;
                assert!(gpu.run(affine(&foreign, &gpu.alloc(64)?, 1, 0)).is_err());
                assert!(gpu.download(&foreign, 0, 64).is_err());
            }
        }
        Ok(())
    });
}

#[test]
fn the_largest_buffers_work_or_memory_is_out() {
    on_each(|_, gpu| {
        let words = gpu.caps().max_binding_words.min(1 << 28);
        let mut held = Vec::new();
        for _ in 0..3 {
            match gpu.alloc(words) {
                Ok(buffer) => held.push(buffer),
                Err(error) => assert!(error.is_out_of_memory(), "{error}"),
            }
        }
        drop(held);
        gpu.trim()?;
        assert_eq!(gpu.download(&gpu.upload(&[3; 9])?, 0, 9)?, [3; 9]);
        Ok(())
    });
}

#[test]
fn several_threads_may_drive_one_device() {
    on_each(|_, gpu| {
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|t| {
                    scope.spawn(move || -> Result<()> {
                        for round in 0..20 {
                            let (x, y) = (gpu.upload(&[t; 300])?, gpu.alloc(300)?);
                            for i in 0..10 {
                                gpu.run(affine(&x, &y, round, i))?;
                            }
                            assert_eq!(gpu.download(&y, 0, 300)?, [t * round + 9; 300]);
                        }
                        Ok(())
                    })
                })
                .collect();
            threads.into_iter().try_for_each(|thread| thread.join().unwrap_or_else(|_| panic!("a thread panicked")))
        })
    });
}

#[test]
fn a_loop_budget_is_found_where_there_is_one() {
    on_each(|device, gpu| {
        let mesa_22 = device.info().driver.contains("Mesa 22.3");
        match gpu.caps().loop_budget {
            Some(budget) => assert!((60_000..66_000).contains(&budget), "{device}: {budget}"),
            None => assert!(!mesa_22, "{device} ({}) is known to have one", device.info().driver),
        }
        assert_eq!(device.info().kind == DeviceKind::Software, gpu.caps().software);
        Ok(())
    });
}

/// Prints the runtime's overhead: `cargo test --release --lib device -- --ignored --nocapture`.
#[test]
#[ignore = "prints figures"]
fn figures() {
    let start = Instant::now();
    let names: Vec<String> = Device::all().iter().map(|d| d.name().to_string()).collect();
    println!("listing {names:?}: {:.0} ms", start.elapsed().as_secs_f64() * 1e3);
    for name in names.iter().filter(|name| *name != "cpu") {
        let start = Instant::now();
        let device = Device::new(name).unwrap_or_else(|error| panic!("{error}"));
        let opened = start.elapsed();
        let Ok(Backend::Gpu(gpu)) = device.backend() else { continue };
        let measure = || -> Result<[f64; 6]> {
            let (x, y) = (gpu.upload(&[1; 64])?, gpu.alloc(64)?);
            gpu.run(affine(&x, &y, 1, 1))?;
            gpu.download(&y, 0, 64)?;
            let first = start.elapsed();
            let (mut record, mut whole) = (f64::MAX, f64::MAX);
            for _ in 0..20 {
                gpu.synchronize()?;
                let start = Instant::now();
                (0..15).try_for_each(|i| gpu.run(affine(&x, &y, 1, i)))?;
                record = record.min(start.elapsed().as_secs_f64() / 15.0);
                let start = Instant::now();
                (0..1000).try_for_each(|i| gpu.run(affine(&x, &y, 1, i)))?;
                gpu.synchronize()?;
                whole = whole.min(start.elapsed().as_secs_f64() / 1000.0);
            }
            let start = Instant::now();
            for _ in 0..200 {
                gpu.download(&y, 0, 1)?;
            }
            let item = start.elapsed().as_secs_f64() / 200.0;
            let big = vec![7u32; 16 << 20];
            let (mut up, mut down) = (f64::MAX, f64::MAX);
            for _ in 0..5 {
                let start = Instant::now();
                let there = gpu.upload(&big)?;
                gpu.synchronize()?;
                up = up.min(start.elapsed().as_secs_f64());
                let start = Instant::now();
                let mut sum = 0u64;
                gpu.read_chunks(&there, 0, big.len(), |chunk| {
                    sum += u64::from(chunk[0]);
                    Ok(())
                })?;
                down = down.min(start.elapsed().as_secs_f64());
            }
            let gb = big.len() as f64 * 4e-9;
            Ok([first.as_secs_f64() * 1e3, record * 1e6, whole * 1e6, item * 1e6, gb / up, gb / down])
        };
        let [first, record, whole, item, up, down] = measure().unwrap_or_else(|error| panic!("{error}"));
        println!(
            "{name} ({}): opened {:.0} ms, first result {first:.0} ms; {record:.2} µs to record a kernel, {whole:.1} with its execution; {item:.0} µs an item(); up {up:.1} GB/s, down {down:.1} GB/s",
            device.info().driver,
            opened.as_secs_f64() * 1e3,
        );
    }
}

const CONSTANT: Shader<Params> = Shader::new(
    "constant-tests",
    &["
        override K: u32 = 0;
        struct Params { len: u32, factor: u32, summand: u32 }
        @group(0) @binding(0) var<uniform> p: Params;
        @group(0) @binding(1) var<storage, read_write> y: array<u32>;
        @compute @workgroup_size(1)
        fn constant() { y[0] = K + p.summand; }
    "],
    || vec![""],
);

/// Kernels whose constants are sizes of images are compiled anew for each size.
#[test]
fn pipelines_that_are_not_used_are_dropped() -> Result<()> {
    let Some(device) = devices().into_iter().find(|device| !device.is_cpu()) else { return Ok(()) };
    let Backend::Gpu(gpu) = device.backend()? else { return Ok(()) };
    let y = gpu.alloc(1)?;
    for k in (0..600).chain(0..3) {
        let params = Params { len: 0, factor: 0, summand: 5 };
        gpu.run(Kernel::build(CONSTANT, "constant", params).constant("K", k as usize).output(&y).each(1))?;
        // One that is used all the time stays.
        gpu.run(affine(&gpu.upload(&[1])?, &gpu.alloc(1)?, 1, 1))?;
        if k % 100 < 3 {
            assert_eq!(gpu.download(&y, 0, 1)?, [k + 5], "{device}");
        }
    }
    let (all, affine) = gpu.kept_pipelines("affine");
    assert!(all <= 512 && affine, "{device}: {all} pipelines");
    Ok(())
}
