//! The step of [`DataParallel`] over several devices, in the order in which it happens:
//!
//! 1. **Call.** [`train_batch`](DataParallel::train_batch) and the similar calls make one function of a net and its
//!    samples (`StepFn`).
//! 2. **Cut.** Each device gets samples according to its known speed and memory (`balance.rs`), and a rank in a process
//!    group. Through the group, the losses, batch norm and random draws become those of the whole batch. If memory is
//!    too small for all samples at once, there is one such pass for each micro-batch (`micro_batches.rs`).
//! 3. **Copy.** The thread of each device (`worker.rs`) copies the host's parameters and buffers to it, if they have changed.
//! 4. **Forward and backward.** The gradients are in buckets (`gradient_buckets.rs`). A bucket is read, as halves if the user wants
//!    that (`wire.rs`), while backward computes the next one.
//! 5. **Average.** The calling thread averages each bucket when all devices' parts of it have arrived, in the order of
//!    the devices. With other processes, it gives the mean to a thread that adds up the means of all processes
//!    (`machines/`).
//! 6. **Repeat.** If devices failed, the others repeat 2 to 5, from the same values. All devices do so if their means
//!    or random numbers differed from those of one device (`checks.rs`).
//! 7. **Keep.** The host gets the gradients and the buffers; times are noted for the next shares and the report (`timeline.rs`).
//!
//! Which devices take part, and which values they have, is in `members.rs`. Predictions also use 2, 3 and 6
//! (`forward.rs`).

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};

use web_time::{Duration, Instant};

use super::DataParallel;
use super::balance::Balance;
use super::gradient_buckets::{BucketPlan, Deliver, GradientBuckets, Reducer, SentGradients};
use super::in_turn::run_in_turn;
use super::loss_check::Expected;
use super::machines::{JointStep, Machines};
use super::members::State;
use super::replica::Replica;
use super::timeline::PartTimes;
use super::wire::Residuals;
use crate::autograd::no_grad;
use crate::device::{Device, rerun};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::nn::Module;
use crate::process_group::{self, LossRecord, ProcessGroup, Rank, StepLosses, Totals};
use crate::tensor::{Bucket, Tensor, generator, random_state, set_random_state, skip_blocks, to_together};
use crate::util::sync::lock;
use crate::util::threads::THREADS;
use crate::util::waiting;

/// How long devices that are not late may take to end a step that was given up.
const GRACE: Duration = Duration::from_secs(10);

/// Computes the loss of samples, by a replica's net from its inputs.
pub(super) type StepFn = dyn Fn(&dyn Module, &[Tensor]) -> Result<Tensor> + Send + Sync;

/// Samples that the devices compute at once.
pub(super) struct Batch {
    pub(super) inputs: Vec<Tensor>,
    pub(super) samples: usize,
    /// The number of samples of the step. This batch may be a micro-batch of it, or the part of one of several
    /// processes.
    pub(super) whole: usize,
    pub(super) step: Arc<StepFn>,
}

/// The mean gradients of a batch.
pub(super) struct Gradients {
    /// Whether the loss depends on each parameter that is not frozen.
    pub(super) present: Vec<bool>,
    /// The gradients in the slots of a bucket.
    pub(super) block: Tensor,
    pub(super) loss: f32,
    /// The losses of the first device, and its number of samples.
    pub(super) losses: (usize, LossRecord),
}

// 1. The calls.

impl DataParallel {
    /// Computes the forward and backward pass of one step over all devices.
    ///
    /// Takes `images: [N, ..]`, `labels: [N, ..]` and a loss function. The loss function returns a *mean* over samples,
    /// or any loss of [`nn`](crate::nn): see [losses](DataParallel). Afterwards, the
    /// [`parameters`](DataParallel::parameters) have the gradient of the whole batch. Earlier gradients are cleared.
    /// Call the optimiser's `step()` next.
    ///
    /// Returns the loss of the whole batch as a scalar. With one device, it is on that device and the call does not
    /// wait for it. With several devices, it is on `cpu`. For nets with several inputs or outputs, and for other steps,
    /// use [`step`](DataParallel::step).
    ///
    /// # Errors
    /// - [`Error::ShapeMismatch`] unless there are as many labels as images; [`Error::InvalidArgument`] for an empty
    ///   batch, for a [loss](DataParallel) that is not a mean over samples, and if the loss function calls this method, [`predict`](DataParallel::predict) or another one that
    ///   computes with this net.
    /// - With several devices, [`Error::Replica`] or [`Error::WorkerPanic`] with the name of the device that failed, if
    ///   the error is not a device failure, or if all devices fail.
    /// - With one device, [`Error::DeviceLost`] if the device is lost. If it is lost in the middle of a step, the first
    ///   call that waits for the step returns this error.
    ///
    /// On error, all gradients are cleared. With several devices, parameters and buffers are as they were.
    ///
    /// A loss function may be called again for the same samples: after a device failure, for parts of the samples of its
    /// first call, and once if its means are over numbers of elements that are not proportional to the samples. If the devices have too little memory for the
    /// batch and the loss depends on the whole batch, it is also called within [`no_grad`](crate::no_grad), before the
    /// gradients are computed.
    pub fn train_batch<F>(&self, images: &Tensor, labels: &Tensor, loss_fn: F) -> Result<Tensor>
    where
        F: Fn(&Tensor, &Tensor) -> Result<Tensor> + Send + Sync + 'static,
    {
        let loss = waiting::wait_for(self.train_batch_async(images, labels, loss_fn));
        loss.map_err(|error| error.instead("train_batch", "train_batch_async"))
    }

    /// Asynchronous form of [`train_batch`](DataParallel::train_batch).
    ///
    /// Use it in a browser, where `train_batch` would have to wait for the gradients of several devices. In a browser,
    /// the devices compute one after the other, and the results are the same. Elsewhere, this is `train_batch`.
    ///
    /// In a browser, nothing can wait in the middle of a net. If layers exchange values between devices, as batch norm
    /// does, the net is computed again from the beginning for each exchange.
    ///
    /// # Errors
    /// The errors of [`train_batch`](DataParallel::train_batch).
    ///
    /// ```
    /// use anygpu::nn::{self, Linear};
    /// use anygpu::optim::SGD;
    /// use anygpu::{DataParallel, Tensor};
    ///
    /// # pollster::block_on(async {
    /// let devices = anygpu::init().await;
    /// let net = DataParallel::new(Linear::new(4, 2)?, &devices)?;
    /// let mut sgd = SGD::new(net.parameters(), 0.1);
    /// let (x, labels) = (Tensor::rand([8, 4], None)?, Tensor::from_slice(&[0u32, 1].repeat(4), 8, None)?);
    /// let loss = net.train_batch_async(&x, &labels, nn::cross_entropy).await?;
    /// sgd.step()?;
    /// println!("{}", loss.item_async::<f32>().await?);
    /// # Ok::<(), anygpu::Error>(())
    /// # })?;
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub async fn train_batch_async<F>(&self, images: &Tensor, labels: &Tensor, loss_fn: F) -> Result<Tensor>
    where
        F: Fn(&Tensor, &Tensor) -> Result<Tensor> + Send + Sync + 'static,
    {
        let check = self.loss_check.clone();
        let dims = [self.dims.output(0), self.dims.input(1)];
        let expected = Expected { call: "train_batch", dims, summed: self.summed };
        let step: Arc<StepFn> = Arc::new(move |net: &dyn Module, part: &[Tensor]| match part {
            [images, labels] => check.loss(expected, &loss_fn, &net.forward(images)?, labels),
            _ => Err(Error::internal("a part has images and labels")),
        });
        self.rerun(|| self.compute_step("train_batch", &[images, labels], step.clone())).await
    }

    /// Asynchronous form of [`step`](DataParallel::step); see [`train_batch_async`](DataParallel::train_batch_async).
    ///
    /// # Errors
    /// The errors of [`step`](DataParallel::step).
    pub async fn step_async<F>(&self, inputs: &[&Tensor], step: F) -> Result<Tensor>
    where
        F: Fn(&dyn Module, &[Tensor]) -> Result<Tensor> + Send + Sync + 'static,
    {
        let step: Arc<StepFn> = Arc::new(step);
        self.rerun(|| self.compute_step("step", inputs, step.clone())).await
    }

    /// Runs a call that reads from the devices. Runs it again when the data that it reads has arrived.
    pub(super) async fn rerun<T>(&self, mut call: impl FnMut() -> Result<T>) -> Result<T> {
        if waiting::CAN_BLOCK {
            return call();
        }
        let devices = lock(&self.roster).devices.clone();
        let random = random_state();
        let again = || {
            set_random_state(random);
            call()
        };
        rerun(&devices, again).await
    }

    /// Computes a step like [`train_batch`](DataParallel::train_batch), with a function of your own.
    ///
    /// Use it for nets with several inputs or outputs, for losses that depend on more than an output and labels, or for
    /// several passes through the net.
    ///
    /// All `inputs` are split along their first dimension, or along the dimensions of
    /// [`with_batch_dims`](DataParallel::with_batch_dims). All must have the same number of samples. `step` is called
    /// for each device, in parallel. It gets the replica of the net and the device's part of each input. It returns the
    /// loss as a scalar: the *mean* over these samples, or any loss of [`nn`](crate::nn).
    ///
    /// # Errors
    /// The errors of [`train_batch`](DataParallel::train_batch).
    ///
    /// ```
    /// use anygpu::nn::{self, Linear};
    /// use anygpu::{DataParallel, Device, Result, Tensor};
    ///
    /// /// Says how alike two vectors are.
    /// #[derive(Clone)]
    /// struct Siamese {
    ///     side: Linear,
    /// }
    ///
    /// impl Siamese {
    ///     fn compare(&self, a: &Tensor, b: &Tensor) -> Result<Tensor> {
    ///         (self.side.forward(a)? * self.side.forward(b)?)?.sum(1, false)
    ///     }
    /// }
    ///
    /// impl Module for Siamese {
    ///     anygpu::children!(side);
    ///
    ///     fn forward(&self, pair: &Tensor) -> Result<Tensor> {
    ///         self.compare(&pair.select(0, 0)?, &pair.select(0, 1)?)
    ///     }
    /// }
    /// use anygpu::nn::Module;
    ///
    /// let devices = [Device::new("cpu/0")?, Device::new("cpu/1")?];
    /// let net = DataParallel::new(Siamese { side: Linear::new(4, 8)? }, &devices)?;
    /// let [a, b, alike] = [[6, 4].as_slice(), &[6, 4], &[6]].map(|shape| Tensor::rand(shape, None));
    /// let loss = net.step(&[&a?, &b?, &alike?], |replica, part| {
    ///     let net = replica.downcast_ref::<Siamese>().expect("the net that was given to DataParallel::new");
    ///     nn::mse_loss(&net.compare(&part[0], &part[1])?, &part[2], nn::Reduction::Mean)
    /// })?;
    /// assert_eq!(loss.elem_count(), 1);
    /// assert!(net.parameters().iter().all(|parameter| parameter.grad().is_some()));
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn step<F>(&self, inputs: &[&Tensor], step: F) -> Result<Tensor>
    where
        F: Fn(&dyn Module, &[Tensor]) -> Result<Tensor> + Send + Sync + 'static,
    {
        let loss = waiting::wait_for(self.step_async(inputs, step));
        loss.map_err(|error| error.instead("step", "step_async"))
    }

    /// Does the same as [`train_batch`](DataParallel::train_batch), but adds to the existing gradients instead of
    /// clearing them.
    ///
    /// For k equal parts of a batch, divide the loss by k in `loss_fn`. The sum is then the gradient of the whole
    /// batch's mean loss. The losses of two calls are independent, as on one device. Clear the gradients first with the
    /// optimiser's `zero_grad()`, or use `train_batch` for the first part.
    ///
    /// # Errors
    /// The errors of [`train_batch`](DataParallel::train_batch), but on error, all gradients are as they were.
    ///
    /// ```
    /// use anygpu::nn::{self, Linear};
    /// use anygpu::{DataParallel, Device, Tensor, optim::SGD};
    ///
    /// let net = DataParallel::new(Linear::new(4, 2)?, &[Device::cpu()])?;
    /// let mut sgd = SGD::new(net.parameters(), 0.1);
    /// let (x, labels) = (Tensor::rand([8, 4], None)?, Tensor::from_slice(&[0u32, 1].repeat(4), 8, None)?);
    /// sgd.zero_grad();
    /// for part in 0..4 {
    ///     let (x, labels) = (x.narrow(0, 2 * part, 2)?, labels.narrow(0, 2 * part, 2)?);
    ///     net.accumulate_batch(&x, &labels, |logits, labels| nn::cross_entropy(logits, labels)?.mul(0.25))?;
    /// }
    /// sgd.step()?;
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn accumulate_batch<F>(&self, images: &Tensor, labels: &Tensor, loss_fn: F) -> Result<Tensor>
    where
        F: Fn(&Tensor, &Tensor) -> Result<Tensor> + Send + Sync + 'static,
    {
        self.accumulate(|| self.train_batch(images, labels, loss_fn))
    }

    /// Does the same as [`step`](DataParallel::step), but adds to the existing gradients instead of clearing them.
    ///
    /// # Errors
    /// The errors of [`step`](DataParallel::step), but on error, all gradients are as they were.
    ///
    /// ```
    /// use anygpu::nn::{self, Linear, Reduction};
    /// use anygpu::{DataParallel, Device, Tensor};
    ///
    /// let net = DataParallel::new(Linear::new(4, 2)?, &[Device::new("cpu/0")?, Device::new("cpu/1")?])?;
    /// let (x, y) = (Tensor::rand([8, 4], None)?, Tensor::rand([8, 2], None)?);
    /// for _ in 0..2 {
    ///     net.accumulate_step(&[&x, &y], |net, part| nn::mse_loss(&net.forward(&part[0])?, &part[1], Reduction::Mean))?;
    /// }
    /// assert!(net.parameters()[0].grad().is_some());
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn accumulate_step<F>(&self, inputs: &[&Tensor], step: F) -> Result<Tensor>
    where
        F: Fn(&dyn Module, &[Tensor]) -> Result<Tensor> + Send + Sync + 'static,
    {
        self.accumulate(|| self.step(inputs, step))
    }

    /// Computes a step with one device or several. On error, there are no gradients.
    fn compute_step(&self, call: &'static str, inputs: &[&Tensor], step: Arc<StepFn>) -> Result<Tensor> {
        let samples = match self.dims.samples(call, inputs)? {
            // A process's part of a batch may be empty.
            0 if self.machines.is_none() => return Err(Error::argument(call, "the batch is empty")),
            samples => samples,
        };
        let inputs = inputs.iter().copied().cloned().collect();
        let batch = Batch { inputs, samples, whole: samples, step };
        let (mut state, _in_call) = self.alone(call)?;
        if !state.members.is_empty() {
            self.dims.check_first_layer(call, &*self.host.net)?;
        }
        let loss = match state.members.is_empty() {
            true => self.host.backward(&batch),
            false => self.split_step(&mut state, &batch),
        };
        if let Err(error) = &loss {
            if let Some(machines) = &self.machines {
                machines.abort(error); // the other processes wait for this one
            }
            self.host.zero_grad();
        }
        loss
    }

    /// Computes a step with several devices: the host's parameters get the gradients.
    fn split_step(&self, state: &mut State, batch: &Batch) -> Result<Tensor> {
        (state.losses, state.joint) = (None, None); // also after a panic in an earlier step
        self.host.zero_grad();
        self.take_in_reopened(state);
        let gradients = match &self.machines {
            Some(machines) => self.joint_gradients(machines, state, batch)?,
            None => self.in_micro_batches(batch.samples, |sizes| self.sum_of_micro_batches(state, batch, sizes))?,
        };
        state.steps += 1;
        lock(&self.roster).timeline.count_step();
        let trained = self.host.trained();
        let views = Bucket::laid_out(gradients.block, &trained).tensors()?;
        for ((parameter, view), present) in trained.iter().zip(views).zip(gradients.present) {
            parameter.set_grad(present.then_some(view));
        }
        Tensor::scalar(gradients.loss, None)
    }

    /// Returns the mean gradients over all processes. A process does not compute its samples in micro-batches, because
    /// the other processes would have to take part in the exchanges of each.
    fn joint_gradients(&self, machines: &Machines, state: &mut State, batch: &Batch) -> Result<Gradients> {
        let mut joint = machines.begin(self, state, batch.samples)?;
        let own = |(i, input): (usize, &Tensor)| joint.samples(input, self.dims.input(i));
        let inputs = batch.inputs.iter().enumerate().map(own).collect::<Result<Vec<_>>>()?;
        let (samples, whole) = (batch.samples.max(1), joint.place().total);
        state.joint = Some(joint.place());
        let batch = Batch { inputs, samples, whole, step: batch.step.clone() };
        let gradients = self.gradients(state, &batch, &Totals::Exchanged, Some(&mut joint));
        state.joint = None;
        let Gradients { mut present, block, mut loss, losses } = gradients?;
        joint.finish(&block, &mut loss, &mut present)?;
        Ok(Gradients { present, block, loss, losses })
    }
}

// 2 to 7, in one place.

/// What the devices have computed in an attempt that did not fail.
struct Computed {
    begin: Instant,
    /// The index of each device that has samples, and what it knows.
    parts: Vec<(usize, LocalStep)>,
    /// Whether the devices took the means and the random numbers that one device would.
    right: bool,
    /// The means of the gradients, in the slots of a bucket.
    block: Tensor,
    loss: f32,
}

impl DataParallel {
    /// Returns the mean gradients of samples that the devices compute at once. With other processes, the buckets of
    /// this process are then being sent to them.
    pub(super) fn gradients(
        &self,
        state: &mut State,
        batch: &Batch,
        totals: &Totals,
        mut joint: Option<&mut JointStep<'_>>,
    ) -> Result<Gradients> {
        let random = random_state();
        loop {
            state.losses = Some(self.step_losses(state, batch.whole, totals.clone()));
            let attempt = self.gradients_once(state, batch, joint.as_deref_mut());
            state.losses = None;
            if let Some(gradients) = attempt? {
                return Ok(gradients);
            }
            // The step has not changed anything that is kept, and begins again.
            state.forget_buffers();
            set_random_state(random);
        }
    }

    /// Returns how the losses of a step of so many samples are computed.
    pub(super) fn step_losses(&self, state: &State, samples: usize, totals: Totals) -> StepLosses {
        // Other processes do not repeat a step, so that numbers of elements are always exchanged with them.
        let counts = state.counts || self.machines.is_some();
        StepLosses { samples, summed: self.summed, counts, totals, shared_draws: state.shared_draws.clone() }
    }

    /// Does the work of [`gradients`](DataParallel::gradients) once. Returns `None` if the devices took other means or
    /// random numbers than one device would. `state` then has what the next attempt needs to know.
    fn gradients_once(
        &self,
        state: &mut State,
        batch: &Batch,
        mut joint: Option<&mut JointStep<'_>>,
    ) -> Result<Option<Gradients>> {
        // The mean is over what is added up here: a micro-batch, or the batches of all processes.
        let total = if joint.is_some() { batch.whole } else { batch.samples };
        let task = Task {
            step: batch.step.clone(),
            plan: self.plan.clone(),
            wire: self.wire,
            summed: self.summed,
            whole: batch.whole,
            compares_buffers: state.compares_buffers(),
        };
        let computed = self.with_survivors(state, batch.samples, |state, sizes| {
            let begin = Instant::now();
            let weights: Vec<f64> = sizes.iter().filter(|&&n| n > 0).map(|&n| weight(self.summed, n, total)).collect();
            let mut reducer = Reducer::new(&self.plan, &weights)?;
            let task = task.clone();
            let work = move |replica: &Replica, part: Part| replica.forward_and_backward(part, &task);
            let average = |rank, bucket, part| {
                if reducer.take(rank, bucket, part)?
                    && let Some(joint) = &mut joint
                {
                    joint.send(bucket, reducer.mean(bucket)?);
                }
                Ok(())
            };
            let parts = self.on_each_device(state, sizes, &batch.inputs, self.plan.len(), work, average)?;
            self.check_buffers(state, &parts)?;
            let right = self.is_as_on_one_device(state, &parts);
            let (block, loss) = reducer.finish()?;
            Ok(Computed { begin, parts, right, block, loss })
        })?;
        self.keep(state, batch, computed, joint)
    }
}

// 2 and 3. Cut the samples, and copy what has changed.

/// The part of a call that one device computes.
pub(super) struct Part {
    /// Its place among the parts of the devices that have samples.
    pub(super) rank: usize,
    pub(super) samples: usize,
    /// Its samples of each input.
    pub(super) inputs: Vec<Tensor>,
    /// Takes buckets of gradients.
    deliver: Deliver,
    /// When its thread began to copy the host's values to the device, and when it had copied them.
    begin: Instant,
    copied: Instant,
}

/// What the thread of a device sends, with its rank.
enum Event<T> {
    /// The number of a bucket, and its elements.
    Bucket(usize, usize, Tensor),
    Ended(usize, Result<T>),
}

impl DataParallel {
    /// Cuts the inputs to these numbers of samples. Runs `work` for the part of each device that has samples, as the
    /// ranks of a group, and waits for all of them. `take` is called with each bucket of gradients: the rank, the
    /// number of the bucket, and its elements. Each device delivers `buckets` of them. Returns the index and the result
    /// of each device.
    pub(super) fn on_each_device<T: Clone + Send + 'static>(
        &self,
        state: &mut State,
        sizes: &[usize],
        inputs: &[Tensor],
        buckets: usize,
        work: impl Fn(&Replica, Part) -> Result<T> + Clone + Send + 'static,
        take: impl FnMut(usize, usize, Tensor) -> Result<()>,
    ) -> Result<Vec<(usize, T)>, Failed> {
        let parts = self.dims.cut(inputs, sizes)?;
        let active = with_samples(sizes, &lock(&self.roster).balance);
        let samples = active.iter().map(|&i| sizes[i]).collect();
        let (stream, joint, losses) = (generator(), state.joint.clone(), state.losses.clone());
        let group = move || ProcessGroup::new(samples, stream, joint, losses);
        let (version, compares) = (self.host.version(), state.compares_parameters());
        state.note_writes(&self.host);
        let mut jobs = Vec::with_capacity(active.len());
        for (rank, &i) in active.iter().enumerate() {
            let member = &mut state.members[i];
            let (replica, host, work) = (member.replica.clone(), self.host.clone(), work.clone());
            let copies = Copies { parameters: member.parameters != Some(version), buffers: !member.buffers, compares };
            member.forget(); // until the device has ended its part
            let (samples, inputs) = (sizes[i], parts[i].clone());
            jobs.push(move |again: bool, deliver: Deliver| {
                let begin = Instant::now();
                replica.copy_from(&host, Copies { buffers: copies.buffers || again, ..copies })?;
                let (inputs, copied) = (inputs.clone(), Instant::now());
                work(&replica, Part { rank, samples, inputs, deliver, begin, copied })
            });
        }
        let (group, results) = match THREADS {
            true => self.at_the_same_time(state, &active, group(), jobs, take)?,
            false => {
                let devices: Vec<Device> = active.iter().map(|&i| state.members[i].replica.device.clone()).collect();
                run_in_turn(&devices, group, buckets, |rank, again, deliver| jobs[rank](again, deliver), take)?
            }
        };
        let results = all_or_failed(results, &active)?;
        skip_blocks(group.drawn());
        state.forget_buffers(); // those of devices that had no samples
        for &i in &active {
            (state.members[i].parameters, state.members[i].buffers) = (Some(version), true);
        }
        Ok(active.into_iter().zip(results).collect())
    }

    /// Runs the job of each rank in the thread of its device, and waits for them; see [`DataParallel::on_each_device`].
    /// Returns the results by rank.
    fn at_the_same_time<T: Send + 'static>(
        &self,
        state: &mut State,
        active: &[usize],
        group: Arc<ProcessGroup>,
        jobs: Vec<impl Fn(bool, Deliver) -> Result<T> + Send + 'static>,
        take: impl FnMut(usize, usize, Tensor) -> Result<()>,
    ) -> Result<(Arc<ProcessGroup>, Vec<Result<T>>)> {
        let (sender, events) = channel();
        for (((rank, &i), place), job) in active.iter().enumerate().zip(group.ranks()).zip(jobs) {
            let (deliver, ended) = (sender.clone(), sender.clone());
            // An error of a read is returned by the job, and an error of `send` means that the call was given up.
            let deliver: Deliver = Arc::new(move |bucket, part| {
                let _ = part.map(|part| deliver.send(Event::Bucket(rank, bucket, part)));
            });
            let job = move || place.scope(|| job(false, deliver));
            state.members[i].worker.submit(job, move |result| drop(ended.send(Event::Ended(rank, result))));
        }
        let results = self.wait(state, active, &group, &events, take)?;
        Ok((group, results))
    }
}

/// What a device copies of the host before its part.
#[derive(Clone, Copy)]
struct Copies {
    parameters: bool,
    buffers: bool,
    /// Whether it compares its parameters with the host's.
    compares: bool,
}

impl Replica {
    fn copy_from(&self, host: &Replica, Copies { parameters, buffers, compares }: Copies) -> Result<()> {
        if parameters {
            self.copy_parameters_from(host)?;
        }
        if buffers {
            self.copy_buffers_from(host)?;
        }
        if compares {
            self.same_parameters(host)?;
        }
        Ok(())
    }
}

/// Returns the indices of the devices with samples. If there are no samples, the first one computes an empty part.
fn with_samples(sizes: &[usize], balance: &Balance) -> Vec<usize> {
    let active: Vec<usize> = (0..sizes.len()).filter(|&i| sizes[i] > 0).collect();
    if active.is_empty() { (0..sizes.len()).find(|&i| balance.takes_part(i)).into_iter().collect() } else { active }
}

// 4. Forward and backward, with buckets on their way.

/// What each device is to compute in a step.
#[derive(Clone)]
struct Task {
    step: Arc<StepFn>,
    plan: Arc<BucketPlan>,
    /// The format of the gradients.
    wire: DType,
    /// Whether losses are sums.
    summed: bool,
    /// The number of samples of the whole step.
    whole: usize,
    compares_buffers: bool,
}

/// What a device knows of its part of a step when all of its gradients are on the host.
#[derive(Clone)]
pub(super) struct LocalStep {
    pub(super) samples: usize,
    /// Whether the loss depends on each parameter that is not frozen.
    present: Vec<bool>,
    times: PartTimes,
    /// What the format of gradients has lost, to be kept if the step happens.
    residuals: Residuals,
    pub(super) losses: LossRecord,
    /// The numbers of elements of its random draws.
    pub(super) draws: Vec<usize>,
    /// Its buffers after the step, on the host. Empty if they are not needed.
    pub(super) buffers: Vec<Tensor>,
}

impl Replica {
    /// Moves the samples to this device in one copy, and computes the loss in training mode. Returns it in the graph.
    pub(super) fn loss(&self, inputs: &[Tensor], step: &StepFn) -> Result<Tensor> {
        self.zero_grad();
        self.net.train();
        step(&*self.net, &to_together(&inputs.iter().collect::<Vec<_>>(), &self.device)?)
    }

    /// Computes the gradients of the only device, which stay there. Returns the loss without reading it back.
    fn backward(&self, batch: &Batch) -> Result<Tensor> {
        let loss = self.loss(&batch.inputs, &*batch.step)?;
        loss.backward()?;
        self.device.alive()?;
        Ok(loss.detach())
    }

    /// Computes the gradients of the parameters for a part of a batch. Gives each bucket of them to [`Part::deliver`]
    /// as soon as it is on the host. Afterwards, the parameters have no gradients.
    fn forward_and_backward(&self, part: Part, task: &Task) -> Result<LocalStep> {
        let Part { rank, samples, inputs, deliver, begin, copied } = part;
        let wire = self.feedback.wire(task.wire, weight(task.summed, samples, task.whole));
        let loss = self.loss(&inputs, &*task.step)?;
        let forward = Instant::now();
        let gradients = GradientBuckets::new(&task.plan, self.trained(), &loss, wire, deliver);
        gradients.during(|| loss.backward())?;
        let backward = Instant::now();
        drop(loss);
        let SentGradients { present, times: buckets, residuals } = gradients.finish()?;
        self.device.alive()?;
        let of_rank = |rank: Rank| (rank.waited(), rank.loss_record(), rank.draws());
        let (waited, losses, draws) = process_group::rank().map(of_rank).unwrap_or_default();
        let times = PartTimes { begin, copied, forward, backward, buckets, waited };
        // All devices have updated their buffers alike, which is compared now and then.
        let buffers = if rank == 0 || task.compares_buffers { self.buffers_on_host()? } else { Vec::new() };
        Ok(LocalStep { samples, present, times, residuals, losses, draws, buffers })
    }
}

/// Returns the factor of some samples' gradients in the sum over all samples: their share, or 1 if losses are sums.
pub(super) fn weight(summed: bool, samples: usize, of: usize) -> f64 {
    if summed { 1.0 } else { samples as f64 / of as f64 }
}

// 5. Average what arrives.

impl DataParallel {
    /// Waits until all parts have ended, and calls `take` with the buckets of gradients that arrive meanwhile. Returns the results by
    /// rank. Devices that are late are given up, and are out.
    fn wait<T>(
        &self,
        state: &mut State,
        active: &[usize],
        group: &ProcessGroup,
        events: &Receiver<Event<T>>,
        mut take: impl FnMut(usize, usize, Tensor) -> Result<()>,
    ) -> Result<Vec<Result<T>>> {
        let mut results: Vec<Option<Result<T>>> = active.iter().map(|_| None).collect();
        let mut wrong = None;
        let limit = lock(&self.roster).time_limit;
        let (mut until, mut given_up) = (Instant::now().checked_add(limit), false);
        while results.iter().any(Option::is_none) {
            let wait = until.map_or(Duration::MAX, |until| until.saturating_duration_since(Instant::now()));
            match events.recv_timeout(wait) {
                Ok(Event::Bucket(rank, bucket, part)) if wrong.is_none() => wrong = take(rank, bucket, part).err(),
                Ok(Event::Bucket(..)) => {}
                Ok(Event::Ended(rank, result)) => results[rank] = Some(result),
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(Error::internal("the replicas' answers are lost"));
                }
                // Other processes have limits of their own.
                Err(RecvTimeoutError::Timeout) if !given_up && group.is_waiting_outside() => {
                    until = Instant::now().checked_add(limit);
                }
                Err(RecvTimeoutError::Timeout) => {
                    // A device that waits for another is not late itself, unless that is the second time.
                    let late = |rank: &usize| results[*rank].is_none() && (given_up || !group.is_waiting(*rank));
                    for rank in (0..active.len()).filter(late).collect::<Vec<_>>() {
                        let member = &mut state.members[active[rank]];
                        let device = member.replica.device.to_string();
                        let error = Box::new(Error::Timeout { device: device.clone(), seconds: limit.as_secs_f64() });
                        results[rank] = Some(Err(Error::Replica { device, error }));
                        member.out = true;
                    }
                    group.abandon();
                    (until, given_up) = (Instant::now().checked_add(GRACE), true);
                }
            }
        }
        match wrong {
            Some(error) => Err(error),
            None => Ok(results.into_iter().flatten().collect()),
        }
    }
}

// 6. Repeat on the rest if one failed.

/// Why an attempt at a call has failed.
pub(super) enum Failed {
    /// These devices failed, given by their indices. Others may be able to do it.
    Devices(Vec<(usize, Error)>),
    /// The call itself is wrong.
    Call(Error),
}

impl From<Error> for Failed {
    fn from(error: Error) -> Failed {
        Failed::Call(error)
    }
}

/// Returns the results of all devices. If there are not all, returns the cause: an error that is not a device failure
/// comes first. Devices that ended because of others are no cause.
fn all_or_failed<T>(results: Vec<Result<T>>, active: &[usize]) -> Result<Vec<T>, Failed> {
    let causes = results.iter().zip(active).filter_map(|(result, &i)| Some((i, result.as_ref().err()?.clone())));
    let causes: Vec<(usize, Error)> = causes.filter(|(_, error)| !error.is_abandoned()).collect();
    if let Some((_, error)) = causes.iter().find(|(_, error)| !error.is_of_device()) {
        return Err(error.clone().into());
    }
    if !causes.is_empty() {
        return Err(Failed::Devices(causes));
    }
    Ok(results.into_iter().collect::<Result<Vec<T>>>()?)
}

impl DataParallel {
    /// Calls `attempt` with the number of samples of each device. Calls it again without the devices that fail, until
    /// it succeeds. The devices that failed are then left out.
    ///
    /// # Errors
    /// An error that is not a device failure; the first error, if the remaining devices cannot take all samples. After
    /// an error, only devices that hang are left out. How much fits into the memory of devices stays known.
    pub(super) fn with_survivors<T>(
        &self,
        state: &mut State,
        samples: usize,
        mut attempt: impl FnMut(&mut State, &[usize]) -> Result<T, Failed>,
    ) -> Result<T> {
        let mut failed: Vec<(usize, Error)> = Vec::new();
        let mut first = None;
        let end = loop {
            let Some(sizes) = lock(&self.roster).balance.sizes(samples) else {
                break Err(first.unwrap_or_else(|| lock(&self.roster).all_out()));
            };
            let list = match attempt(state, &sizes) {
                Ok(result) => break Ok(result),
                Err(Failed::Call(error)) => break Err(error),
                Err(Failed::Devices(list)) => list,
            };
            let mut roster = lock(&self.roster);
            for (index, error) in list {
                first.get_or_insert(error.clone());
                if error.is_for_less_memory() && sizes[index] > 1 {
                    log::warn!("{error}: the call is repeated with half as many samples for this device");
                    roster.balance.set_most(index, sizes[index] / 2);
                } else {
                    log::warn!("{error}: the call is repeated without this device");
                    roster.balance.set_part(index, false);
                    failed.push((index, error));
                }
            }
        };
        let mut roster = lock(&self.roster);
        for (index, error) in failed {
            state.members[index].out |= end.is_ok();
            if state.members[index].out {
                roster.left_out[index] = Some(error);
            }
        }
        state.members.iter().enumerate().for_each(|(index, member)| roster.balance.set_part(index, !member.out));
        end
    }
}

// 7. Keep what was computed.

impl DataParallel {
    /// Keeps what an attempt has measured. If its numbers are right, also keeps what it has computed.
    fn keep(
        &self,
        state: &mut State,
        batch: &Batch,
        Computed { begin, parts, right, block, loss }: Computed,
        joint: Option<&mut JointStep<'_>>,
    ) -> Result<Option<Gradients>> {
        let times: Vec<_> = parts.iter().map(|(i, local)| (*i, local.samples, &local.times)).collect();
        let seconds = lock(&self.roster).record(begin, batch.samples, &times);
        if let Some(joint) = joint {
            joint.took(seconds);
        }
        if !right {
            return Ok(None);
        }
        let first = parts.first().ok_or_else(|| Error::internal("a step without devices"))?;
        self.set_buffers(state, &first.1.buffers)?;
        let losses = (first.1.samples, first.1.losses.clone());
        let mut present = vec![false; self.host.trained().len()];
        for (i, local) in parts {
            present.iter_mut().zip(local.present).for_each(|(any, here)| *any |= here);
            state.members[i].replica.feedback.keep(local.residuals);
        }
        Ok(Some(Gradients { present, block, loss, losses }))
    }

    /// Adds the gradients of a step to the existing gradients.
    fn accumulate(&self, step: impl FnOnce() -> Result<Tensor>) -> Result<Tensor> {
        let parameters = self.parameters();
        let grads = |replica: &[Tensor]| replica.iter().map(Tensor::grad).collect::<Vec<_>>();
        let before: Vec<Vec<Option<Tensor>>> = parameters.replicas().map(grads).collect();
        let added = step().and_then(|loss| {
            let mut replicas = before.iter().zip(parameters.replicas());
            no_grad(|| replicas.try_for_each(|(before, replica)| add_gradients(before, replica)))?;
            Ok(loss)
        });
        if added.is_err() {
            for (before, replica) in before.iter().zip(parameters.replicas()) {
                before.iter().zip(replica).for_each(|(before, parameter)| parameter.set_grad(before.clone()));
            }
        }
        added
    }
}

/// Adds gradients to the parameters' gradients. If both are buckets, this is one operation.
fn add_gradients(before: &[Option<Tensor>], parameters: &[Tensor]) -> Result<()> {
    let now: Vec<Option<Tensor>> = parameters.iter().map(Tensor::grad).collect();
    let bucket = |grads: &[Option<Tensor>]| Bucket::recognise(&grads.iter().cloned().collect::<Option<Vec<_>>>()?);
    if let (Some(before), Some(now)) = (bucket(before), bucket(&now)) {
        return now.with_flat(before.flat().add(now.flat())?).set_as_gradients_of(parameters);
    }
    for ((parameter, before), now) in parameters.iter().zip(before).zip(now) {
        match (before, now) {
            (Some(before), Some(now)) => parameter.set_grad(Some(before.add(&now)?)),
            (Some(before), None) => parameter.set_grad(Some(before.clone())),
            (None, _) => {}
        }
    }
    Ok(())
}
