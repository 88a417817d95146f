//! Random tensors. Their bits are a function of the seed and of how many were drawn before, whatever the device.
//!
//! Uniform, Bernoulli and whole numbers are made on the device, in arithmetic that is exact. Normal numbers need logarithms
//! and cosines, in which adapters differ: these are made on the host and copied.

use std::sync::Mutex;

use crate::context;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::ops::random::{Distribution, drawn, share};
use crate::philox::{Stream, below, philox, unit};
use crate::shape::{Shape, checked_elem_count};
use crate::sync::lock;
use crate::tensor::Tensor;
use crate::tensor::create::with_room;

/// The process's generator: its seed, and how many blocks of four words it gave out.
static GENERATOR: Mutex<Stream> = Mutex::new(Stream { seed: 0, first: 0 });

/// Seeds the generator behind [`Tensor::rand`] and all other random tensors, [`Tensor::dropout`] and the initialisation of
/// layers; it is 0 at first.
///
/// The same calls in the same order then give the same bits, on every device and in any mix of devices: uniform,
/// Bernoulli and whole numbers, permutations and dropped elements always; normal numbers on machines whose mathematical
/// library (`ln`, `sin`, `cos` in f64) rounds alike. There is one generator for the whole process: threads that draw at
/// once do so in any order. The replicas of [`DataParallel`](crate::DataParallel) drop what one device would drop.
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

/// Where the process's generator stands: what comes next depends on this alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RandomState {
    /// As given to [`manual_seed`].
    pub seed: u64,
    /// How many blocks of four words were drawn since.
    pub drawn: u64,
}

/// Where the generator stands, for a run that is to go on from here with the same random numbers.
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
pub fn random_state() -> RandomState {
    let Stream { seed, first } = *lock(&GENERATOR);
    RandomState { seed, drawn: first }
}

/// Puts the generator where [`random_state`] said that it stood.
pub fn set_random_state(state: RandomState) {
    *lock(&GENERATOR) = Stream { seed: state.seed, first: state.drawn };
}

/// Returns the next `count` words of the process's generator, rounded up to whole blocks.
fn next_stream(count: usize) -> Stream {
    let mut generator = lock(&GENERATOR);
    let stream = *generator;
    generator.first = stream.first.wrapping_add(count.div_ceil(4) as u64);
    stream
}

/// Returns the words of `count` elements, without the first few of the stream. A replica that takes a step with others
/// gets those of its own part of what one device would draw.
pub(crate) fn next_words(count: usize) -> (Stream, usize) {
    context::rank().map_or_else(|| (next_stream(count), 0), |rank| rank.words(count))
}

/// Where the process's generator stands.
pub(crate) fn generator() -> Stream {
    *lock(&GENERATOR)
}

/// Takes the process's generator past so many blocks, which were drawn elsewhere.
pub(crate) fn skip_blocks(blocks: u64) {
    let mut generator = lock(&GENERATOR);
    generator.first = generator.first.wrapping_add(blocks);
}

/// Returns a stream of its own for a purpose (shuffling, say), drawn from the process's generator.
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
    /// Uniform in [0, 1), in steps of 2⁻²⁴, from the generator that [`manual_seed`] seeds.
    ///
    /// # Errors
    /// If the device has no room for it.
    pub fn rand<'d>(shape: impl Into<Shape>, device: impl Into<Option<&'d Device>>) -> Result<Tensor> {
        drawn("rand", Distribution::Uniform, shape.into().dims(), &device.into().cloned().unwrap_or_default())
    }

    /// Uniform between `low` and `high`: `low + (high − low) · u` with u as in [`Tensor::rand`].
    ///
    /// # Errors
    /// If the device has no room for it.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let x = Tensor::uniform(-1.0, 3.0, [100], None)?.to_vec::<f32>()?;
    /// assert!(x.iter().all(|v| (-1.0..=3.0).contains(v)));
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn uniform<'d>(
        low: f32,
        high: f32,
        shape: impl Into<Shape>,
        device: impl Into<Option<&'d Device>>,
    ) -> Result<Tensor> {
        // Two kernels: one might fuse the product and the sum on some adapters, and round once.
        Tensor::rand(shape, device)?.mul_scalar(high - low)?.add_scalar(low)
    }

    /// 1 with probability `p`, else 0 (f32). For a mask, `.to_dtype(DType::Bool)`.
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
    pub fn bernoulli<'d>(p: f32, shape: impl Into<Shape>, device: impl Into<Option<&'d Device>>) -> Result<Tensor> {
        let distribution = Distribution::Bernoulli(share("bernoulli", p)?);
        drawn("bernoulli", distribution, shape.into().dims(), &device.into().cloned().unwrap_or_default())
    }

    /// Whole numbers from `low` up to and without `high` (i32), all alike but for 2⁻³² of a share.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if there is no such number.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let dice = Tensor::randint(1, 7, [100], None)?.to_vec::<i32>()?;
    /// assert!((1..=6).all(|eyes| dice.contains(&eyes)) && !dice.contains(&7));
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn randint<'d>(
        low: i32,
        high: i32,
        shape: impl Into<Shape>,
        device: impl Into<Option<&'d Device>>,
    ) -> Result<Tensor> {
        let range = u32::try_from(i64::from(high) - i64::from(low)).unwrap_or(0);
        if range == 0 {
            return Err(Error::argument("randint", format!("there is no whole number from {low} up to {high}")));
        }
        drawn(
            "randint",
            Distribution::Integer(low, range),
            shape.into().dims(),
            &device.into().cloned().unwrap_or_default(),
        )
    }

    /// Returns the numbers `0 .. n` in random order (u32), shuffled on the host.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if n is beyond 2³²; if the device has no room for it.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let mut order = Tensor::randperm(5, None)?.to_vec::<u32>()?;
    /// order.sort();
    /// assert_eq!(order, [0, 1, 2, 3, 4]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn randperm<'d>(n: usize, device: impl Into<Option<&'d Device>>) -> Result<Tensor> {
        let Ok(count) = u32::try_from(n) else {
            return Err(Error::argument("randperm", format!("{n} numbers do not fit u32")));
        };
        let mut order = with_room(n)?;
        order.extend(0..count);
        // Fisher and Yates: each place, from the last on, takes one of those up to it.
        for (last, word) in (1..count).rev().zip(next_stream(n).words()) {
            order.swap(last as usize, below(word, last + 1) as usize);
        }
        Tensor::from_vec(order, n, device)
    }

    /// Standard normal, by the Box–Muller transform of pairs from the same generator, made on the host in f64.
    ///
    /// # Errors
    /// If the device has no room for it.
    pub fn randn<'d>(shape: impl Into<Shape>, device: impl Into<Option<&'d Device>>) -> Result<Tensor> {
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

    /// Normal with this mean and standard deviation: `mean + std · z` with z as in [`Tensor::randn`].
    ///
    /// # Errors
    /// If the device has no room for it.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let x = Tensor::normal(5.0, 0.5, [1000], None)?;
    /// assert!((x.mean_all()?.item::<f32>()? - 5.0).abs() < 0.1);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn normal<'d>(
        mean: f32,
        std: f32,
        shape: impl Into<Shape>,
        device: impl Into<Option<&'d Device>>,
    ) -> Result<Tensor> {
        Tensor::randn(shape, device)?.mul_scalar(std)?.add_scalar(mean)
    }

    /// As [`Tensor::rand`], with this tensor's shape and type, on its device.
    ///
    /// # Errors
    /// [`Error::DTypeMismatch`] unless of floats.
    pub fn rand_like(&self) -> Result<Tensor> {
        self.random_like("rand_like", |shape, device| Tensor::rand(shape, device))
    }

    /// As [`Tensor::randn`], with this tensor's shape and type, on its device.
    ///
    /// # Errors
    /// [`Error::DTypeMismatch`] unless of floats.
    pub fn randn_like(&self) -> Result<Tensor> {
        self.random_like("randn_like", |shape, device| Tensor::randn(shape, device))
    }

    fn random_like(&self, op: &'static str, make: fn(&[usize], &Device) -> Result<Tensor>) -> Result<Tensor> {
        if !self.dtype().is_float() {
            let got = self.dtype().to_string();
            return Err(Error::DTypeMismatch { op, expected: "a float type".into(), got });
        }
        make(self.shape(), self.device())?.to_dtype(self.dtype())
    }
}
