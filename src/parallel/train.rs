//! Steps over all devices.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use super::DataParallel;
use super::machines::{JointStep, Machines};
use super::members::{Part, STEPS_BETWEEN_CHECKS, State};
use super::reducer::Reducer;
use super::replica::{Replica, StepFn};
use super::timeline::ParallelReport;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::nn::Module;
use crate::process_group::{Draws, LossRecord, StepLosses, Totals, counts_are_alike};
use crate::tensor::{Bucket, Tensor, random_state, set_random_state};
use crate::util::sync::lock;

/// The first steps, after which the buffers of all devices are compared.
const FIRST_STEPS: u64 = 3;
/// How far the buffers of two devices may be apart, relative to the largest value.
const LARGEST_DIFFERENCE: f32 = 1e-2;

/// The mean gradients of a batch or a part of it.
pub(super) struct Gradients {
    /// Whether the loss depends on each parameter that is not frozen.
    pub(super) present: Vec<bool>,
    /// The gradients in the slots of a bucket.
    pub(super) block: Tensor,
    pub(super) loss: f32,
    /// The losses of the first device, and its number of samples.
    pub(super) losses: (usize, LossRecord),
}

impl DataParallel {
    /// Computes the forward and backward pass of one step over all devices. Takes `images: [N, ..]`, `labels: [N, ..]`
    /// and a loss function that returns a *mean* over samples, or any loss of [`nn`](crate::nn): see the
    /// [losses](DataParallel) of a step. Afterwards, the [`parameters`](DataParallel::parameters) have the
    /// gradient of the whole batch. Earlier gradients are cleared. Call the optimiser's `step()` next.
    ///
    /// Returns the loss of the whole batch as a scalar. With one device, it is on that device and the call does not
    /// wait for it. With several, it is on `cpu`. Nets with several inputs or outputs, and other steps, are for
    /// [`step`](DataParallel::step).
    ///
    /// # Errors
    /// - [`Error::ShapeMismatch`] unless there are as many labels as images; [`Error::InvalidArgument`] for an empty
    ///   batch, and if the loss function calls this method, [`predict`](DataParallel::predict) or another one that
    ///   computes with this net.
    /// - With several devices, [`Error::Replica`] or [`Error::WorkerPanic`] with the name of the device that failed, if the
    ///   failure is not one of a device, or all devices fail.
    /// - With one device, [`Error::DeviceLost`] if it is lost. A loss in the middle of a step is reported by the first call that
    ///   waits for the step.
    ///
    /// On error, all gradients are cleared. With several devices, parameters and buffers are as they were.
    ///
    /// A loss function may be called again for the same samples: after a failure of a device, and once when its means turn out to be
    /// over numbers of elements that are not proportional to the samples. If the devices have too little memory for the batch and the
    /// loss depends on all of it, it is also called within [`no_grad`](crate::no_grad), before the gradients are computed.
    pub fn train_batch<F>(&self, images: &Tensor, labels: &Tensor, loss_fn: F) -> Result<Tensor>
    where
        F: Fn(&Tensor, &Tensor) -> Result<Tensor> + Send + Sync + 'static,
    {
        let step = move |net: &dyn Module, part: &[Tensor]| match part {
            [images, labels] => loss_fn(&net.forward(images)?, labels),
            _ => Err(Error::internal("a part has images and labels")),
        };
        self.compute_step("train_batch", &[images, labels], Arc::new(step))
    }

    /// As [`train_batch`](DataParallel::train_batch), with a step of your own: for nets with several inputs or outputs, for losses
    /// that depend on more than an output and labels, or for several passes through the net.
    ///
    /// All `inputs` are split along their first dimension, or those of [`with_batch_dims`](DataParallel::with_batch_dims), whose size
    /// is the same. `step` is called for each device, in parallel,
    /// with the replica of the net and the device's part of each input. It returns the *mean* loss of these samples, or any loss of
    /// [`nn`](crate::nn), a scalar.
    ///
    /// # Errors
    /// As [`train_batch`](DataParallel::train_batch).
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
        self.compute_step("step", inputs, Arc::new(step))
    }

    fn compute_step(&self, call: &'static str, inputs: &[&Tensor], step: Arc<StepFn>) -> Result<Tensor> {
        let samples = match self.dims.samples(call, inputs)? {
            // A process's part of a batch may be empty.
            0 if self.machines.is_none() => return Err(Error::argument(call, "the batch is empty")),
            samples => samples,
        };
        let (mut state, _in_call) = self.alone(call)?;
        if !state.members.is_empty() {
            self.dims.check_first_layer(call, &*self.host.net)?;
        }
        let loss = match state.members.is_empty() {
            true => self.host.backward(&inputs.iter().copied().cloned().collect::<Vec<_>>(), &*step),
            false => self.split_step(&mut state, inputs, samples, &step),
        };
        if let Err(error) = &loss {
            if let Some(machines) = &self.machines {
                machines.abort(error); // the other processes wait for this one
            }
            self.host.zero_grad();
        }
        loss
    }

    /// Computes a step with several devices, in parts if they have too little memory for all samples at once.
    fn split_step(&self, state: &mut State, inputs: &[&Tensor], samples: usize, step: &Arc<StepFn>) -> Result<Tensor> {
        (state.losses, state.joint) = (None, None); // also after a panic in an earlier step
        self.host.zero_grad();
        self.take_in_reopened(state);
        let gradients = match &self.machines {
            Some(machines) => self.joint_gradients(machines, state, inputs, samples, step)?,
            None => self.in_pieces(samples, |sizes| self.in_parts(state, inputs, sizes, step))?,
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

    /// Returns the mean gradients over all processes. A process does not compute its samples in parts: the others would have to take
    /// part in the exchanges of each.
    fn joint_gradients(
        &self,
        machines: &Machines,
        state: &mut State,
        inputs: &[&Tensor],
        samples: usize,
        step: &Arc<StepFn>,
    ) -> Result<Gradients> {
        let mut joint = machines.begin(self, state, samples)?;
        let own = |(i, input): (usize, &&Tensor)| joint.samples(input, self.dims.input(i));
        let inputs = inputs.iter().enumerate().map(own).collect::<Result<Vec<_>>>()?;
        let inputs: Vec<&Tensor> = inputs.iter().collect();
        state.joint = Some(joint.place());
        let (samples, total) = (samples.max(1), joint.place().total);
        let gradients = self.gradients(state, &inputs, [samples, total], step, Totals::Exchanged, Some(&mut joint));
        state.joint = None;
        let Gradients { mut present, block, mut loss, losses } = gradients?;
        joint.finish(&block, &mut loss, &mut present)?;
        Ok(Gradients { present, block, loss, losses })
    }

    /// Returns the mean gradients of samples that the devices compute at once, of `whole` samples of the step: with other processes,
    /// the part of this one.
    pub(super) fn gradients(
        &self,
        state: &mut State,
        inputs: &[&Tensor],
        [samples, whole]: [usize; 2],
        step: &Arc<StepFn>,
        totals: Totals,
        mut joint: Option<&mut JointStep<'_>>,
    ) -> Result<Gradients> {
        let random = random_state();
        loop {
            // Other processes do not repeat a step, so that numbers of elements are always exchanged with them.
            let counts = state.counts || joint.is_some();
            let (summed, totals) = (self.summed, totals.clone());
            let shared_draws = state.shared_draws.clone();
            state.losses = Some(StepLosses { samples: whole, summed, counts, totals, shared_draws });
            let attempt = self.gradients_once(state, inputs, [samples, whole], step, joint.as_deref_mut());
            state.losses = None;
            match attempt? {
                Some(gradients) => return Ok(gradients),
                None => {
                    // The step has not changed anything that is kept, and begins again.
                    state.members.iter_mut().for_each(|member| member.buffers = false);
                    set_random_state(random);
                }
            }
        }
    }

    /// As [`gradients`](DataParallel::gradients). Returns `None` if the devices took means over numbers of elements that are not
    /// proportional to their samples, or random numbers for all samples together for those of single samples. `state` then has
    /// what the next attempt is to know.
    fn gradients_once(
        &self,
        state: &mut State,
        inputs: &[&Tensor],
        [samples, whole]: [usize; 2],
        step: &Arc<StepFn>,
        mut joint: Option<&mut JointStep<'_>>,
    ) -> Result<Option<Gradients>> {
        let total = state.joint.as_ref().map_or(samples, |joint| joint.total);
        let (gradients, buffers, residuals) = self.with_survivors(state, samples, |state, sizes| {
            let begin = Instant::now();
            let busy: Vec<usize> = (0..sizes.len()).filter(|&i| sizes[i] > 0).collect();
            let share = |of: usize| move |&i: &usize| if self.summed { 1.0 } else { sizes[i] as f64 / of as f64 };
            let mut reducer = Reducer::new(&self.plan, &busy.iter().map(share(total)).collect::<Vec<_>>())?;
            let (plan, step, wire) = (self.plan.clone(), step.clone(), self.wire);
            let of_step: Arc<[f64]> = busy.iter().map(share(whole)).collect();
            let compares = state.steps < FIRST_STEPS || state.steps.is_multiple_of(STEPS_BETWEEN_CHECKS);
            let work = move |replica: &Replica, part: Part| {
                let rank = part.rank;
                let wire = replica.feedback.wire(wire, of_step[rank]);
                let local = replica.local_gradients(part, &*step, &plan, wire)?;
                // All ranks have updated their buffers alike, which is compared now and then.
                let buffers = if rank == 0 || compares { replica.buffers_on_host()? } else { Vec::new() };
                Ok((local, buffers))
            };
            let take = |rank, bucket, part| {
                if reducer.take(rank, bucket, part)?
                    && let Some(joint) = &mut joint
                {
                    joint.send(bucket, reducer.mean(bucket)?);
                }
                Ok(())
            };
            let parts = self.attempt(state, sizes, inputs, work, take)?;
            let records = busy.iter().zip(&parts).map(|(&i, (local, _))| (sizes[i], &local.losses));
            if let Err(error) = self.same_buffers(&busy, parts.iter().map(|(_, buffers)| &buffers[..])) {
                state.members.iter_mut().for_each(|member| member.buffers = false);
                return Err(error.into());
            }
            let mut alike = counts_are_alike(records.clone());
            if !alike {
                log::debug!("numbers of losses are not proportional to samples: the devices exchange them from now on");
                state.counts = true;
            }
            let draws: Vec<_> = busy.iter().zip(&parts).map(|(&i, (local, _))| (sizes[i], &local.draws[..])).collect();
            alike &= self.draws_are_right(state, &draws);
            let losses = records.map(|(n, losses)| (n, losses.clone())).next().unwrap_or_default();
            let (block, loss) = reducer.finish()?;
            let roster = &mut *lock(&self.roster);
            let (mut present, mut buffers) = (vec![false; self.host.trained().len()], None);
            let (mut times, mut residuals) = (Vec::with_capacity(parts.len()), Vec::with_capacity(parts.len()));
            for (i, (local, of_first)) in busy.into_iter().zip(parts) {
                let (compute, copies) = (local.times.compute(), local.times.copies());
                roster.balance.record(i, sizes[i], compute.as_secs_f64(), copies.as_secs_f64());
                present.iter_mut().zip(local.present).for_each(|(any, here)| *any |= here);
                buffers.get_or_insert(of_first);
                times.push((i, sizes[i], local.times));
                residuals.push((i, local.residuals));
            }
            let seconds = times.iter().map(|(_, _, times)| (times.compute() + times.copies()).as_secs_f64());
            let seconds = seconds.fold(0.0, f64::max);
            joint.iter_mut().for_each(|joint| joint.took(seconds));
            roster.balance.record_step(samples, begin.elapsed().as_secs_f64());
            roster.timeline.add(&roster.names(), begin, &times);
            roster.name_those_that_do_not_pay();
            let gradients = alike.then_some(Gradients { present, block, loss, losses });
            Ok((gradients, buffers.unwrap_or_default(), residuals))
        })?;
        if gradients.is_some() {
            self.set_buffers(state, &buffers)?;
            residuals.into_iter().for_each(|(i, lost)| state.members[i].replica.feedback.keep(lost));
        }
        Ok(gradients)
    }

    /// Returns an error if the buffers of the replicas differ by more than rounding. Those without buffers are not compared.
    fn same_buffers<'a>(&self, busy: &[usize], buffers: impl Iterator<Item = &'a [Tensor]>) -> Result<()> {
        let mut all = busy.iter().zip(buffers);
        let Some((&first, expected)) = all.next() else { return Ok(()) };
        for (&other, here) in all {
            for (i, (a, b)) in expected.iter().zip(here).enumerate() {
                let values = |x: &Tensor| x.to_dtype(DType::F32)?.to_vec::<f32>();
                let (a, b) = (values(a)?, values(b)?);
                let size = a.iter().chain(&b).fold(0f32, |size, v| size.max(v.abs()));
                let apart = |(a, b): (&f32, &f32)| (a - b).abs() > LARGEST_DIFFERENCE * size;
                let Some(at) = a.iter().zip(&b).position(apart) else { continue };
                let name = self.host.net.named_buffers().swap_remove(i).0;
                let names = lock(&self.roster).names();
                let detail = format!(
                    "the buffer {name:?} is {} on {} and {} on {} after the step: a layer computes it from the samples of one \
                     device, where it should be the same on all. Give it parallel::batch_mean of its values",
                    a[at], names[first], b[at], names[other]
                );
                return Err(Error::argument("train_batch", detail));
            }
        }
        Ok(())
    }

    /// Returns whether the devices have drawn the random numbers of one device. If not, and `state` can have what they need to know
    /// for that, it has it.
    fn draws_are_right(&self, state: &mut State, draws: &[(usize, &[usize])]) -> bool {
        match Draws::of(draws, &state.shared_draws) {
            Draws::Alike => true,
            Draws::Shared(found) if self.machines.is_none() => {
                log::debug!("random numbers are for all samples together: all devices draw the same ones from now on");
                state.shared_draws = found.into();
                false
            }
            Draws::Shared(_) | Draws::Unlike => {
                if !std::mem::replace(&mut state.warned_of_draws, true) {
                    log::warn!(
                        "the devices drew random numbers in a step whose number is neither the same on all nor proportional to \
                         their samples: they are not those of one device"
                    );
                }
                true
            }
        }
    }

    /// Returns what each device did in the steps until now, and how fast they were together. It is empty with one device, for which
    /// a step does not wait.
    #[must_use]
    pub fn report(&self) -> ParallelReport {
        lock(&self.roster).report()
    }

    /// Begins a trace of the steps that follow: when each device copied, computed, and sent its gradients. An earlier trace is
    /// dropped. It ends after a million events.
    pub fn start_trace(&self) {
        lock(&self.roster).timeline.start_trace();
    }

    /// Writes the trace as a file of Chrome's trace format, for `ui.perfetto.dev` and `chrome://tracing`: a row for the steps, and
    /// for each device one for what it computes and one for its gradients on their way to the host. *forward* and *backward* end
    /// when they are recorded; *compute* ends when the device has computed the last gradient.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] without [`start_trace`](DataParallel::start_trace); [`Error::Data`] if the file cannot be written.
    ///
    /// ```
    /// # use anygpu::{DataParallel, Device, Tensor, nn};
    /// let net = DataParallel::new(nn::Linear::new(4, 3)?, &[Device::new("cpu/0")?, Device::new("cpu/1")?])?;
    /// net.start_trace();
    /// let (x, y) = (Tensor::rand([6, 4], None)?, Tensor::new([0u32, 1, 2, 0, 1, 2], None)?);
    /// net.train_batch(&x, &y, nn::cross_entropy)?;
    /// # let path = std::env::temp_dir().join(format!("anygpu-steps-{}.json", std::process::id()));
    /// net.save_trace(&path)?;
    /// # std::fs::remove_file(&path).ok();
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn save_trace(&self, path: impl AsRef<Path>) -> Result<()> {
        let roster = lock(&self.roster);
        roster.timeline.save_trace(&roster.names(), path.as_ref())
    }

    /// Returns what [`Shares::Measured`](super::Shares::Measured) knows about the devices, for a checkpoint: with
    /// [`load_balance_state`](DataParallel::load_balance_state), a run that is resumed splits its batches as before.
    #[must_use]
    pub fn balance_state(&self) -> Vec<(String, f64)> {
        let roster = lock(&self.roster);
        roster.balance.state(&roster.names())
    }

    /// Takes over what [`balance_state`](DataParallel::balance_state) returned, for the devices of the same names.
    ///
    /// ```
    /// # use anygpu::{DataParallel, Device, nn::Linear};
    /// let devices = [Device::new("cpu/0")?, Device::new("cpu/1")?];
    /// let (net, again) = (DataParallel::new(Linear::new(4, 3)?, &devices)?, DataParallel::new(Linear::new(4, 3)?, &devices)?);
    /// again.load_balance_state(&net.balance_state());
    /// assert_eq!(again.shares(), net.shares());
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn load_balance_state(&self, state: &[(String, f64)]) {
        let roster = &mut *lock(&self.roster);
        roster.balance.load_state(&roster.names(), state);
    }
}
