//! Whether the losses of the parts of a batch make up the loss of the whole batch.
//!
//! A step adds the losses of its parts, each times the part's share of the samples. That is the loss of the whole batch if the loss is
//! a mean over samples, or if [`Reduction`](crate::nn::Reduction) has combined it. A user may compute something else with ops, such as
//! a sum or the root of a mean. So the first loss of each function that exchanges nothing is compared with the losses of two parts.

use std::any::TypeId;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;

use crate::autograd::no_grad;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::process_group::{outside, rank};
use crate::tensor::Tensor;
use crate::util::sync::lock;
use crate::util::waiting;

/// How far the two may be apart by rounding, relative to the largest loss of parts. One of the parts has one sample: if the losses of
/// samples cancel each other, the rounding of their mean is as large as that of one of them.
const LARGEST_DIFFERENCE: f64 = 1e-4;
/// The same for losses of f16 or bf16.
const LARGEST_DIFFERENCE_OF_HALVES: f64 = 3e-2;
/// A difference that may be rounding, whatever the losses are.
const SMALLEST: f64 = 1e-6;

/// The loss functions that have been compared, or cannot be.
#[derive(Debug, Default)]
pub(super) struct LossCheck {
    seen: Mutex<Vec<TypeId>>,
}

/// What is known of the losses of a step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Expected {
    /// The call that gets the loss function.
    pub call: &'static str,
    /// The sample dimensions of the output and of the labels.
    pub dims: [usize; 2],
    /// Whether the losses of the parts are added, and not averaged.
    pub summed: bool,
}

enum Compared {
    /// The losses of parts make up the loss, or the function is one that cannot be compared.
    Fine,
    /// What is wrong.
    Wrong(String),
    /// This batch tells nothing.
    Later,
}

impl LossCheck {
    /// Returns the loss of a part of a batch.
    ///
    /// # Errors
    /// The errors of the loss function. [`Error::InvalidArgument`] in a step over several parts, if the losses of parts do not make up
    /// the loss of their samples.
    pub fn loss<F>(&self, expected: Expected, loss_fn: &F, output: &Tensor, labels: &Tensor) -> Result<Tensor>
    where
        F: Fn(&Tensor, &Tensor) -> Result<Tensor> + 'static,
    {
        // In a browser, nothing can be read here.
        let known = || !waiting::CAN_BLOCK || lock(&self.seen).contains(&TypeId::of::<F>());
        let Some(rank) = rank().filter(|_| !known()) else { return loss_fn(output, labels) };
        let before = rank.traces();
        let loss = loss_fn(output, labels)?;
        let samples = labels.shape().get(expected.dims[1]).copied().unwrap_or(0);
        if samples < 2 || output.shape().get(expected.dims[0]) != Some(&samples) || loss.elem_count() != 1 {
            return Ok(loss); // there are no parts to compare with
        }
        lock(&self.seen).push(TypeId::of::<F>()); // the other devices need not compare it too
        if rank.traces() != before {
            return Ok(loss); // it exchanges numbers with the other parts, or is random
        }
        let compare = || outside(|| no_grad(|| expected.compare(&loss, loss_fn, output, labels)));
        match catch_unwind(AssertUnwindSafe(compare)) {
            Ok(Ok(Compared::Wrong(detail))) => {
                self.forget::<F>(); // the next call is as wrong
                return Err(Error::argument(expected.call, detail));
            }
            Ok(Ok(Compared::Later)) => self.forget::<F>(),
            // The step finds out by itself that the device has failed.
            Ok(Err(error)) if error.is_of_device() => self.forget::<F>(),
            // A function that fails for other numbers of samples cannot be compared.
            Ok(Ok(Compared::Fine) | Err(_)) | Err(_) => {}
        }
        Ok(loss)
    }

    fn forget<F: 'static>(&self) {
        lock(&self.seen).retain(|seen| *seen != TypeId::of::<F>());
    }
}

impl Expected {
    /// Compares the loss with the losses of parts, for two ways to split the samples.
    fn compare<F>(&self, loss: &Tensor, loss_fn: &F, output: &Tensor, labels: &Tensor) -> Result<Compared>
    where
        F: Fn(&Tensor, &Tensor) -> Result<Tensor>,
    {
        let halves = [output.dtype(), loss.dtype()].iter().any(|dtype| matches!(dtype, DType::F16 | DType::BF16));
        let largest = if halves { LARGEST_DIFFERENCE_OF_HALVES } else { LARGEST_DIFFERENCE };
        let (output, whole) = (output.detach(), value(loss)?);
        if !whole.is_finite() {
            return Ok(Compared::Later);
        }
        if value(&loss_fn(&output, labels)?)? != whole {
            return Ok(Compared::Fine); // it depends on more than its arguments, such as random numbers of another crate
        }
        let samples = labels.shape()[self.dims[1]];
        let part = |start, len| {
            value(&loss_fn(&output.narrow(self.dims[0], start, len)?, &labels.narrow(self.dims[1], start, len)?)?)
        };
        let of_one = part(0, 1)?.abs();
        let mut wrong = Compared::Fine;
        for first in [(samples / 3).max(1), samples / 2] {
            let (a, b) = (part(0, first)?, part(first, samples - first)?);
            let mean = (a * first as f64 + b * (samples - first) as f64) / samples as f64;
            let made_up = if self.summed { a + b } else { mean };
            let scale = whole.abs().max(a.abs()).max(b.abs()).max(of_one);
            // False if a part has no loss, such as the mean over a mask of zeros.
            let is_near = |value: f64| (value - whole).abs() <= largest * scale + SMALLEST;
            if is_near(made_up) {
                return Ok(Compared::Fine);
            }
            let (kind, of_parts) = if self.summed { ("sum", "sum") } else { ("mean", "mean by samples") };
            let remedy = match !self.summed && is_near(a + b) {
                true => "It is a sum: use with_summed_losses() of the net, or divide it by the number of samples",
                false => {
                    "Combine the losses of single elements by nn::Reduction::Mean.reduce(), or reduce_weighted() for a mask \
                     or weights. DataParallel::step() takes a loss that is meant to depend on the split"
                }
            };
            wrong = Compared::Wrong(format!(
                "the loss of {samples} samples is {whole}, but the {of_parts} of the losses of two parts of them is {made_up}. With \
                 several devices, a loss has to be a {kind} over samples, or it depends on how the batch is split. {remedy}"
            ));
        }
        Ok(wrong)
    }
}

fn value(loss: &Tensor) -> Result<f64> {
    Ok(f64::from(loss.detach().to_dtype(DType::F32)?.item::<f32>()?))
}
