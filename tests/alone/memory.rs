//! What the memory of a device says: it is counted, `backward` frees the graph, and batches take no more than a few of them.

use anygpu::data::{Array, DataLoader, Dataset, Sample};
use anygpu::{Device, Result, Tensor};

use crate::common::{alone, devices, devices_in_turn};

/// A loss that is kept, for instance to print it, holds no results of the forward pass after `backward`.
#[test]
fn backward_frees_the_graph() -> Result<()> {
    let _alone = alone();
    for device in devices_in_turn() {
        let x = Tensor::ones([1 << 20], &device)?.requires_grad();
        let live = device.memory().live;
        let loss = |x: &Tensor| x.sin()?.exp()?.sqrt()?.mean_all();
        let kept = loss(&x)?;
        assert!(device.memory().live >= live + (8 << 20), "{device}");
        kept.backward_retain_graph()?;
        kept.backward()?;
        assert!(device.memory().live < live + (5 << 20), "{device}: the gradient and the loss are left");
        let before = x.grad().map(|grad| grad.to_vec::<f32>()).transpose()?;
        let error = kept.add(&loss(&x)?)?.backward().unwrap_err().to_string();
        assert!(error.contains("freed") && error.contains("backward_retain_graph"), "{error}");
        assert_eq!(
            x.grad().map(|grad| grad.to_vec::<f32>()).transpose()?,
            before,
            "{device}: an error changes nothing"
        );
    }
    Ok(())
}

#[test]
fn memory_is_counted() -> Result<()> {
    let _alone = alone();
    const BYTES: u64 = 1 << 24;
    for device in devices() {
        let x = Tensor::zeros([BYTES as usize / 4], &device)?;
        device.synchronize()?;
        let held = device.memory();
        assert!(held.live >= BYTES && held.peak >= held.live && held.reserved >= held.live, "{device}: {held:?}");
        drop(x);
        device.synchronize()?;
        let freed = device.memory();
        assert!(freed.live < held.live && freed.peak >= held.live, "{device}: {held:?}, then {freed:?}");
    }
    Ok(())
}

/// So many samples of 4 × 4 pixels with a label.
struct Samples(usize);

impl Dataset for Samples {
    fn len(&self) -> usize {
        self.0
    }

    fn get(&self, index: usize) -> Result<Sample> {
        Ok(vec![Array::new(vec![index as f32; 16], [1, 4, 4])?, Array::scalar(index as u32)])
    }
}

/// The memory of batches is the pool's: an epoch of many takes no more than one of few.
#[test]
fn an_epoch_needs_the_memory_of_a_few_batches() -> Result<()> {
    let _alone = alone();
    let device = Device::cpu();
    let loader = DataLoader::new(Samples(200_000), 1000)?.workers(2);
    let batch = 1000 * 17 * 4;
    let before = device.memory().live;
    for batch_of in &loader {
        batch_of?;
        let held = device.memory().live.saturating_sub(before);
        assert!(held < 40 * batch, "{held} bytes are live");
    }
    Ok(())
}
