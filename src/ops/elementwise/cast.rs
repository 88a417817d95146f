//! Conversions of element types: packed types to words and back, and words of one type to words of another.
//!
//! A conversion is a chain of at most three ops: [`Widen`], and [`Convert`] twice. Numbers are rounded to the nearest
//! half, ties to even. Adapters use integer arithmetic for it, so that every device computes the same bits.

use std::sync::Arc;

use anygpu_host::tasks::share;
use half::{bf16, f16};

use crate::device::gpu::{Buffer, Gpu, Kernel, params, shader};
use crate::dtype::{DType, Word};
use crate::error::{Error, Result};
use crate::ops::elementwise::unary::CHUNK;
use crate::ops::inputs::{STRIDED, StridedParams, Walk};
use crate::ops::names::{Names, names};
use crate::ops::parts::alike;
use crate::ops::stored::{HALVES, halves};
use crate::ops::traced::Traced;
use crate::ops::{
    CpuIn, CpuOut, Dense, Elements, GpuIn, Gradient, Gradients, Op, Output, Saves, Strided, apply, long, named,
};
use crate::tensor::Tensor;

params! {
    struct DenseParams { count: usize, offset: usize }
}
shader!(WIDEN: StridedParams = "elementwise/widen", after [STRIDED, HALVES]);
shader!(NARROW: DenseParams = "elementwise/narrow");
shader!(CONVERT: DenseParams = "elementwise/cast", headers || HEADERS.to_vec());

/// The headers of all conversions between words, from type S to type T. A float becomes LARGEST, the largest value of
/// T, from TOP upwards, and LEAST, its least value, from BOTTOM downwards; SIGN is the sign bit of a float. WGSL's own
/// conversion ends at the largest float below TOP, and on lavapipe 25 a negative number wraps around. WGSL may convert
/// an integer to either of the two nearest f32; the sum of two exact halves is rounded once, to the nearest.
const HEADERS: [&str; 7] = [
    "alias S = f32;\nalias T = i32;\nconst TOP = 2147483648.0;\nconst LARGEST = 2147483647i;\nconst BOTTOM = -2147483648.0;\nconst LEAST = i32(-2147483648);\nconst SIGN = 0x80000000u;\nfn value(v: S) -> T { return T(v); }\n",
    "alias S = f32;\nalias T = u32;\nconst TOP = 4294967296.0;\nconst LARGEST = 4294967295u;\nconst BOTTOM = 0.0;\nconst LEAST = 0u;\nconst SIGN = 0x80000000u;\nfn value(v: S) -> T { return T(v); }\n",
    "alias S = i32;\nalias T = f32;\nconst TOP = 3e38;\nconst LARGEST = 0.0;\nconst BOTTOM = -3e38;\nconst LEAST = 0.0;\nconst SIGN = 0u;\nfn value(v: S) -> T { return f32(v >> 16u) * 65536.0 + f32(v & 0xffff); }\n",
    "alias S = i32;\nalias T = u32;\nconst TOP = 3e38;\nconst LARGEST = 0u;\nconst BOTTOM = -3e38;\nconst LEAST = 0u;\nconst SIGN = 0u;\nfn value(v: S) -> T { return T(v); }\n",
    "alias S = u32;\nalias T = f32;\nconst TOP = 3e38;\nconst LARGEST = 0.0;\nconst BOTTOM = -3e38;\nconst LEAST = 0.0;\nconst SIGN = 0u;\nfn value(v: S) -> T { return f32(v >> 16u) * 65536.0 + f32(v & 0xffffu); }\n",
    "alias S = u32;\nalias T = i32;\nconst TOP = 3e38;\nconst LARGEST = 0i;\nconst BOTTOM = -3e38;\nconst LEAST = 0i;\nconst SIGN = 0u;\nfn value(v: S) -> T { return T(v); }\n",
    "alias S = u32;\nalias T = u32;\nconst TOP = 3e38;\nconst LARGEST = 0u;\nconst BOTTOM = -3e38;\nconst LEAST = 0u;\nconst SIGN = 0u;\nfn value(v: S) -> T { return T(v); }\n",
];

/// Returns the `OP` of `narrow.wgsl`.
fn code(dtype: DType) -> u8 {
    match dtype {
        DType::F16 => 0,
        DType::BF16 => 1,
        _ => 2,
    }
}

/// The conversion of packed elements of any layout to dense words: halves to f32, bytes to u32.
#[derive(Debug)]
struct Widen;

impl Op for Widen {
    type Layout = Strided;
    const ELEMENTS: Elements = Elements::Stored;
    const NAMES: Names = names!["to_dtype"];

    fn traced(&self, inputs: &[&Tensor]) -> Option<Traced> {
        Some(Traced::Cast(inputs[0].dtype().wide()))
    }

    fn output(&self, inputs: &[&Tensor]) -> Result<Output> {
        Ok((inputs[0].shape().to_vec(), inputs[0].dtype().wide()))
    }

    fn along(&self, shapes: &[&[usize]], dim: usize) -> Option<Vec<Option<usize>>> {
        alike(shapes, dim)
    }

    fn cpu(&self, inputs: &[CpuIn<Strided>], out: CpuOut) -> Result<()> {
        let x = &inputs[0];
        match x.dtype() {
            DType::F16 => widen(x, out.slice(), |bits: u16| f16::from_bits(bits).to_f32()),
            DType::BF16 => widen(x, out.slice(), |bits: u16| bf16::from_bits(bits).to_f32()),
            _ => widen(x, out.slice(), |byte: u8| u32::from(byte)),
        }
        Ok(())
    }

    fn gpu(&self, _gpu: &Arc<Gpu>, inputs: &[GpuIn<Strided>], out: &Buffer) -> Result<Vec<Kernel>> {
        Ok(vec![widening(self.name(), &inputs[0], out)?])
    }

    fn saves(&self) -> Saves {
        Saves::Nothing
    }

    fn takes_halves(&self) -> bool {
        true
    }

    fn backward(&self, ctx: &Gradient) -> Result<Gradients> {
        let dtype = ctx.inputs[0].dtype();
        Ok(vec![dtype.is_float().then(|| ctx.grad.to_dtype(dtype)).transpose()?])
    }
}

/// Returns the kernel that converts packed elements of any layout to dense words.
pub(in crate::ops) fn widening(op: &'static str, x: &GpuIn<Strided>, out: &Buffer) -> Result<Kernel> {
    let params = Walk::new([x.layout()]).params(op)?;
    let kernel = Kernel::build(WIDEN, "widen", params).constant("OP", halves(x.dtype()));
    Ok(kernel.input(x).output(out).each(params.count))
}

fn widen<B: bytemuck::Pod + Sync, T: Word>(x: &CpuIn<Strided>, out: &mut [T], f: impl Fn(B) -> T + Sync) {
    let (bits, layout) = (x.all::<B>(), x.layout());
    if layout.is_contiguous() {
        let bits = &bits[layout.offset..][..out.len()];
        share(out.chunks_mut(CHUNK).zip(bits.chunks(CHUNK)), 1, |(out, bits)| convert(bits, out, &f));
    } else {
        out.iter_mut().zip(layout.positions()).for_each(|(out, at)| *out = f(bits[at]));
    }
}

fn narrow<T: Word, B: bytemuck::Pod + Send>(x: &[T], out: CpuOut, f: impl Fn(T) -> B + Sync) {
    if let Some(last) = out.0.last_mut() {
        *last = 0; // the last word may be longer than the elements
    }
    let bits: &mut [B] = bytemuck::cast_slice_mut(out.0);
    share(bits.chunks_mut(CHUNK).zip(x.chunks(CHUNK)), 1, |(bits, x)| convert(x, bits, &f));
}

fn convert<S: Copy, T>(from: &[S], to: &mut [T], f: impl Fn(S) -> T) {
    to.iter_mut().zip(from).for_each(|(to, &from)| *to = f(from));
}

/// A conversion of dense words.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Conversion {
    /// Of f32 to halves, or of u32 to bytes (their lowest eight bits).
    Narrow,
    /// The same value, as far as the type can represent it.
    Value,
    /// 1 where the value is not 0, else 0.
    Truth,
    /// From a float: the value rounded towards 0 and limited to 0 to 255.
    Byte,
}

/// The conversion of dense words of one type to words of another, or to packed elements.
#[derive(Debug)]
struct Convert(DType, Conversion);

impl Op for Convert {
    type Layout = Dense;
    const ELEMENTS: Elements = Elements::Stored;
    const NAMES: Names = names!["to_dtype"];

    fn traced(&self, _inputs: &[&Tensor]) -> Option<Traced> {
        Some(match self.1 {
            Conversion::Truth => Traced::Truth(self.0),
            // Comparisons give words of 0 and 1.
            Conversion::Narrow if self.0 == DType::Bool => Traced::Truth(self.0),
            Conversion::Byte => Traced::Cast(DType::U8),
            _ => Traced::Cast(self.0),
        })
    }

    fn output(&self, inputs: &[&Tensor]) -> Result<Output> {
        Ok((inputs[0].shape().to_vec(), self.0))
    }

    fn along(&self, shapes: &[&[usize]], dim: usize) -> Option<Vec<Option<usize>>> {
        alike(shapes, dim)
    }

    fn cpu(&self, inputs: &[CpuIn<Dense>], out: CpuOut) -> Result<()> {
        let x = &inputs[0];
        match (x.dtype(), self.0, self.1) {
            (_, DType::F16, _) => narrow(x.slice(), out, |v: f32| f16::from_f32(v).to_bits()),
            (_, DType::BF16, _) => narrow(x.slice(), out, |v: f32| bf16::from_f32(v).to_bits()),
            (_, _, Conversion::Narrow) => narrow(x.slice(), out, |v: u32| v as u8),
            (DType::F32, _, Conversion::Truth) => convert(x.slice(), out.slice(), |v: f32| u32::from(v != 0.0)),
            (_, _, Conversion::Truth) => convert(x.slice(), out.slice(), |v: u32| u32::from(v != 0)),
            (_, _, Conversion::Byte) => convert(x.slice(), out.slice(), |v: f32| u32::from(v as u8)),
            (DType::F32, DType::I32, _) => convert(x.slice(), out.slice(), |v: f32| v as i32),
            (DType::F32, DType::U32, _) => convert(x.slice(), out.slice(), |v: f32| v as u32),
            (DType::I32, DType::F32, _) => convert(x.slice(), out.slice(), |v: i32| v as f32),
            (DType::U32, DType::F32, _) => convert(x.slice(), out.slice(), |v: u32| v as f32),
            _ => out.0.copy_from_slice(x.slice()),
        }
        Ok(())
    }

    fn gpu(&self, _gpu: &Arc<Gpu>, inputs: &[GpuIn<Dense>], out: &Buffer) -> Result<Vec<Kernel>> {
        let x = &inputs[0];
        let params = DenseParams { count: x.elem_count(), offset: x.offset() };
        let entry = match self.1 {
            Conversion::Narrow => {
                let kernel = Kernel::build(NARROW, "narrow", params).constant("OP", code(self.0));
                return Ok(vec![kernel.input(x).output(out).each(self.0.words(params.count))]);
            }
            Conversion::Value => "convert",
            Conversion::Truth => "truth",
            Conversion::Byte => "byte",
        };
        let wanted = format!("alias S = {};\nalias T = {};\n", x.dtype(), self.0);
        let header = HEADERS.into_iter().find(|h| h.starts_with(&wanted));
        let header = header.ok_or_else(|| Error::argument("to_dtype", "no such conversion"))?;
        Ok(vec![Kernel::build(CONVERT, entry, params).header(header).input(x).output(out).each(params.count)])
    }

    fn saves(&self) -> Saves {
        Saves::Nothing
    }

    fn backward(&self, ctx: &Gradient) -> Result<Gradients> {
        // One of two types of words is an integer type, which has no gradient.
        if self.1 != Conversion::Narrow || !self.0.is_float() {
            return Ok(vec![None]);
        }
        // On adapters, products read halves as they are stored; for other ops, the graph widens them.
        let grad = if ctx.grad.device().is_cpu() { ctx.grad.to_dtype(DType::F32)? } else { ctx.grad.clone() };
        Ok(vec![Some(grad)])
    }
}

/// Returns the word in which a number is computed in a tensor of `dtype`, converted as by [`Tensor::to_dtype`].
pub(in crate::ops) fn number_word(value: f64, dtype: DType) -> u32 {
    match dtype {
        DType::F32 | DType::F16 | DType::BF16 => (value as f32).to_bits(),
        DType::I32 => (value as i32).cast_unsigned(),
        DType::U32 => value as u32,
        DType::U8 => u32::from(value as u8),
        DType::Bool => u32::from(value != 0.0),
        // No op computes these in words.
        DType::I64 | DType::F64 => 0,
    }
}

/// Returns the elements as words: packed ones in row-major order without gaps, others unchanged.
pub(in crate::ops) fn widened(x: &Tensor) -> Result<Tensor> {
    if x.dtype().is_packed() { apply(Widen, &[x]) } else { Ok(x.clone()) }
}

/// Converts a tensor of words to a packed type of the same kind: f32 to halves, u32 to bytes.
pub(in crate::ops) fn narrowed(x: &Tensor, dtype: DType) -> Result<Tensor> {
    if dtype.is_packed() { apply(Convert(dtype, Conversion::Narrow), &[x]) } else { Ok(x.clone()) }
}

/// Returns a copy of a packed tensor at the start of a new storage.
pub(crate) fn repacked(x: &Tensor) -> Result<Tensor> {
    narrowed(&widened(x)?, x.dtype())
}

impl Tensor {
    /// Converts the elements to another type.
    ///
    /// Returns the same tensor if they already have this type. Conversions between float types have a gradient.
    ///
    /// Values are rounded to the nearest `f16` or `bf16` (ties to even; values that are too large become infinite).
    /// Floats become integers by rounding towards zero, limited to the range of the type; NaN becomes 0. Conversions
    /// between integers keep the lowest bits. In a conversion to `bool`, 0 becomes false, and every other value becomes
    /// true, even NaN. `i64` is converted to `f16` and `bf16` through `f32`, as in PyTorch.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if the device does not have enough memory for the copy; [`Error::DTypeMismatch`] for
    /// `f64` on an adapter; [`Error::Autograd`] if a gradient would have to flow to or from `f64`.
    ///
    /// ```
    /// # use anygpu::{DType, Tensor};
    /// let x = Tensor::new([1.9, -1.9, 300.0], None)?;
    /// assert_eq!(x.to_dtype(DType::I32)?.to_vec::<i32>()?, [1, -1, 300]);
    /// assert_eq!(x.to_dtype(DType::U8)?.to_vec::<u8>()?, [1, 0, 255]);
    /// assert_eq!(x.to_dtype(DType::Bool)?.to_vec::<bool>()?, [true; 3]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn to_dtype(&self, dtype: DType) -> Result<Tensor> {
        if self.dtype() == dtype {
            return Ok(self.clone());
        }
        if self.dtype().is_long() || dtype.is_long() {
            return named("to_dtype", || long::cast::cast(self, dtype));
        }
        let x = widened(self)?;
        let x = match (self.dtype(), dtype) {
            (DType::Bool, DType::U8) => x,
            (_, DType::Bool) => apply(Convert(DType::U32, Conversion::Truth), &[&x])?,
            (from, DType::U8) if from.is_float() => apply(Convert(DType::U32, Conversion::Byte), &[&x])?,
            _ if x.dtype() == dtype.wide() => x,
            _ => apply(Convert(dtype.wide(), Conversion::Value), &[&x])?,
        };
        narrowed(&x, dtype)
    }
}
