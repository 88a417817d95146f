//! Training in which the n-th allocation or the n-th submit fails.

use super::Adam;
use crate::device::Device;
use crate::device::injected_faults::{Fault, fail_after};
use crate::error::Result;
use crate::nn::{CrossEntropyLoss, Module, Sequential, models};
use crate::tensor::Tensor;

fn loss(net: &Sequential, x: &Tensor, labels: &Tensor) -> Result<Tensor> {
    CrossEntropyLoss::new().forward(&net.forward(x)?, labels)
}

fn step(net: &Sequential, optimizer: &mut Adam, x: &Tensor, labels: &Tensor) -> Result<()> {
    loss(net, x, labels)?.backward()?;
    optimizer.step()
}

/// The error says so, the parameters are as they were or as after the step, and the next step works.
#[test]
fn a_failed_allocation_loses_nothing() -> Result<()> {
    let mut first = models::lenet()?;
    let state = first.state_dict();
    for device in Device::all() {
        first.to_(&device)?;
        let x = Tensor::rand([3, 1, 28, 28], &device)?;
        let labels = Tensor::from_slice(&[1u32, 0, 9], 3, &device)?;
        let before = loss(&first, &x, &labels)?.item::<f32>()?;
        let (net, mut optimizer) = fresh(&state, &device)?;
        step(&net, &mut optimizer, &x, &labels)?;
        let after = loss(&net, &x, &labels)?.item::<f32>()?;
        // Threads of the host have memory of their own, so a step may take a few more allocations if more of them run.
        let all = allocations(&state, &device, &x, &labels)?;
        // Every one on the host; some on the adapters, which take longer.
        for n in (0..=all).rev().step_by(if device.is_cpu() { 1 } else { 9 }) {
            let (net, mut optimizer) = fresh(&state, &device)?;
            fail_after(Some((Fault::Allocation, n)));
            let result = step(&net, &mut optimizer, &x, &labels);
            let unspent = fail_after(None);
            let now = loss(&net, &x, &labels)?.item::<f32>()?;
            match result {
                Ok(()) => assert!(unspent && now == after, "{device}: allocation {n} failed, and the step did not"),
                Err(error) => assert!(error.is_out_of_memory(), "{device}: {error}"),
            }
            assert!(now == before || now == after, "{device}, allocation {n}: {now}, not {before} or {after}");
            optimizer.zero_grad();
            step(&net, &mut optimizer, &x, &labels)?;
        }
        assert!(all > 20 && after != before, "{device}: {all} allocations");
    }
    Ok(())
}

fn fresh(state: &crate::nn::StateDict, device: &Device) -> Result<(Sequential, Adam)> {
    let mut net = models::lenet()?;
    net.load_state_dict(state, true)?;
    net.to_(device)?;
    let optimizer = Adam::new(net.parameters(), 0.01);
    Ok((net, optimizer))
}

/// Returns how many allocations a step makes.
fn allocations(state: &crate::nn::StateDict, device: &Device, x: &Tensor, labels: &Tensor) -> Result<usize> {
    let (mut low, mut high) = (0, 10_000);
    while low < high {
        let n = (low + high) / 2;
        let (net, mut optimizer) = fresh(state, device)?;
        fail_after(Some((Fault::Allocation, n)));
        let _ = step(&net, &mut optimizer, x, labels);
        if fail_after(None) { high = n } else { low = n + 1 }
    }
    Ok(low)
}

/// A refused submit loses the work that was recorded. Some call says so: no loss is returned that is not right.
#[test]
fn a_refused_submit_is_never_silent() -> Result<()> {
    let state = models::lenet()?.state_dict();
    // Logical devices of this test alone, since the error goes to the first call on the device. OpenGL has none.
    for device in Device::all().into_iter().filter_map(|device| Device::new(&format!("{device}/6")).ok()) {
        if device.is_cpu() {
            continue;
        }
        let x = Tensor::rand([3, 1, 28, 28], &device)?;
        let labels = Tensor::from_slice(&[1u32, 0, 9], 3, &device)?;
        let train = |n: Option<usize>| -> Result<f32> {
            let (net, mut optimizer) = fresh(&state, &device)?;
            device.synchronize()?;
            fail_after(n.map(|n| (Fault::Submit, n)));
            step(&net, &mut optimizer, &x, &labels)?;
            optimizer.zero_grad();
            step(&net, &mut optimizer, &x, &labels)?;
            loss(&net, &x, &labels)?.item::<f32>()
        };
        let right = train(None)?;
        let mut refused = 0;
        loop {
            let result = train(Some(refused));
            if fail_after(None) {
                assert_eq!(result?, right, "{device}: nothing was refused");
                break;
            }
            let error = result.map(|loss| format!("{loss}, and {right} is right")).unwrap_err().to_string();
            assert!(error.contains("refused, for a test"), "{device}, submit {refused}: {error}");
            refused += 1;
        }
        assert!(refused > 1, "{device}: {refused} submits");
        assert_eq!(train(None)?, right, "{device}: works again");
    }
    Ok(())
}
