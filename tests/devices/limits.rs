//! Sizes beyond the limits of an adapter: they either work or are an error that names the limit. The device works
//! afterwards.

use anygpu::{Device, Error, Result, Tensor, optim};

use crate::common::{adapters, devices};

/// 128 MiB: what lavapipe and llvmpipe let a kernel bind.
const BINDING: usize = 128 << 20;

/// That the error names a limit of WebGPU with what was needed and what there is, or says that memory is out.
#[track_caller]
fn names_the_limit(result: Result<Tensor>, device: &Device) {
    let text = match result {
        Ok(x) => panic!("{device}: made {:?}", x.shape()),
        Err(error @ (Error::LimitExceeded { .. } | Error::OutOfMemory { .. })) => error.to_string(),
        Err(error) => panic!("{device}: {error}"),
    };
    assert!(text.contains(device.name()) && text.chars().any(|c| c.is_ascii_digit()), "{text}");
}

fn still_works(device: &Device) -> Result<()> {
    assert_eq!(Tensor::ones([3], device)?.sum_all()?.item::<f32>()?, 3.0, "{device}");
    Ok(())
}

#[test]
fn more_than_65_535_workgroups_work() -> Result<()> {
    let count = 65_535 * 64 + 1_000;
    for device in adapters() {
        let x = Tensor::ones([count], &device)?;
        let y = (&x + &x)?;
        assert_eq!(y.sum_all()?.item::<f32>()?, 2.0 * count as f32, "{device}");
        assert_eq!(y.narrow(0, count - 2, 2)?.to_vec::<f32>()?, [2.0; 2], "{device}");
    }
    Ok(())
}

/// The largest tensor that a kernel can bind works, to its last element, and so does one with an element more. (SwiftShader binds
/// a GiB, which takes too long here.)
#[test]
fn tensors_may_be_longer_than_a_binding() -> Result<()> {
    for device in adapters().into_iter().filter(|d| d.info().limits.max_binding == BINDING as u64) {
        let whole = Tensor::full([BINDING / 4], 1.0, &device)?;
        assert_eq!(whole.narrow(0, BINDING / 4 - 1, 1)?.item::<f32>()?, 1.0, "{device}");
        drop(whole);
        let longer = Tensor::full([BINDING / 4 + 1], 2.0, &device)?;
        assert_eq!(longer.narrow(0, BINDING / 4, 1)?.item::<f32>()?, 2.0, "{device}");
        assert_eq!(longer.mul(&longer)?.sum_all()?.item::<f32>()?, BINDING as f32 + 4.0, "{device}");
        drop(longer);
        // Packed types are counted in bytes, not elements.
        let bytes = Tensor::full([BINDING / 2 + 3], 7u8, &device)?;
        assert_eq!(bytes.narrow(0, BINDING / 2 + 2, 1)?.item::<u8>()?, 7, "{device}");
        still_works(&device)?;
    }
    Ok(())
}

/// The table of GPT-2, 147 MiB: it is looked up, is the last layer too, and learns. Row 43 690 lies across the end of a
/// binding of 128 MiB.
#[test]
fn a_large_table_trains() -> Result<()> {
    const WORDS: usize = 50_257;
    const WIDTH: usize = 768;
    let step = |device: &Device| -> Result<(f32, Vec<f32>)> {
        let row = Tensor::arange(0.0, WIDTH as f32, 1.0, device)?.mul(0.37)?.sin()?;
        let column = Tensor::arange(0.0, WORDS as f32, 1.0, device)?.mul(0.011)?.cos()?.reshape([WORDS, 1])?;
        let table = row.mul(&column)?.mul(0.1)?.requires_grad();
        let ids = Tensor::try_from([50_256u32, 0, 44_000, 33_000, 7, 7])?.to(device)?;
        let next = Tensor::try_from([1u32, 50_256, 43_689, 43_690, 8, 9])?.to(device)?;
        let loss = table.embedding(&ids)?.matmul(&table.t()?)?.cross_entropy(&next)?;
        loss.backward()?;
        optim::SGD::new(vec![table.clone()], 1.0).momentum(0.9).step()?;
        let seen = Tensor::try_from([50_256u32, 1, 43_689, 43_690, 7, 20_000])?.to(device)?;
        let learnt = table.detach().index_select(0, &seen)?.narrow(1, 500, 24)?;
        Ok((loss.item()?, learnt.to_vec()?))
    };
    let (loss, learnt) = step(&Device::cpu())?;
    for device in adapters().into_iter().filter(|d| d.info().limits.max_binding == BINDING as u64) {
        let (got, values) = step(&device)?;
        assert!((got - loss).abs() < 1e-4 * loss, "{device}: {got} instead of {loss}");
        for (got, expected) in values.iter().zip(&learnt) {
            assert!((got - expected).abs() < 1e-5, "{device}: {got} instead of {expected}");
        }
    }
    Ok(())
}

#[test]
fn four_gib_are_refused_by_name() -> Result<()> {
    for device in adapters() {
        if device.info().limits.max_buffer < 1 << 32 {
            names_the_limit(Tensor::zeros([1 << 30], &device), &device);
            names_the_limit(Tensor::zeros([1 << 15, 1 << 15], &device), &device);
        }
        still_works(&device)?;
    }
    Ok(())
}

/// A result can be too large where its operands are small.
#[test]
fn results_past_the_limits_are_refused() -> Result<()> {
    for device in adapters().into_iter().filter(|d| d.info().limits.max_buffer < 1 << 32) {
        let column = Tensor::ones([1 << 15, 1], &device)?;
        let row = Tensor::ones([1, 1 << 15], &device)?;
        names_the_limit(&column + &row, &device);
        names_the_limit(column.matmul(&row), &device);
        names_the_limit(column.broadcast_to([1 << 15, 1 << 15])?.contiguous(), &device);
        still_works(&device)?;
    }
    Ok(())
}

#[test]
fn more_elements_than_any_index_holds() -> Result<()> {
    for device in devices() {
        for shape in [[1 << 40, 1 << 40], [usize::MAX, 2], [usize::MAX, usize::MAX]] {
            let error = Tensor::zeros(shape, &device).unwrap_err();
            assert!(!error.to_string().is_empty());
        }
        if device.is_cpu() {
            continue;
        }
        // 2^34 elements seen through strides of 0: a view is free, but no kernel counts so far.
        let huge = Tensor::ones([1], &device)?.broadcast_to([1 << 17, 1 << 17])?;
        assert!(huge.sum_all().is_err(), "{device}");
        assert!((&huge + &huge).is_err(), "{device}");
        still_works(&device)?;
    }
    Ok(())
}
