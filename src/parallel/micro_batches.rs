//! A batch in micro-batches, one after another, because the devices have too little memory for all samples at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::DataParallel;
use super::collectives::split_sizes;
use super::members::State;
use super::replica::Replica;
use super::step::{Batch, Gradients, Part, weight};
use super::wire::Residuals;
use crate::autograd::no_grad;
use crate::error::{Error, Result};
use crate::ops::duplicate;
use crate::process_group::{self, LossRecord, Totals, counts_are_alike};
use crate::tensor::{RandomState, Tensor, random_state, set_random_state};
use crate::util::sync::lock;

/// What a step changes before it is over.
struct Snapshot {
    buffers: Vec<Tensor>,
    random: RandomState,
    residuals: Vec<Arc<Residuals>>,
}

impl DataParallel {
    /// Calls `compute` with the sizes of the micro-batches that fit into the memory of the devices: one, if the whole
    /// batch fits. If they do not fit after all, `compute` is called again with smaller ones.
    pub(super) fn in_micro_batches<T>(
        &self,
        samples: usize,
        mut compute: impl FnMut(&[usize]) -> Result<T>,
    ) -> Result<T> {
        let needed = || lock(&self.roster).balance.micro_batches(samples);
        let mut count = needed();
        loop {
            let error = match compute(&split_sizes(samples, &vec![1.0; count])) {
                Ok(result) => return Ok(result),
                Err(error) => error,
            };
            let more = needed();
            if !error.is_for_less_memory() || more <= count {
                return Err(error);
            }
            log::warn!("{error}: the batch is computed in {more} parts");
            count = more;
        }
    }

    /// Returns the mean gradients of a batch that is computed in micro-batches of these sizes. On error, the buffers and the
    /// generator are as they were.
    ///
    /// A loss whose divisor depends on all samples needs a pass over them first, without gradients.
    pub(super) fn sum_of_micro_batches(&self, state: &mut State, batch: &Batch, sizes: &[usize]) -> Result<Gradients> {
        if sizes.len() == 1 {
            return self.gradients(state, batch, &Totals::Exchanged, None);
        }
        let whole = batch.samples;
        let inputs = self.dims.cut(&batch.inputs, sizes)?.into_iter();
        let of = |(inputs, &samples)| Batch { inputs, samples, whole, step: batch.step.clone() };
        let micro_batches: Vec<Batch> = inputs.zip(sizes).map(of).collect();
        let before = self.snapshot(state)?;
        if !state.totals_first {
            let needed = Arc::new(AtomicBool::new(false));
            let sum = self.sum(state, &micro_batches, &Totals::Unknown(needed.clone()));
            match sum {
                _ if needed.load(Ordering::Relaxed) => {}
                Ok(Some(gradients)) => return Ok(gradients),
                Ok(None) => {}
                Err(error) => {
                    self.restore(state, &before)?;
                    return Err(error);
                }
            }
            // Numbers of elements are then in the list of totals too, which is the same in both passes.
            (state.totals_first, state.counts) = (true, true);
            self.restore(state, &before)?;
        }
        let totals = self.totals(state, &micro_batches);
        self.restore(state, &before)?;
        match self.sum(state, &micro_batches, &Totals::Known(totals?.into())) {
            Ok(Some(gradients)) => Ok(gradients),
            Ok(None) => Err(Error::internal("numbers of losses that were exchanged are not alike")),
            Err(error) => {
                self.restore(state, &before)?;
                Err(error)
            }
        }
    }

    fn snapshot(&self, state: &State) -> Result<Snapshot> {
        Ok(Snapshot {
            buffers: self.host.buffers_on_host()?.iter().map(duplicate).collect::<Result<_>>()?,
            random: random_state(),
            residuals: state.members.iter().map(|member| member.replica.feedback.kept()).collect(),
        })
    }

    fn restore(&self, state: &mut State, before: &Snapshot) -> Result<()> {
        self.set_buffers(state, &before.buffers)?;
        state.forget_buffers();
        for (member, residuals) in state.members.iter().zip(&before.residuals) {
            member.replica.feedback.restore(residuals.clone());
        }
        set_random_state(before.random);
        Ok(())
    }

    /// Returns the sum of the gradients. Returns `None` if the micro-batches took means over numbers of elements that are not
    /// proportional to their samples.
    fn sum(&self, state: &mut State, micro_batches: &[Batch], totals: &Totals) -> Result<Option<Gradients>> {
        let (mut sum, mut records) = (None, Vec::new());
        for batch in micro_batches {
            let gradients = self.gradients(state, batch, totals, None)?;
            records.push(gradients.losses.clone());
            sum = Some(gradients.added_to(sum, weight(self.summed, batch.samples, batch.whole))?);
        }
        let alike = counts_are_alike(records.iter().map(|(n, record)| (*n, record)));
        let sum = sum.ok_or_else(|| Error::internal("a batch of no parts"))?;
        Ok(alike.then_some(sum))
    }

    /// Returns the sums over all samples of the weights of each loss, from a pass without gradients.
    fn totals(&self, state: &mut State, micro_batches: &[Batch]) -> Result<Vec<f64>> {
        let mut totals: Option<Vec<f64>> = None;
        for batch in micro_batches {
            state.losses = Some(self.step_losses(state, batch.whole, Totals::Exchanged));
            let records = self.with_survivors(state, batch.samples, |state, sizes| {
                let step = batch.step.clone();
                let work = move |replica: &Replica, part: Part| {
                    no_grad(|| replica.loss(&part.inputs, &*step))?;
                    replica.device.synchronize()?;
                    Ok(process_group::rank().map(|rank| rank.loss_record()).unwrap_or_default())
                };
                self.on_each_device(state, sizes, &batch.inputs, 0, work, |_, _, _| Ok(()))
            });
            state.losses = None;
            let (_, LossRecord { totals: here, .. }) = records?.swap_remove(0); // the same on all devices
            totals = Some(match totals {
                None => here,
                Some(sum) if sum.len() == here.len() => sum.iter().zip(here).map(|(sum, here)| sum + here).collect(),
                Some(_) => {
                    let detail = "the loss function computes different losses for different parts of the samples";
                    return Err(Error::argument("train_batch", detail));
                }
            });
        }
        Ok(totals.unwrap_or_default())
    }
}

impl Gradients {
    /// Returns `weight` times these gradients, added to a sum.
    fn added_to(self, sum: Option<Gradients>, weight: f64) -> Result<Gradients> {
        let (block, loss) = (self.block.mul(weight as f32)?, self.loss * weight as f32);
        let Some(sum) = sum else { return Ok(Gradients { block, loss, ..self }) };
        let present = sum.present.iter().zip(&self.present).map(|(&before, &here)| before | here).collect();
        Ok(Gradients { present, block: sum.block.add(&block)?, loss: sum.loss + loss, losses: self.losses })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Device;
    use crate::nn::{CrossEntropyLoss, Linear, Module, Reduction, Sequential, l1_loss};
    use crate::parallel::Shares;

    /// A net on two devices which hold so few samples that a batch of 10 is computed in micro-batches, and the same net.
    fn small(summed: bool) -> Result<(DataParallel, Sequential)> {
        let net = Sequential::new().push(Linear::new(4, 6)?).push(Linear::new(6, 3)?);
        let devices = [Device::new("cpu/0")?, Device::new("cpu/1")?];
        let mut parallel = DataParallel::new(net, &devices)?.with_shares(Shares::Even)?;
        parallel.summed = summed;
        {
            let balance = &mut lock(&parallel.roster).balance;
            balance.set_most(0, 1);
            balance.set_most(1, 2);
            assert!(balance.micro_batches(10) > 2);
        }
        let alone = Sequential::new().push(Linear::new(4, 6)?).push(Linear::new(6, 3)?);
        alone.load_state_dict(&parallel.state_dict(), true)?;
        Ok((parallel, alone))
    }

    fn numbers(loss: &Tensor, parameters: &[Tensor]) -> Result<Vec<f32>> {
        let grads = parameters.iter().map(|parameter| parameter.grad().expect("a gradient").to_vec::<f32>());
        Ok([vec![loss.item::<f32>()?], grads.collect::<Result<Vec<_>>>()?.concat()].concat())
    }

    #[test]
    fn losses_of_micro_batches_are_those_of_the_whole_batch() -> Result<()> {
        type LossFn = fn(&Tensor, &Tensor) -> Result<Tensor>;
        let ignoring: LossFn = |y, labels| CrossEntropyLoss::new().ignore_index(-1).forward(y, labels);
        // The numbers of elements are not proportional to the samples.
        let selecting: LossFn = |y, labels| {
            let counts = labels.ge(0)?;
            let kept = y.select(1, 0)?.masked_select(&counts)?;
            l1_loss(&kept, &kept.detach().zeros_like()?, Reduction::Mean)
        };
        let both: LossFn = |y, labels| {
            let ignoring = CrossEntropyLoss::new().ignore_index(-1).forward(y, labels)?;
            ignoring.add(&Reduction::Mean.reduce(&y.square()?)?)
        };
        let sum: LossFn =
            |y, labels| CrossEntropyLoss::new().ignore_index(-1).reduction(Reduction::Sum).forward(y, labels);
        let plain: LossFn = |y, _| Reduction::Mean.reduce(&y.square()?);
        let mixed: LossFn = |y, labels| {
            let ignoring = CrossEntropyLoss::new().ignore_index(-1).forward(y, labels)?;
            let kept = y.select(1, 0)?.masked_select(&labels.ge(0)?)?;
            ignoring.add(&l1_loss(&kept, &kept.detach().zeros_like()?, Reduction::Mean)?)
        };
        let labels = Tensor::try_from([0, -1, -1, 2, 1, -1, -1, -1, -1, 0])?;
        let x = Tensor::rand([10, 4], None)?;
        for (i, loss_fn) in [ignoring, selecting, both, sum, plain, mixed].into_iter().enumerate() {
            let (parallel, alone) = small(i == 3)?;
            let expected = loss_fn(&alone.forward(&x)?, &labels)?;
            expected.backward()?;
            let expected = numbers(&expected, &alone.parameters())?;
            for round in 0..2 {
                let got = numbers(&parallel.train_batch(&x, &labels, loss_fn)?, &parallel.parameters())?;
                let worst = got.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                assert!(worst < 1e-5 && got.iter().all(|v| v.is_finite()), "loss {i}, round {round}: {worst}");
            }
        }
        Ok(())
    }
}
