//! What the memory of a device says: it is counted, `backward` frees the graph, batches take no more than a few of them, and attention
//! takes none for scores.

use anygpu::data::{Array, DataLoader, Dataset, Sample};
use anygpu::{Attention, Device, Result, Tensor};

use crate::common::{adapters_of_shape, alone, devices, devices_in_turn};

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

/// Queries and keys of [`WIDTH`] classes: element c of row i is 1 if i has the class c = i mod WIDTH, and else 0. Elements of values are
/// small whole numbers.
const ROWS: usize = 8256;
const WIDTH: usize = 16;

/// Scores would be 273 MB: attention takes its result and a thirtieth of that, and with its gradients an eighth.
#[test]
fn long_attention_takes_no_memory_for_scores() -> Result<()> {
    let _alone = alone();
    let near = 3f32; // the score of a query and a key of one class; others have 0
    let value = |row: usize, i: usize| ((row + 3 * i) % 7) as f64 - 3.0;
    let of_class: Vec<usize> = (0..WIDTH).map(|class| (class..ROWS).step_by(WIDTH).count()).collect();
    let weight = |same: bool| if same { f64::from(near).exp() } else { 1.0 };
    let total = |class: usize| (0..WIDTH).map(|c| weight(c == class) * of_class[c] as f64).sum::<f64>();
    let bytes = (4 * ROWS * WIDTH) as u64;
    for device in [Device::cpu()].into_iter().chain(adapters_of_shape(0)) {
        let classes = (0..ROWS * WIDTH).map(|i| f32::from(i / WIDTH % WIDTH == i % WIDTH)).collect::<Vec<f32>>();
        let x = Tensor::from_vec(classes, [1, ROWS, WIDTH], &device)?;
        let values = (0..ROWS * WIDTH).map(|i| value(i / WIDTH, i % WIDTH) as f32).collect::<Vec<f32>>();
        let (q, k) = (x.clone().requires_grad(), x.clone().requires_grad());
        let v = Tensor::from_vec(values, [1, ROWS, WIDTH], &device)?.requires_grad();
        let attend = || q.attention(&k, &v, &Attention::new().scale(near));
        q.narrow(1, 0, 4)?.attention(&k, &v, &Attention::new())?; // the trial of kernels has buffers of its own
        device.synchronize()?;
        let before = device.memory().live;
        device.reset_peak_memory();
        let out = attend()?;
        device.synchronize()?;
        let forward = device.memory().peak - before;
        out.sum_all()?.backward()?;
        device.synchronize()?;
        let both = device.memory().peak - before;
        let scores = (4 * ROWS * ROWS) as u64;
        assert!(forward <= bytes + scores / 30, "{device}: {forward} bytes for {bytes} of a result");
        assert!(both <= 8 * bytes + scores / 8, "{device}: {both} bytes with gradients of {bytes} each");
        for (i, got) in out.to_vec::<f32>()?.iter().enumerate().step_by(61) {
            let (class, column) = (i / WIDTH % WIDTH, i % WIDTH);
            let sum: f64 = (0..ROWS).map(|row| weight(row % WIDTH == class) * value(row, column)).sum();
            let expected = sum / total(class);
            assert!((f64::from(*got) - expected).abs() < 1e-5, "{device}: element {i}: {got}, not {expected}");
        }
        // Of the sum of the results, the gradient of each element of a value is the sum of the weights of its row.
        for (i, got) in v.grad().expect("a gradient").to_vec::<f32>()?.iter().enumerate() {
            let class = i / WIDTH % WIDTH;
            let expected: f64 = (0..WIDTH).map(|c| of_class[c] as f64 * weight(c == class) / total(c)).sum();
            assert!((f64::from(*got) - expected).abs() < 1e-4, "{device}: gradient {i}: {got}, not {expected}");
        }
    }
    Ok(())
}
