//! The calls of a pipeline that compute, over all of its stages.

use std::ops::DerefMut;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use super::exchange::Exchange;
use super::stage::{Call, StageCall, Training};
use super::{Pipeline, PipelineSchedule};
use crate::autograd::{is_recording, no_grad};
use crate::error::{Error, Result};
use crate::ops::duplicate;
use crate::parallel::collectives::split_sizes;
use crate::parallel::loss_check::Expected;
use crate::parallel::replica::{Replica, buffers};
use crate::parallel::turns::take_turn;
use crate::parallel::worker::Worker;
use crate::process_group::{LossRecord, ProcessGroup, StepLosses, Totals, counts_are_alike};
use crate::tensor::{Tensor, generator, skip_blocks};

/// How long stages that are not late may take to end a call that was given up.
const GRACE: Duration = Duration::from_secs(10);

impl Pipeline {
    /// Computes the forward and backward pass of one step over all stages.
    ///
    /// Takes `x: [N, ..]`, labels `y: [N, ..]`, which are moved to the last stage's device, and a loss function. The
    /// loss function gets the output and the labels of one micro-batch. It returns a *mean* over samples, or any loss
    /// of [`nn`](crate::nn). Afterwards, the [`parameters`](Pipeline::parameters) have the gradient of the whole batch.
    /// Earlier gradients are cleared. Call the optimiser's `step()` next.
    ///
    /// Returns the loss of the whole batch as a scalar on the last stage's device.
    ///
    /// # Errors
    /// - [`Error::ShapeMismatch`] unless there are as many labels as inputs; [`Error::InvalidArgument`] for an empty batch,
    ///   for a loss that is not a mean over samples ([`DataParallel`](crate::DataParallel)), and if the loss function calls this method or another one that computes with this pipeline.
    /// - [`Error::Replica`] or [`Error::WorkerPanic`] with the name of the device whose stage failed. Work that a
    ///   device has not finished yet is reported by the first call that waits for it.
    ///
    /// On error, all gradients are cleared.
    pub fn train_batch<F>(&self, x: &Tensor, y: &Tensor, loss_fn: F) -> Result<Tensor>
    where
        F: Fn(&Tensor, &Tensor) -> Result<Tensor> + Send + Sync + 'static,
    {
        self.step("train_batch", x, y, loss_fn, false)
    }

    /// Does the same as [`train_batch`](Pipeline::train_batch), but adds to the existing gradients, for a batch that is
    /// computed in several calls.
    ///
    /// To get the gradient of the mean over all calls, divide each loss by the number of calls. Clear the gradients
    /// first with the optimiser's `zero_grad()`.
    ///
    /// # Errors
    /// The errors of [`train_batch`](Pipeline::train_batch), but on error, all gradients are as they were.
    ///
    /// ```
    /// use anygpu::nn::{self, Linear, Sequential};
    /// use anygpu::{Device, Pipeline, Tensor};
    ///
    /// let stage = |from, to| -> anygpu::Result<Sequential> { Ok(Sequential::new().push(Linear::new(from, to)?)) };
    /// let net = Pipeline::new(vec![stage(4, 8)?, stage(8, 2)?], &[Device::cpu(), Device::new("cpu/1")?])?;
    /// let (x, labels) = (Tensor::rand([8, 4], None)?, Tensor::from_slice(&[0u32, 1].repeat(4), 8, None)?);
    /// for part in 0..2 {
    ///     let (x, labels) = (x.narrow(0, 4 * part, 4)?, labels.narrow(0, 4 * part, 4)?);
    ///     net.accumulate_batch(&x, &labels, |logits, labels| nn::cross_entropy(logits, labels)?.mul(0.5))?;
    /// }
    /// assert!(net.parameters()[0].grad().is_some());
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn accumulate_batch<F>(&self, x: &Tensor, y: &Tensor, loss_fn: F) -> Result<Tensor>
    where
        F: Fn(&Tensor, &Tensor) -> Result<Tensor> + Send + Sync + 'static,
    {
        self.step("accumulate_batch", x, y, loss_fn, true)
    }

    /// Computes the gradients of a batch. If `adds`, they are added to the existing gradients.
    fn step<F>(&self, call: &'static str, x: &Tensor, y: &Tensor, loss_fn: F, adds: bool) -> Result<Tensor>
    where
        F: Fn(&Tensor, &Tensor) -> Result<Tensor> + Send + Sync + 'static,
    {
        let samples = self.dims.samples(call, &[x, y])?;
        if samples == 0 {
            return Err(Error::argument(call, "the batch is empty"));
        }
        self.dims.check_first_layer(call, &self.net)?;
        let (workers, _in_call) = self.alone(call)?;
        self.none_is_late(&workers)?;
        if !adds {
            self.zero_grad();
        }
        self.train();
        let parameters = self.parameters();
        let gradients: Vec<Option<Tensor>> = parameters.iter().map(Tensor::grad).collect();
        let restore =
            || parameters.iter().zip(&gradients).for_each(|(parameter, grad)| parameter.set_grad(grad.clone()));
        let (check, dims) = (self.loss_check.clone(), [self.dims.output(0), self.dims.input(1)]);
        let expected = Expected { call, dims, summed: self.summed };
        let loss_fn = Arc::new(move |output: &Tensor, labels: &Tensor| check.loss(expected, &loss_fn, output, labels));
        let mut gathers = self.gathers.load(Ordering::Relaxed);
        let running = if gathers { Vec::new() } else { self.running()? };
        loop {
            let needed = Arc::new(AtomicBool::new(false));
            let totals = if gathers { Totals::Exchanged } else { Totals::Unknown(needed.clone()) };
            let losses =
                StepLosses { samples, summed: self.summed, counts: gathers, totals, shared_draws: Arc::default() };
            let result = self.gradients(&workers, x, y, losses, loss_fn.clone());
            let again = needed.load(Ordering::Relaxed);
            if again || result.is_err() {
                restore();
            }
            if !again {
                return result;
            }
            log::debug!("the loss depends on the micro-batches together: all forward passes come first from now on");
            self.stages.iter().zip(&running).try_for_each(|(stage, running)| stage.set_buffers(running))?;
            self.gathers.store(true, Ordering::Relaxed);
            gathers = true;
        }
    }

    /// Returns copies of the buffers of all stages.
    fn running(&self) -> Result<Vec<Vec<Tensor>>> {
        let of_stage = |stage: &Replica| buffers(&*stage.net).iter().map(duplicate).collect();
        self.stages.iter().map(of_stage).collect()
    }

    /// Adds the gradients of a batch. Returns the loss.
    fn gradients<F>(
        &self,
        workers: &[Worker],
        x: &Tensor,
        y: &Tensor,
        losses: StepLosses,
        loss_fn: Arc<F>,
    ) -> Result<Tensor>
    where
        F: Fn(&Tensor, &Tensor) -> Result<Tensor> + Send + Sync + 'static,
    {
        let (samples, gathers) = (losses.samples, losses.counts);
        let sizes = self.sizes(samples);
        let weight = |&size: &usize| if self.summed { 1.0 } else { size as f64 / samples as f64 };
        let any = |stage: &Replica| stage.parameters.iter().any(Tensor::is_tracked);
        let training = Training {
            schedule: if gathers { PipelineSchedule::GPipe } else { self.schedule },
            labels: y.detach().split_sizes(&sizes, self.dims.input(1))?,
            weights: sizes.iter().map(weight).collect(),
            gathers,
            trained: (0..self.stages.len()).map(|k| self.stages[..=k].iter().any(any)).collect(),
            loss_fn,
        };
        let training = Arc::new(training);
        let losses = self.run(workers, x, &sizes, Some(losses), move |stage| stage.gradients(&training))?;
        losses.into_iter().flatten().last().ok_or_else(|| Error::internal("the last stage has no loss"))
    }

    /// Returns the net's output for `x: [N, ..]` in evaluation mode, on the last stage's device and outside the graph.
    ///
    /// # Errors
    /// The errors of the layers, with the name of the device; the errors of [`train_batch`](Pipeline::train_batch).
    pub fn predict(&self, x: &Tensor) -> Result<Tensor> {
        let (workers, _in_call) = self.alone("predict")?; // not during a step, which switches the layers to training mode
        self.eval();
        self.outputs(&workers, "predict", x)
    }

    /// Returns the net's output for `x: [N, ..]` in its current mode, on the last stage's device and outside the graph.
    ///
    /// A new net is in training mode; [`train_batch`](Pipeline::train_batch) and [`predict`](Pipeline::predict) switch
    /// the mode.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] outside [`no_grad`](crate::no_grad), unless all parameters are frozen, since only
    /// `train_batch` computes gradients; the errors of `predict`.
    ///
    /// ```
    /// use anygpu::nn::{Linear, Sequential};
    /// use anygpu::{Device, Pipeline, Tensor, no_grad};
    ///
    /// let stage = |from, to| -> anygpu::Result<Sequential> { Ok(Sequential::new().push(Linear::new(from, to)?)) };
    /// let net = Pipeline::new(vec![stage(4, 8)?, stage(8, 3)?], &[Device::cpu(), Device::new("cpu/1")?])?;
    /// let y = no_grad(|| net.forward(&Tensor::rand([6, 4], None)?))?;
    /// assert_eq!((y.shape(), y.device()), (&[6, 3][..], &net.devices()[1]));
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let tracked = x.is_tracked() || self.parameters().iter().any(Tensor::is_tracked);
        if tracked && is_recording() {
            let detail = "only train_batch computes a pipeline's gradients: train with train_batch(&x, &y, loss_fn), or \
                          compute outputs within no_grad(|| …), as predict does";
            return Err(Error::argument("forward", detail));
        }
        let (workers, _in_call) = self.alone("forward")?;
        self.outputs(&workers, "forward", x)
    }

    fn outputs(&self, workers: &[Worker], call: &'static str, x: &Tensor) -> Result<Tensor> {
        self.dims.check_first_layer(call, &self.net)?;
        let sizes = self.sizes(self.dims.samples(call, &[x])?);
        let outputs = no_grad(|| self.run(workers, x, &sizes, None, |stage| stage.outputs()))?;
        let outputs: Vec<Tensor> = outputs.into_iter().flatten().collect();
        if let [whole] = &outputs[..] {
            return Ok(whole.clone());
        }
        let parts = sizes.iter().zip(&outputs);
        let entries = parts.map(|(&size, output)| self.dims.check_outputs(call, size, slice::from_ref(output)));
        let entries = entries.collect::<Result<Vec<_>>>()?;
        if entries.iter().any(|part| *part != entries[0]) {
            return Err(Error::argument(
                call,
                "the size of the net's output per sample is not the same in all micro-batches",
            ));
        }
        Tensor::cat(&outputs.iter().collect::<Vec<_>>(), self.dims.output(0))
    }

    /// Starts a call during which no other call may run, until the guards are dropped.
    pub(super) fn alone(
        &self,
        call: &'static str,
    ) -> Result<(impl DerefMut<Target = Vec<Worker>> + use<'_>, impl Drop + use<>)> {
        take_turn("Pipeline", call, std::ptr::from_ref(self).addr(), &self.workers)
    }

    fn zero_grad(&self) {
        self.stages.iter().for_each(Replica::zero_grad);
    }

    /// Returns the number of samples of each micro-batch. There is at least one micro-batch, which may be empty.
    fn sizes(&self, samples: usize) -> Vec<usize> {
        split_sizes(samples, &vec![1.0; self.micro_batches.min(samples).max(1)])
    }

    /// Runs `work` of each stage on its thread, and waits for them. Returns the results by stage.
    fn run<T: Send + 'static>(
        &self,
        workers: &[Worker],
        x: &Tensor,
        sizes: &[usize],
        losses: Option<StepLosses>,
        work: impl Fn(&StageCall) -> Result<T> + Clone + Send + 'static,
    ) -> Result<Vec<T>> {
        self.none_is_late(workers)?;
        let group = ProcessGroup::in_turn(sizes.to_vec(), generator(), losses.clone());
        let exchange = Exchange::new(self.stages.len());
        let inputs = x.detach().split_sizes(sizes, self.dims.input(0))?;
        let call = Call { exchange, devices: self.devices(), inputs, ranks: group.ranks().collect() };
        let call = Arc::new(call);
        let (ended, results) = channel();
        for (stage, (replica, worker)) in self.stages.iter().zip(workers).enumerate() {
            let (ended, work) = (ended.clone(), work.clone());
            let part = StageCall { stage, replica: replica.clone(), call: call.clone() };
            worker.submit(move || work(&part), move |result| drop(ended.send((stage, result))));
        }
        drop(ended);
        let results = self.wait((&call.exchange, &group), |limit| results.recv_timeout(limit))?;
        let records: Vec<(usize, LossRecord)> =
            group.ranks().map(|rank| (rank.samples(), rank.loss_record())).collect();
        if let Some(StepLosses { totals: Totals::Unknown(needed), .. }) = losses
            && !counts_are_alike(records.iter().map(|(n, record)| (*n, record)))
        {
            needed.store(true, Ordering::Relaxed);
            return Err(Error::Abandoned); // the step is computed again
        }
        skip_blocks(group.drawn());
        Ok(results)
    }

    /// Waits for the results of all stages, which `next` returns with the number of the stage. After the first error, the others
    /// are told to end.
    fn wait<T>(
        &self,
        (exchange, group): (&Exchange, &ProcessGroup),
        next: impl Fn(Duration) -> Result<(usize, Result<T>), RecvTimeoutError>,
    ) -> Result<Vec<T>> {
        let mut results: Vec<Option<Result<T>>> = self.stages.iter().map(|_| None).collect();
        let (mut limit, mut done, mut given_up) = (self.time_limit, 0, false);
        while results.iter().any(Option::is_none) {
            match next(limit) {
                Ok((stage, result)) => {
                    if result.is_err() {
                        exchange.abandon();
                        group.abandon();
                    }
                    results[stage] = Some(result);
                }
                Err(RecvTimeoutError::Disconnected) => return Err(Error::internal("the stages' answers are lost")),
                Err(RecvTimeoutError::Timeout) if !given_up && exchange.done() != done => done = exchange.done(),
                Err(RecvTimeoutError::Timeout) => {
                    // A stage that waits for another is not late itself, unless that is the second time.
                    let late = |k: &usize| results[*k].is_none() && (given_up || !exchange.is_waiting(*k));
                    for k in (0..self.stages.len()).filter(late).collect::<Vec<_>>() {
                        results[k] = Some(Err(self.late(k)));
                    }
                    exchange.abandon();
                    group.abandon();
                    (limit, given_up) = (GRACE, true);
                }
            }
        }
        let results: Vec<Result<T>> = results.into_iter().flatten().collect();
        let cause = results.iter().filter_map(|result| result.as_ref().err()).find(|error| !error.is_abandoned());
        if let Some(cause) = cause {
            return Err(cause.clone());
        }
        results.into_iter().collect()
    }

    /// Returns an error if a stage still hangs in an earlier call.
    fn none_is_late(&self, workers: &[Worker]) -> Result<()> {
        workers.iter().position(Worker::is_busy).map_or(Ok(()), |stage| Err(self.late(stage)))
    }

    fn late(&self, stage: usize) -> Error {
        let device = self.stages[stage].device.to_string();
        let error = Error::Timeout { device: device.clone(), seconds: self.time_limit.as_secs_f64() };
        Error::Replica { device, error: Box::new(error) }
    }
}
