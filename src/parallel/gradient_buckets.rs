//! The gradients of a step, in buckets. A device sends a bucket to the host as soon as backward has computed its last
//! gradient, and goes on with backward.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use super::wire::{Narrowed, Residuals, Wire, widened};
use crate::autograd::{GRADIENT_HOOK, GradientHook};
use crate::error::{Error, Result};
use crate::tensor::{Bucket, Tensor, slots};
use crate::util::sync::lock;
use crate::{DType, Device};

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
    /// Cuts the gradients of `parameters` into buckets of at least `bytes` bytes, but for the last one. A parameter is not cut.
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

/// What takes the elements of a bucket: its number, and its elements on the host. The loss follows those of bucket 0.
pub(super) type Deliver = Arc<dyn Fn(usize, Tensor) + Send + Sync>;

/// The gradients of one replica on their way to the host.
pub(super) struct GradientBuckets {
    sender: Arc<BucketSender>,
    /// One message for each bucket that has arrived.
    arrivals: Receiver<Arrival>,
}

/// What is known when all buckets have arrived.
pub(super) struct Gradients {
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
    pub fn finish(self) -> Result<Gradients> {
        let missing = lock(&self.sender.progress).missing.clone();
        (0..missing.len())
            .filter(|&bucket| missing[bucket] > 0 || self.sender.plan.buckets[bucket].is_empty())
            .try_for_each(|bucket| self.sender.send(bucket))?;
        let mut times = vec![(Instant::now(), Instant::now()); self.sender.plan.len()];
        for _ in 0..times.len() {
            let arrival = self.arrivals.recv();
            let (bucket, read) =
                arrival.unwrap_or_else(|_| Err(Error::internal("a bucket of gradients was not read")))?;
            times[bucket] = read;
        }
        let Progress { present, lost, .. } = &mut *lock(&self.sender.progress);
        let residuals = Residuals { share: self.sender.wire.share, buckets: std::mem::take(lost) };
        Ok(Gradients { present: std::mem::take(present), times, residuals })
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
            let taken = elements.map(|elements| {
                let on_host = Instant::now();
                deliver(bucket, elements);
                (bucket, (computed, on_host))
            });
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
            let deliver: Deliver = Arc::new(move |bucket, elements| lock(&taken)[bucket] = Some(elements));
            let plan = Arc::new(BucketPlan::new(&parameters, 1));
            let wire = Feedback::default().wire(dtype, 1.0);
            let buckets = GradientBuckets::new(&plan, parameters.clone(), &loss, wire, deliver);
            buckets.during(|| loss.backward())?;
            let Gradients { present, times, residuals } = buckets.finish()?;
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
}
