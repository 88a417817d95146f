//! Random numbers where they are wanted, and dropout: words of Philox, the same on every device.

use std::sync::Arc;

use rayon::prelude::*;

use crate::device::gpu::{Buffer, Gpu, Kernel, Shader};
use crate::device::{Backend, Device, Storage};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::ops::dispatch::{CpuIn, CpuOut, GpuIn, fits_u32, grid};
use crate::ops::promote::apply_float;
use crate::ops::{Gradient, Op, Spec, expect_dtype, shader};
use crate::philox::{Stream, below, unit};
use crate::shape::checked_elem_count;
use crate::tensor::{Tensor, next_words};

pub(super) const SHADER: Shader = shader!("random");

/// Elements that one task of the host makes; a multiple of the four words of a block.
const CHUNK: usize = 4096;

/// What a word becomes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Law {
    /// f32 in [0, 1).
    Uniform,
    /// f32: 1 with this probability in 2²⁴, else 0.
    Bernoulli(u32),
    /// i32 from `low` on, of so many.
    Integer(i32, u32),
}

impl Law {
    fn bits(self, word: u32) -> u32 {
        match self {
            Law::Uniform => unit(word).to_bits(),
            Law::Bernoulli(share) => f32::from(u8::from((word >> 8) < share)).to_bits(),
            Law::Integer(low, range) => (low as u32).wrapping_add(below(word, range)),
        }
    }

    /// The shader's code and its two numbers.
    fn code(self) -> (f64, u32, u32) {
        match self {
            Law::Uniform => (0.0, 0, 0),
            Law::Bernoulli(share) => (1.0, share, 0),
            Law::Integer(low, range) => (2.0, low as u32, range),
        }
    }
}

/// A probability in 2²⁴: what 24 random bits are below with just that probability.
pub(crate) fn share(op: &'static str, p: f32) -> Result<u32> {
    if !(0.0..=1.0).contains(&p) {
        return Err(Error::argument(op, format!("{p} is no probability: between 0 and 1")));
    }
    Ok((f64::from(p) * f64::from(1 << 24)).round() as u32)
}

/// A new tensor of random elements from the process's generator.
pub(crate) fn drawn(op: &'static str, law: Law, shape: &[usize], device: &Device) -> Result<Tensor> {
    let count = checked_elem_count(op, shape)?;
    drawn_from(next_words(count), law, shape, device)
}

/// A new tensor of elements from this place of a stream on, without the first `skip` of its words (fewer than 4).
pub(crate) fn drawn_from(
    (stream, skip): (Stream, usize),
    law: Law,
    shape: &[usize],
    device: &Device,
) -> Result<Tensor> {
    let count = checked_elem_count("random", shape)?;
    let storage = match device.backend()? {
        Backend::Cpu(cpu) => {
            let buffer = cpu.alloc(count)?;
            each(&mut buffer.write()[..count], stream, skip, |word, out| *out = law.bits(word));
            Storage::Cpu(buffer)
        }
        Backend::Gpu(gpu) => {
            let buffer = gpu.alloc(count)?;
            let (code, a, b) = law.code();
            gpu.run(kernel("generate", code, count, stream, [a, b, skip as u32, 0], vec![], &buffer)?)?;
            Storage::Gpu(buffer)
        }
    };
    let dtype = if matches!(law, Law::Integer(..)) { DType::I32 } else { DType::F32 };
    Ok(Tensor::from_storage(storage, shape, dtype, device.clone()))
}

/// Calls `f` with each element and its word; `skip` words of the first block have no element.
fn each<T: Send>(mut out: &mut [T], mut stream: Stream, skip: usize, f: impl Fn(u32, &mut T) + Sync) {
    if skip > 0 {
        let (head, rest) = out.split_at_mut((4 - skip).min(out.len()));
        head.iter_mut().zip(&stream.block(0)[skip..]).for_each(|(out, &word)| f(word, out));
        (out, stream.first) = (rest, stream.first.wrapping_add(1));
    }
    out.par_chunks_mut(CHUNK).enumerate().for_each(|(i, chunk)| {
        for (block, four) in chunk.chunks_mut(4).enumerate() {
            let words = stream.block((i * CHUNK / 4 + block) as u64);
            four.iter_mut().zip(words).for_each(|(out, word)| f(word, out));
        }
    });
}

fn kernel(
    entry: &'static str,
    code: f64,
    count: usize,
    stream: Stream,
    numbers: [u32; 4],
    inputs: Vec<Buffer>,
    out: &Buffer,
) -> Result<Kernel> {
    let halves = |v: u64| [v as u32, (v >> 32) as u32];
    let ([seed_low, seed_high], [low, high]) = (halves(stream.seed), halves(stream.first));
    // As WGSL lays them out: a vector starts at a multiple of its size.
    let head = [fits_u32(entry, count)?, 0, seed_low, seed_high, low, high];
    Ok(Kernel {
        shader: SHADER,
        entry,
        header: "",
        constants: vec![("OP", code)],
        params: head.into_iter().chain(numbers).collect(),
        inputs,
        outputs: vec![out.clone()],
        groups: if count == 0 { [0; 3] } else { grid((count + 3).div_ceil(4)) }, // with up to 3 words to skip
    })
}

/// Zeros in place of a part of the elements; the gradient draws the same words again, so that no mask is kept.
#[derive(Clone, Debug)]
struct Dropout {
    /// What is dropped, in 2²⁴.
    share: u32,
    scale: f32,
    stream: Stream,
    /// Words of the first block before that of element 0.
    skip: usize,
}

impl Op for Dropout {
    fn name(&self) -> &'static str {
        "dropout"
    }

    fn output(&self, inputs: &[&Tensor]) -> Result<Spec> {
        expect_dtype("dropout", inputs[0], DType::F32)?;
        Ok(Spec::Fresh(inputs[0].shape().to_vec(), DType::F32))
    }

    fn cpu(&self, inputs: &[CpuIn], out: CpuOut) -> Result<()> {
        let out = out.slice::<f32>();
        out.copy_from_slice(inputs[0].slice());
        each(out, self.stream, self.skip, |word, v| *v = if (word >> 8) >= self.share { *v * self.scale } else { 0.0 });
        Ok(())
    }

    fn gpu(&self, _gpu: &Arc<Gpu>, inputs: &[GpuIn], out: &Buffer) -> Result<Vec<Kernel>> {
        let (x, count) = (&inputs[0], inputs[0].layout.elem_count());
        let numbers = [self.share, self.skip as u32, x.offset(), self.scale.to_bits()];
        Ok(vec![kernel("dropout", 0.0, count, self.stream, numbers, vec![x.buffer.clone()], out)?])
    }

    fn backward(&self, ctx: &Gradient) -> Result<Vec<Option<Tensor>>> {
        Ok(vec![Some(super::apply(self.clone(), &[&ctx.grad.contiguous()?])?)])
    }
}

/// Dropout by the words from this place of a stream on, without the first `skip` of them (fewer than 4).
pub(crate) fn dropout_from((stream, skip): (Stream, usize), x: &Tensor, p: f32) -> Result<Tensor> {
    let scale = if p < 1.0 { 1.0 / (1.0 - p) } else { 0.0 };
    apply_float(Dropout { share: share("dropout", p)?, scale, stream, skip }, &[&x.contiguous()?])
}

impl Tensor {
    /// In `training`, each element is 0 with probability `p`, and else `x / (1 − p)`, so that the expectation stays; the
    /// same shape and type. Otherwise the same tensor. (Srivastava et al., "Dropout", 2014.)
    ///
    /// Which elements are dropped depends on the generator of [`manual_seed`](crate::manual_seed) alone, on every device.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] unless p is between 0 and 1; [`Error::DTypeMismatch`] unless of floats.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let x = Tensor::ones([1000], None)?;
    /// let y = x.dropout(0.75, true)?.to_vec::<f32>()?;
    /// assert!(y.iter().all(|&v| v == 0.0 || v == 4.0));
    /// assert!(x.is_same(&x.dropout(0.75, false)?));
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn dropout(&self, p: f32, training: bool) -> Result<Tensor> {
        let nothing = share("dropout", p)? == 0;
        if !training || nothing {
            return Ok(self.clone());
        }
        dropout_from(next_words(self.elem_count()), self, p)
    }
}
