//! Layers that are computed together with what follows them: the same values, gradients, names and summaries as one after
//! the other, with fewer kernels.

use anygpu::nn::{BatchNorm1d, BatchNorm2d, Conv2d, Linear, Module, ReLU, Sequential};
use anygpu::{DataParallel, Device, Result, Tensor, nn, no_grad};

use crate::common::{alone, devices};

/// Values between −1 and 1 that look random.
fn values(shape: &[usize], seed: usize, device: &Device) -> Result<Tensor> {
    let count = shape.iter().product::<usize>();
    let all: Vec<f32> = (0..count).map(|i| ((i * 7919 + seed * 104_729) % 2003) as f32 / 1001.0 - 1.0).collect();
    Tensor::from_vec(all, shape, device)
}

/// Gradients of the leaves of Σ y · values.
fn gradients(y: &Tensor, leaves: &[&Tensor]) -> Result<Vec<Vec<f32>>> {
    y.mul(&values(y.shape(), 5, y.device())?)?.sum_all()?.backward()?;
    leaves.iter().map(|leaf| leaf.grad().expect("a gradient").to_vec()).collect()
}

fn close(a: &[f32], b: &[f32], what: &str) {
    let far = a.iter().zip(b).position(|(a, b)| (a - b).abs() > 1e-4 * (1.0 + b.abs()));
    assert!(a.len() == b.len() && far.is_none(), "{what}: {far:?} {a:?} {b:?}");
}

#[test]
fn batch_norm_with_relu_is_both_one_after_the_other() -> Result<()> {
    let _alone = alone();
    for device in devices() {
        for shape in [[4, 3, 5, 5], [4, 3, 4, 6], [2, 64, 3, 3], [1, 5, 7, 1]] {
            for training in [true, false] {
                let norms = [BatchNorm2d::new(shape[1])?.to(&device)?, BatchNorm2d::new(shape[1])?.to(&device)?];
                norms.iter().for_each(|norm| norm.set_training(training));
                let mut all = Vec::new();
                for (norm, joined) in norms.iter().zip([true, false]) {
                    no_grad(|| norm.weight().copy_(&values(&[shape[1]], 1, &device)?))?;
                    no_grad(|| norm.bias().copy_(&values(&[shape[1]], 2, &device)?))?;
                    let x = values(&shape, 3, &device)?.requires_grad();
                    let residual = values(&shape, 4, &device)?.requires_grad();
                    let y = match joined {
                        true => norm.forward_add_relu(&norm.forward_relu(&x)?, &residual)?,
                        false => norm.forward(&norm.forward(&x)?.relu()?)?.add(&residual)?.relu()?,
                    };
                    let mut results = vec![y.to_vec()?];
                    results.extend(gradients(&y, &[&x, &residual, norm.weight(), norm.bias()])?);
                    let buffers = norm.named_buffers();
                    results.extend(buffers.iter().map(|(_, buffer)| buffer.to_vec()).collect::<Result<Vec<_>>>()?);
                    all.push(results);
                }
                for (i, (a, b)) in all[0].iter().zip(&all[1]).enumerate() {
                    close(a, b, &format!("result {i} of {shape:?} in training {training} on {device}"));
                }
            }
        }
    }
    Ok(())
}

#[test]
fn nan_passes_through_and_keeps_its_gradient() -> Result<()> {
    let _alone = alone();
    for device in devices() {
        let x = Tensor::from_slice(&[f32::NAN, 1.0, -1.0, 2.0, -2.0, 3.0], [3, 2], &device)?.requires_grad();
        let (mean, variance) = (Tensor::zeros([2], &device)?, Tensor::ones([2], &device)?);
        let y = x.batch_norm_relu(Some((&mean, &variance)), None, None, false, 0.1, 0.0)?;
        let read = y.to_vec::<f32>()?;
        assert!(read[0].is_nan() && read[1..] == [1.0, 0.0, 2.0, 0.0, 3.0], "{read:?} on {device}");
        y.sum_all()?.backward()?;
        assert_eq!(x.grad().expect("a gradient").to_vec::<f32>()?, [1.0, 1.0, 0.0, 1.0, 0.0, 1.0], "{device}");
        let plain = x.detach().batch_norm(Some((&mean, &variance)), None, None, false, 0.1, 0.0)?.relu()?;
        assert!(plain.to_vec::<f32>()?[0].is_nan());
    }
    Ok(())
}

#[test]
fn a_sequential_joins_layers_but_not_in_summaries_and_errors() -> Result<()> {
    let _alone = alone();
    let net = Sequential::new()
        .add("conv", Conv2d::new(1, 4, 3)?)
        .add("norm", BatchNorm2d::new(4)?)
        .add("relu", ReLU)
        .add("again", ReLU)
        .add("boxed", Box::new(Conv2d::new(4, 2, 1)?) as Box<dyn Module>)
        .add("last", ReLU);
    let x = values(&[2, 1, 6, 6], 1, &Device::cpu())?;
    for training in [true, false] {
        net.set_training(training);
        let mut y = x.clone();
        for (_, layer) in net.iter() {
            y = layer.forward(&y)?;
        }
        close(&net.forward(&x)?.to_vec::<f32>()?, &y.to_vec::<f32>()?, "the net");
    }
    let summary = net.summary(&[2, 1, 6, 6])?;
    for layer in &summary.layers()[1..] {
        assert!(layer.output.is_some(), "{} has no output", layer.name);
    }
    let (joined, alone) = (net.forward(&values(&[2, 4, 1], 1, &Device::cpu())?), net[0].forward(&x.narrow(0, 0, 1)?));
    assert!(joined.unwrap_err().to_string().contains("conv") && alone.is_ok());
    let wrong = Sequential::new().add("norm", BatchNorm1d::new(3)?).add("relu", ReLU).forward(&x).unwrap_err();
    assert!(wrong.to_string().contains("norm") && wrong.to_string().contains("BatchNorm1d"), "{wrong}");
    Ok(())
}

#[test]
fn replicas_join_the_statistics_of_norms_with_relu() -> Result<()> {
    let _alone = alone();
    let net = || -> Result<Sequential> {
        anygpu::manual_seed(1);
        Ok(Sequential::new().push(Linear::new(3, 8)?).push(BatchNorm1d::new(8)?).push(ReLU).push(Linear::new(8, 2)?))
    };
    let (x, y) = (values(&[9, 3], 1, &Device::cpu())?, Tensor::from_vec(vec![0u32, 1, 1, 0, 1, 0, 0, 1, 1], 9, None)?);
    let step = |devices: &[Device]| -> Result<(f32, Vec<f32>)> {
        let net = DataParallel::new(net()?, devices)?;
        let loss = net.train_batch(&x, &y, nn::cross_entropy)?.item::<f32>()?;
        Ok((loss, net.module().parameters()[0].grad().map_or(Ok(Vec::new()), |grad| grad.to_vec())?))
    };
    let one = step(&[Device::cpu()])?;
    let two = step(&Device::list("cpu/0,cpu/1")?)?;
    assert!((one.0 - two.0).abs() < 1e-5, "{} and {}", one.0, two.0);
    close(&one.1, &two.1, "the gradient of the first weight");
    Ok(())
}

#[test]
fn the_gradients_of_weight_and_bias_are_apart() -> Result<()> {
    let _alone = alone();
    for device in devices() {
        let norm = BatchNorm1d::new(2)?.to(&device)?;
        norm.forward_relu(&values(&[5, 2], 1, &device)?)?.sum_all()?.backward()?;
        let [weight, bias] = [norm.weight(), norm.bias()].map(|p| p.grad().expect("a gradient"));
        let before = bias.to_vec::<f32>()?;
        weight.zero_()?;
        assert_eq!((weight.to_vec::<f32>()?, bias.to_vec::<f32>()?), (vec![0.0; 2], before), "{device}");
    }
    Ok(())
}

#[test]
fn many_tensors_are_joined_by_few_kernels() -> Result<()> {
    let _alone = alone();
    for device in devices() {
        for sizes in [[4usize; 16], [5; 16], std::array::from_fn(|i| i % 5 * 3), std::array::from_fn(|i| 1000 * i + 4)]
        {
            let parts: Vec<Tensor> =
                sizes.iter().enumerate().map(|(i, size)| values(&[*size], i, &device)).collect::<Result<_>>()?;
            let expected: Vec<f32> =
                parts.iter().map(|part| part.to_vec::<f32>()).collect::<Result<Vec<_>>>()?.concat();
            let before = device.dispatches();
            let whole = Tensor::cat(&parts.iter().collect::<Vec<_>>(), 0)?;
            let kernels = device.dispatches() - before;
            assert!(kernels <= 3, "{kernels} kernels on {device}");
            assert_eq!(whole.to_vec::<f32>()?, expected, "{sizes:?} on {device}");
            let later: Vec<Tensor> = parts
                .iter()
                .map(|part| part.narrow(0, part.elem_count() / 2, part.elem_count() - part.elem_count() / 2))
                .collect::<Result<_>>()?;
            let expected: Vec<f32> =
                later.iter().map(|part| part.to_vec::<f32>()).collect::<Result<Vec<_>>>()?.concat();
            assert_eq!(Tensor::cat(&later.iter().collect::<Vec<_>>(), 0)?.to_vec::<f32>()?, expected, "{device}");
        }
    }
    Ok(())
}

#[test]
fn a_norm_with_relu_is_few_kernels() -> Result<()> {
    let _alone = alone();
    for device in devices().into_iter().filter(|device| !device.is_cpu()) {
        let norm = BatchNorm2d::new(4)?.to(&device)?;
        let (x, residual) = (values(&[2, 4, 4, 4], 1, &device)?.requires_grad(), values(&[2, 4, 4, 4], 2, &device)?);
        let residual = residual.requires_grad();
        let before = device.dispatches();
        let y = norm.forward_add_relu(&x, &residual)?;
        assert_eq!(device.dispatches() - before, 4, "moments in two, the op, the running statistics, on {device}");
        let sum = y.sum_all()?;
        let before = device.dispatches();
        sum.backward()?;
        let kernels = device.dispatches() - before;
        assert!(kernels <= 6, "{kernels}: ones, their copies, the sums in two, the op, on {device}");
    }
    Ok(())
}

/// Of what follows batch norm, the gradient reads the result only.
#[test]
fn a_residual_may_change_before_the_gradient() -> Result<()> {
    let _alone = alone();
    for device in devices() {
        let norm = BatchNorm2d::new(3)?.to(&device)?;
        let x = values(&[2, 3, 4, 4], 1, &device)?;
        let (leaf, residual) = (x.requires_grad(), values(&[2, 3, 4, 4], 2, &device)?);
        let y = norm.forward_add_relu(&leaf, &residual)?;
        residual.zero_()?;
        y.sum_all()?.backward()?;
        assert!(leaf.grad().is_some(), "{device}");
        // Only the residual has a gradient: 1 where the result is above 0.
        let residual = residual.copy()?.requires_grad();
        let y = norm.forward_add_relu(&x, &residual)?;
        y.sum_all()?.backward()?;
        let expected: Vec<f32> = y.to_vec::<f32>()?.iter().map(|y| f32::from(u8::from(*y > 0.0))).collect();
        assert_eq!(residual.grad().map(|grad| grad.to_vec::<f32>()).transpose()?, Some(expected), "{device}");
    }
    Ok(())
}
