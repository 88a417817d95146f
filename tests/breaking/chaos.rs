//! Devices that fail on request: the failures are those of real devices, and everything else goes on.

use std::time::{Duration, Instant};

use anygpu::{Device, Error, Result, Tensor};

use crate::common::{self, alone};

/// Devices of chaos with these faults, on each adapter that has logical devices. Each test needs names of its own.
fn chaos(faults: &str) -> Vec<Device> {
    let own = |device: &Device| !device.is_cpu() && device.info().api != "GL" && !device.name().contains('/');
    let names = common::devices().into_iter().filter(own).map(|device| format!("chaos:{device}?{faults}"));
    names.map(|name| Device::new(&name).expect("a device of chaos")).collect()
}

#[test]
fn a_device_is_lost_with_the_kernel_that_was_asked_for() -> Result<()> {
    let _alone = alone();
    for device in &chaos("lose=30") {
        assert_eq!(&Device::new(&device.name().to_uppercase().replace("LOSE", "lose"))?, device);
        assert!(!Device::all().contains(device));
        let x = Tensor::ones([4], device)?;
        let mut steps = 0;
        let lost = loop {
            match x.cos().and_then(|y| y.to_vec::<f32>()) {
                Ok(_) => steps += 1,
                Err(error) => break error,
            }
            assert!(steps < 100, "{device}");
        };
        assert!(lost.is_device_lost() && lost.to_string().contains(device.name()), "{lost}");
        assert!((20..=30).contains(&steps), "{steps} steps on {device}");
        assert!(x.to_vec::<f32>().unwrap_err().is_device_lost() && device.is_lost());
        let name = device.name().strip_prefix("chaos:").and_then(|name| name.split('?').next()).expect("an adapter");
        assert_eq!(Tensor::ones([4], name)?.to_vec::<f32>()?, [1.0; 4], "the adapter goes on");

        let again = device.reopen()?;
        let y = Tensor::ones([4], &again)?;
        for _ in 0..60 {
            assert_eq!(y.mul(&y)?.to_vec::<f32>()?, [1.0; 4]);
        }
    }
    Ok(())
}

#[test]
fn one_allocation_fails_and_what_lives_stays() -> Result<()> {
    let _alone = alone();
    for device in &chaos("oom=5") {
        let kept: Vec<Tensor> = (0..4).map(|i| Tensor::full([64], i, device)).collect::<Result<_>>()?;
        let error = Tensor::full([1000], 4, device).unwrap_err();
        let Error::OutOfMemory { device: name, requested, in_use, .. } = &error else { panic!("{error}") };
        assert_eq!((&**name, *requested), (device.name(), 4000));
        assert!(*in_use >= 4 * 256, "{error}");
        for (i, tensor) in kept.iter().enumerate() {
            assert_eq!(tensor.to_vec::<i32>()?, [i as i32; 64], "{device}");
        }
        assert_eq!(Tensor::full([1000], 4, device)?.to_vec::<i32>()?, [4; 1000]);
    }
    Ok(())
}

#[test]
fn submits_take_longer() -> Result<()> {
    let _alone = alone();
    for device in &chaos("slow=50") {
        let x = Tensor::ones([4], device)?;
        let start = Instant::now();
        for _ in 0..4 {
            x.to_vec::<f32>()?;
        }
        assert!(start.elapsed() >= Duration::from_millis(200), "{:?} on {device}", start.elapsed());
    }
    Ok(())
}

#[test]
fn other_names_are_errors() {
    let _alone = alone();
    for name in ["chaos:cpu?lose=1", "chaos:cpu", "chaos:", "chaos:soft:77?lose=1", "chaos:soft:0?loose=1"] {
        let error = Device::new(name).unwrap_err().to_string();
        assert!(error.contains("lose=KERNELS") || error.contains("unknown device"), "{error}");
    }
    for device in common::devices().iter().filter(|device| device.info().api == "GL") {
        let error = Device::new(&format!("chaos:{device}?lose=1")).unwrap_err();
        assert!(matches!(error, Error::DeviceUnavailable { .. }), "{error}");
    }
}
