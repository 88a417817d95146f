//! Collectives over every device and every mix, beside loops over the elements.

use std::time::{Duration, Instant};

use anygpu::parallel::{
    Handle, ReduceOp, all_gather, all_gather_async, all_reduce, all_reduce_async, all_to_all, all_to_all_async,
    broadcast, broadcast_async, gather, gather_async, reduce, reduce_async, reduce_scatter, reduce_scatter_async,
    scatter, scatter_async, scatter_sizes, split_sizes,
};
use anygpu::{DType, Device, Error, Result, Tensor};

use crate::common::devices;

/// Lists of one device to all of them: each device beside `cpu/1`, two logical devices of an adapter, and the whole machine.
fn mixes() -> Result<Vec<Vec<Device>>> {
    let all = devices();
    let mut mixes = vec![
        vec![Device::new("cpu/0")?],
        ["cpu/0", "cpu/1", "cpu/2"].map(Device::new).into_iter().collect::<Result<_>>()?,
    ];
    for device in all.iter().filter(|device| !device.is_cpu()) {
        mixes.push(vec![Device::new("cpu/1")?, device.clone()]);
        if own(device) {
            let logical = |i: u32| Device::new(&format!("{device}/{i}"));
            mixes.push(vec![logical(0)?, Device::new("cpu/1")?, logical(1)?]);
        }
    }
    mixes.push(all);
    Ok(mixes)
}

/// Whether an adapter can have further devices.
fn own(device: &Device) -> bool {
    !device.is_cpu() && device.info().api != "GL" && !device.name().contains('/')
}

/// Whole numbers, which every order of sums gives exactly; others for each device.
fn value(device: usize, i: usize) -> f32 {
    ((i * 7 + device * 31) % 101) as f32 - 50.0
}

fn values(device: usize, len: usize) -> Vec<f32> {
    (0..len).map(|i| value(device, i)).collect()
}

fn tensors(mix: &[Device], len: usize) -> Result<Vec<Tensor>> {
    mix.iter().enumerate().map(|(i, device)| Tensor::from_vec(values(i, len), len, device)).collect()
}

fn read(tensors: &[Tensor]) -> Result<Vec<Vec<f32>>> {
    tensors.iter().map(|tensor| tensor.to_dtype(DType::F32)?.to_vec()).collect()
}

fn on(tensors: &[Tensor], mix: &[Device]) -> bool {
    tensors.iter().map(Tensor::device).eq(mix)
}

/// The blocking result, after a check that the handle gives the same.
#[track_caller]
fn both(now: Vec<Tensor>, later: Handle<Vec<Tensor>>) -> Result<Vec<Vec<f32>>> {
    let (now, later) = (read(&now)?, read(&later.wait()?)?);
    assert!(now == later, "the handle gives other elements");
    Ok(now)
}

/// More elements than a chunk are slow on four software adapters: only some mixes have them.
const SIZES: [usize; 4] = [0, 1, 7, 1_000_003];

fn cases() -> Result<impl Iterator<Item = (Vec<Device>, usize)>> {
    Ok(mixes()?.into_iter().flat_map(|mix| SIZES.map(|len| (mix.clone(), len))))
}

#[test]
fn reductions_are_those_of_a_loop() -> Result<()> {
    type Two = fn(f32, f32) -> f32;
    let ops: [(ReduceOp, Two); 4] = [
        (ReduceOp::Sum, |a, b| a + b),
        (ReduceOp::Product, |a, b| a * b),
        (ReduceOp::Min, f32::min),
        (ReduceOp::Max, f32::max),
    ];
    for (mix, len) in cases()? {
        for (op, two) in ops.iter().filter(|(op, _)| len < 100 || *op == ReduceOp::Sum) {
            let at = |i: usize| (1..mix.len()).fold(value(0, i), |sum, device| two(sum, value(device, i)));
            let expected: Vec<f32> = (0..len).map(at).collect();
            let what = format!("{op:?} of {len} on {mix:?}");
            let x = tensors(&mix, len)?;
            assert!(reduce(&x, &mix[0], op.clone())?.to_vec::<f32>()? == expected, "{what}");
            assert!(reduce_async(&x, &Device::cpu(), op.clone())?.wait()?.to_vec::<f32>()? == expected, "{what}");
            let parts = reduce_scatter(&x, op.clone(), None)?;
            assert!(on(&parts, &mix), "{what}");
            let parts = both(parts, reduce_scatter_async(&x, op.clone(), None)?)?;
            assert!(parts.iter().map(Vec::len).eq(split_sizes(len, &vec![1.0; mix.len()])), "{what}");
            assert!(parts.concat() == expected, "{what}");
            let twice = tensors(&mix, len)?;
            all_reduce(&x, op.clone())?;
            all_reduce_async(&twice, op.clone())?.wait()?;
            for elements in read(&x)?.into_iter().chain(read(&twice)?) {
                assert!(elements == expected, "{what}");
            }
        }
    }
    Ok(())
}

#[test]
fn means_are_weighted() -> Result<()> {
    for mix in mixes()? {
        let weights: Vec<f64> = (0..mix.len()).map(|i| (i % 3) as f64 + 0.5).collect();
        let total: f64 = weights.iter().sum();
        let mean = |weights: &[f64], total: f64, i: usize| {
            (0..mix.len()).map(|device| weights[device] / total * f64::from(value(device, i))).sum::<f64>()
        };
        let near = |got: &Tensor, weights: &[f64], total: f64| -> Result<bool> {
            let got = got.to_vec::<f32>()?;
            Ok(got.iter().enumerate().all(|(i, v)| (f64::from(*v) - mean(weights, total, i)).abs() < 1e-4))
        };
        let (x, ones) = (tensors(&mix, 1000)?, vec![1.0; mix.len()]);
        assert!(near(&reduce(&x, &mix[0], ReduceOp::Mean)?, &ones, mix.len() as f64)?, "{mix:?}");
        all_reduce(&x, ReduceOp::WeightedMean(weights.clone()))?;
        for tensor in &x {
            assert!(near(
                tensor,
                if mix.len() == 1 { &ones } else { &weights },
                if mix.len() == 1 { 1.0 } else { total }
            )?);
        }
        let bits =
            |tensor: &Tensor| tensor.to_vec::<f32>().map(|v| v.into_iter().map(f32::to_bits).collect::<Vec<_>>());
        let first = bits(&x[0])?;
        assert!(x.iter().all(|tensor| bits(tensor).is_ok_and(|bits| bits == first)), "all devices have the same bits");
    }
    Ok(())
}

#[test]
fn moves_are_those_of_a_loop() -> Result<()> {
    for (mix, len) in cases()? {
        let what = format!("{len} on {mix:?}");
        for source in [&mix[0], &mix[mix.len() - 1]] {
            let x = Tensor::from_vec(values(3, len), len, source)?;
            let copies = broadcast(&x, &mix)?;
            assert!(on(&copies, &mix), "{what}");
            assert!(both(copies, broadcast_async(&x, &mix)?)?.iter().all(|copy| *copy == values(3, len)), "{what}");
            let parts = scatter(&x, &mix)?;
            assert!(on(&parts, &mix), "{what}");
            assert!(gather(&parts, source)?.to_vec::<f32>()? == values(3, len), "{what}");
            assert!(both(parts, scatter_async(&x, &mix, None)?)?.concat() == values(3, len), "{what}");
        }
        // Unequal lengths: device i has i elements more.
        let unequal = mix.iter().enumerate().map(|(i, device)| Tensor::from_vec(values(i, len + i), len + i, device));
        let unequal: Vec<Tensor> = unequal.collect::<Result<_>>()?;
        let whole = (0..mix.len()).flat_map(|i| values(i, len + i)).collect::<Vec<f32>>();
        assert!(gather(&unequal, &mix[0])?.to_vec::<f32>()? == whole, "{what}");
        assert!(gather_async(&unequal, &Device::cpu())?.wait()?.to_vec::<f32>()? == whole, "{what}");
        let all = all_gather(&unequal)?;
        assert!(on(&all, &mix), "{what}");
        assert!(both(all, all_gather_async(&unequal)?)?.iter().all(|copy| *copy == whole), "{what}");
    }
    Ok(())
}

#[test]
fn parts_of_all_go_to_all() -> Result<()> {
    for (mix, len) in cases()? {
        let n = mix.len();
        let x = tensors(&mix, len)?;
        // To device j go the rows from len·j²/n² to len·(j + 1)²/n²; and of device 1, all go to device 0.
        let start = |j: usize| len * j * j / (n * n);
        let mut sizes: Vec<Vec<usize>> = vec![(0..n).map(|j| start(j + 1) - start(j)).collect(); n];
        if n > 1 {
            sizes[1] = vec![0; n];
            sizes[1][0] = len;
        }
        for sizes in [None, Some(&sizes[..])] {
            let of = |i: usize| sizes.map_or_else(|| split_sizes(len, &vec![1.0; n]), |sizes| sizes[i].clone());
            let parts = all_to_all(&x, sizes)?;
            assert!(on(&parts, &mix));
            let parts = both(parts, all_to_all_async(&x, sizes)?)?;
            for (j, part) in parts.iter().enumerate() {
                let from = |i: usize| {
                    let first: usize = of(i)[..j].iter().sum();
                    values(i, len)[first..first + of(i)[j]].to_vec()
                };
                assert!(*part == (0..n).flat_map(from).collect::<Vec<f32>>(), "{len} to {j} of {mix:?} by {sizes:?}");
            }
        }
    }
    Ok(())
}

/// Types of 16 and 8 bits, whose parts begin within words, and whole numbers.
#[test]
fn every_type_and_view() -> Result<()> {
    for mix in mixes()? {
        let n = mix.len();
        for dtype in DType::ALL.into_iter().filter(|&dtype| dtype != DType::F64) {
            let x = tensors(&mix, 7)?.iter().map(|x| x.gt(0.0)?.to_dtype(dtype)).collect::<Result<Vec<_>>>()?;
            let expected = |i: usize| values(i, 7).into_iter().map(|v| f32::from(v > 0.0)).collect::<Vec<f32>>();
            let whole: Vec<f32> = (0..n).flat_map(expected).collect();
            let all = all_gather(&x)?;
            assert!(all.iter().all(|joined| joined.dtype() == dtype && joined.shape() == [7 * n]));
            assert!(read(&all)?.iter().all(|joined| *joined == whole), "{dtype} on {mix:?}");
            assert_eq!(read(&scatter(&all[0], &mix)?)?.concat(), whole, "{dtype} on {mix:?}");
            assert_eq!(read(&all_to_all(&x, None)?)?.concat().len(), 7 * n);
            let sum: Vec<f32> = (0..7).map(|i| (0..n).map(|device| expected(device)[i]).sum()).collect();
            if matches!(dtype, DType::U8 | DType::Bool | DType::I64) {
                assert!(matches!(all_reduce(&x, ReduceOp::Sum), Err(Error::DTypeMismatch { op: "all_reduce", .. })));
                continue;
            }
            assert_eq!(read(&reduce_scatter(&x, ReduceOp::Sum, None)?)?.concat(), sum, "{dtype} on {mix:?}");
            all_reduce(&x, ReduceOp::Sum)?;
            for (tensor, elements) in x.iter().zip(read(&x)?) {
                assert_eq!((tensor.dtype(), elements), (dtype, sum.clone()), "{mix:?}");
            }
        }
        // Columns of a matrix, with gaps between the elements, in place.
        let wide = mix.iter().enumerate().map(|(i, device)| Tensor::from_vec(values(i, 12), [4, 3], device));
        let wide: Vec<Tensor> = wide.collect::<Result<_>>()?;
        let columns = wide.iter().map(|x| x.narrow(1, 1, 1)).collect::<Result<Vec<_>>>()?;
        all_reduce(&columns, ReduceOp::Sum)?;
        for (device, elements) in read(&wide)?.iter().enumerate() {
            for (i, v) in elements.iter().enumerate() {
                let sum: f32 = (0..n).map(|device| value(device, i)).sum();
                assert_eq!(*v, if i % 3 == 1 { sum } else { value(device, i) }, "{mix:?}");
            }
        }
    }
    Ok(())
}

/// Several are in flight, and end in any order; the bits are those of the blocking calls.
#[test]
fn many_in_flight() -> Result<()> {
    for mix in mixes()? {
        let data: Vec<Vec<Tensor>> = (0..6).map(|round| tensors(&mix, 1000 * round + 3)).collect::<Result<_>>()?;
        let thirds = |x: &Tensor| x.mul_scalar(1.0 / 3.0);
        let data: Vec<Vec<Tensor>> =
            data.iter().map(|list| list.iter().map(thirds).collect()).collect::<Result<_>>()?;
        let expected = data.iter().map(|list| reduce(list, &Device::cpu(), ReduceOp::Mean)?.to_vec::<f32>());
        let expected: Vec<Vec<f32>> = expected.collect::<Result<_>>()?;
        let handles = data.iter().map(|list| all_reduce_async(list, ReduceOp::Mean)).collect::<Result<Vec<_>>>()?;
        for handle in handles.into_iter().rev() {
            handle.wait()?;
        }
        if mix.len() > 1 {
            for (list, expected) in data.iter().zip(&expected) {
                assert!(read(list)?.iter().all(|elements| elements == expected), "{mix:?}");
            }
        }
        // What nobody waits for ends too, and what is asked for again and again.
        drop(all_gather_async(&data[5])?);
        let handle = all_gather_async(&data[4])?;
        let start = Instant::now();
        while !handle.is_done() {
            assert!(start.elapsed() < Duration::from_secs(60));
            std::thread::sleep(Duration::from_millis(1));
        }
        handle.wait()?;
    }
    Ok(())
}

/// Gradients flow through the blocking forms of those that only move.
#[test]
fn gradients_flow_back() -> Result<()> {
    for mix in mixes()? {
        let x = Tensor::from_vec(values(0, 5), 5, &mix[0])?.requires_grad();
        let parts = scatter_sizes(&x, &mix, &[vec![0; mix.len() - 1], vec![5]].concat())?;
        gather(&parts, &mix[0])?.mul_scalar(3.0)?.sum_all()?.backward()?;
        assert_eq!(x.grad().expect("a gradient").to_vec::<f32>()?, [3.0; 5], "{mix:?}");
        x.set_grad(None);
        for copy in broadcast(&x, &mix)? {
            copy.sum_all()?.backward()?;
        }
        assert_eq!(x.grad().expect("a gradient").to_vec::<f32>()?, [mix.len() as f32; 5], "{mix:?}");
        assert!(!broadcast_async(&x, &mix)?.wait()?[mix.len() - 1].is_tracked() || mix.len() == 1);
    }
    Ok(())
}

/// A device that is listed twice gets two parts, and they come back in their order.
#[test]
fn a_device_can_have_several_parts() -> Result<()> {
    for device in devices() {
        let list = [device.clone(), Device::new("cpu/1")?, device.clone()];
        for from in [Device::cpu(), device.clone()] {
            let x = Tensor::arange(0.0, 35.0, 1.0, &from)?.reshape([7, 5])?;
            let tracked = x.copy()?.requires_grad();
            for parts in [scatter(&x, &list)?, scatter_async(&x, &list, None)?.wait()?, scatter(&tracked, &list)?] {
                let sizes: Vec<usize> = parts.iter().map(|part| part.shape()[0]).collect();
                assert_eq!(sizes, split_sizes(7, &[1.0; 3]));
                assert!(parts.iter().zip(&list).all(|(part, device)| part.device() == device), "{device}");
                let whole = gather(&parts, &from)?;
                assert_eq!((whole.shape(), whole.to_vec::<f32>()?), (&[7, 5][..], x.to_vec::<f32>()?), "{device}");
                if parts[0].is_tracked() {
                    (&whole * 2.0)?.sum_all()?.backward()?;
                    assert_eq!(tracked.grad().expect("a gradient").to_vec::<f32>()?, [2.0; 35], "{device}");
                }
            }
        }
        let twice = broadcast(&Tensor::ones([3], None)?, &[device.clone(), device.clone()]).unwrap_err().to_string();
        let base = device.name().split('/').next().unwrap_or_default();
        let logical = format!("such as {base}/0 and {base}/1");
        assert!(twice.contains(&format!("device {device} is listed twice")), "{twice}");
        assert_eq!(twice.contains(&logical), device.info().api != "GL", "{twice}");
    }
    Ok(())
}

#[test]
fn wrong_arguments_are_typed_errors() -> Result<()> {
    let two = ["cpu/0", "cpu/1"].map(Device::new).into_iter().collect::<Result<Vec<_>>>()?;
    let twice = [two[0].clone(), two[0].clone()];
    let x = tensors(&two, 4)?;
    let argument = |result: Result<()>, text: &str| match result {
        Err(Error::InvalidArgument { detail, .. }) => assert!(detail.contains(text), "{detail}"),
        other => panic!("{text}: {other:?}"),
    };
    argument(broadcast(&x[0], &[]).map(drop), "empty");
    argument(
        broadcast(&x[0], &twice).map(drop),
        "cpu is listed twice: list it once, or list logical devices of it, such as cpu/0",
    );
    argument(gather(&[], &two[0]).map(drop), "empty");
    argument(all_reduce(&[], ReduceOp::Sum), "empty");
    argument(all_reduce(&[x[0].clone(), x[0].clone()], ReduceOp::Sum), "twice");
    argument(all_gather(&[x[0].clone(), x[0].copy()?]).map(drop), "twice");
    argument(scatter(&Tensor::scalar(1.0, None)?, &two).map(drop), "scalar");
    argument(scatter_sizes(&x[0], &two, &[3, 2]).map(drop), "add up to the first dimension, 4");
    argument(scatter_sizes(&x[0], &two, &[usize::MAX, 5]).map(drop), "add up");
    argument(reduce_scatter(&x, ReduceOp::Sum, Some(&[4])).map(drop), "there must be 2");
    argument(all_to_all(&x, Some(&[vec![1, 3]])).map(drop), "2 tensors and 1 lists");
    argument(all_to_all(&x, Some(&[vec![1, 3], vec![9, 9]])).map(drop), "[9, 9]");
    for weights in [vec![], vec![1.0], vec![0.0, 0.0], vec![-1.0, 2.0], vec![f64::NAN, 1.0]] {
        argument(all_reduce(&x, ReduceOp::WeightedMean(weights)), "weight");
    }
    let whole = [Tensor::new([1, 2], &two[0])?, Tensor::new([1, 2], &two[1])?];
    argument(all_reduce(&whole, ReduceOp::Mean), "mean of i32");
    let unequal = [x[0].clone(), Tensor::zeros([5], &two[1])?];
    assert!(matches!(all_reduce_async(&unequal, ReduceOp::Sum), Err(Error::ShapeMismatch { op: "all_reduce", .. })));
    let columns = [Tensor::zeros([2, 3], &two[0])?, Tensor::zeros([2, 4], &two[1])?];
    assert!(matches!(all_gather(&columns), Err(Error::ShapeMismatch { op: "all_gather", .. })));
    let types = [x[0].clone(), whole[1].clone()];
    assert!(matches!(gather(&types, &two[0]), Err(Error::DTypeMismatch { op: "gather", .. })));
    assert!(matches!(
        reduce(&[x[0].clone(), x[1].to_dtype(DType::F16)?], &two[0], ReduceOp::Sum),
        Err(Error::DTypeMismatch { .. })
    ));
    Ok(())
}

/// A device that is lost, before or meanwhile, is named soon, and the others go on working.
#[test]
fn a_lost_device_is_named() -> Result<()> {
    for device in devices().iter().filter(|device| own(device)) {
        let (lost, cpu) = (Device::new(&format!("{device}/14"))?, Device::new("cpu/1")?);
        let mix = [cpu, lost.clone()];
        let (x, y) = (tensors(&mix, 700_000)?, tensors(&mix, 700_000)?);
        let meanwhile = all_reduce_async(&y, ReduceOp::Sum)?;
        lost.lose()?;
        let start = Instant::now();
        let named = |error: &Error| error.is_device_lost() && error.to_string().contains(lost.name());
        assert!(meanwhile.wait().map_or_else(|error| named(&error), |()| true), "{device}"); // it may have been done
        let errors = [
            all_reduce(&x, ReduceOp::Sum).map(drop).unwrap_err(),
            gather(&x, &mix[0]).map(drop).unwrap_err(),
            broadcast(&x[0], &mix).map(drop).unwrap_err(),
            all_to_all_async(&x, None).and_then(Handle::wait).map(drop).unwrap_err(),
        ];
        assert!(errors.iter().all(named), "{errors:?}");
        assert!(start.elapsed() < Duration::from_secs(60), "{device}");
        all_reduce(&x[..1], ReduceOp::Sum)?;
    }
    Ok(())
}
