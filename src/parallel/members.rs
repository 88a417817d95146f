//! The replicas of a net with their threads: which values they have, which take part, and how devices that were left out come back.

use std::sync::Arc;

use web_time::{Duration, Instant};

use super::DataParallel;
use super::balance::{Balance, Shares};
use super::replica::Replica;
use super::timeline::{ParallelReport, PartTimes, Timeline};
use super::worker::Worker;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::nn::Module;
use crate::process_group::{Joint, StepLosses};
use crate::tensor::Tensor;
use crate::util::sync::lock;

/// The default of [`DataParallel::with_time_limit`].
const TIME_LIMIT: Duration = Duration::from_secs(600);

/// What a call holds while it computes.
#[derive(Default)]
pub(super) struct State {
    /// The number of steps with several devices.
    pub(super) steps: u64,
    /// One per device; none if there is only one device.
    pub(super) members: Vec<Member>,
    /// During a step with other processes: this one's place among them.
    pub(super) joint: Option<Joint>,
    /// During a step: how the losses of its parts become the loss of the whole batch.
    pub(super) losses: Option<StepLosses>,
    /// Whether parts have been seen to compute means over numbers of elements that are not proportional to their samples.
    pub(super) counts: bool,
    /// The random draws of a step that have been seen to be for all samples together.
    pub(super) shared_draws: Arc<[usize]>,
    /// Whether a warning about draws that differ from one device's was logged.
    pub(super) warned_of_draws: bool,
    /// The version of the host's buffers that the replicas were given or have computed.
    pub(super) host_buffers: u64,
    /// Whether losses have been seen that need the totals of all samples, when a batch was computed in micro-batches.
    pub(super) totals_first: bool,
}

impl State {
    /// Notes that the replicas may have any buffers.
    pub(super) fn forget_buffers(&mut self) {
        self.members.iter_mut().for_each(|member| member.buffers = false);
    }

    /// Notes whether the program has written to the host's buffers.
    pub(super) fn note_writes(&mut self, host: &Replica) {
        let version = host.buffers_version();
        if self.host_buffers != version {
            self.forget_buffers();
            self.host_buffers = version;
        }
    }
}

/// A replica with its thread.
pub(super) struct Member {
    pub(super) replica: Replica,
    pub(super) worker: Worker,
    /// The version of the host's parameters that the replica has.
    pub(super) parameters: Option<u64>,
    /// Whether the buffers are the host's, apart from rounding.
    pub(super) buffers: bool,
    /// Whether it takes no part.
    pub(super) out: bool,
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

/// What other threads may ask about the devices.
pub(super) struct Roster {
    pub(super) devices: Vec<Device>,
    pub(super) nets: Vec<Arc<dyn Module>>,
    /// Why devices are left out.
    pub(super) left_out: Vec<Option<Error>>,
    pub(super) balance: Balance,
    pub(super) time_limit: Duration,
    pub(super) timeline: Timeline,
    /// Whether each device gets no samples because its copies take too long.
    idle: Vec<bool>,
}

impl Roster {
    pub(super) fn new(devices: &[Device], members: &[Member]) -> Result<Roster> {
        let count = devices.len();
        Ok(Roster {
            devices: devices.to_vec(),
            nets: members.iter().map(|member| member.replica.net.clone()).collect(),
            left_out: vec![None; count],
            balance: Balance::new(Shares::default(), count)?,
            time_limit: TIME_LIMIT,
            timeline: Timeline::default(),
            idle: vec![false; count],
        })
    }

    /// Replaces the replica of a device that takes part again.
    pub(super) fn set_member(&mut self, index: usize, replica: &Replica) {
        (self.devices[index], self.nets[index]) = (replica.device.clone(), replica.net.clone());
        self.left_out[index] = None;
        self.balance.take_in(index);
    }

    /// Returns the names of the devices.
    pub(super) fn names(&self) -> Vec<String> {
        self.devices.iter().map(Device::to_string).collect()
    }

    /// Returns what the devices did, and which take part now.
    pub(super) fn report(&self) -> ParallelReport {
        let mut report = self.timeline.report().clone();
        for (index, device) in report.devices.iter_mut().enumerate() {
            device.failed = !self.balance.takes_part(index);
            device.takes_part = !device.failed && !self.balance.does_not_pay(index);
        }
        report
    }

    /// Records what each device with samples did in a step that began at this time, for the next shares and the report.
    /// Each part has the device's index, its number of samples, and its times. Returns the seconds of the slowest
    /// device.
    pub(super) fn record(&mut self, begin: Instant, samples: usize, parts: &[(usize, usize, &PartTimes)]) -> f64 {
        let mut slowest = 0f64;
        for &(index, samples, times) in parts {
            let (compute, copies) = (times.compute(), times.copies());
            self.balance.record(index, samples, compute.as_secs_f64(), copies.as_secs_f64());
            slowest = slowest.max((compute + copies).as_secs_f64());
        }
        self.balance.record_step(samples, begin.elapsed().as_secs_f64());
        self.timeline.add(&self.names(), begin, parts);
        self.name_those_that_do_not_pay();
        slowest
    }

    /// Logs which devices have begun not to pay for their communication.
    fn name_those_that_do_not_pay(&mut self) {
        let idle: Vec<bool> = (0..self.devices.len()).map(|i| self.balance.does_not_pay(i)).collect();
        for (i, device) in self.devices.iter().enumerate().filter(|(i, _)| idle[*i] && !self.idle[*i]) {
            let after = self.balance.cost(i);
            log::info!(
                "{device} gets no samples: {after}, longer than the other devices' steps; it is measured again later"
            );
        }
        self.idle = idle;
    }

    /// Returns the error for a call when all devices are left out.
    pub(super) fn all_out(&self) -> Error {
        let first = self.left_out.iter().flatten().next().cloned();
        first.unwrap_or_else(|| Error::internal("no device takes part"))
    }
}

impl DataParallel {
    /// Overwrites the host's buffers with a replica's.
    pub(super) fn set_buffers(&self, state: &mut State, values: &[Tensor]) -> Result<()> {
        self.host.set_buffers(values)?;
        state.host_buffers = self.host.buffers_version();
        Ok(())
    }

    /// Lets devices that were left out take part again, and returns them.
    ///
    /// A lost device is [opened again](Device::reopen). A device stays out if it cannot be opened, or is still busy
    /// with the step in which it was given up. Before each step, [`train_batch`](DataParallel::train_batch) takes in
    /// lost devices that the program has opened again.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if a loss function of [`train_batch`](DataParallel::train_batch) calls this.
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

    /// Takes in the lost devices whose names now refer to reopened devices.
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
