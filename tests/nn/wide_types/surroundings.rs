//! 64-bit tensors in the other parts of the crate: loaders, modules, collectives, kernels of users, models.

use anygpu::data::{Array, DataLoader, TensorDataset};
use anygpu::kernel::WgslKernel;
use anygpu::nn::{Linear, Module, StateDict};
use anygpu::optim::{Adam, Optimizer};
use anygpu::parallel::{ReduceOp, all_gather, all_reduce};
use anygpu::{DType, Device, Result, Tensor};

use super::{LONGS, refused};
use crate::common::{adapters, devices};

#[test]
fn arrays_of_64_bits() -> Result<()> {
    let array = Array::new(LONGS.to_vec(), [2, 7])?;
    assert_eq!(array.as_slice::<i64>()?, LONGS);
    assert_eq!(Array::scalar(i64::MIN).as_slice::<i64>()?, [i64::MIN]);
    let tensor = Tensor::from_slice(&LONGS, [2, 7], None)?;
    assert_eq!(Array::from_tensor(&tensor)?, array);
    Ok(())
}

#[test]
fn labels_of_64_bits_are_loaded() -> Result<()> {
    let labels = Tensor::from_slice(&LONGS, LONGS.len(), None)?;
    let pixels = Tensor::arange(0.0, 42.0, 1.0, None)?.reshape([14, 3])?;
    for device in &devices() {
        // Of one tensor, and of samples one by one.
        for here in [&Device::cpu(), device] {
            let set = TensorDataset::new(&[&pixels.to(here)?, &labels.to(here)?])?;
            let mut all = Vec::new();
            for batch in &DataLoader::new(set, 4)?.prefetch(device) {
                let (x, y) = batch?;
                assert_eq!((y.device(), y.dtype(), x.shape()[0]), (device, DType::I64, y.elem_count()));
                all.extend(y.to_vec::<i64>()?);
            }
            assert_eq!(all, LONGS, "{device}");
        }
    }
    Ok(())
}

#[test]
fn collectives_copy_and_do_not_add() -> Result<()> {
    let all: Vec<Tensor> =
        devices().iter().map(|device| Tensor::from_slice(&LONGS, [14], device)).collect::<Result<_>>()?;
    for joined in all_gather(&all)? {
        assert_eq!(joined.to_vec::<i64>()?, LONGS.repeat(all.len()));
    }
    refused(all_reduce(&all, ReduceOp::Sum), &["all_reduce", "i64"]);
    let doubles = ["cpu/0", "cpu/1"].map(|name| Tensor::from_f64(&[1.0], 1, name));
    let doubles = doubles.into_iter().collect::<Result<Vec<_>>>()?;
    refused(all_reduce(&doubles, ReduceOp::Sum), &["all_reduce", "f64"]);
    Ok(())
}

#[test]
fn kernels_of_users_have_no_64_bits() -> Result<()> {
    let source = "
        @group(0) @binding(0) var<storage, read> x: array<u32>;
        @group(0) @binding(1) var<storage, read_write> y: array<u32>;
        @compute @workgroup_size(1)
        fn first() { y[0] = x[0]; }";
    let kernel = WgslKernel::new(source, "first")?;
    for device in &adapters() {
        let (x, word) = (Tensor::from_slice(&LONGS, [14], device)?, Tensor::full([4], 7u32, device)?);
        refused(kernel.on(device).input("x", &x).output("y", ([1], DType::U32)).dispatch(1), &["i64"]);
        refused(kernel.on(device).input("x", &word).output("y", ([1], DType::I64)).dispatch(1), &["i64"]);
        refused(kernel.on(device).input("x", &word).output("y", ([1], DType::F64)).dispatch(1), &["f64"]);
    }
    Ok(())
}

#[test]
fn modules_and_optimisers_of_doubles_say_what_they_take() -> Result<()> {
    let leaf = Tensor::from_f64(&[1.0, 2.0], 2, None)?.requires_grad();
    leaf.set_grad(Some(Tensor::from_f64(&[1.0, 1.0], 2, None)?));
    refused(Adam::new(vec![leaf.clone()], 0.1).step(), &["f64"]);
    let layer = Linear::new(2, 2)?;
    let mut state = layer.state_dict();
    let weight = Tensor::from_f64(&[0.1, 0.2, 0.3, 0.4], [2, 2], None)?;
    state.insert("weight", weight.clone());
    // As other types do, they are converted to that of the parameter.
    layer.load_state_dict(&state, true)?;
    assert_eq!(layer.weight().to_vec::<f32>()?, weight.to_dtype(DType::F32)?.to_vec::<f32>()?);
    Ok(())
}

/// The state of an optimiser that a file has in f64 goes on in f32, on every device.
#[test]
fn states_of_optimisers_in_doubles_are_converted() -> Result<()> {
    for device in &devices() {
        let leaf = || Ok::<_, anygpu::Error>(Tensor::from_slice(&[1.0f32, 2.0], 2, device)?.requires_grad());
        let step = |adam: &mut Adam, leaf: &Tensor| {
            leaf.set_grad(Some(Tensor::from_slice(&[0.5f32, -1.0], 2, device)?));
            adam.step()
        };
        let (first, second) = (leaf()?, leaf()?);
        let (mut adam, mut other) = (Adam::new(vec![first.clone()], 0.1), Adam::new(vec![second.clone()], 0.1));
        step(&mut adam, &first)?;
        step(&mut other, &second)?;
        let mut state = StateDict::new();
        for (name, tensor) in adam.state_dict()?.iter() {
            let wide = if name.ends_with("step") { DType::I64 } else { DType::F64 };
            state.insert(name, tensor.to(Device::cpu())?.to_dtype(wide)?);
        }
        other.load_state_dict(&state)?;
        step(&mut adam, &first)?;
        step(&mut other, &second)?;
        assert_eq!(first.to_vec::<f32>()?, second.to_vec::<f32>()?, "{device}");
    }
    Ok(())
}
