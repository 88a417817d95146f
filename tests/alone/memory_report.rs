//! Who holds the memory of a device, on every device, and in the error of a lack of memory.

use anygpu::device::HeldMemory;
use anygpu::nn::{self, Linear, Module};
use anygpu::optim::Adam;
use anygpu::{DataParallel, Device, Error, Result, Tensor, memory_label};

use crate::common::{self, alone};

const MIB: u64 = 1 << 20;

/// The bytes of the large tensors of a label.
fn of_label(device: &Device, label: Option<&str>) -> u64 {
    let held = device.memory_report().held;
    held.iter().filter(|held| held.label.as_deref() == label).map(|held| held.bytes).sum()
}

/// One test, since all tests of a process share the devices.
#[test]
fn large_tensors_are_counted_for_who_made_them() -> Result<()> {
    let _alone = alone();
    for device in common::devices() {
        let others = of_label(&device, None); // of the host, whose logical devices share their memory
        let mut net = Linear::new(600, 600)?;
        net.to_(&device)?;
        let x = memory_label("batch", || Tensor::rand([600, 600], &device))?;
        let y = net.forward(&x)?;
        let loss = nn::mse_loss(&y, &x, nn::Reduction::Mean)?;
        loss.backward()?;
        let mut optimizer = Adam::new(net.parameters(), 1e-3);
        optimizer.step()?;
        device.synchronize()?;
        for label in ["batch", "parameters", "gradients", "optimizer state"] {
            let bytes = of_label(&device, Some(label));
            assert!((MIB..20 * MIB).contains(&bytes), "{device}, {label}: {bytes}\n{}", device.memory_report());
        }
        let report = device.memory_report();
        let sum: u64 = report.held.iter().map(|held| held.bytes).sum();
        assert!(sum <= report.stats.live && report.held.is_sorted_by_key(|held| std::cmp::Reverse(held.bytes)));
        assert!(report.to_string().contains("(optimizer state)"), "{report}");
        drop((net, x, y, loss, optimizer));
        device.synchronize()?;
        let left: Vec<HeldMemory> =
            device.memory_report().held.into_iter().filter(|held| held.label.is_some()).collect();
        assert_eq!((left, of_label(&device, None)), (Vec::new(), others), "{device}");
        // Threads that work for this one have its label.
        let x = Tensor::rand([600, 600], &device)?;
        let net = DataParallel::new(Linear::new(600, 600)?, std::slice::from_ref(&device))?;
        let y = memory_label("in a worker", || net.forward(&x))?;
        device.synchronize()?;
        assert!(of_label(&device, Some("in a worker")) >= MIB, "{device}\n{}", device.memory_report());
        drop((x, y, net));

        let kept = memory_label("replay buffer", || Tensor::zeros([600, 600], &device))?;
        match Tensor::zeros([1 << 21, 1 << 21], &device) {
            Err(error @ Error::OutOfMemory { .. }) => {
                assert!(error.to_string().contains("most is held by 1 tensor of zeros (replay buffer)"), "{error}");
            }
            other => assert!(matches!(other, Err(Error::LimitExceeded { .. })), "{device}: {other:?}"),
        }
        drop(kept);
    }
    Ok(())
}
