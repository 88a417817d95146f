//! Losses of the parts of a batch that add up to the loss of the whole batch.
//!
//! A step adds the losses ℓᵢ of its parts, each times the part's share sᵢ of the samples. A loss over the whole batch is S / D with
//! S = Σ Sᵢ, the sum of the losses of single elements, and D = Σ Dᵢ, the sum of their weights: their number, or the weights of the
//! labels that count. So each part returns ℓᵢ = Sᵢ / (sᵢ · D), and Σ sᵢ ℓᵢ = S / D. The parts learn D from each other, except
//! where Dᵢ is proportional to sᵢ: then ℓᵢ = Sᵢ / Dᵢ, the mean of the part. Sums of several losses, each with a D of its own,
//! come out right too.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::{Rank, rank};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::tensor::Tensor;
use crate::util::sync::lock;

/// How the losses of a step become those of the whole batch.
#[derive(Clone, Debug)]
pub(crate) struct StepLosses {
    /// The number of samples of the whole batch, of which a group may compute a part.
    pub samples: usize,
    /// Whether the parts' losses are sums over their samples, which are added, and not means.
    pub summed: bool,
    /// Whether numbers of elements are added up over the parts, because they are not proportional to the samples.
    pub counts: bool,
    pub totals: Totals,
    /// The random draws, in order, that are known to be for all samples together.
    pub shared_draws: Arc<[usize]>,
}

/// Where the sum of the weights of all parts comes from.
#[derive(Clone, Debug)]
pub(crate) enum Totals {
    /// The ranks of the group exchange their weights.
    Exchanged,
    /// An earlier pass over all parts has found the totals, in the order of the losses.
    Known(Arc<[f64]>),
    /// The other parts are computed later. Sets the flag if a total is needed, and fails.
    Unknown(Arc<AtomicBool>),
}

/// What a rank notes of its losses.
#[derive(Clone, Debug, Default)]
pub(crate) struct LossRecord {
    /// The totals that it has used, in order.
    pub totals: Vec<f64>,
    /// The numbers of elements of the losses that it took to be proportional to its samples, in order.
    pub counts: Vec<usize>,
}

/// Returns whether the losses of parts with these numbers of samples have as many elements for each sample in every part.
pub(crate) fn counts_are_alike<'a>(parts: impl Iterator<Item = (usize, &'a LossRecord)> + Clone) -> bool {
    let Some((samples, first)) = parts.clone().next() else { return true };
    parts.into_iter().all(|(n, part)| {
        let alike = |(a, b): (&usize, &usize)| *a as u128 * n as u128 == *b as u128 * samples as u128;
        part.counts.len() == first.counts.len() && first.counts.iter().zip(&part.counts).all(alike)
    })
}

impl Rank {
    fn losses(&self) -> Option<&StepLosses> {
        self.group.losses.as_ref().filter(|_| !self.without_losses)
    }

    /// Returns whether this rank has all samples of the step.
    fn is_whole(&self, losses: &StepLosses) -> bool {
        self.group.joint.is_none() && self.group.samples.len() == 1 && self.samples() == losses.samples
    }

    /// Returns the factor by which the step multiplies this rank's loss.
    fn share(&self, losses: &StepLosses) -> f64 {
        if losses.summed { 1.0 } else { self.samples() as f64 / losses.samples.max(1) as f64 }
    }

    /// Returns what this rank has noted of its losses.
    pub fn loss_record(&self) -> LossRecord {
        lock(&self.progress().losses).clone()
    }

    /// Returns the sum of a weight over all parts of the step.
    fn total(&self, losses: &StepLosses, own: f64) -> Result<f64> {
        let total = match &losses.totals {
            _ if self.is_whole(losses) => own,
            Totals::Exchanged => {
                let sum = |all: &[(f64, Vec<f32>)]| all.iter().map(|(_, values)| f64::from(values[0])).sum::<f64>();
                f64::from(self.exchange(vec![own as f32], |all| Ok(vec![sum(all) as f32]))?[0])
            }
            Totals::Known(totals) => {
                let at = lock(&self.progress().losses).totals.len();
                *totals.get(at).ok_or_else(|| {
                    Error::argument("loss", "the loss function computed other losses when it was called again")
                })?
            }
            Totals::Unknown(needed) => {
                needed.store(true, Ordering::Relaxed);
                return Err(Error::Abandoned);
            }
        };
        lock(&self.progress().losses).totals.push(total);
        Ok(total)
    }

    /// Returns the divisor of the sum of `count` losses.
    fn count(&self, losses: &StepLosses, count: usize) -> Result<f64> {
        if losses.counts || losses.summed {
            return Ok(self.share(losses) * self.total(losses, count as f64)?);
        }
        lock(&self.progress().losses).counts.push(count);
        Ok(count as f64)
    }
}

/// Returns the mean of the losses of single elements. In a step over several parts of a batch, returns this part's term
/// of the mean over all of them.
pub(crate) fn mean(losses: &Tensor) -> Result<Tensor> {
    let Some((rank, step)) = of_step() else { return losses.mean_all() };
    let count = losses.elem_count();
    let divisor = rank.count(&step, count)?;
    if divisor == count as f64 {
        return losses.mean_all();
    }
    quotient(losses, divisor)
}

/// Returns the sum of the losses of single elements.
///
/// # Errors
/// [`Error::InvalidArgument`] in a step whose losses are means: the sum over one part's samples, treated as a mean,
/// would be divided by the number of parts.
pub(crate) fn sum(losses: &Tensor) -> Result<Tensor> {
    match of_step() {
        Some((_, step)) if !step.summed => Err(Error::argument(
            "loss",
            "the step expects a mean, but this loss is a sum over the samples of one part. Sum over the whole batch by \
             with_summed_losses() of the net, or divide the losses of Reduction::None by the part's number of samples yourself",
        )),
        _ => losses.sum_all(),
    }
}

/// Returns `Σ losses / Σ weights`, of losses that were multiplied by their weights. In a step over several parts of a
/// batch, returns this part's term of the quotient over all of them.
pub(crate) fn weighted_mean(losses: &Tensor, weights: &Tensor) -> Result<Tensor> {
    let weights = weights.detach().sum_all()?;
    match of_step() {
        None => losses.sum_all()?.div(&weights),
        Some((rank, step)) => {
            let total = rank.total(&step, f64::from(weights.to_dtype(DType::F32)?.item::<f32>()?))?;
            quotient(losses, rank.share(&step) * total)
        }
    }
}

fn quotient(losses: &Tensor, divisor: f64) -> Result<Tensor> {
    losses.sum_all()?.mul_scalar((1.0 / divisor) as f32)
}

/// Returns this thread's rank in a step whose losses are added up over several parts.
fn of_step() -> Option<(Rank, StepLosses)> {
    let rank = rank()?;
    let losses = rank.losses()?.clone();
    Some((rank, losses))
}
