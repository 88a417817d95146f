//! Faults of devices under load: each gives its typed error within seconds, and everything else goes on. `docs/faults.md` has the
//! list, with the tests of other files.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use anygpu::device::Quirk;
use anygpu::{DType, Device, Error, Result, Tensor, WgslKernel};

use crate::common::{self, alone};

/// Logical devices with this number, of every adapter that has a device of its own for each. Other tests use others.
fn own_devices(number: usize) -> Vec<Device> {
    let own = |device: &Device| !device.is_cpu() && device.info().api != "GL" && !device.name().contains('/');
    let names = common::devices().into_iter().filter(own).map(|device| format!("{device}/{number}"));
    names.map(|name| Device::new(&name).expect("a logical device")).collect()
}

/// The device of a child that runs a kernel without an end.
const DEVICE: &str = "ANYGPU_TEST_ENDLESS_DEVICE";

#[test]
#[ignore = "run by a_kernel_that_never_ends_loses_its_device_only, in a process of its own"]
fn endless() -> Result<()> {
    let _alone = alone();
    let Ok(name) = std::env::var(DEVICE) else { return Ok(()) };
    let device = Device::new(&name)?;
    // Opened before: SwiftShader gives work of all its devices to the same threads, of which one is lost to the kernel.
    let adapter = name.split('/').next().expect("a name");
    let others = common::devices().into_iter().filter(|other| other.name().split('/').next() != Some(adapter));
    let others: Vec<Device> = others.take(2).collect();
    for other in &others {
        Tensor::ones([1], other)?.to_vec::<f32>()?;
    }
    device.set_wait_limit(Duration::from_secs(2))?;
    let source = "
        @group(0) @binding(0) var<storage, read> x: array<f32>;
        @group(0) @binding(1) var<storage, read_write> y: array<f32>;
        @compute @workgroup_size(1) fn endless() { loop { if x[0] == 7.0 { break; } y[0] += x[0]; } }";
    let kernel = WgslKernel::new(source, "endless")?;
    let x = Tensor::ones([1], &device)?;
    x.to_vec::<f32>()?;
    let y =
        kernel.on(&device).input("x", &x).output("y", anygpu::kernel::Output::zeros([1], DType::F32)).dispatch(1)?;
    let begin = Instant::now();
    let result = y[0].to_vec::<f32>();
    let leaves = device.quirks()?.iter().any(|quirk| matches!(quirk, Quirk::LoopBudget { .. }));
    match result {
        Ok(_) => assert!(leaves, "the kernel ended"),
        Err(error) => {
            println!("{name}: after {:.1} s: {error}", begin.elapsed().as_secs_f64());
            assert!(error.is_device_lost() && device.is_lost(), "{error}");
            let again = Instant::now();
            let error = Tensor::ones([2], &device).and_then(|x| x.to_vec::<f32>()).unwrap_err();
            assert!(error.is_device_lost() && again.elapsed() < Duration::from_secs(2), "{error}");
        }
    }
    for other in others {
        assert_eq!(Tensor::ones([300], &other)?.sum_all()?.item::<f32>()?, 300.0, "{other}");
    }
    drop((x, y, kernel, device)); // which does not wait for the kernel
    println!("the others go on");
    Ok(())
}

/// The process of the kernel is ended from outside: the driver's threads compute for ever.
#[test]
fn a_kernel_that_never_ends_loses_its_device_only() {
    let _alone = alone();
    for device in own_devices(6) {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["faults::endless", "--exact", "--ignored", "--nocapture"])
            .env(DEVICE, device.name())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (lines, said) = channel();
        let output = BufReader::new(child.stdout.take().unwrap());
        let reader =
            thread::spawn(move || output.lines().map_while(std::io::Result::ok).try_for_each(|line| lines.send(line)));
        let (begin, mut all) = (Instant::now(), Vec::new());
        let goes_on = loop {
            match said.recv_timeout(Duration::from_secs(120).saturating_sub(begin.elapsed())) {
                Ok(line) if line.ends_with("the others go on") => break true,
                Ok(line) => all.push(line),
                Err(_) => break false,
            }
        };
        child.kill().unwrap();
        child.wait().unwrap();
        drop(said);
        drop(reader.join());
        println!("{}", all.join("\n"));
        assert!(goes_on, "{device}: {all:?}");
    }
}

/// The device of a child whose system has no driver for Vulkan any more.
const GONE: &str = "ANYGPU_TEST_GONE_DEVICE";

#[test]
#[ignore = "run by a_driver_that_is_gone_is_an_error_by_name, in a process of its own"]
fn gone() -> Result<()> {
    let _alone = alone();
    let Ok(name) = std::env::var(GONE) else { return Ok(()) };
    let begin = Instant::now();
    if let Err(error) = Device::new(&name) {
        println!("{name}: within {:.2} s: {error}", begin.elapsed().as_secs_f64());
        assert!(matches!(error, Error::UnknownDevice { .. }) && error.to_string().contains("cpu"), "{error}");
        for device in Device::all() {
            assert_eq!(Tensor::ones([300], &device)?.sum_all()?.item::<f32>()?, 300.0, "{device}");
        }
        println!("the others go on");
    }
    Ok(())
}

/// A name that a program remembers, of a driver that was there before. Adapters of OpenGL stay, under the first names.
#[test]
fn a_driver_that_is_gone_is_an_error_by_name() {
    let _alone = alone();
    let adapters: Vec<Device> =
        common::devices().into_iter().filter(|d| !d.is_cpu() && !d.name().contains('/')).collect();
    let left = adapters.iter().filter(|device| device.info().api == "GL").count();
    let (Some(last), true) = (adapters.last(), adapters.len() > left) else { return };
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["faults::gone", "--exact", "--ignored", "--nocapture"])
        .env(GONE, last.name())
        .env("VK_DRIVER_FILES", "/nonexistent")
        .env_remove("VK_ADD_DRIVER_FILES")
        .env_remove("ANYGPU_VISIBLE_DEVICES")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    println!("{said}");
    assert!(output.status.success() && said.contains("the others go on"), "{said}");
}

/// Four threads compute on a device that is destroyed, and one on `cpu`.
#[test]
fn a_device_that_is_destroyed_under_load_ends_its_threads_with_an_error() -> Result<()> {
    let _alone = alone();
    for device in own_devices(7) {
        let product = |device: &Device| Tensor::full([48, 48], 0.5, device).and_then(|x| x.matmul(&x)?.to_vec::<f32>());
        product(&device)?; // compiles the kernels
        let (end, (failed, failures)) = (AtomicBool::new(false), channel());
        thread::scope(|scope| {
            for _ in 0..4 {
                let (failed, device) = (failed.clone(), &device);
                scope.spawn(move || {
                    let error = loop {
                        match product(device) {
                            Ok(elements) => assert_eq!(elements, [12.0; 48 * 48], "{device}"),
                            Err(error) => break error,
                        }
                    };
                    failed.send(error).expect("it is received");
                });
            }
            let host = scope.spawn(|| {
                let mut count = 0;
                while !end.load(Ordering::Acquire) {
                    assert_eq!(product(&Device::cpu())?, [12.0; 48 * 48]);
                    count += 1;
                }
                Ok::<usize, Error>(count)
            });
            thread::sleep(Duration::from_millis(100));
            let begin = Instant::now();
            device.lose()?;
            let errors = [0; 4].map(|_| failures.recv_timeout(Duration::from_secs(60)));
            println!("{device}: four threads had errors within {:.2} s", begin.elapsed().as_secs_f64());
            end.store(true, Ordering::Release);
            let count = host.join().expect("no panic")?;
            for error in errors {
                assert!(error.as_ref().is_ok_and(Error::is_device_lost), "{device}: {error:?}");
            }
            assert!(count > 0, "cpu went on");
            Ok::<(), Error>(())
        })?;
        assert_eq!(product(&device.reopen()?)?, [12.0; 48 * 48], "{device}");
    }
    Ok(())
}

/// SwiftShader has no GiB for one buffer, whatever the machine has.
#[test]
fn more_than_the_driver_has_is_an_error_that_loses_nothing() -> Result<()> {
    let _alone = alone();
    const BLOCK: usize = 32 << 20;
    let few = |device: &Device| device.info().adapter.contains("SwiftShader");
    for device in own_devices(8).into_iter().filter(few) {
        let blocks = (0..2).map(|i| Tensor::full([BLOCK], i as f32, &device)).collect::<Result<Vec<_>>>()?;
        device.synchronize()?;
        let begin = Instant::now();
        let error = Tensor::full([8 * BLOCK], 9.0, &device).unwrap_err();
        println!("{device}: within {:.2} s: {error}", begin.elapsed().as_secs_f64());
        let Error::OutOfMemory { device: name, requested, in_use, .. } = &error else { panic!("{error}") };
        assert_eq!((&**name, *requested), (device.name(), 32 * BLOCK as u64), "{error}");
        assert!(*in_use >= 8 * BLOCK as u64, "{error}");
        for (value, block) in blocks.iter().enumerate() {
            assert_eq!(block.narrow(0, BLOCK - 1, 1)?.item::<f32>()?, value as f32, "{device}");
        }
        assert_eq!(Tensor::ones([BLOCK], &device)?.narrow(0, 5, 1)?.item::<f32>()?, 1.0, "{device}");
    }
    Ok(())
}
