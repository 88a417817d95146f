//! The gradients of a step, in buckets. A device sends a bucket to the host as soon as backward has computed its last
//! gradient, and goes on with backward. The host averages a bucket as soon as all devices have sent it.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use web_time::Instant;

use super::wire::{Narrowed, Residuals, Wire, widened};
use crate::autograd::{GRADIENT_HOOK, GradientHook};
use crate::device::cpu::with_room;
use crate::device::{Device, Storage};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::ops::combine::{Combine, combine_floats};
use crate::tensor::{Bucket, Tensor, slots};
use crate::util::sync::lock;
use crate::util::threads::THREADS;

/// Which parameters are in which bucket.
///
/// The parameters have consecutive slots in one block, in their order. Buckets are ranges of it, numbered from the end of
/// the block, since backward computes the gradients of the last layers first.
#[derive(Debug)]
pub(super) struct BucketPlan {
    /// The start of each parameter in the block, and the end of the block.
    starts: Vec<usize>,
    /// The parameters of each bucket.
    buckets: Vec<Range<usize>>,
}

impl BucketPlan {
    /// Cuts the gradients of `parameters` into buckets of at least `bytes` bytes; the last one may be smaller. A
    /// parameter is not cut.
    pub fn new(parameters: &[Tensor], bytes: usize) -> BucketPlan {
        let mut starts = vec![0];
        starts.extend(parameters.iter().scan(0, |end, parameter| {
            *end += slots(parameter.elem_count());
            Some(*end)
        }));
        let (mut buckets, mut end) = (Vec::new(), parameters.len());
        for first in (0..parameters.len()).rev() {
            if first == 0 || 4 * (starts[end] - starts[first]) >= bytes {
                buckets.push(first..end);
                end = first;
            }
        }
        if buckets.is_empty() {
            buckets.push(0..0); // for the loss
        }
        BucketPlan { starts, buckets }
    }

    /// Returns the number of buckets.
    pub fn len(&self) -> usize {
        self.buckets.len()
    }

    /// Returns the number of elements of the block.
    pub fn elements(&self) -> usize {
        self.starts.last().copied().unwrap_or(0)
    }

    /// Returns the range of the block that is in a bucket.
    pub fn range(&self, bucket: usize) -> Range<usize> {
        let Range { start, end } = self.buckets[bucket];
        self.starts[start]..self.starts[end]
    }

    /// Returns the start of each parameter in the block, and the end of the block.
    #[cfg(feature = "mpi")]
    pub fn starts(&self) -> &[usize] {
        &self.starts
    }

    fn bucket_of(&self, parameter: usize) -> usize {
        self.buckets.partition_point(|bucket| bucket.start > parameter)
    }
}

/// What takes a bucket: gets its number, and its elements on the host or the error of the read. In bucket 0, the loss
/// follows the elements.
pub(super) type Deliver = Arc<dyn Fn(usize, Result<Tensor>) + Send + Sync>;

/// The gradients of one replica on their way to the host.
pub(super) struct GradientBuckets {
    sender: Arc<BucketSender>,
    /// One message for each bucket that has arrived.
    arrivals: Receiver<Arrival>,
}

/// What is known when all buckets have arrived.
pub(super) struct SentGradients {
    /// Which parameters have a gradient.
    pub present: Vec<bool>,
    /// For each bucket, when the device had computed it, and when it was on the host.
    pub times: Vec<(Instant, Instant)>,
    /// What the format has lost.
    pub residuals: Residuals,
}

/// The number of a bucket that has arrived, when the device had computed it, and when it was on the host.
type Arrival = Result<(usize, (Instant, Instant))>;

struct BucketSender {
    plan: Arc<BucketPlan>,
    parameters: Vec<Tensor>,
    /// The number of each parameter by the id of its tensor.
    numbers: HashMap<u64, usize>,
    loss: Tensor,
    wire: Wire,
    progress: Mutex<Progress>,
    deliver: Deliver,
    arrived: Sender<Arrival>,
}

struct Progress {
    /// Whether each parameter has a gradient.
    present: Vec<bool>,
    /// The number of parameters of each bucket without a gradient.
    missing: Vec<usize>,
    /// What the format has lost of each bucket.
    lost: Vec<Option<Tensor>>,
}

impl GradientBuckets {
    /// Prepares for the backward pass of `loss`, which has one element.
    pub fn new(
        plan: &Arc<BucketPlan>,
        parameters: Vec<Tensor>,
        loss: &Tensor,
        wire: Wire,
        deliver: Deliver,
    ) -> GradientBuckets {
        let (arrived, arrivals) = channel();
        let (present, lost) = (vec![false; parameters.len()], vec![None; plan.len()]);
        let missing = plan.buckets.iter().map(Range::len).collect();
        let progress = Mutex::new(Progress { present, missing, lost });
        let numbers = parameters.iter().map(Tensor::id).zip(0..).collect();
        let (plan, loss) = (plan.clone(), loss.detach());
        let sender = BucketSender { plan, parameters, numbers, loss, wire, progress, deliver, arrived };
        GradientBuckets { sender: Arc::new(sender), arrivals }
    }

    /// Runs the backward pass, which sends full buckets.
    pub fn during(&self, backward: impl FnOnce() -> Result<()>) -> Result<()> {
        let sender = self.sender.clone();
        let hook = GradientHook(Arc::new(move |leaf| sender.computed(leaf)));
        let _hook = GRADIENT_HOOK.set(Some(hook));
        backward()
    }

    /// Sends the other buckets, with zeros for the parameters that the loss does not depend on, and waits until all have arrived.
    pub fn finish(self) -> Result<SentGradients> {
        let missing = lock(&self.sender.progress).missing.clone();
        (0..missing.len())
            .filter(|&bucket| missing[bucket] > 0 || self.sender.plan.buckets[bucket].is_empty())
            .try_for_each(|bucket| self.sender.send(bucket))?;
        let mut times = vec![(Instant::now(), Instant::now()); self.sender.plan.len()];
        let awaited = if THREADS { times.len() } else { 0 }; // without threads, they arrive later
        for _ in 0..awaited {
            let arrival = self.arrivals.recv();
            let (bucket, read) =
                arrival.unwrap_or_else(|_| Err(Error::internal("a bucket of gradients was not read")))?;
            times[bucket] = read;
        }
        let Progress { present, lost, .. } = &mut *lock(&self.sender.progress);
        let residuals = Residuals { share: self.sender.wire.share, buckets: std::mem::take(lost) };
        Ok(SentGradients { present: std::mem::take(present), times, residuals })
    }
}

impl BucketSender {
    /// Notes that a leaf has its gradient, and sends its bucket if that is complete.
    fn computed(&self, leaf: &Tensor) -> Result<()> {
        let Some(&number) = self.numbers.get(&leaf.id()) else { return Ok(()) };
        let bucket = self.plan.bucket_of(number);
        let mut progress = lock(&self.progress);
        progress.present[number] = true;
        progress.missing[bucket] -= 1;
        let full = progress.missing[bucket] == 0;
        drop(progress);
        if full { self.send(bucket) } else { Ok(()) }
    }

    /// Starts the read of a bucket, and frees its gradients.
    fn send(&self, bucket: usize) -> Result<()> {
        let device = self.loss.device();
        let mut parts = Vec::new();
        for parameter in &self.parameters[self.plan.buckets[bucket].clone()] {
            parts.push(parameter.grad().map_or_else(|| Tensor::zeros(parameter.shape(), device), Ok)?);
            parameter.set_grad(None);
        }
        let (deliver, arrived) = (self.deliver.clone(), self.arrived.clone());
        let take = move |elements: Result<Tensor>, computed: Instant| {
            let taken = elements.as_ref().map(|_| (bucket, (computed, Instant::now()))).map_err(Error::clone);
            deliver(bucket, elements);
            let _ = arrived.send(taken); // an error means that the step has ended with one
        };
        if self.wire.dtype == DType::F16 && !parts.is_empty() {
            return self.send_halves(bucket, &parts, take);
        }
        if bucket == 0 {
            parts.push(self.loss.reshape([1])?);
        }
        let flat = Bucket::gather(&parts)?.flat().to_dtype(DType::F32)?;
        let len = flat.elem_count();
        if device.is_cpu() {
            take(Ok(flat), Instant::now());
        } else {
            flat.elements_later::<f32>("train_batch", move |words, computed| {
                take(words.and_then(|words| Tensor::from_vec(words, len, Device::cpu())), computed);
            });
        }
        Ok(())
    }

    /// Starts the read of a bucket as halves.
    fn send_halves(
        &self,
        bucket: usize,
        parts: &[Tensor],
        take: impl FnOnce(Result<Tensor>, Instant) + Send + 'static,
    ) -> Result<()> {
        let flat = Bucket::gather(parts)?.flat().to_dtype(DType::F32)?;
        let Narrowed { words, residual } = self.wire.narrowed(bucket, &flat)?;
        lock(&self.progress).lost[bucket] = Some(residual);
        let (len, slots) = (flat.elem_count(), (bucket == 0).then(|| self.plan.range(bucket).len()));
        let words = match slots {
            Some(_) => crate::ops::cat(&[&words, &self.loss.to_dtype(DType::F32)?.reshape([1])?.as_words()?], 0)?,
            None => words,
        };
        if words.device().is_cpu() {
            let elements = words.with_slice(|words: &[u32]| widened(words, len, slots));
            take(elements.and_then(|elements| elements), Instant::now());
        } else {
            words.elements_later::<u32>("train_batch", move |words, computed| {
                take(words.and_then(|words| widened(&words, len, slots)), computed);
            });
        }
        Ok(())
    }
}

/// The weighted mean of buckets, each computed when the last rank's part of it has arrived.
pub(super) struct Reducer {
    plan: Arc<BucketPlan>,
    /// The share of each rank.
    weights: Vec<f32>,
    /// The parts of each bucket, by rank.
    parts: Vec<Vec<Option<Tensor>>>,
    /// The means.
    block: Tensor,
    loss: f32,
    missing: usize,
}

impl Reducer {
    /// Creates the means of ranks with these shares, which add up to 1, or the sums of ranks whose shares are all 1.
    pub fn new(plan: &Arc<BucketPlan>, shares: &[f64]) -> Result<Reducer> {
        let parts = vec![vec![None; shares.len()]; plan.len()];
        let weights = shares.iter().map(|&share| share as f32).collect();
        let block = Tensor::zeros(plan.elements(), Device::cpu())?;
        Ok(Reducer { plan: plan.clone(), weights, parts, block, loss: 0.0, missing: plan.len() })
    }

    /// Takes a rank's part of a bucket. Returns whether it was the last one.
    ///
    /// # Errors
    /// [`Error::Internal`] if the part has another size than the bucket, or was already taken.
    pub fn take(&mut self, rank: usize, bucket: usize, part: Tensor) -> Result<bool> {
        let range = self.plan.range(bucket);
        let place = self.parts.get_mut(bucket).and_then(|parts| parts.get_mut(rank)).filter(|part| part.is_none());
        let Some(place) = place else {
            return Err(Error::internal(format!("bucket {bucket} of rank {rank} came twice")));
        };
        *place = Some(part);
        let parts: Vec<Tensor> = self.parts[bucket].iter().flatten().cloned().collect();
        if parts.len() < self.weights.len() {
            return Ok(false);
        }
        self.parts[bucket].clear();
        self.missing -= 1;
        let Storage::Cpu(block) = self.block.storage() else { return Err(self.block.misplaced()) };
        let mut words = block.write();
        let mean: &mut [f32] = bytemuck::cast_slice_mut(&mut words[range]);
        let mut guards = Vec::with_capacity(parts.len());
        for part in &parts {
            let Storage::Cpu(buffer) = part.storage() else { return Err(part.misplaced()) };
            guards.push((buffer.read(), part.layout().offset..part.layout().offset + part.elem_count()));
        }
        let terms: Vec<&[f32]> =
            guards.iter().map(|(words, range)| bytemuck::cast_slice(&words[range.clone()])).collect();
        weighted_mean(mean, &terms, &self.weights)?;
        if bucket == 0 {
            // The loss is in the slot after the gradients.
            let losses =
                terms.iter().zip(&self.weights).map(|(term, weight)| weight * term.last().copied().unwrap_or(f32::NAN));
            self.loss = losses.reduce(|sum, loss| sum + loss).unwrap_or(f32::NAN);
        }
        Ok(true)
    }

    /// Returns a copy of the means of a bucket, after its last part was taken. In bucket 0, the mean loss follows the
    /// means.
    pub fn mean(&self, bucket: usize) -> Result<Vec<f32>> {
        let Storage::Cpu(block) = self.block.storage() else { return Err(self.block.misplaced()) };
        let range = self.plan.range(bucket);
        let mut means = with_room(range.len() + 1)?;
        means.extend_from_slice(bytemuck::cast_slice(&block.read()[range]));
        if bucket == 0 {
            means.push(self.loss);
        }
        Ok(means)
    }

    /// Returns the means and the mean loss.
    ///
    /// # Errors
    /// [`Error::Internal`] if a part is missing.
    pub fn finish(self) -> Result<(Tensor, f32)> {
        match self.missing {
            0 => Ok((self.block, self.loss)),
            missing => Err(Error::internal(format!("{missing} buckets of gradients are missing"))),
        }
    }
}

/// Overwrites `mean` with Σ wᵢ · termᵢ, summed in order. A term may be longer than `mean`, up to the next slot, or end
/// at its last element, before the end of `mean`.
fn weighted_mean(mean: &mut [f32], terms: &[&[f32]], weights: &[f32]) -> Result<()> {
    let len = terms.iter().map(|term| term.len()).min().unwrap_or(0).min(mean.len());
    if mean.len() - len >= 64 {
        return Err(Error::internal(format!("a bucket of {} elements has {len}", mean.len())));
    }
    combine_floats(Combine::Add, &mut mean[..len], terms, weights);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nn::{Linear, Module};
    use crate::parallel::wire::Feedback;

    fn plan(sizes: &[usize], bytes: usize) -> BucketPlan {
        let parameters: Vec<Tensor> = sizes.iter().map(|&size| Tensor::zeros(size, None).unwrap()).collect();
        BucketPlan::new(&parameters, bytes)
    }

    #[test]
    fn buckets_go_from_the_last_parameter_to_the_first() {
        let plan = plan(&[100, 1, 300, 64], 256);
        assert_eq!((plan.elements(), plan.len()), (128 + 64 + 320 + 64, 4));
        assert_eq!([plan.range(0), plan.range(3)], [512..576, 0..128]);
        assert_eq!((0..4).map(|i| plan.bucket_of(i)).collect::<Vec<_>>(), [3, 2, 1, 0]);
        let plan = self::plan(&[100, 1, 300, 64], 1537);
        assert_eq!((plan.range(0), plan.range(1), plan.len()), (128..576, 0..128, 2));
        assert_eq!(self::plan(&[100, 1, 300, 64], usize::MAX).range(0), 0..576);
        assert_eq!((self::plan(&[], 8).len(), self::plan(&[0], 8).range(0)), (1, 0..0));
    }

    #[test]
    fn a_layer_is_sent_before_the_layers_before_it_are_computed() -> Result<()> {
        let net = [Linear::new(3, 4)?, Linear::new(4, 5)?, Linear::new(5, 1)?];
        let mut x = Tensor::rand([2, 3], None)?;
        for layer in &net {
            x = layer.forward(&x)?.tanh()?;
        }
        let (loss, parameters) = (x.sum_all()?, net.iter().flat_map(Linear::parameters).collect::<Vec<_>>());
        let order = Arc::new(Mutex::new(Vec::new()));
        let taken = order.clone();
        let deliver: Deliver = Arc::new(move |bucket, _| lock(&taken).push(bucket));
        let plan = Arc::new(BucketPlan::new(&parameters, 1));
        let wire = Feedback::default().wire(DType::F32, 1.0);
        let buckets = GradientBuckets::new(&plan, parameters, &loss, wire, deliver);
        buckets.during(|| loss.backward())?;
        let layers: Vec<usize> = lock(&order).iter().map(|bucket| bucket / 2).collect();
        assert_eq!(layers, [0, 0, 1, 1, 2, 2], "two parameters of each layer, the last layer first");
        buckets.finish()?;
        Ok(())
    }

    #[test]
    fn every_gradient_arrives_once_with_zeros_for_the_missing() -> Result<()> {
        for (device, dtype) in Device::all().iter().flat_map(|device| [(device, DType::F32), (device, DType::F16)]) {
            let leaf = |value: f32| Ok(Tensor::full([3], value, device)?.requires_grad());
            let parameters = [leaf(1.0)?, leaf(2.0)?, leaf(3.0)?].to_vec();
            let loss = parameters[0].mul(&parameters[2])?.sum_all()?;
            let got = Arc::new(Mutex::new(vec![None; 3]));
            let taken = got.clone();
            let deliver: Deliver = Arc::new(move |bucket, elements| lock(&taken)[bucket] = elements.ok());
            let plan = Arc::new(BucketPlan::new(&parameters, 1));
            let wire = Feedback::default().wire(dtype, 1.0);
            let buckets = GradientBuckets::new(&plan, parameters.clone(), &loss, wire, deliver);
            buckets.during(|| loss.backward())?;
            let SentGradients { present, times, residuals } = buckets.finish()?;
            assert_eq!(present, [true, false, true], "{device}");
            assert!(residuals.buckets.iter().all(|lost| lost.is_some() == (dtype == DType::F16)), "{device}");
            assert!(times.len() == 3 && times.iter().all(|(computed, arrived)| computed <= arrived), "{device}");
            let values = |bucket: usize| lock(&got)[bucket].clone().expect("a bucket").to_vec::<f32>();
            let (last, middle, first) = (values(0)?, values(1)?, values(2)?);
            assert_eq!((&last[..4], last[64]), (&[1.0, 1.0, 1.0, 0.0][..], 9.0), "{device}");
            assert_eq!((&middle[..], &first[..]), (&[0.0; 3][..], &[3.0; 3][..]), "{device}");
            assert!(parameters.iter().all(|parameter| parameter.grad().is_none()));
        }
        Ok(())
    }

    #[test]
    fn means_are_those_of_a_loop() -> Result<()> {
        let sizes = [5000, 70, 1, 9000];
        let parameters: Vec<Tensor> = sizes.iter().map(|&size| Tensor::zeros(size, None)).collect::<Result<_>>()?;
        for bytes in [1, 20_000, usize::MAX] {
            let plan = Arc::new(BucketPlan::new(&parameters, bytes));
            let shares = [0.5, 0.2, 0.3];
            let mut reducer = Reducer::new(&plan, &shares)?;
            let value = |rank: usize, i: usize| ((i * 7 + rank * 3) % 101) as f32 - 50.0;
            for rank in [1, 0, 2] {
                for bucket in (0..plan.len()).rev() {
                    let mut part: Vec<f32> = plan.range(bucket).map(|i| value(rank, i)).collect();
                    if bucket == 0 {
                        part.push(rank as f32);
                    }
                    let last = reducer.take(rank, bucket, Tensor::from_slice(&part, part.len(), None)?)?;
                    assert_eq!(last, rank == 2);
                }
            }
            let copies = (0..plan.len()).rev().map(|bucket| reducer.mean(bucket)).collect::<Result<Vec<_>>>()?.concat();
            let (means, loss) = reducer.finish()?;
            assert_eq!((copies.last(), &copies[..plan.elements()]), (Some(&loss), &means.to_vec::<f32>()?[..]));
            let means = means.to_vec::<f32>()?;
            let expected = |i: usize| {
                shares.iter().enumerate().map(|(rank, share)| share * f64::from(value(rank, i))).sum::<f64>()
            };
            assert_eq!(means.len(), plan.elements());
            assert!(means.iter().enumerate().all(|(i, mean)| (f64::from(*mean) - expected(i)).abs() < 1e-5), "{bytes}");
            assert!((loss - 0.8).abs() < 1e-6, "{loss}");
        }
        Ok(())
    }

    #[test]
    fn what_is_missing_or_twice_is_an_error() -> Result<()> {
        let plan = Arc::new(BucketPlan::new(&[Tensor::zeros(300, None)?], 1));
        let mut reducer = Reducer::new(&plan, &[0.5, 0.5])?;
        reducer.take(0, 0, Tensor::zeros(321, None)?)?;
        assert!(reducer.take(0, 0, Tensor::zeros(321, None)?).is_err());
        assert!(reducer.take(1, 0, Tensor::zeros(100, None)?).is_err());
        let reducer = Reducer::new(&plan, &[1.0])?;
        assert!(reducer.finish().is_err());
        Ok(())
    }
}
