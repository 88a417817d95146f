//! The two ops of packed matrices: the product, and the elements of a part.

use std::sync::Arc;

use anygpu_host::packed::{OfRow, Packed as OnHost};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use super::Form;
use super::gpu::{Operands, product, widen};
use super::plan::FAMILY;
use crate::device::cpu::host_error;
use crate::device::gpu::{Buffer, Gpu, Kernel};
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::names::{Names, names};
use crate::ops::variants::chosen;
use crate::ops::{CpuIn, CpuOut, Dense, Elements, GpuIn, Op, Output};
use crate::tensor::Tensor;

/// X `[m, K]` of f32, and the bytes, the scales and perhaps the zeros of W `[N, K]` → `X · Wᵀ`, `[m, N]`, for few rows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Product(pub Form);

/// The bytes, the scales and perhaps the zeros of W → its elements, `[N, K]`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Widen(pub Form);

/// Floats on the host as they are stored.
enum Floats<'a> {
    Single(&'a [f32]),
    Half(&'a [u16]),
    Brain(&'a [u16]),
}

impl<'a> Floats<'a> {
    fn of(input: &CpuIn<'a, Dense>) -> Floats<'a> {
        let whole = input.through(input.layout());
        let (first, count) = (input.offset(), input.elem_count());
        match input.dtype() {
            DType::F16 => Floats::Half(&whole.all()[first..][..count]),
            DType::BF16 => Floats::Brain(&whole.all()[first..][..count]),
            _ => Floats::Single(&whole.all()[first..][..count]),
        }
    }

    /// Writes the floats from `first` on.
    fn read(&self, first: usize, out: &mut [f32]) {
        let count = out.len();
        match self {
            Floats::Single(all) => out.copy_from_slice(&all[first..][..count]),
            Floats::Half(all) => {
                let halves: &[f16] = bytemuck::cast_slice(&all[first..][..count]);
                halves.convert_to_f32_slice(out);
            }
            Floats::Brain(all) => {
                out.iter_mut().zip(&all[first..]).for_each(|(out, bits)| *out = bf16::from_bits(*bits).to_f32());
            }
        }
    }
}

/// Zeros on the host as they are stored.
enum Zeros<'a> {
    /// Bytes, and how many a row has.
    Integers(&'a [u8], usize),
    Floats(Floats<'a>),
}

impl<'a> Zeros<'a> {
    fn of(input: &CpuIn<'a, Dense>) -> Zeros<'a> {
        match input.dtype() {
            DType::U8 => {
                let bytes = &input.through(input.layout()).all()[input.offset()..][..input.elem_count()];
                Zeros::Integers(bytes, input.shape()[1])
            }
            _ => Zeros::Floats(Floats::of(input)),
        }
    }

    /// Writes the zeros of a row.
    fn read(&self, bits: usize, row: usize, out: &mut [f32]) {
        match self {
            Zeros::Floats(floats) => floats.read(row * out.len(), out),
            Zeros::Integers(bytes, each) => {
                let bytes = &bytes[row * each..][..*each];
                for (block, out) in out.iter_mut().enumerate() {
                    let integer = bytes[block * bits / 8] >> (block * bits % 8) & (0xff >> (8 - bits));
                    *out = f32::from(integer);
                }
            }
        }
    }
}

/// Calls `f` with a matrix on the host.
fn on_host<R>(form: Form, inputs: &[CpuIn<Dense>], f: impl FnOnce(OnHost) -> R) -> R {
    let (blocks, bits) = (form.blocks(), form.bits);
    let integers = &inputs[0];
    let words: &[u32] = integers.through(integers.layout()).all();
    let (scales, zeros) = (Floats::of(&inputs[1]), inputs.get(2).map(Zeros::of));
    let zeros = zeros.as_ref().map(|zeros| move |row: usize, out: &mut [f32]| zeros.read(bits, row, out));
    f(OnHost {
        words: &words[integers.offset() / 4..][..integers.elem_count() / 4],
        bits,
        block: form.words(),
        blocks,
        depth: form.k,
        scales: &|row, out| scales.read(row * blocks, out),
        zeros: zeros.as_ref().map(|zeros| zeros as OfRow),
    })
}

impl Op for Product {
    type Layout = Dense;
    const ELEMENTS: Elements = Elements::Stored;
    const NAMES: Names = names!["matmul_packed"];

    fn output(&self, inputs: &[&Tensor]) -> Result<Output> {
        Ok((vec![inputs[0].shape()[0], inputs[1].shape()[0]], DType::F32))
    }

    fn cpu(&self, inputs: &[CpuIn<Dense>], out: CpuOut) -> Result<()> {
        let sizes = [inputs[0].shape()[0], inputs[1].shape()[0]];
        on_host(self.0, &inputs[1..], |packed| packed.product(out.slice(), inputs[0].slice(), sizes))
            .map_err(host_error)
    }

    fn gpu(&self, gpu: &Arc<Gpu>, inputs: &[GpuIn<Dense>], out: &Buffer) -> Result<Vec<Kernel>> {
        let operands = Operands::of(self.0, &inputs[1..]);
        let params = operands.params(inputs[0].shape()[0], inputs[0].offset());
        let way = chosen(gpu, &FAMILY, &params)?.way;
        Ok(vec![product(way, &operands, params, inputs[0].buffer(), out)])
    }

    fn along(&self, shapes: &[&[usize]], dim: usize) -> Option<Vec<Option<usize>>> {
        Some((0..shapes.len()).map(|i| ((i == 0) == (dim == 0)).then_some(0)).collect())
    }
}

impl Op for Widen {
    type Layout = Dense;
    const ELEMENTS: Elements = Elements::Stored;
    const NAMES: Names = names!["widen_packed"];

    fn output(&self, inputs: &[&Tensor]) -> Result<Output> {
        Ok((vec![inputs[0].shape()[0], self.0.k], DType::F32))
    }

    fn cpu(&self, inputs: &[CpuIn<Dense>], out: CpuOut) -> Result<()> {
        on_host(self.0, inputs, |packed| packed.widen(0, out.slice())).map_err(host_error)
    }

    fn gpu(&self, gpu: &Arc<Gpu>, inputs: &[GpuIn<Dense>], out: &Buffer) -> Result<Vec<Kernel>> {
        Ok(vec![widen(gpu, &Operands::of(self.0, inputs), out)])
    }

    fn along(&self, shapes: &[&[usize]], dim: usize) -> Option<Vec<Option<usize>>> {
        (dim == 0).then(|| vec![Some(0); shapes.len()])
    }
}
