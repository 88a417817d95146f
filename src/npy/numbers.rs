//! The elements of NumPy's arrays, as elements of tensors and back.

use half::f16;

use super::Fault;
use crate::device::Device;
use crate::device::cpu::with_room;
use crate::dtype::{DType, Element};
use crate::error::Result;
use crate::ops::KEEP_LONGS;
use crate::shape::checked_elem_count;
use crate::tensor::Tensor;

/// An element type of NumPy that is read.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Kind {
    /// The kind and the size, such as `f4`.
    name: [u8; 2],
    big_endian: bool,
}

impl Kind {
    /// Returns the type of a `descr`, such as `<f4`.
    pub fn of(descr: &str) -> Option<Kind> {
        let &[order, kind, size] = descr.as_bytes() else { return None };
        let known = matches!(&[kind, size], b"f2" | b"f4" | b"f8" | b"i1" | b"i2" | b"i4" | b"i8")
            || matches!(&[kind, size], b"u1" | b"u2" | b"u4" | b"u8" | b"b1");
        let ordered = matches!(order, b'<' | b'>' | b'=') || (order == b'|' && size == b'1');
        let own = if cfg!(target_endian = "big") { b'>' } else { b'<' };
        let order = if order == b'=' { own } else { order };
        (known && ordered).then_some(Kind { name: [kind, size], big_endian: order == b'>' })
    }

    /// Returns the bytes of an element.
    pub fn size(self) -> usize {
        usize::from(self.name[1] - b'0')
    }
}

/// Converts elements of `N` bytes one by one.
fn converted<const N: usize, T>(
    data: &[u8],
    kind: &Kind,
    f: impl Fn([u8; N]) -> Result<T, String>,
) -> Result<Vec<T>, Fault> {
    let mut values = with_room(data.len() / N)?;
    for (i, element) in data.as_chunks::<N>().0.iter().enumerate() {
        let mut bytes = *element;
        if kind.big_endian {
            bytes.reverse();
        }
        values.push(f(bytes).map_err(|why| format!("element {i}: {why}"))?);
    }
    Ok(values)
}

/// Returns a number as f32. Only a finite number that would become infinite is an error.
fn rounded(value: f64) -> Result<f32, String> {
    let near = value as f32;
    let fits = near.is_finite() || !value.is_finite();
    if fits { Ok(near) } else { Err(format!("{value:e} is beyond f32")) }
}

fn within<T>(value: impl TryInto<T> + std::fmt::Display + Copy, limit: &str) -> Result<T, String> {
    value.try_into().map_err(|_| format!("{value} is beyond {limit}"))
}

/// Returns an error for elements that a device does not hold.
pub(super) fn check_held(kind: &Kind, device: &Device) -> Result<(), Fault> {
    match &kind.name {
        b"f8" if !device.is_cpu() && KEEP_LONGS.get() => Err(Fault::File(format!(
            "it is of float64, which {device} does not hold: read it to cpu, or to f32 within anygpu::narrow_64_bits(|| …)"
        ))),
        _ => Ok(()),
    }
}

/// Returns a tensor of elements in rows. Their number of bytes fits the shape.
pub(super) fn tensor(kind: &Kind, data: &[u8], shape: &[usize], device: &Device) -> Result<Tensor, Fault> {
    fn of<const N: usize, T: Element>(
        (kind, data, shape, device): (&Kind, &[u8], &[usize], &Device),
        f: impl Fn([u8; N]) -> Result<T, String>,
    ) -> Result<Tensor, Fault> {
        Ok(Tensor::from_vec(converted(data, kind, f)?, shape, device)?)
    }
    // Sizes beside a 0 may be anything.
    checked_elem_count("from_npy", shape).map_err(|_| format!("its shape {shape:?} does not fit memory"))?;
    let array = (kind, data, shape, device);
    let keeps = KEEP_LONGS.get();
    match &kind.name {
        b"f8" if keeps => {
            let values = converted(data, kind, |b| Ok(f64::from_le_bytes(b)))?;
            Ok(Tensor::from_f64(&values, shape, device)?)
        }
        b"i8" if keeps => of(array, |b| Ok(i64::from_le_bytes(b))),
        b"f2" => of(array, |b| Ok(f16::from_le_bytes(b))),
        b"f4" => of(array, |b| Ok(f32::from_le_bytes(b))),
        b"f8" => of(array, |b| rounded(f64::from_le_bytes(b))),
        b"i1" => of(array, |b| Ok(i32::from(i8::from_le_bytes(b)))),
        b"i2" => of(array, |b| Ok(i32::from(i16::from_le_bytes(b)))),
        b"u2" => of(array, |b| Ok(i32::from(u16::from_le_bytes(b)))),
        b"i4" => of(array, |b| Ok(i32::from_le_bytes(b))),
        b"i8" => of(array, |b| within::<i32>(i64::from_le_bytes(b), "i32")),
        b"u1" => of(array, |[b]: [u8; 1]| Ok(b)),
        b"b1" => of(array, |[b]: [u8; 1]| Ok(b != 0)),
        b"u4" => of(array, |b| Ok(u32::from_le_bytes(b))),
        _ => match of(array, |b| within::<u32>(u64::from_le_bytes(b), "u32")) {
            Err(Fault::File(_)) if keeps => of(array, |b| within::<i64>(u64::from_le_bytes(b), "i64")),
            other => other,
        },
    }
}

/// Returns the name of a tensor's element type in NumPy, and its elements in rows.
pub(super) fn bytes(tensor: &Tensor) -> Result<(&'static str, Vec<u8>)> {
    fn of<const N: usize, T: Element>(tensor: &Tensor, f: impl Fn(T) -> [u8; N]) -> Result<Vec<u8>> {
        let values = tensor.to_vec::<T>()?;
        let mut all = with_room(values.len() * N)?;
        values.into_iter().for_each(|value| all.extend(f(value)));
        Ok(all)
    }
    Ok(match tensor.dtype() {
        DType::F32 => ("<f4", of(tensor, f32::to_le_bytes)?),
        DType::F16 => ("<f2", of(tensor, f16::to_le_bytes)?),
        DType::BF16 => ("<f4", of(tensor, |value: half::bf16| value.to_f32().to_le_bytes())?),
        DType::I32 => ("<i4", of(tensor, i32::to_le_bytes)?),
        DType::U32 => ("<u4", of(tensor, u32::to_le_bytes)?),
        DType::U8 => ("|u1", of(tensor, u8::to_le_bytes)?),
        DType::I64 => ("<i8", of(tensor, i64::to_le_bytes)?),
        DType::F64 => {
            let values = tensor.to_vec_f64()?;
            let mut all = with_room(values.len() * 8)?;
            values.into_iter().for_each(|value| all.extend(value.to_le_bytes()));
            ("<f8", all)
        }
        DType::Bool => ("|b1", of(tensor, |value: bool| [u8::from(value)])?),
    })
}
