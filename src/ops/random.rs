//! Random numbers, generated on their device, and dropout. Both use words of Philox, the same on every device.

use std::sync::Arc;

use anygpu_host::tasks;

use crate::device::gpu::{Buffer, Gpu, Kernel, params, shader, wgsl};
use crate::device::{Backend, Device, Storage};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::ops::names::{Names, names};
use crate::ops::parts::written;
use crate::ops::{Casting, CpuIn, CpuOut, Dense, Elements, GpuIn, Gradient, Gradients, Op, Saves, apply, named};
use crate::philox::{Stream, below, unit};
use crate::shape::checked_elem_count;
use crate::tensor::{Tensor, next_words};

params! {
    #[derive(Default)]
    struct Params {
        seed: [u32; 2],
        first: [u32; 2],
        count: usize,
        skip: usize,
        threshold: u32,
        low: i32,
        range: u32,
        offset: usize,
        scale: f32,
    }
}
shader!(SHADER: Params = "random", after [wgsl!("philox")]);

/// The number of elements that one task of the host generates: a multiple of the four words of a block.
const CHUNK: usize = 4096;

/// The distribution of the elements that are made of random words.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Distribution {
    /// f32 in [0, 1).
    Uniform,
    /// f32: 1 with this probability, in units of 2⁻²⁴, else 0.
    Bernoulli(u32),
    /// i32: a number from `low` to `low + range − 1`, for the fields (`low`, `range`).
    Integer(i32, u32),
}

impl Distribution {
    fn bits(self, word: u32) -> u32 {
        match self {
            Distribution::Uniform => unit(word).to_bits(),
            Distribution::Bernoulli(share) => f32::from(u8::from((word >> 8) < share)).to_bits(),
            Distribution::Integer(low, range) => (low as u32).wrapping_add(below(word, range)),
        }
    }
}

/// Returns a probability in units of 2⁻²⁴: a number of 24 random bits is below the result with this probability.
pub(crate) fn share(op: &'static str, p: f32) -> Result<u32> {
    if !(0.0..=1.0).contains(&p) {
        return Err(Error::argument(op, format!("{p} is not a probability between 0 and 1")));
    }
    Ok((f64::from(p) * f64::from(1 << 24)).round() as u32)
}

/// Returns a new tensor of random elements from the generator of the process.
pub(crate) fn drawn(op: &'static str, distribution: Distribution, shape: &[usize], device: &Device) -> Result<Tensor> {
    let count = checked_elem_count(op, shape)?;
    named(op, || drawn_from(next_words(count), distribution, shape, device))
}

/// Returns a new tensor of random elements from this place of a stream on, after `skip` words (fewer than 4).
pub(crate) fn drawn_from(
    (stream, skip): (Stream, usize),
    distribution: Distribution,
    shape: &[usize],
    device: &Device,
) -> Result<Tensor> {
    let count = checked_elem_count("random", shape)?;
    let storage = match device.backend()? {
        Backend::Cpu(cpu) => {
            let buffer = cpu.alloc(count)?;
            each(&mut buffer.write()[..count], stream, skip, |word, out| *out = distribution.bits(word));
            Storage::Cpu(buffer)
        }
        Backend::Gpu(gpu) => {
            let buffer = gpu.alloc(count)?;
            for (range, out) in written(gpu, &buffer, count) {
                // A range begins at a block of four words.
                let stream = Stream { first: stream.first.wrapping_add(range.start as u64 / 4), ..stream };
                gpu.run(generate(distribution, Params::new(stream, skip, range.len()), &out))?;
            }
            Storage::Gpu(buffer)
        }
    };
    let dtype = if matches!(distribution, Distribution::Integer(..)) { DType::I32 } else { DType::F32 };
    Ok(Tensor::from_storage(storage, shape, dtype, device.clone()))
}

/// Calls `f` with each element and its word; the first `skip` words of the first block are not used.
fn each<T: Send>(mut out: &mut [T], mut stream: Stream, skip: usize, f: impl Fn(u32, &mut T) + Sync) {
    if skip > 0 {
        let (head, rest) = out.split_at_mut((4 - skip).min(out.len()));
        head.iter_mut().zip(&stream.block(0)[skip..]).for_each(|(out, &word)| f(word, out));
        (out, stream.first) = (rest, stream.first.wrapping_add(1));
    }
    tasks::share(out.chunks_mut(CHUNK).enumerate(), 1, |(i, chunk)| {
        for (block, four) in chunk.chunks_mut(4).enumerate() {
            let words = stream.block((i * CHUNK / 4 + block) as u64);
            four.iter_mut().zip(words).for_each(|(out, word)| f(word, out));
        }
    });
}

impl Params {
    /// Returns the parameters for `count` words of a stream. The others are 0.
    fn new(stream: Stream, skip: usize, count: usize) -> Params {
        let halves = |v: u64| [v as u32, (v >> 32) as u32];
        let (seed, first) = (halves(stream.seed), halves(stream.first));
        Params { seed, first, count, skip, ..Params::default() }
    }

    /// Returns the number of blocks of four words that hold the elements, after up to three skipped words.
    fn blocks(&self) -> usize {
        if self.count == 0 { 0 } else { (self.count + 3).div_ceil(4) }
    }
}

fn generate(distribution: Distribution, uniform: Params, out: &Buffer) -> Kernel {
    let (code, params) = match distribution {
        Distribution::Uniform => (0u8, uniform),
        Distribution::Bernoulli(threshold) => (1, Params { threshold, ..uniform }),
        Distribution::Integer(low, range) => (2, Params { low, range, ..uniform }),
    };
    Kernel::build(SHADER, "random", params).constant("OP", code).output(out).each(params.blocks())
}

/// The op that replaces a part of the elements by 0. The gradient generates the same words again and needs no mask.
#[derive(Clone, Debug)]
struct Dropout {
    /// The probability of replacing an element, in units of 2⁻²⁴.
    share: u32,
    scale: f32,
    stream: Stream,
    /// The number of words of the first block before the word of element 0.
    skip: usize,
}

impl Op for Dropout {
    type Layout = Dense;
    const ELEMENTS: Elements = Elements::Floats(Casting::Keep);
    const NAMES: Names = names!["dropout"];

    fn cpu(&self, inputs: &[CpuIn<Dense>], out: CpuOut) -> Result<()> {
        let out = out.slice::<f32>();
        out.copy_from_slice(inputs[0].slice());
        each(out, self.stream, self.skip, |word, v| *v = if (word >> 8) >= self.share { *v * self.scale } else { 0.0 });
        Ok(())
    }

    fn gpu(&self, _gpu: &Arc<Gpu>, inputs: &[GpuIn<Dense>], out: &Buffer) -> Result<Vec<Kernel>> {
        let x = &inputs[0];
        let (threshold, offset, scale) = (self.share, x.offset(), self.scale);
        let params = Params { threshold, offset, scale, ..Params::new(self.stream, self.skip, x.elem_count()) };
        Ok(vec![Kernel::build(SHADER, "dropout", params).input(x).output(out).each(params.blocks())])
    }

    fn saves(&self) -> Saves {
        Saves::Nothing
    }

    fn backward(&self, ctx: &Gradient) -> Result<Gradients> {
        Ok(vec![Some(apply(self.clone(), &[ctx.grad])?)])
    }
}

/// Applies dropout with the words from this place of a stream on, without the first `skip` of them (fewer than 4).
pub(crate) fn dropout_from((stream, skip): (Stream, usize), x: &Tensor, p: f32) -> Result<Tensor> {
    let scale = if p < 1.0 { 1.0 / (1.0 - p) } else { 0.0 };
    apply(Dropout { share: share("dropout", p)?, scale, stream, skip }, &[x])
}

impl Tensor {
    /// Replaces each element by 0 with probability `p`, and by `x / (1 − p)` otherwise, so that the expected value does
    /// not change.
    ///
    /// The shape and the type stay the same. If `training` is false, returns the same tensor. (Srivastava et al.,
    /// "Dropout", 2014.)
    ///
    /// Which elements are replaced depends only on the generator of [`manual_seed`](crate::manual_seed), on every
    /// device.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] unless p is between 0 and 1; [`Error::DTypeMismatch`] unless the elements are floats.
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
