//! The replicas that compute a step together, and the repetition of a step without those that fail.

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use super::DataParallel;
use super::balance::Balance;
use super::collectives::split_sizes;
use super::gradient_buckets::Deliver;
use super::replica::Replica;
use super::worker::Worker;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::process_group::{Joint, ProcessGroup, StepLosses};
use crate::tensor::{Tensor, generator, skip_blocks};
use crate::util::sync::lock;

/// How long devices that are not late may take to end a step that was given up.
const GRACE: Duration = Duration::from_secs(10);
/// The number of steps between two comparisons of the parameters of all devices.
pub(super) const STEPS_BETWEEN_CHECKS: u64 = 256;

/// What a call holds while it computes.
#[derive(Default)]
pub(super) struct State {
    /// The number of steps with several devices.
    pub(super) steps: u64,
    /// One per device; none if there is only one device.
    pub(super) members: Vec<Member>,
    /// During a step with other processes: this one's place among them.
    pub(super) joint: Option<Joint>,
    /// During a step: how the losses of its parts become that of the whole batch.
    pub(super) losses: Option<StepLosses>,
    /// Whether parts have been seen to compute means over numbers of elements that are not proportional to their samples.
    pub(super) counts: bool,
    /// The random draws of a step that have been seen to be for all samples together.
    pub(super) shared_draws: Arc<[usize]>,
    /// Whether a warning has told of draws that are not those of one device.
    pub(super) warned_of_draws: bool,
    /// The version of the host's buffers that the replicas were given or have computed.
    pub(super) host_buffers: u64,
    /// Whether losses have been seen that need the totals of all parts, when a batch was computed in parts one after another.
    pub(super) totals_first: bool,
}

/// A replica with its thread.
pub(super) struct Member {
    pub(super) replica: Replica,
    worker: Worker,
    /// The version of the host's parameters that the replica has.
    parameters: Option<u64>,
    /// Whether the buffers are those of the host, apart from rounding.
    pub(super) buffers: bool,
    /// Whether it takes no part.
    out: bool,
}

impl Member {
    pub(super) fn new(template: &Replica, device: &Device) -> Result<Member> {
        let replica = Replica::new(&*template.net, device)?;
        let (worker, parameters) = (Worker::start(device)?, Some(template.version()));
        Ok(Member { replica, worker, parameters, buffers: true, out: false })
    }

    /// Notes that the replica may have any values.
    pub(super) fn forget(&mut self) {
        (self.parameters, self.buffers) = (None, false);
    }
}

/// One replica's part of a call.
pub(super) struct Part {
    /// Its place among the replicas that have samples.
    pub(super) rank: usize,
    /// Its samples of each input.
    pub(super) inputs: Vec<Tensor>,
    /// Takes buckets of gradients.
    pub(super) deliver: Deliver,
    /// When its thread began to copy the host's values to the device, and when it had copied them.
    pub(super) begin: Instant,
    pub(super) copied: Instant,
}

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

/// What a replica's thread sends.
enum Event<T> {
    Bucket(usize, usize, Tensor),
    Ended(usize, Result<T>),
}

impl DataParallel {
    /// Calls `attempt` with the number of samples of each member, again without the members that fail, until it succeeds. Those
    /// that failed are then left out.
    ///
    /// # Errors
    /// An error that is not one of a device; the first one, if the devices that are left cannot have all samples. No device is then
    /// left out, but those that hang. How much fits into the memory of devices stays known.
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

    /// Calls `compute` with the sizes of the parts of a batch that fit into the memory of the devices, one after another: the whole
    /// batch, if it fits. If they turn out not to fit, it is called again with smaller ones.
    pub(super) fn in_pieces<T>(&self, samples: usize, mut compute: impl FnMut(&[usize]) -> Result<T>) -> Result<T> {
        let pieces = || lock(&self.roster).balance.pieces(samples);
        let mut count = pieces();
        loop {
            let error = match compute(&split_sizes(samples, &vec![1.0; count])) {
                Ok(result) => return Ok(result),
                Err(error) => error,
            };
            let more = pieces();
            if !error.is_for_less_memory() || more <= count {
                return Err(error);
            }
            log::warn!("{error}: the batch is computed in {more} parts");
            count = more;
        }
    }

    /// Overwrites the buffers of the host with those of a replica.
    pub(super) fn set_buffers(&self, state: &mut State, values: &[Tensor]) -> Result<()> {
        self.host.set_buffers(values)?;
        state.host_buffers = self.host.buffers_version();
        Ok(())
    }

    /// Runs `work` for the part of each member that has samples, as the ranks of a group, and waits for them. `take` is called
    /// with each bucket of gradients: the rank, the number of the bucket, and its elements. Returns the results by rank.
    pub(super) fn attempt<T: Send + 'static>(
        &self,
        state: &mut State,
        sizes: &[usize],
        inputs: &[&Tensor],
        work: impl Fn(&Replica, Part) -> Result<T> + Clone + Send + 'static,
        mut take: impl FnMut(usize, usize, Tensor) -> Result<()>,
    ) -> Result<Vec<T>, Failed> {
        let busy = with_samples(sizes, &lock(&self.roster).balance);
        let split = |(i, input): (usize, &&Tensor)| input.split_sizes(sizes, self.dims.input(i));
        let parts = inputs.iter().enumerate().map(split).collect::<Result<Vec<_>>>()?;
        let samples = busy.iter().map(|&i| sizes[i]).collect();
        let group = ProcessGroup::new(samples, generator(), state.joint.clone(), state.losses.clone());
        let check = state.steps > 0 && state.steps.is_multiple_of(STEPS_BETWEEN_CHECKS);
        let version = self.host.version();
        let of_buffers = self.host.buffers_version();
        if state.host_buffers != of_buffers {
            // The program has written to them.
            state.members.iter_mut().for_each(|member| member.buffers = false);
            state.host_buffers = of_buffers;
        }
        let (sender, events) = channel();
        for ((rank, &i), place) in busy.iter().enumerate().zip(group.ranks()) {
            let member = &mut state.members[i];
            let (replica, host, work) = (member.replica.clone(), self.host.clone(), work.clone());
            let (parameters, buffers) = (member.parameters != Some(version), !member.buffers);
            member.forget();
            let (deliver, ended) = (sender.clone(), sender.clone());
            // An error of `send` means that the call was given up.
            let deliver: Deliver = Arc::new(move |bucket, part| drop(deliver.send(Event::Bucket(rank, bucket, part))));
            let inputs = parts.iter().map(|input| input[i].clone()).collect();
            let job = move || {
                place.scope(|| {
                    let begin = Instant::now();
                    if parameters {
                        replica.copy_parameters_from(&host)?;
                    }
                    if buffers {
                        replica.copy_buffers_from(&host)?;
                    }
                    if check {
                        replica.same_parameters(&host)?;
                    }
                    work(&replica, Part { rank, inputs, deliver, begin, copied: Instant::now() })
                })
            };
            member.worker.submit(job, move |result| drop(ended.send(Event::Ended(rank, result))));
        }

        let mut results: Vec<Option<Result<T>>> = busy.iter().map(|_| None).collect();
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
                    return Err(Error::internal("the replicas' answers are lost").into());
                }
                // Other processes have limits of their own.
                Err(RecvTimeoutError::Timeout) if !given_up && group.is_waiting_outside() => {
                    until = Instant::now().checked_add(limit);
                }
                Err(RecvTimeoutError::Timeout) => {
                    // A device that waits for another is not late itself, unless that is the second time.
                    let late = |rank: &usize| results[*rank].is_none() && (given_up || !group.is_waiting(*rank));
                    for rank in (0..busy.len()).filter(late).collect::<Vec<_>>() {
                        let device = state.members[busy[rank]].replica.device.to_string();
                        let error = Box::new(Error::Timeout { device: device.clone(), seconds: limit.as_secs_f64() });
                        results[rank] = Some(Err(Error::Replica { device, error }));
                        state.members[busy[rank]].out = true;
                    }
                    group.abandon();
                    (until, given_up) = (Instant::now().checked_add(GRACE), true);
                }
            }
        }

        let results: Vec<Result<T>> = results.into_iter().flatten().collect();
        if let Some(error) = wrong {
            return Err(error.into());
        }
        let causes = results.iter().zip(&busy).filter_map(|(result, &i)| Some((i, result.as_ref().err()?.clone())));
        let causes: Vec<(usize, Error)> = causes.filter(|(_, error)| !error.is_abandoned()).collect();
        if let Some((_, error)) = causes.iter().find(|(_, error)| !error.is_of_device()) {
            return Err(error.clone().into());
        }
        if !causes.is_empty() {
            return Err(Failed::Devices(causes));
        }
        let results = results.into_iter().collect::<Result<Vec<T>>>()?;
        skip_blocks(group.drawn());
        // Those that had no samples have not updated their buffers.
        state.members.iter_mut().for_each(|member| member.buffers = false);
        for &i in &busy {
            (state.members[i].parameters, state.members[i].buffers) = (Some(version), true);
        }
        Ok(results)
    }

    /// Takes devices that were left out into the run again, and returns them: a lost one is [opened again](Device::reopen). One
    /// that cannot be opened, or is still busy with the step in which it was given up, stays out. Before a step,
    /// [`train_batch`](DataParallel::train_batch) takes in lost devices that the program has opened again.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if it is called by a loss function of [`train_batch`](DataParallel::train_batch).
    ///
    /// ```
    /// # use anygpu::{DataParallel, Device, nn::Linear};
    /// let net = DataParallel::new(Linear::new(4, 2)?, &[Device::new("cpu/0")?, Device::new("cpu/1")?])?;
    /// assert!(net.left_out().is_empty() && net.rejoin()?.is_empty());
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn rejoin(&self) -> Result<Vec<Device>> {
        let (mut state, _in_call) = self.alone("rejoin")?;
        self.take_in(&mut state, |device| device.reopen())
    }

    /// Takes in the lost devices whose names mean other devices by now.
    pub(super) fn take_in_reopened(&self, state: &mut State) {
        let opened = |device: &Device| match device.is_lost() {
            true => Device::new(device.name()),
            false => Err(Error::Abandoned), // it was not lost, and failed: it stays out until `rejoin`
        };
        let _ = self.take_in(state, opened);
    }

    /// Takes in the members that are left out and whose devices `open` returns.
    fn take_in(&self, state: &mut State, open: impl Fn(&Device) -> Result<Device>) -> Result<Vec<Device>> {
        let mut back = Vec::new();
        let out = state.members.iter_mut().enumerate().filter(|(_, member)| member.out && !member.worker.is_busy());
        for (index, member) in out {
            let device = match open(&member.replica.device) {
                Ok(device) if !device.is_lost() => device,
                _ => continue,
            };
            match Member::new(&self.host, &device) {
                Ok(new) => *member = new,
                Err(error) => {
                    log::warn!("{error}: the run continues without {device}");
                    continue;
                }
            }
            member.forget();
            log::info!("{device} takes part again");
            lock(&self.roster).set_member(index, &member.replica);
            back.push(device);
        }
        Ok(back)
    }

    /// Returns the devices that failed and take no part in steps and predictions, each with its error.
    #[must_use]
    pub fn left_out(&self) -> Vec<(Device, Error)> {
        let roster = lock(&self.roster);
        let out = roster.devices.iter().zip(&roster.left_out);
        out.filter_map(|(device, error)| Some((device.clone(), error.clone()?))).collect()
    }
}

/// Returns the indices of the members with samples. If there are no samples, the first one computes an empty part.
fn with_samples(sizes: &[usize], balance: &Balance) -> Vec<usize> {
    let busy: Vec<usize> = (0..sizes.len()).filter(|&i| sizes[i] > 0).collect();
    if busy.is_empty() { (0..sizes.len()).find(|&i| balance.takes_part(i)).into_iter().collect() } else { busy }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nn::{BatchNorm1d, Linear, Sequential, cross_entropy};
    use crate::optim::Adam;
    use crate::parallel::Shares;

    /// Whatever the devices round, the parameters of all replicas have the same bits.
    #[test]
    fn replicas_have_equal_bits_and_a_wrong_one_is_found() -> Result<()> {
        let net = Sequential::new().push(Linear::new(4, 30)?).push(BatchNorm1d::new(30)?).push(Linear::new(30, 3)?);
        // Each has samples in every step, so that none keeps parameters of an earlier one.
        let net = DataParallel::new(net, &Device::all())?.with_shares(Shares::Even)?;
        let mut adam = Adam::new(net.parameters(), 0.01);
        let (x, y) = (Tensor::rand([20, 4], None)?, Tensor::from_slice(&[0u32, 1, 2, 1].repeat(5), 20, None)?);
        for _ in 0..3 {
            net.train_batch(&x, &y, cross_entropy)?;
            adam.step()?;
        }
        net.predict(&x)?;
        let (state, _in_call) = net.alone("test")?;
        for member in &state.members {
            member.replica.same_parameters(&net.host)?;
        }
        if let Some(member) = state.members.first() {
            crate::no_grad(|| member.replica.parameters[1].zero_())?;
            let error = member.replica.same_parameters(&net.host).unwrap_err().to_string();
            assert!(error.contains("parameter 1") && error.contains(member.replica.device.name()), "{error}");
        }
        Ok(())
    }
}
