//! Metrics accumulated on the device: correct on every device and over several at once, without reading back.

use anygpu::metrics::{Accuracy, ConfusionMatrix, Mean, Timer};
use anygpu::{DType, Device, Result, Tensor, autocast};

use crate::common::{alone, devices_in_turn};

/// Three batches of logits `[N, 4]` with labels.
fn batches() -> Result<Vec<(Tensor, Tensor)>> {
    let logits = |rows: &[[f32; 4]]| Tensor::from_slice(rows.as_flattened(), [rows.len(), 4], None);
    let labels = |labels: &[u32]| Tensor::from_slice(labels, labels.len(), None);
    Ok(vec![
        (logits(&[[0.1, 0.9, 0.0, 0.2], [3.0, 2.0, 1.0, 0.0]])?, labels(&[1, 2])?),
        (logits(&[[-1.0, -2.0, -0.5, -9.0]])?, labels(&[2])?),
        (logits(&[[1.0, 1.0, 1.0, 1.0], [0.0, 5.0, 6.0, 7.0], [9.0, 8.0, 0.0, 0.0]])?, labels(&[1, 0, 1])?),
    ])
}

#[test]
fn accuracies_and_confusions_add_up_on_every_device() -> Result<()> {
    let _alone = alone();
    let all = devices_in_turn();
    let mixed: Vec<_> = all.iter().cycle().take(3).collect();
    for place in all.iter().map(|device| vec![device; 3]).chain([mixed]) {
        let (mut first, mut second, mut all) = (Accuracy::new(), Accuracy::top(2), Accuracy::top(4));
        let mut matrix = ConfusionMatrix::new(4);
        for ((logits, labels), device) in batches()?.iter().zip(&place) {
            let logits = logits.to(device)?.requires_grad();
            for accuracy in [&mut first, &mut second, &mut all] {
                accuracy.add(&logits, labels)?; // labels from the host
            }
            matrix.add(&logits, &labels.to(device)?)?;
        }
        // Right: rows 0 and 2 (of equal logits the first counts); among two: also rows 3 and 5.
        assert_eq!((first.count(), first.value()?, second.value()?, all.value()?), (6, 2.0 / 6.0, 4.0 / 6.0, 1.0));
        let expected = vec![vec![0, 0, 0, 1], vec![2, 1, 0, 0], vec![1, 0, 1, 0], vec![0; 4]];
        assert_eq!(matrix.value()?, expected, "{place:?}");
        first.reset();
        matrix.reset();
        assert!(first.value()?.is_nan());
        assert_eq!(matrix.value()?, vec![vec![0; 4]; 4]);
    }
    Ok(())
}

#[test]
fn a_mean_is_by_samples_and_over_devices() -> Result<()> {
    let _alone = alone();
    let mut mean = Mean::new();
    for (i, device) in devices_in_turn().iter().enumerate() {
        mean.add(&Tensor::scalar(i as f32, device)?.requires_grad(), i + 1)?;
        mean.add(&Tensor::full([1], i as f32, device)?, 1)?;
    }
    let n = devices_in_turn().len();
    let (sum, count): (usize, usize) = (0..n).fold((0, 0), |(sum, count), i| (sum + i * (i + 2), count + i + 2));
    assert_eq!(mean.count(), count);
    assert!((mean.value()? - sum as f64 / count as f64).abs() < 1e-6);
    assert!(mean.add(&Tensor::zeros([2], None)?, 2).is_err());
    mean.add(&Tensor::scalar(f32::NAN, None)?, 1)?;
    assert!(mean.value()?.is_nan(), "a loss that is no number must show");
    Ok(())
}

/// Thousands of batches: neither memory nor the error grows with them.
#[test]
fn long_sums_stay_small_and_right() -> Result<()> {
    let _alone = alone();
    for device in devices_in_turn() {
        let (mut mean, mut accuracy) = (Mean::new(), Accuracy::new());
        let loss = Tensor::scalar(0.1f32, &device)?;
        let logits = Tensor::from_slice(&[0.0f32, 1.0, 1.0, 0.0], [2, 2], &device)?;
        let labels = Tensor::from_slice(&[1u32, 1], 2, &device)?;
        let before = device.memory().live;
        for _ in 0..3000 {
            mean.add(&loss, 64)?;
            accuracy.add(&logits, &labels)?;
        }
        let grown = device.memory().live.saturating_sub(before);
        assert!(device.is_cpu() || grown < 64 << 10, "{grown} bytes more on {device}");
        assert!((mean.value()? - 0.1).abs() < 1e-5, "{} on {device}", mean.value()?);
        assert_eq!(accuracy.value()?, 0.5, "{device}");
    }
    Ok(())
}

#[test]
fn what_does_not_fit_is_said() -> Result<()> {
    let _alone = alone();
    let (logits, labels) = (Tensor::zeros([3, 4], None)?, Tensor::from_slice(&[0u32, 1], 2, None)?);
    assert!(Accuracy::new().add(&logits, &labels).unwrap_err().to_string().contains("[3, 4] and [2]"));
    let labels = Tensor::from_slice(&[0u32, 1, 2], 3, None)?;
    assert!(Accuracy::top(5).add(&logits, &labels).is_err());
    assert!(ConfusionMatrix::new(3).add(&logits, &labels).is_err());
    Ok(())
}

#[test]
fn counts_within_autocast_are_exact() -> Result<()> {
    let _alone = alone();
    for device in &devices_in_turn() {
        let n = 3000; // more than f16 counts to
        let logits = Tensor::try_from([[1.0f32, 0.0]])?.to(device)?.broadcast_to([n, 2])?;
        let labels = Tensor::zeros([n], device)?.to_dtype(DType::U32)?;
        let (mut matrix, mut accuracy, mut mean) = (ConfusionMatrix::new(2), Accuracy::new(), Mean::new());
        for dtype in [DType::F16, DType::BF16] {
            autocast(dtype, || {
                matrix.add(&logits, &labels)?;
                accuracy.add(&logits, &labels)?;
                mean.add(&Tensor::scalar(0.1f32, device)?, n)
            })?;
        }
        assert_eq!(matrix.value()?, [[6000, 0], [0, 0]], "{device}");
        assert_eq!(accuracy.value()?, 1.0, "{device}");
        assert!((mean.value()? - f64::from(0.1f32)).abs() < 1e-7, "{device}");
    }
    Ok(())
}

#[test]
fn pixels_count_as_samples_do() -> Result<()> {
    let _alone = alone();
    for device in &devices_in_turn() {
        // Two images of 1 × 2 pixels in three classes: the greatest are 0, 2 and 1, 1.
        let logits = [9.0f32, 0.0, 1.0, 0.0, 2.0, 7.0, 0.0, 1.0, 3.0, 4.0, 2.0, 2.0];
        let logits = Tensor::from_slice(&logits, [2, 3, 1, 2], device)?;
        let labels = Tensor::from_slice(&[0u32, 2, 1, 0], [2, 1, 2], device)?;
        let (mut accuracy, mut two, mut matrix) = (Accuracy::new(), Accuracy::top(2), ConfusionMatrix::new(3));
        accuracy.add(&logits, &labels)?;
        two.add(&logits, &labels)?;
        matrix.add(&logits, &labels)?;
        assert_eq!((accuracy.value()?, accuracy.count(), two.value()?), (0.75, 4, 0.75), "{device}");
        assert_eq!(matrix.value()?, [[1, 1, 0], [0, 1, 0], [0, 0, 1]], "{device}");
        assert!(accuracy.add(&logits, &labels.reshape([2, 2])?).is_err());
    }
    Ok(())
}

/// On a device, a lap ends when the work is done: nothing is left to wait for.
#[test]
fn a_timer_measures_finished_work() -> Result<()> {
    let _alone = alone();
    for device in devices_in_turn() {
        // A logical device of its own, where there can be one: other tests would keep this one busy.
        let (name, info) = (device.to_string(), device.info());
        let adapter = name.split('/').next().expect("a name");
        let busy = !device.is_cpu() && info.api != "GL";
        let device = if busy { Device::new(&format!("{adapter}/13"))? } else { device };
        let x = Tensor::rand([64, 64], &device)?;
        let product = |times: usize| (0..times).try_fold(x.clone(), |y, _| y.matmul(&x)?.mul(1e-2));
        product(1)?; // compiles
        let mut timer = Timer::on(&[&device, &Device::cpu()])?;
        let y = product(5)?;
        let lap = timer.stop()?;
        let wait = std::time::Instant::now();
        y.narrow(0, 0, 1)?.narrow(1, 0, 1)?.item::<f32>()?;
        let left = wait.elapsed().as_secs_f64();
        assert!(lap > 0.0 && left < lap.max(0.2), "{device}: {lap} s, and {left} s more for the result");
        timer.start()?;
        timer.stop()?;
        assert_eq!((timer.times().len(), timer.cumsum().len()), (2, 2));
        assert!((timer.sum() - 2.0 * timer.avg()).abs() < 1e-9 && timer.times()[0] == lap);
        assert!((timer.cumsum()[1] - timer.sum()).abs() < 1e-9);
        let error = timer.stop().unwrap_err().to_string();
        assert!(error.starts_with("Timer::stop: no lap is running"), "{error}");
    }
    let mut host = Timer::new();
    assert!(host.avg().is_nan() && host.stop()? >= 0.0);
    Ok(())
}
