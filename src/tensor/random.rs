//! Random tensors. Their bits depend only on the seed and on the number of values drawn before, not on the device.
//!
//! Uniform, Bernoulli and whole numbers are computed on the device with exact arithmetic. Normal numbers need
//! logarithms and cosines, which differ between adapters, so they are computed on the host and copied.

use std::sync::Mutex;

use crate::device::cpu::with_room;
use crate::device::{Device, IntoDevice};
use crate::error::{Error, Result};
use crate::ops::named;
use crate::ops::random::{Distribution, drawn, share};
use crate::ops::traced::note_random;
use crate::philox::{Stream, below, philox, unit};
use crate::process_group;
use crate::shape::{Shape, checked_elem_count};
use crate::tensor::Tensor;
use crate::util::sync::lock;

/// The process's generator: its seed, and the number of blocks of four words drawn so far.
static GENERATOR: Mutex<Stream> = Mutex::new(Stream { seed: 0, first: 0 });

/// Seeds the generator that [`Tensor::rand`] and all other random tensors, [`Tensor::dropout`] and the initialisation
/// of layers use.
///
/// The initial seed is 0.
///
/// The same calls in the same order then give the same bits, on every device and on any mix of devices. This always
/// holds for uniform, Bernoulli and whole numbers, permutations and dropout. For normal numbers it holds on machines
/// whose mathematical library (`ln`, `sin`, `cos` in f64) rounds identically.
///
/// There is one generator for the whole process. If several threads draw at the same time, the order is unspecified.
/// The replicas of [`DataParallel`](crate::DataParallel) drop the same elements as one device would.
///
/// ```
/// use anygpu::{Tensor, manual_seed};
///
/// manual_seed(7);
/// let a = Tensor::rand([4], None)?.to_vec::<f32>()?;
/// manual_seed(7);
/// assert_eq!(a, Tensor::rand([4], &anygpu::try_gpu(0))?.to_vec::<f32>()?);
/// # Ok::<(), anygpu::Error>(())
/// ```
pub fn manual_seed(seed: u64) {
    *lock(&GENERATOR) = Stream { seed, first: 0 };
}

/// The state of the process's generator.
///
/// It determines all later random numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RandomState {
    /// The seed, as given to [`manual_seed`].
    pub seed: u64,
    /// The number of blocks of four words drawn since.
    pub drawn: u64,
}

/// Returns the state of the generator.
///
/// A run that restores it continues with the same random numbers.
///
/// ```
/// use anygpu::{Tensor, random_state, set_random_state};
///
/// let state = random_state();
/// let a = Tensor::rand([4], None)?.to_vec::<f32>()?;
/// set_random_state(state);
/// assert_eq!(a, Tensor::rand([4], None)?.to_vec::<f32>()?);
/// # Ok::<(), anygpu::Error>(())
/// ```
#[must_use]
pub fn random_state() -> RandomState {
    let Stream { seed, first } = *lock(&GENERATOR);
    RandomState { seed, drawn: first }
}

/// Restores a state that [`random_state`] returned.
pub fn set_random_state(state: RandomState) {
    *lock(&GENERATOR) = Stream { seed: state.seed, first: state.drawn };
}

/// Returns the next `count` words of the process's generator, rounded up to whole blocks.
fn next_stream(count: usize) -> Stream {
    note_random();
    let mut generator = lock(&GENERATOR);
    let stream = *generator;
    generator.first = stream.first.wrapping_add(count.div_ceil(4) as u64);
    stream
}

/// Returns the stream for the words of `count` elements, and the number of words to skip at its start. A replica in a
/// joint step gets the words that one device would draw for its part of the batch.
pub(crate) fn next_words(count: usize) -> (Stream, usize) {
    process_group::rank().map_or_else(|| (next_stream(count), 0), |rank| rank.words(count))
}

/// Returns the position of the process's generator.
pub(crate) fn generator() -> Stream {
    *lock(&GENERATOR)
}

/// Advances the process's generator by a number of blocks that were drawn elsewhere.
pub(crate) fn skip_blocks(blocks: u64) {
    let mut generator = lock(&GENERATOR);
    generator.first = generator.first.wrapping_add(blocks);
}

/// Returns a separate stream of random words for one purpose, such as shuffling, from a seed and a stream number.
pub(crate) fn seed_for(seed: u64, stream: u64) -> impl FnMut() -> u32 {
    let mut block = 0u64;
    let mut left: Vec<u32> = Vec::new();
    move || {
        left.pop().unwrap_or_else(|| {
            left.extend(philox([block as u32, (block >> 32) as u32, stream as u32, (stream >> 32) as u32], seed));
            block += 1;
            left.pop().unwrap_or_default()
        })
    }
}

impl Tensor {
    /// Returns random f32 values, uniformly distributed in [0, 1).
    ///
    /// The values are multiples of 2⁻²⁴. They come from the generator that [`manual_seed`] seeds.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if the device does not have enough memory.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let x = Tensor::rand([2, 50], None)?;
    /// assert!(x.to_vec::<f32>()?.iter().all(|v| (0.0..1.0).contains(v)));
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn rand(shape: impl Into<Shape>, device: impl IntoDevice) -> Result<Tensor> {
        drawn("rand", Distribution::Uniform, shape.into().dims(), &device.into_device()?)
    }

    /// Returns random f32 values, uniformly distributed between `low` and `high`.
    ///
    /// They are `low + (high − low) · u` with u as in [`Tensor::rand`].
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if the device does not have enough memory.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let x = Tensor::uniform(-1.0, 3.0, [100], None)?.to_vec::<f32>()?;
    /// assert!(x.iter().all(|v| (-1.0..=3.0).contains(v)));
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn uniform(low: f32, high: f32, shape: impl Into<Shape>, device: impl IntoDevice) -> Result<Tensor> {
        // Two kernels, because some adapters might fuse the product and the sum in one kernel and round only once.
        named("uniform", || Tensor::rand(shape, device)?.mul_scalar(high - low)?.add_scalar(low))
    }

    /// Returns f32 values that are 1 with probability `p` and 0 otherwise. For a mask, append `.to_dtype(DType::Bool)`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] unless p is between 0 and 1.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let hits = Tensor::bernoulli(0.25, [1000], None)?.sum_all()?.item::<f32>()?;
    /// assert!((200.0..300.0).contains(&hits));
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn bernoulli(p: f32, shape: impl Into<Shape>, device: impl IntoDevice) -> Result<Tensor> {
        let distribution = Distribution::Bernoulli(share("bernoulli", p)?);
        drawn("bernoulli", distribution, shape.into().dims(), &device.into_device()?)
    }

    /// Returns random i32 numbers from `low` up to but not including `high`. Their probabilities are equal up to 2⁻³².
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if there is no whole number in that range.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let dice = Tensor::randint(1, 7, [100], None)?.to_vec::<i32>()?;
    /// assert!((1..=6).all(|eyes| dice.contains(&eyes)) && !dice.contains(&7));
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn randint(low: i32, high: i32, shape: impl Into<Shape>, device: impl IntoDevice) -> Result<Tensor> {
        let range = u32::try_from(i64::from(high) - i64::from(low)).unwrap_or(0);
        if range == 0 {
            return Err(Error::argument("randint", format!("there is no whole number from {low} up to {high}")));
        }
        drawn("randint", Distribution::Integer(low, range), shape.into().dims(), &device.into_device()?)
    }

    /// Returns the numbers `0 .. n` in random order (u32), shuffled on the host.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if n is greater than 2³² − 1; [`Error::OutOfMemory`] if there is not enough memory.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let mut order = Tensor::randperm(5, None)?.to_vec::<u32>()?;
    /// order.sort();
    /// assert_eq!(order, [0, 1, 2, 3, 4]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn randperm(n: usize, device: impl IntoDevice) -> Result<Tensor> {
        let Ok(count) = u32::try_from(n) else {
            return Err(Error::argument("randperm", format!("{n} numbers do not fit u32")));
        };
        let mut order = with_room(n)?;
        order.extend(0..count);
        // Fisher–Yates shuffle: from the last position to the first, each is swapped with one at or before it.
        for (last, word) in (1..count).rev().zip(next_stream(n).words()) {
            order.swap(last as usize, below(word, last + 1) as usize);
        }
        Tensor::from_vec(order, n, device)
    }

    /// Returns random f32 values from the standard normal distribution.
    ///
    /// They come from the generator that [`manual_seed`] seeds. The host computes them, in f64, by the Box–Muller
    /// transform.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if the device does not have enough memory.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let x = Tensor::randn([1000], None)?;
    /// assert!(x.mean_all()?.item::<f32>()?.abs() < 0.2);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn randn(shape: impl Into<Shape>, device: impl IntoDevice) -> Result<Tensor> {
        let shape = shape.into();
        let count = checked_elem_count("randn", shape.dims())?;
        let mut values = with_room(count)?;
        let normal = |pair: [u32; 2]| {
            let radius = (-2.0 * f64::from(1.0 - unit(pair[0])).ln()).sqrt();
            let (sin, cos) = (std::f64::consts::TAU * f64::from(unit(pair[1]))).sin_cos();
            [(radius * cos) as f32, (radius * sin) as f32]
        };
        let (stream, skip) = next_words(count);
        let block = |after| stream.block(after as u64);
        let pairs = (0..(skip + count).div_ceil(4)).map(block).flat_map(|[a, b, c, d]| [[a, b], [c, d]]);
        values.extend(pairs.flat_map(normal).skip(skip).take(count));
        Tensor::from_vec(values, shape, device)
    }

    /// Returns random f32 values from the normal distribution with this mean and standard deviation.
    ///
    /// They are `mean + std · z` with z as in [`Tensor::randn`].
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if the device does not have enough memory.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let x = Tensor::normal(5.0, 0.5, [1000], None)?;
    /// assert!((x.mean_all()?.item::<f32>()? - 5.0).abs() < 0.1);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn normal(mean: f32, std: f32, shape: impl Into<Shape>, device: impl IntoDevice) -> Result<Tensor> {
        named("normal", || Tensor::randn(shape, device)?.mul_scalar(std)?.add_scalar(mean))
    }

    /// Returns values as [`Tensor::rand`] does, with this tensor's shape, type and device.
    ///
    /// # Errors
    /// [`Error::DTypeMismatch`] unless the elements are floats.
    pub fn rand_like(&self) -> Result<Tensor> {
        self.random_like("rand_like", |shape, device| Tensor::rand(shape, device))
    }

    /// Returns values as [`Tensor::randn`] does, with this tensor's shape, type and device.
    ///
    /// # Errors
    /// [`Error::DTypeMismatch`] unless the elements are floats.
    pub fn randn_like(&self) -> Result<Tensor> {
        self.random_like("randn_like", |shape, device| Tensor::randn(shape, device))
    }

    fn random_like(&self, op: &'static str, make: fn(&[usize], &Device) -> Result<Tensor>) -> Result<Tensor> {
        if !self.dtype().is_float() || self.dtype().is_long() {
            let got = self.dtype().to_string();
            return Err(Error::DTypeMismatch { op, expected: "a float type".into(), got });
        }
        make(self.shape(), self.device())?.to_dtype(self.dtype())
    }
}
