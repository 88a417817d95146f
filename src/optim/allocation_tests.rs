//! A training step in which the n-th allocation fails, for every n: the error says so, the parameters are as they were or
//! as after the step, and the next step works.

use super::Adam;
use crate::device::{Device, allocation_faults};
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

#[test]
fn a_failed_allocation_loses_nothing() -> Result<()> {
    let mut first = models::lenet()?;
    let state = first.state_dict();
    for device in Device::all() {
        first.to(&device)?;
        let x = Tensor::rand([3, 1, 28, 28], &device)?;
        let labels = Tensor::from_slice(&[1u32, 0, 9], 3, &device)?;
        let before = loss(&first, &x, &labels)?.item::<f32>()?;
        let mut after = None;
        // The last round has no failure, and says what comes after the step: so the rounds go backwards.
        let all = allocations(&state, &device, &x, &labels)?;
        // Every one on the host; some on the adapters, which take longer.
        for n in (0..=all).rev().step_by(if device.is_cpu() { 1 } else { 9 }) {
            let (net, mut optimizer) = fresh(&state, &device)?;
            allocation_faults::fail_after(Some(n));
            let result = step(&net, &mut optimizer, &x, &labels);
            let unspent = allocation_faults::fail_after(None);
            let now = loss(&net, &x, &labels)?.item::<f32>()?;
            let after = *after.get_or_insert(now);
            match result {
                Ok(()) => assert!(unspent && now == after, "{device}: allocation {n} failed, and the step did not"),
                Err(error) => assert!(error.is_out_of_memory(), "{device}: {error}"),
            }
            assert!(now == before || now == after, "{device}, allocation {n}: {now}, not {before} or {after}");
            optimizer.zero_grad();
            step(&net, &mut optimizer, &x, &labels)?;
        }
        assert!(all > 20 && after != Some(before), "{device}: {all} allocations");
    }
    Ok(())
}

fn fresh(state: &crate::nn::StateDict, device: &Device) -> Result<(Sequential, Adam)> {
    let mut net = models::lenet()?;
    net.load_state_dict(state, true)?;
    net.to(device)?;
    let optimizer = Adam::new(net.parameters(), 0.01);
    Ok((net, optimizer))
}

/// Returns how many allocations a step makes.
fn allocations(state: &crate::nn::StateDict, device: &Device, x: &Tensor, labels: &Tensor) -> Result<usize> {
    let (mut low, mut high) = (0, 10_000);
    while low < high {
        let n = (low + high) / 2;
        let (net, mut optimizer) = fresh(state, device)?;
        allocation_faults::fail_after(Some(n));
        let _ = step(&net, &mut optimizer, x, labels);
        if allocation_faults::fail_after(None) { high = n } else { low = n + 1 }
    }
    Ok(low)
}
