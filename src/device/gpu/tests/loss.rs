//! Tests of lost devices.

use super::affine;
use crate::device::{Backend, Device};
use crate::error::Result;

#[test]
fn every_call_on_a_lost_device_is_an_error() -> Result<()> {
    for device in Device::all().into_iter().filter(|d| d.info().api != "GL" && !d.is_cpu()) {
        // A logical device that no other test uses.
        let device = Device::new(&format!("{device}/7"))?;
        let Backend::Gpu(gpu) = device.backend()? else { continue };
        let buffer = gpu.upload(&[1; 10])?;
        gpu.device.destroy();
        let first = gpu.download(&buffer, 0, 10).expect_err("a lost device");
        assert!(first.is_device_lost(), "{device}: {first:?}");
        assert!(device.is_lost() && gpu.error("a consequence").is_device_lost());
        assert!(gpu.upload(&[1]).is_err_and(|error| error.is_device_lost()));
        assert!(device.synchronize().is_err_and(|error| error.is_device_lost()));
    }
    Ok(())
}

/// wgpu reports a loss when the device has ended its work. What the driver refuses before that is the loss too.
#[test]
fn what_a_busy_device_refuses_after_its_loss_is_the_loss() -> Result<()> {
    for device in Device::all().into_iter().filter(|d| d.info().api != "GL" && !d.is_cpu()) {
        let device = Device::new(&format!("{device}/8"))?;
        let Backend::Gpu(gpu) = device.backend()? else { continue };
        let (x, y) = (gpu.upload(&vec![1; 1 << 22])?, gpu.alloc(1 << 22)?);
        let kernels = if gpu.caps().software { 40 } else { 400 };
        (0..kernels).try_for_each(|i| gpu.run(affine(&x, &y, 1, i)))?;
        gpu.submit_recorded()?;
        gpu.run(affine(&x, &y, 1, 1))?; // so the write needs a buffer of its own
        gpu.device.destroy();
        let refused = gpu.write(&y, 0, &[1]).expect_err("a lost device");
        assert!(refused.is_device_lost(), "{device}: {refused:?}");
    }
    Ok(())
}
