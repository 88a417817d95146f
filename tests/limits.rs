//! Sizes beyond the limits of an adapter: they either work or are an error that names the limit. The device works
//! afterwards.

mod common;

use anygpu::{Device, Error, Result, Tensor};
use common::{adapters, devices};

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

/// The largest tensor that a kernel can bind works, to its last element; one element more is refused by name where that
/// is the limit. (SwiftShader binds a GiB, which takes too long here.)
#[test]
fn bindings_end_where_the_adapter_says() -> Result<()> {
    for device in adapters().into_iter().filter(|d| d.info().limits.max_binding == BINDING as u64) {
        let whole = Tensor::full([BINDING / 4], 1.0, &device)?;
        assert_eq!(whole.narrow(0, BINDING / 4 - 1, 1)?.item::<f32>()?, 1.0, "{device}");
        drop(whole);
        names_the_limit(Tensor::zeros([BINDING / 4 + 1], &device), &device);
        // Packed types are counted in bytes, not elements.
        let bytes = Tensor::full([BINDING / 2 + 3], 7u8, &device)?;
        assert_eq!(bytes.narrow(0, BINDING / 2 + 2, 1)?.item::<u8>()?, 7, "{device}");
        still_works(&device)?;
    }
    Ok(())
}

#[test]
fn two_gib_are_refused_by_name() -> Result<()> {
    for device in adapters() {
        if device.info().limits.max_binding < 1 << 31 {
            names_the_limit(Tensor::zeros([1 << 29], &device), &device);
            names_the_limit(Tensor::zeros([1 << 15, 1 << 15], &device), &device);
        }
        still_works(&device)?;
    }
    Ok(())
}

/// A result can be too large where its operands are small.
#[test]
fn results_past_the_limits_are_refused() -> Result<()> {
    for device in adapters().into_iter().filter(|d| d.info().limits.max_binding < 1 << 31) {
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
