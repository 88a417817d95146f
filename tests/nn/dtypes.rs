//! Element types: packing, conversions, and the same bits on every device.

use anygpu::tensor::to_together;
use anygpu::{DType, Device, Result, Tensor};
use half::{bf16, f16};

use crate::common::devices_in_turn;

/// f32 bit patterns around everything that rounding to halves may get wrong, and a spread of all others.
fn floats() -> Vec<f32> {
    let mut bits: Vec<u32> = (0..40_000u32).map(|i| i.wrapping_mul(107_374)).collect();
    for edge in
        [0, 0x3300_0000, 0x3380_0000, 0x3880_0000, 0x477f_e000, 0x477f_f000, 0x4780_0000, 0x7f7f_8000, 0x7f80_0000]
    {
        bits.extend((0..9u32).map(|d| (edge as u32).wrapping_add(d).wrapping_sub(4) & 0x7fff_ffff));
    }
    for exponent in 90..150u32 {
        for low in [0x0000, 0x0fff, 0x1000, 0x1001, 0x2fff, 0x3000, 0x7fff, 0x8000, 0x8001, 0x1_8000, 0x7f_ffff] {
            bits.extend([exponent << 23 | low, 1 << 31 | exponent << 23 | low]);
        }
    }
    bits.into_iter().map(f32::from_bits).collect()
}

fn same_bits<T>(what: &str, device: &Device, got: &[T], expected: &[T], bits: impl Fn(&T) -> u32, of: &[f32]) {
    for ((got, expected), of) in got.iter().zip(expected).zip(of) {
        assert_eq!(bits(got), bits(expected), "{what} of {of:e} = {:08x} on {device}", of.to_bits());
    }
}

#[test]
fn rounding_to_halves_is_the_same_everywhere() -> Result<()> {
    let values = floats();
    let (f16s, bf16s): (Vec<f16>, Vec<bf16>) =
        values.iter().map(|&v| (f16::from_f32_const(v), bf16::from_f32(v))).unzip();
    for device in devices_in_turn() {
        let x = Tensor::from_slice(&values, values.len(), &device)?;
        let got = x.to_dtype(DType::F16)?.to_vec::<f16>()?;
        same_bits("f16", &device, &got, &f16s, |h| u32::from(h.to_bits()), &values);
        let got = x.to_dtype(DType::BF16)?.to_vec::<bf16>()?;
        same_bits("bf16", &device, &got, &bf16s, |h| u32::from(h.to_bits()), &values);
    }
    Ok(())
}

#[test]
fn every_half_widens_exactly() -> Result<()> {
    let all: Vec<u16> = (0..=u16::MAX).collect();
    let f16s: Vec<f16> = all.iter().map(|&b| f16::from_bits(b)).collect();
    let bf16s: Vec<bf16> = all.iter().map(|&b| bf16::from_bits(b)).collect();
    let numbers: Vec<f32> = all.iter().map(|&b| f32::from(b)).collect();
    for device in devices_in_turn() {
        let got = Tensor::from_slice(&f16s, all.len(), &device)?.to_dtype(DType::F32)?.to_vec::<f32>()?;
        let expected: Vec<f32> = f16s.iter().map(|h| h.to_f32_const()).collect();
        same_bits("f16 as f32", &device, &got, &expected, |v| v.to_bits(), &numbers);
        let got = Tensor::from_slice(&bf16s, all.len(), &device)?.to_dtype(DType::F32)?.to_vec::<f32>()?;
        let expected: Vec<f32> = bf16s.iter().map(|h| f32::from_bits(u32::from(h.to_bits()) << 16)).collect();
        // A signalling NaN may become a quiet one on its way through a host register.
        let quiet = |v: &f32| if v.is_nan() { f32::NAN.to_bits() } else { v.to_bits() };
        same_bits("bf16 as f32", &device, &got, &expected, quiet, &numbers);
    }
    Ok(())
}

#[test]
fn bytes_and_booleans() -> Result<()> {
    for device in devices_in_turn() {
        let x =
            Tensor::from_slice(&[-1.5, 0.0, -0.0, 0.4, 254.9, 255.0, 1e9, f32::NAN, f32::NEG_INFINITY], 9, &device)?;
        assert_eq!(x.to_dtype(DType::U8)?.to_vec::<u8>()?, [0, 0, 0, 0, 254, 255, 255, 0, 0], "{device}");
        let truth = [true, false, false, true, true, true, true, true, true];
        assert_eq!(x.to_dtype(DType::Bool)?.to_vec::<bool>()?, truth, "{device}");
        assert_eq!(x.to_dtype(DType::I32)?.to_vec::<i32>()?[..6], [-1, 0, 0, 0, 254, 255], "{device}");
        assert_eq!(x.to_dtype(DType::I32)?.to_vec::<i32>()?[7], 0, "{device}");
        let i = Tensor::from_slice(&[-1i32, 256, 257, 0], 4, &device)?;
        assert_eq!(i.to_dtype(DType::U8)?.to_vec::<u8>()?, [255, 0, 1, 0], "{device}");
        assert_eq!(i.to_dtype(DType::Bool)?.to_vec::<bool>()?, [true, true, true, false], "{device}");
        let flags = Tensor::from_slice(&[true, false, true], 3, &device)?;
        assert_eq!(flags.to_dtype(DType::F32)?.to_vec::<f32>()?, [1.0, 0.0, 1.0], "{device}");
        assert_eq!(flags.to_dtype(DType::U8)?.to_vec::<u8>()?, [1, 0, 1], "{device}");
        assert_eq!(Tensor::full([7], true, &device)?.to_vec::<bool>()?, [true; 7], "{device}");
        assert_eq!(Tensor::full([3, 3], f16::from_f32(1.5), &device)?.ones_like()?.to_vec::<f16>()?, [f16::ONE; 9]);
    }
    Ok(())
}

/// 15 elements in every packed type: views with odd offsets, copies, and journeys keep them.
#[test]
fn views_of_packed_elements() -> Result<()> {
    let source = Tensor::arange(0.0, 15.0, 1.0, None)?.reshape([3, 5])?;
    for device in devices_in_turn() {
        for dtype in [DType::F16, DType::BF16, DType::U8] {
            let x = source.to(&device)?.to_dtype(dtype)?;
            let read = |t: &Tensor| t.to_dtype(DType::F32)?.to_vec::<f32>();
            let what = format!("{dtype} on {device}");
            let column = x.narrow(1, 1, 2)?;
            assert_eq!(read(&column)?, [1.0, 2.0, 6.0, 7.0, 11.0, 12.0], "{what}");
            assert_eq!(read(&column.contiguous()?)?, [1.0, 2.0, 6.0, 7.0, 11.0, 12.0], "{what}");
            assert_eq!(read(&x.t()?.contiguous()?)?[..4], [0.0, 5.0, 10.0, 1.0], "{what}");
            let row = x.narrow(0, 1, 1)?.reshape([5])?; // starts in the middle of a word
            assert_eq!(read(&row.to(Device::cpu())?)?, [5.0, 6.0, 7.0, 8.0, 9.0], "{what}");
            assert_eq!(row.to_dtype(DType::U8)?.to_vec::<u8>()?, [5, 6, 7, 8, 9], "{what}");
            let both = to_together(&[&row, &x], &Device::cpu())?;
            assert_eq!((read(&both[0])?, both[1].shape()), (vec![5.0, 6.0, 7.0, 8.0, 9.0], x.shape()), "{what}");
            assert_eq!(read(&both[1])?[14], 14.0, "{what}");
            assert_eq!(read(&x.reshape([15])?.narrow(0, 13, 2)?)?, [13.0, 14.0], "{what}");
            assert_eq!(x.narrow(0, 0, 0)?.to_dtype(DType::F32)?.to_vec::<f32>()?, [0f32; 0], "{what}");
        }
    }
    Ok(())
}

#[test]
fn gradients_flow_through_halves() -> Result<()> {
    for device in devices_in_turn() {
        let x = Tensor::from_slice(&[1.0, 2.0, 3.0, 4.0], [2, 2], &device)?.requires_grad();
        let half = x.to_dtype(DType::F16)?;
        let loss = half.matmul(&half)?.to_dtype(DType::F32)?.sum_all()?;
        assert_eq!(loss.item::<f32>()?, 54.0);
        loss.backward()?;
        // d Σ (x·x) = 1·xᵀ + xᵀ·1
        assert_eq!(x.grad().unwrap().to_vec::<f32>()?, [7.0, 11.0, 9.0, 13.0], "{device}");
        let leaf = x.detach().to_dtype(DType::BF16)?.requires_grad();
        leaf.to_dtype(DType::F32)?.sum_all()?.backward()?;
        assert_eq!(leaf.grad().unwrap().dtype(), DType::BF16);
    }
    Ok(())
}

#[test]
fn they_print_and_are_refused_by_name() -> Result<()> {
    let x = Tensor::try_from([1.5, -2.0])?;
    assert_eq!(x.to_dtype(DType::F16)?.to_string(), "tensor([ 1.5000, -2.0000], dtype=f16)");
    assert_eq!(Tensor::try_from([true, false])?.to_string(), "tensor([ True, False])");
    assert_eq!(Tensor::try_from([1u8, 20])?.to_string(), "tensor([ 1, 20], dtype=u8)");
    let mixed = x.reshape([1, 2])?.matmul(&x.reshape([2, 1])?.to_dtype(DType::F16)?).unwrap_err().to_string();
    assert!(mixed.contains("f32") && mixed.contains("f16"), "{mixed}");
    let read = x.to_vec::<f16>().unwrap_err().to_string();
    assert!(read.contains("f32") && read.contains("f16"), "{read}");
    Ok(())
}
