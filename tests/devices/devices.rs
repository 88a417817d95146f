//! Devices: names, equality, copies between every two of them, ops on tensors of different devices, memory, and faults
//! of drivers.

use std::process::Command;

use anygpu::device::Quirk;
use anygpu::{DType, Device, DeviceKind, Error, Result, Tensor, device_count, is_available, try_all_gpus, try_gpu};

use crate::common::{Nd, device, devices, uniform, values};

#[test]
fn a_name_and_its_device_are_one() -> Result<()> {
    for device in devices() {
        assert_eq!(Device::new(device.name())?, device);
        assert_eq!(device.name().to_uppercase().parse::<Device>()?, device, "names have no case");
        assert_eq!(device.to_string(), device.name());
        assert_eq!(format!("{device:?}"), format!("Device({})", device.name()));
        assert_eq!(device.info().name, device.name());
        assert_eq!(device.is_cpu(), device.info().kind == DeviceKind::Cpu);
    }
    Ok(())
}

#[test]
fn no_two_devices_are_equal() {
    let all = devices();
    for (i, a) in all.iter().enumerate() {
        for b in &all[..i] {
            assert_ne!(a, b);
            assert_ne!(a.name(), b.name());
        }
    }
    assert!(Device::all().last().is_some_and(Device::is_cpu), "cpu is last");
}

#[test]
fn an_unknown_name_lists_all_devices() {
    for name in ["gpu:77", "soft:77", "cuda:0", "", "soft:0/77"] {
        let error = Device::new(name).unwrap_err();
        assert!(matches!(error, Error::UnknownDevice { .. }), "{error:?}");
        for device in Device::all() {
            assert!(error.to_string().contains(device.name()), "{device} is missing in: {error}");
        }
    }
}

#[test]
fn gpus_are_found_by_number() {
    let gpus = try_all_gpus();
    assert_eq!(is_available(), device_count() > 0);
    if !is_available() {
        assert_eq!(gpus, [Device::cpu()]);
    }
    assert_eq!(try_gpu(0), gpus[0]);
    assert_eq!(try_gpu(99), Device::cpu());
    assert!(
        gpus.iter().all(|gpu| gpu.is_cpu() || gpu.info().kind != DeviceKind::Software || gpu.name().starts_with("gpu"))
    );
}

#[test]
fn logical_devices_are_apart() -> Result<()> {
    let Some(first) = device("soft:0") else { return Ok(()) };
    let (same, second) = (Device::new("soft:0/0")?, Device::new("soft:0/1")?);
    assert_eq!(first, same);
    assert_ne!(first, second);
    assert_eq!(first.info().adapter, second.info().adapter);
    let (x, y) = (Tensor::ones([3], &first)?, Tensor::ones([3], &second)?);
    let error = (&x + &y).unwrap_err();
    assert!(matches!(error, Error::DeviceMismatch { .. }), "{error:?}");
    assert_eq!((&x.to(&second)? + &y)?.to_vec::<f32>()?, [2.0; 3]);
    Ok(())
}

/// The views that are copied: whole, with an offset, with gaps, turned, repeated, empty.
fn views(x: &Tensor) -> Result<Vec<Tensor>> {
    Ok(vec![
        x.clone(),
        x.narrow(0, 2, 3)?,
        x.narrow(1, 5, 7)?,
        x.t()?,
        x.t()?.narrow(0, 1, 15)?,
        x.narrow(0, 1, 1)?.broadcast_to([4, 17])?,
        x.narrow(0, 7, 0)?,
        x.narrow(0, 6, 1)?.narrow(1, 16, 1)?.reshape(())?,
    ])
}

#[test]
fn every_device_copies_to_every_other() -> Result<()> {
    let all = devices();
    for from in &all {
        let x = Tensor::from_slice(&(0..7 * 17).collect::<Vec<u32>>(), [7, 17], from)?;
        for to in &all {
            for view in views(&x)? {
                let moved = view.to(to)?;
                assert_eq!((moved.device(), moved.dtype()), (to, DType::U32));
                assert_eq!(moved.shape(), view.shape(), "{from} to {to}");
                assert_eq!(moved.to_vec::<u32>()?, view.to_vec::<u32>()?, "{:?} from {from} to {to}", view.shape());
                assert_eq!(view.is_same(&moved), from == to, "{from} to {to}");
            }
        }
    }
    Ok(())
}

/// Sizes around the chunks of a staged copy, of 1 MiB, and of 4 MiB from 16 MiB on.
#[test]
fn copies_of_several_chunks() -> Result<()> {
    let all = devices();
    for (i, from) in all.iter().enumerate() {
        let to = &all[(i + 1) % all.len()];
        for count in [1, 257, (1 << 18) - 1, 1 << 18, (1 << 18) + 1, 900_001, (4 << 20) - 1, 4 << 20, (8 << 20) + 5] {
            let expected: Vec<u32> = (0..count).map(|i: u32| i.wrapping_mul(2_654_435_761)).collect();
            let x = Tensor::from_slice(&expected, expected.len(), from)?;
            assert!(x.to(to)?.to_vec::<u32>()? == expected, "{count} from {from} to {to}");
            let half = expected.len() / 2;
            let part = x.narrow(0, half, expected.len() - half)?.to(to)?;
            assert!(part.to_vec::<u32>()? == expected[half..], "the second half of {count} from {from} to {to}");
        }
    }
    Ok(())
}

#[test]
fn many_tensors_move_together() -> Result<()> {
    let all = devices();
    for from in &all {
        let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0], 3, from)?;
        let y = Tensor::from_slice(&(0..70u32).collect::<Vec<_>>(), [7, 10], from)?.t()?;
        let z = Tensor::zeros([0, 4], from)?;
        for to in &all {
            let moved = anygpu::tensor::to_together(&[&x, &y, &z], to)?;
            assert!(moved.iter().all(|t| t.device() == to));
            assert_eq!(moved[0].to_vec::<f32>()?, [1.0, 2.0, 3.0], "{from} to {to}");
            assert_eq!((moved[1].shape(), moved[1].dtype()), (&[10, 7][..], DType::U32));
            assert_eq!(moved[1].to_vec::<u32>()?, y.to_vec::<u32>()?, "{from} to {to}");
            assert_eq!(moved[2].shape(), [0, 4]);
        }
    }
    Ok(())
}

#[test]
fn tensors_of_two_devices_do_not_meet() -> Result<()> {
    let all = devices();
    for a in &all {
        for b in all.iter().filter(|b| *b != a) {
            let error = (&Tensor::ones([2], a)? + &Tensor::ones([2], b)?).unwrap_err();
            assert!(matches!(error, Error::DeviceMismatch { op: "add", .. }), "{error:?}");
            assert_eq!(
                error.to_string(),
                format!(
                    "Expected all tensors to be on the same device, but found at least two devices, {a} and {b}! (add: move one with .to(&device))"
                )
            );
        }
    }
    if let Some(soft) = device("soft:0") {
        let error = Tensor::ones([2], &soft)?.add(&Tensor::ones([2], None)?).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!(
                "Expected all tensors to be on the same device, but found at least two devices, {soft} and cpu! (add: move one with .to(&device))"
            )
        );
    }
    Ok(())
}

#[test]
fn creation_on_every_device() -> Result<()> {
    for device in devices() {
        assert_eq!(Tensor::zeros([2, 3], &device)?.to_vec::<f32>()?, [0.0; 6]);
        assert_eq!(Tensor::full([257], -2.5, &device)?.to_vec::<f32>()?, [-2.5; 257]);
        assert_eq!(Tensor::arange(1.0, 2.0, 0.25, &device)?.to_vec::<f32>()?, [1.0, 1.25, 1.5, 1.75]);
        assert_eq!(Tensor::eye(2, &device)?.to_vec::<f32>()?, [1.0, 0.0, 0.0, 1.0]);
        assert_eq!(Tensor::scalar(3.5, &device)?.item::<f32>()?, 3.5);
        let printed = format!("{}", Tensor::ones([2], &device)?);
        assert_eq!(printed.contains(&format!("device='{device}'")), !device.is_cpu(), "{printed}");
    }
    Ok(())
}

/// Mesa 22's adapters leave all loops after some 65 535 iterations; SwiftShader and newer ones do not.
#[test]
fn the_probe_finds_the_loop_budget() -> Result<()> {
    for device in devices() {
        let quirks = device.quirks()?;
        let about = format!("{} {} {}", device.info().api, device.info().adapter, device.info().driver);
        let Some(&Quirk::LoopBudget { iterations }) = quirks.first() else {
            assert!(!about.contains("Mesa 22"), "{device} ({about}) has none");
            continue;
        };
        assert!(about.contains("Mesa 22"), "{device} ({about}): {quirks:?}");
        assert!((60_000..70_000).contains(&iterations), "{device}: {iterations}");
        assert_eq!(quirks[0].to_string(), format!("loop-budget-{iterations}"));
    }
    Ok(())
}

/// What is below 2⁻¹²⁶ becomes 0 just where the probe says so, which is on SwiftShader.
#[test]
fn the_probe_finds_flushed_subnormals() -> Result<()> {
    let (least, half) = (f32::MIN_POSITIVE, f32::MIN_POSITIVE / 2.0);
    for device in devices() {
        let x = Tensor::from_slice(&[least, half, 1.5 * least], 3, &device)?;
        let part = |i: usize| x.narrow(0, i, 1);
        let results = [part(0)?.mul(0.5)?, part(2)?.sub(&part(0)?)?, part(1)?.add(&part(1)?)?];
        let mut flushes = false;
        for (result, expected) in results.iter().zip([half, half, least]) {
            flushes |= result.item::<f32>()? != expected;
        }
        let quirks = device.quirks()?;
        assert_eq!(quirks.contains(&Quirk::FlushesSubnormals), flushes, "{device}: {quirks:?}");
        assert_eq!(flushes, device.info().adapter.contains("SwiftShader"), "{device}: {quirks:?}");
    }
    Ok(())
}

/// Several threads on each device at once: each gets its own numbers.
#[test]
fn threads_share_a_device() {
    for device in devices() {
        std::thread::scope(|scope| {
            for seed in 0..4 {
                let device = &device;
                scope.spawn(move || {
                    let x = uniform(&[33, 17], -1.0, 1.0, seed);
                    for _ in 0..10 {
                        let t = x.tensor(DType::F32, device).expect("room");
                        let sum = (&t + &t).and_then(|t| t.sum([1], false)).expect("a sum");
                        let expected =
                            Nd::new(&[33], x.data.chunks(17).map(|row| 2.0 * row.iter().sum::<f64>()).collect());
                        let got = values(&sum).expect("the values");
                        assert!(got.iter().zip(&expected.data).all(|(g, e)| (g - e).abs() < 1e-4), "{device}");
                    }
                });
            }
        });
    }
}

/// The environment is read once in a process, so this test runs itself in another one.
#[test]
fn visible_devices_hide_and_renumber() {
    if device("soft:1").is_none() {
        return;
    }
    let child = |visible: &str| {
        let me = std::env::current_exe().expect("the path of this test");
        let out = Command::new(me)
            .args(["--ignored", "--exact", "devices::prints_the_devices", "--nocapture", "--test-threads=1"])
            .env("ANYGPU_VISIBLE_DEVICES", visible)
            .env_remove("ANYGPU_REQUIRE_DEVICES")
            .output()
            .expect("the test runs itself");
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        let line = text.lines().find_map(|line| line.split_once("devices=")).map(|(_, names)| names.to_owned());
        line.unwrap_or_else(|| panic!("{visible}: {text}\n{}", String::from_utf8_lossy(&out.stderr)))
    };
    let adapter = |name: &str| Device::new(name).expect("it is there").info().driver.clone();
    assert_eq!(child(""), "cpu; try_gpu: cpu; count: 0");
    assert_eq!(child("soft:1"), format!("gpu:0 = {}, cpu; try_gpu: gpu:0; count: 1", adapter("soft:1")));
    let both = format!("gpu:0 = {}, gpu:1 = {}, cpu; try_gpu: gpu:0; count: 2", adapter("soft:1"), adapter("soft:0"));
    assert_eq!(child("soft:1,soft:0"), both);
}

#[test]
#[ignore = "the other half of visible_devices_hide_and_renumber"]
fn prints_the_devices() {
    let name = |d: &Device| if d.is_cpu() { "cpu".to_owned() } else { format!("{d} = {}", d.info().driver) };
    let names: Vec<_> = Device::all().iter().map(name).collect();
    println!("devices={}; try_gpu: {}; count: {}", names.join(", "), try_gpu(0), device_count());
}

#[test]
fn drivers_tell_how_much_memory_is_free() {
    for device in devices() {
        match device.driver_memory() {
            Some(memory) => {
                assert!(0 < memory.free && memory.free <= memory.total, "{device}: {memory:?}");
                assert_eq!(Some(memory.total), device.info().memory_total, "{device}");
                assert!(["native", "Vulkan"].contains(&&*device.info().api), "{device}");
            }
            None => assert!(!device.is_cpu() || !cfg!(target_os = "linux"), "{device} tells nothing"),
        }
    }
}
