//! A step whose batch is computed in parts, one after another, because the devices have too little memory for all samples at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::DataParallel;
use super::members::{Part, State};
use super::replica::{Replica, StepFn};
use super::train::Gradients;
use super::wire::Residuals;
use crate::error::{Error, Result};
use crate::ops::duplicate;
use crate::process_group::{LossRecord, StepLosses, Totals, counts_are_alike};
use crate::tensor::{RandomState, Tensor, random_state, set_random_state};

/// What a step changes before it is over.
struct Before {
    buffers: Vec<Tensor>,
    random: RandomState,
    residuals: Vec<Arc<Residuals>>,
}

impl DataParallel {
    /// Returns the mean gradients of a batch that is computed in parts of these sizes. On error, the buffers and the generator are
    /// as they were.
    ///
    /// A loss whose divisor depends on all parts needs a pass over all of them first, without gradients.
    pub(super) fn in_parts(
        &self,
        state: &mut State,
        inputs: &[&Tensor],
        sizes: &[usize],
        step: &Arc<StepFn>,
    ) -> Result<Gradients> {
        if let [samples] = sizes {
            return self.gradients(state, inputs, [*samples; 2], step, Totals::Exchanged, None);
        }
        let before = self.before(state)?;
        if !state.totals_first {
            let needed = Arc::new(AtomicBool::new(false));
            let sum = self.sum_of_parts(state, inputs, sizes, step, &Totals::Unknown(needed.clone()));
            match sum {
                _ if needed.load(Ordering::Relaxed) => {}
                Ok(Some(gradients)) => return Ok(gradients),
                Ok(None) => {}
                Err(error) => {
                    self.begin_again(state, &before)?;
                    return Err(error);
                }
            }
            // Numbers of elements are then in the list of totals too, which is the same in both passes.
            (state.totals_first, state.counts) = (true, true);
            self.begin_again(state, &before)?;
        }
        let totals = self.totals(state, inputs, sizes, step);
        self.begin_again(state, &before)?;
        match self.sum_of_parts(state, inputs, sizes, step, &Totals::Known(totals?.into())) {
            Ok(Some(gradients)) => Ok(gradients),
            Ok(None) => Err(Error::internal("numbers of losses that were exchanged are not alike")),
            Err(error) => {
                self.begin_again(state, &before)?;
                Err(error)
            }
        }
    }

    fn before(&self, state: &State) -> Result<Before> {
        Ok(Before {
            buffers: self.host.buffers_on_host()?.iter().map(duplicate).collect::<Result<_>>()?,
            random: random_state(),
            residuals: state.members.iter().map(|member| member.replica.feedback.kept()).collect(),
        })
    }

    fn begin_again(&self, state: &mut State, before: &Before) -> Result<()> {
        self.set_buffers(state, &before.buffers)?;
        for (member, residuals) in state.members.iter_mut().zip(&before.residuals) {
            member.buffers = false;
            member.replica.feedback.restore(residuals.clone());
        }
        set_random_state(before.random);
        Ok(())
    }

    /// Returns the parts of the inputs at these samples.
    fn part(&self, inputs: &[&Tensor], start: usize, size: usize) -> Result<Vec<Tensor>> {
        inputs.iter().enumerate().map(|(i, input)| input.narrow(self.dims.input(i), start, size)).collect()
    }

    /// Returns the sum of the gradients of the parts. Returns `None` if they took means over numbers of elements that are not
    /// proportional to their samples.
    fn sum_of_parts(
        &self,
        state: &mut State,
        inputs: &[&Tensor],
        sizes: &[usize],
        step: &Arc<StepFn>,
        totals: &Totals,
    ) -> Result<Option<Gradients>> {
        let samples: usize = sizes.iter().sum();
        let (mut sum, mut records, mut start): (Option<Gradients>, Vec<(usize, LossRecord)>, _) = (None, Vec::new(), 0);
        for &size in sizes {
            let part = self.part(inputs, start, size)?;
            let part: Vec<&Tensor> = part.iter().collect();
            let gradients = self.gradients(state, &part, [size, samples], step, totals.clone(), None)?;
            records.push(gradients.losses.clone());
            let weight = if self.summed { 1.0 } else { size as f64 / samples as f64 };
            sum = Some(gradients.added_to(sum, weight)?);
            start += size;
        }
        let alike = counts_are_alike(records.iter().map(|(n, record)| (*n, record)));
        let sum = sum.ok_or_else(|| Error::internal("a batch of no parts"))?;
        Ok(alike.then_some(sum))
    }

    /// Returns the sums over all parts of the weights of each loss, from a pass without gradients.
    fn totals(&self, state: &mut State, inputs: &[&Tensor], sizes: &[usize], step: &Arc<StepFn>) -> Result<Vec<f64>> {
        let samples: usize = sizes.iter().sum();
        let (mut totals, mut start): (Option<Vec<f64>>, _) = (None, 0);
        for &size in sizes {
            let part = self.part(inputs, start, size)?;
            let part: Vec<&Tensor> = part.iter().collect();
            let (summed, counts) = (self.summed, state.counts);
            let shared_draws = state.shared_draws.clone();
            state.losses = Some(StepLosses { samples, summed, counts, totals: Totals::Exchanged, shared_draws });
            let records = self.with_survivors(state, size, |state, sizes| {
                let step = step.clone();
                let work = move |replica: &Replica, part: Part| replica.loss_record(&part.inputs, &*step);
                self.attempt(state, sizes, &part, work, |_, _, _| Ok(()))
            });
            state.losses = None;
            let of_part = records?.swap_remove(0).totals;
            totals = Some(match totals {
                None => of_part,
                Some(sum) if sum.len() == of_part.len() => {
                    sum.iter().zip(of_part).map(|(sum, part)| sum + part).collect()
                }
                Some(_) => {
                    let detail = "the loss function computes other losses for some samples than for others";
                    return Err(Error::argument("train_batch", detail));
                }
            });
            start += size;
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
    use crate::util::sync::lock;

    /// A net on two devices which hold so few samples that a batch of 10 is computed in parts, and the same net.
    fn small(summed: bool) -> Result<(DataParallel, Sequential)> {
        let net = Sequential::new().push(Linear::new(4, 6)?).push(Linear::new(6, 3)?);
        let devices = [Device::new("cpu/0")?, Device::new("cpu/1")?];
        let mut parallel = DataParallel::new(net, &devices)?.with_shares(Shares::Even)?;
        parallel.summed = summed;
        {
            let balance = &mut lock(&parallel.roster).balance;
            balance.set_most(0, 1);
            balance.set_most(1, 2);
            assert!(balance.pieces(10) > 2);
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
    fn losses_of_parts_are_those_of_the_whole_batch() -> Result<()> {
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
