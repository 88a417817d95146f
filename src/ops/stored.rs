//! Operands of products that kernels read as they are stored: words of f32, or halves, two in a word. No pass of its own widens
//! them. See `shaders/common/halves.wgsl`.

use half::{bf16, f16};

use crate::device::gpu::{AsBuffer, Buffer, wgsl};
use crate::dtype::DType;
use crate::ops::GpuIn;

/// The text that precedes shaders with constants `…_HALVES`.
pub(in crate::ops) const HALVES: &str = wgsl!("common/halves");

/// A part of a buffer of f32 or of halves, from an element on.
#[derive(Clone, Copy)]
pub(in crate::ops) struct Stored<'a> {
    pub buffer: &'a Buffer,
    pub offset: usize,
    pub dtype: DType,
}

impl<'a> Stored<'a> {
    /// Returns f32 from the buffer's first word on.
    pub fn words(buffer: &'a Buffer) -> Stored<'a> {
        Stored { buffer, offset: 0, dtype: DType::F32 }
    }

    /// Returns an input from its first element on.
    pub fn of<L>(input: &GpuIn<'a, L>) -> Stored<'a> {
        Stored { buffer: input.buffer(), offset: input.offset(), dtype: input.dtype() }
    }

    /// Returns the part from an element on that is `elements` further.
    pub fn after(self, elements: usize) -> Stored<'a> {
        Stored { offset: self.offset + elements, ..self }
    }

    /// Returns the value of the shader's constant for this operand.
    pub fn halves(&self) -> u32 {
        halves(self.dtype)
    }
}

impl AsBuffer for Stored<'_> {
    fn as_buffer(&self) -> &Buffer {
        self.buffer
    }
}

/// Returns numbers as words of a type, and rounds them to what is stored.
pub(in crate::ops) fn words(numbers: &mut [f32], dtype: DType) -> Vec<u32> {
    let bits: fn(&mut f32) -> u16 = match dtype {
        DType::F16 => |v| {
            let half = f16::from_f32(*v);
            *v = half.to_f32();
            half.to_bits()
        },
        DType::BF16 => |v| {
            let half = bf16::from_f32(*v);
            *v = half.to_f32();
            half.to_bits()
        },
        _ => return numbers.iter().map(|v| v.to_bits()).collect(),
    };
    let halves: Vec<u16> = numbers.iter_mut().map(bits).collect();
    let word = |pair: &[u16]| u32::from(pair[0]) | u32::from(pair.get(1).copied().unwrap_or(0)) << 16;
    halves.chunks(2).map(word).collect()
}

/// Returns the value of a constant `…_HALVES`; 0 for every type that is no half.
pub(in crate::ops) fn halves(dtype: DType) -> u32 {
    match dtype {
        DType::F16 => 1,
        DType::BF16 => 2,
        _ => 0,
    }
}
