//! A stage's part of a call, on the stage's own thread.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::channel;

use super::exchange::{Exchange, Message};
use super::schedule::{Pass, PipelineSchedule};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::parallel::replica::Replica;
use crate::parallel::worker::Worker;
use crate::process_group::Rank;
use crate::tensor::Tensor;

/// What all stages know of a call.
pub(super) struct Call {
    pub exchange: Arc<Exchange>,
    /// The devices of the stages.
    pub devices: Vec<Device>,
    /// The input of the first stage, by micro-batch.
    pub inputs: Vec<Tensor>,
    /// One for each micro-batch: its part of the random numbers.
    pub ranks: Vec<Rank>,
}

/// What all stages know of a training step.
pub(super) struct Training<F> {
    pub schedule: PipelineSchedule,
    pub labels: Vec<Tensor>,
    /// What the loss of each micro-batch is multiplied by.
    pub weights: Vec<f64>,
    /// Whether the losses are computed only when the outputs of all micro-batches are there, because the losses
    /// exchange their divisors.
    pub gathers: bool,
    /// For each stage, whether it or an earlier one has a parameter that is trained, so that its output has a gradient.
    pub trained: Vec<bool>,
    pub loss_fn: Arc<F>,
}

/// A micro-batch between its forward and its backward pass: the input, and the output or the loss.
struct Live {
    input: Tensor,
    result: Tensor,
}

/// One stage's part of a call.
#[derive(Clone)]
pub(super) struct StageCall {
    pub stage: usize,
    pub replica: Replica,
    pub call: Arc<Call>,
}

impl StageCall {
    fn is_last(&self) -> bool {
        self.stage + 1 == self.call.devices.len()
    }

    /// Returns the input of a micro-batch on the stage's device.
    fn input(&self, micro_batch: usize) -> Result<Tensor> {
        let stage = self.stage;
        let input = match stage {
            0 => Some(self.call.inputs[micro_batch].clone()),
            _ => self.call.exchange.take(Message::Input { stage, micro_batch })?,
        };
        input.ok_or_else(|| Error::internal("a stage got no input"))?.to(&self.replica.device)
    }

    /// Gives an output to the next stage.
    fn send_output(&self, micro_batch: usize, output: &Tensor) -> Result<()> {
        let (exchange, next) = (&self.call.exchange, self.stage + 1);
        exchange.send(self.stage, Message::Input { stage: next, micro_batch }, Some(output), &self.call.devices[next])
    }

    /// Computes the outputs without a gradient, in the current mode. The last stage returns them, by micro-batch.
    pub fn outputs(&self) -> Result<Vec<Tensor>> {
        let mut outputs = Vec::new();
        for (i, rank) in self.call.ranks.iter().enumerate() {
            let input = self.input(i)?;
            let output = rank.without_losses().within(|| self.replica.net.forward(&input))?;
            if self.is_last() {
                outputs.push(output);
            } else {
                self.call.exchange.wait_for_next(self.stage)?;
                self.send_output(i, &output)?;
            }
            self.call.exchange.passed()?;
        }
        self.call.exchange.finish(self.stage)?;
        // Here, so that a failure is reported as this device's error.
        self.replica.device.synchronize()?;
        Ok(outputs)
    }

    /// Computes the gradients of the stage's parameters. The last stage returns the mean of the losses over all samples.
    pub fn gradients<F>(&self, training: &Arc<Training<F>>) -> Result<Option<Tensor>>
    where
        F: Fn(&Tensor, &Tensor) -> Result<Tensor> + Send + Sync + 'static,
    {
        let (stages, micro_batches) = (self.call.devices.len(), self.call.inputs.len());
        let (mut live, mut loss) = (VecDeque::new(), None);
        for pass in training.schedule.passes(self.stage, stages, micro_batches) {
            match pass {
                Pass::Forward(i) => {
                    let mut micro_batch = self.forward(i, training)?;
                    if self.is_last() && !training.gathers {
                        let rank = self.call.ranks[i].clone();
                        micro_batch.result = rank.within(|| self.loss(i, &micro_batch.result, training))?;
                    }
                    live.push_back(micro_batch);
                }
                Pass::Backward(i) => {
                    if i == 0 && self.is_last() && training.gathers {
                        self.gather_losses(&mut live, training)?;
                    }
                    let micro_batch = live.pop_front().ok_or_else(|| Error::internal("a backward pass came first"))?;
                    if self.is_last() {
                        let part = micro_batch.result.detach();
                        loss = Some(loss.map_or(Ok(part.clone()), |sum: Tensor| sum.add(&part))?);
                    }
                    self.backward(i, micro_batch, training)?;
                }
            }
            self.call.exchange.passed()?;
        }
        self.call.exchange.finish(self.stage)?;
        self.replica.device.flush()?;
        self.replica.device.alive()?;
        Ok(loss)
    }

    /// Returns a micro-batch's part of the loss.
    fn loss<F>(&self, i: usize, output: &Tensor, training: &Training<F>) -> Result<Tensor>
    where
        F: Fn(&Tensor, &Tensor) -> Result<Tensor>,
    {
        let labels = training.labels[i].to(&self.replica.device)?;
        (training.loss_fn)(output, &labels)?.mul_scalar(training.weights[i] as f32)
    }

    /// Replaces the outputs of all micro-batches with their parts of the loss. Each micro-batch has a thread, in which
    /// it waits for the others.
    fn gather_losses<F>(&self, live: &mut VecDeque<Live>, training: &Arc<Training<F>>) -> Result<()>
    where
        F: Fn(&Tensor, &Tensor) -> Result<Tensor> + Send + Sync + 'static,
    {
        let (ended, ends) = channel();
        let start = |(i, (live, rank)): (usize, (&Live, &Rank))| {
            let worker = Worker::start(&self.replica.device).inspect_err(|_| rank.leave())?; // the others do not wait for it
            let (stage, training, output) = (self.clone(), training.clone(), live.result.clone());
            let (rank, ended) = (rank.clone(), ended.clone());
            let work = move || rank.scope(|| stage.loss(i, &output, &training));
            worker.submit(work, move |loss| drop(ended.send((i, loss))));
            Ok(worker)
        };
        let workers: Vec<Result<Worker>> = live.iter().zip(&self.call.ranks).enumerate().map(start).collect();
        drop(ended);
        let mut losses: Vec<(usize, Result<Tensor>)> = ends.into_iter().collect();
        losses.sort_by_key(|(i, _)| *i);
        let errors = losses.iter().filter_map(|(_, loss)| loss.as_ref().err());
        if let Some(error) =
            errors.chain(workers.iter().filter_map(|worker| worker.as_ref().err())).find(|error| !error.is_abandoned())
        {
            return Err(error.clone());
        }
        for (micro_batch, (_, loss)) in live.iter_mut().zip(losses) {
            micro_batch.result = loss?;
        }
        Ok(())
    }

    /// Computes a micro-batch up to the stage's output, which it gives to the next stage.
    fn forward<F>(&self, i: usize, training: &Training<F>) -> Result<Live> {
        let input = self.input(i)?;
        let has_gradient = self.stage > 0 && training.trained[self.stage - 1] && input.dtype().is_float();
        let input = if has_gradient { input.requires_grad() } else { input };
        let result = self.call.ranks[i].without_losses().within(|| self.replica.net.forward(&input))?;
        if !self.is_last() {
            self.send_output(i, &result)?;
        }
        Ok(Live { input, result })
    }

    /// Adds the gradients of a micro-batch to the parameters' gradients, and passes the gradient of the input to the
    /// stage before.
    fn backward<F>(&self, micro_batch: usize, live: Live, training: &Training<F>) -> Result<()> {
        let (stage, exchange) = (self.stage, &self.call.exchange);
        if self.is_last() {
            live.result.backward()?;
        } else if training.trained[stage] {
            let grad = exchange.take(Message::Gradient { stage, micro_batch })?;
            // An integer output has no gradient, and neither has an output that depends on neither input nor
            // parameters.
            if let Some(grad) = grad.filter(|_| live.result.is_tracked()) {
                live.result.backward_from(&grad.to(&self.replica.device)?, false)?;
            }
        }
        let before = stage.checked_sub(1).filter(|&before| training.trained[before]);
        before.map_or(Ok(()), |before| {
            let (grad, device) = (live.input.grad(), &self.call.devices[before]);
            exchange.send(stage, Message::Gradient { stage: before, micro_batch }, grad.as_ref(), device)
        })
    }
}
