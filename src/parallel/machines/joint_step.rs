//! A step of several processes: what they agree on before it, and what they exchange during it.
//!
//! The devices of a process average a bucket of gradients first. Then one message per process adds it to the other
//! processes' buckets (`gradient_thread.rs`), while backward goes on. Batch norm's exchanges have messages of their
//! own, since the two kinds come in different orders on different processes. The results of both are kept until the
//! step is over. A process repeats its part of the step if one of its devices failed. It then gets the results of
//! exchanges that are over, and does not send a bucket twice. So the failure does not affect other processes.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

use web_time::{Duration, Instant};

use super::communicator::{Act, Channel, Communicator, WORDS};
use super::gradient_thread::{Combine, Combined, GradientThread, receive};
use crate::data::Shard;
use crate::device::{Device, Storage};
use crate::error::{Error, Result};
use crate::ops::inplace::copy_;
use crate::parallel::DataParallel;
use crate::parallel::balance::{Balance, Shares};
use crate::parallel::checks::STEPS_BETWEEN_CHECKS;
use crate::parallel::gradient_buckets::BucketPlan;
use crate::parallel::members::{Member, State};
use crate::parallel::replica::{Replica, buffers};
use crate::process_group::{Joint, Outside};
use crate::tensor::{RandomState, Tensor, from_words, random_state, set_random_state};
use crate::util::sync::lock;

/// The number of steps between two adjustments of the parts of batches to the measured speeds.
const STEPS_BETWEEN_CUTS: u64 = 16;
/// What a process sends instead of its position in the batches if the parts must not follow the speeds.
const UNMEASURED: u64 = u64::MAX;

/// What a net has for its training with other processes. The thread and the channel are dropped before the communicator.
pub(in crate::parallel) struct Machines {
    gradients: GradientThread,
    exchanges: Arc<Channel>,
    speeds: Mutex<Speeds>,
    shard: Shard,
    communicator: Communicator,
}

/// The speeds of the processes.
struct Speeds {
    /// The same on all processes.
    balance: Balance,
    /// The samples and seconds of this process in the last step.
    last: (usize, f64),
    /// How long the messages with gradients took in all steps, and how long this process waited for them after backward.
    messages: [Duration; 2],
}

/// A step that has begun.
pub(in crate::parallel) struct JointStep<'a> {
    machines: &'a Machines,
    plan: Vec<std::ops::Range<usize>>,
    place: Joint,
    /// The number of samples of this process, and how long it has computed.
    samples: usize,
    seconds: f64,
    /// Buckets that came before others that all processes send first.
    waiting: BTreeMap<usize, Vec<f32>>,
    /// The next bucket to send.
    next: usize,
    sender: Sender<Combined>,
    results: Receiver<Combined>,
}

/// The exchanges in the middle of a step.
struct Exchanges {
    channel: Arc<Channel>,
    rank: usize,
    /// The number of entries of each rank.
    entries: Vec<usize>,
    /// The results of the rounds so far.
    done: Mutex<Vec<Arc<Vec<f64>>>>,
}

impl Exchanges {
    /// Tells all processes the width of the next exchange, or 0 if this one has no more in this step.
    ///
    /// # Errors
    /// If the other processes' next exchange is another one.
    fn announce(&self, width: usize) -> Result<()> {
        let widths = self.channel.all_gather_counts(&[width as u64], &vec![1; self.entries.len()]);
        if widths.iter().all(|&other| other == width as u64) {
            return Ok(());
        }
        let detail = "the processes go through different layers or losses: each must compute all losses for its samples, even \
                      if none of them counts";
        Err(Error::argument("train_batch", detail))
    }
}

impl std::fmt::Debug for Exchanges {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Exchanges").field("rank", &self.rank).field("entries", &self.entries).finish_non_exhaustive()
    }
}

impl Outside for Exchanges {
    fn gather(&self, round: u64, width: usize, mut own: Vec<f64>) -> Result<Arc<Vec<f64>>> {
        let mut done = lock(&self.done); // also while a thread that was given up is in the middle of the exchange
        if let Some(result) = done.get(round as usize) {
            return Ok(result.clone());
        }
        if round as usize != done.len() || own.len() > self.entries[self.rank] * width {
            return Err(Error::internal(format!("exchange {round} with other processes after {} others", done.len())));
        }
        self.announce(width)?;
        own.resize(self.entries[self.rank] * width, 0.0);
        let counts: Vec<usize> = self.entries.iter().map(|entries| entries * width).collect();
        let all = Arc::new(self.channel.all_gather_counts(&own, &counts));
        done.push(all.clone());
        Ok(all)
    }

    fn end(&self) -> Result<()> {
        let _done = lock(&self.done);
        self.announce(0)
    }
}

impl Machines {
    pub fn shard(&self) -> Shard {
        self.shard.clone()
    }

    /// Begins a step of this process with so many samples: all processes exchange what they have.
    ///
    /// # Errors
    /// If the nets of the processes are not the same, or no process has samples.
    pub fn begin(&self, net: &DataParallel, state: &State, samples: usize) -> Result<JointStep<'_>> {
        let measured = lock(&net.roster).balance.is_measured();
        let mut speeds = lock(&self.speeds);
        let check = state.steps.is_multiple_of(STEPS_BETWEEN_CHECKS);
        let RandomState { seed, drawn } = random_state();
        let (last_samples, last_seconds) = std::mem::take(&mut speeds.last);
        let words: [u64; WORDS - 1] = [
            samples as u64,
            state.members.len() as u64,
            seed,
            drawn,
            fingerprint(&net.plan) ^ u64::from(net.summed),
            if check { checksum(&net.host)? } else { 0 },
            last_samples as u64,
            last_seconds.to_bits(),
            if measured { self.shard.position() } else { UNMEASURED },
        ];
        let all = self.communicator.agree(Act::Step, &words);
        let differs = |word: usize| all.iter().position(|words| words[word] != all[0][word]);
        if let Some(rank) = differs(5) {
            let message = format!(
                "rank {rank} and rank 0 differ in the net's parameters, in the buckets, or in whether losses are sums or \
                 means"
            );
            return Err(self.communicator.error(message));
        }
        if let Some(rank) = differs(6) {
            let message = format!(
                "the parameters of rank {rank} and rank 0 differ before step {}: all ranks must load the same values and \
                 take the same steps of the same optimiser, in the same build of the program; otherwise, the memory of a machine \
                 is faulty",
                state.steps
            );
            return Err(self.communicator.error(message));
        }
        set_random_state(RandomState { seed: all[0][3], drawn: all[0][4] });
        for (rank, words) in all.iter().enumerate() {
            speeds.balance.record(rank, words[7] as usize, f64::from_bits(words[8]), 0.0);
        }
        let cut = state.steps > 0 && state.steps.is_multiple_of(STEPS_BETWEEN_CUTS);
        if cut && differs(9).is_none() && all[0][9] != UNMEASURED {
            self.shard.set_weights(speeds.balance.weights());
        }
        let counts: Vec<usize> = all.iter().map(|words| words[1] as usize).collect();
        let rank = self.communicator.rank();
        let total = counts.iter().sum();
        if total == 0 {
            return Err(self.communicator.error("the batch is empty on all ranks"));
        }
        let entries = all.iter().map(|words| words[2] as usize).collect();
        let exchanges = Exchanges { channel: self.exchanges.clone(), rank, entries, done: Mutex::default() };
        let before = counts[..rank].iter().sum();
        let place = Joint { before, total, empty: samples == 0, outside: Arc::new(exchanges) };
        let plan = (0..net.plan.len()).map(|bucket| net.plan.range(bucket)).collect();
        let (sender, results) = channel();
        Ok(JointStep {
            machines: self,
            plan,
            place,
            samples,
            seconds: 0.0,
            waiting: BTreeMap::new(),
            next: 0,
            sender,
            results,
        })
    }

    /// Ends the job because of an error of this process.
    pub fn abort(&self, error: &Error) -> ! {
        let message = match error {
            Error::Communication { message, .. } => message.clone(),
            error => error.to_string(),
        };
        self.communicator.abort(&message, 1)
    }
}

/// Logs how long the messages took.
impl Drop for Machines {
    fn drop(&mut self) {
        let [took, waited] = lock(&self.speeds).messages.map(|time| time.as_secs_f64());
        log::debug!("messages with gradients took {took:.3} s; {waited:.3} s of waiting for them were after backward");
    }
}

impl JointStep<'_> {
    pub fn place(&self) -> Joint {
        self.place.clone()
    }

    /// Returns the samples that this process computes with: its part of the batch or, if that is empty, one sample that
    /// does not count.
    pub fn samples(&self, batch: &Tensor, dim: usize) -> Result<Tensor> {
        if !self.place.empty {
            return Ok(batch.clone());
        }
        let mut shape = batch.shape().to_vec();
        shape[dim] = 1; // `SampleDims::samples` has found it
        Tensor::zeros(shape, Device::cpu())?.to_dtype(batch.dtype())
    }

    /// Starts to add up a bucket of this process over all processes, once.
    pub fn send(&mut self, bucket: usize, mut values: Vec<f32>) {
        if bucket < self.next {
            return; // sent before the part of the step was repeated
        }
        if self.place.empty {
            values.fill(0.0);
        }
        self.waiting.entry(bucket).or_insert(values);
        while let Some(values) = self.waiting.remove(&self.next) {
            self.machines.gradients.submit(values, Combine::Sum, &self.sender);
            self.next += 1;
        }
    }

    /// Notes how long this process has computed.
    pub fn took(&mut self, seconds: f64) {
        self.seconds = seconds;
    }

    /// Waits for the sums of all buckets and overwrites this process's values with them: the gradients, the loss, and
    /// which parameters have a gradient.
    pub fn finish(self, block: &Tensor, loss: &mut f32, present: &mut [bool]) -> Result<()> {
        self.place.outside.end()?;
        let (begin, mut took) = (Instant::now(), Duration::ZERO);
        let flags = present.iter().map(|&present| f32::from(u8::from(present && !self.place.empty))).collect();
        self.machines.gradients.submit(flags, Combine::Max, &self.sender);
        let Storage::Cpu(storage) = block.storage() else { return Err(block.misplaced()) };
        for (bucket, range) in self.plan.iter().enumerate() {
            let (sums, duration) = receive(&self.results)?;
            took += duration;
            let words = &mut storage.write()[range.clone()];
            let misfit = || Error::internal(format!("bucket {bucket} of all processes has {} elements", sums.len()));
            words.copy_from_slice(bytemuck::cast_slice(sums.get(..words.len()).ok_or_else(misfit)?));
            if bucket == 0 {
                *loss = sums.last().copied().unwrap_or(f32::NAN);
            }
        }
        let (flags, duration) = receive(&self.results)?;
        present.iter_mut().zip(flags).for_each(|(present, flag)| *present = flag > 0.0);
        let mut speeds = lock(&self.machines.speeds);
        speeds.last = (self.samples, self.seconds);
        speeds.messages[0] += took + duration;
        speeds.messages[1] += begin.elapsed();
        Ok(())
    }
}

impl DataParallel {
    /// Trains the net together with the other processes of a job.
    ///
    /// Each process has one or several devices, and its own part of each batch.
    /// [`train_batch`](DataParallel::train_batch) then takes that part and is collective: all processes must call it
    /// equally often. Load the parts with [`DataLoader::shard`](crate::data::DataLoader::shard) and
    /// [`shard`](DataParallel::shard). A part may be empty, with shape `[0, ..]`, unless the parts of all processes are
    /// empty.
    ///
    /// The results are the same as with one process that has the whole batch. On all processes, the loss is the loss of
    /// the whole batch, batch norm uses the statistics of the whole batch, and dropout drops the same elements. Other
    /// calls, such as [`predict`](DataParallel::predict) and [`forward`](DataParallel::forward), are not joint.
    ///
    /// Parameters and buffers are copied from rank 0, and so is the state of the random generator before each step.
    /// Parameters have the same bits on all processes; this is checked before the first step and every 256th step. The
    /// trained values are on the host even with one device, so call this before
    /// [`parameters`](DataParallel::parameters).
    ///
    /// If `train_batch` fails in the middle of a step, the job ends, because the other processes wait for this one. The
    /// message names the rank, the machine and the cause. The failure of a device does not end the job if the process
    /// has another device. A lack of memory ends it if the process's devices together cannot hold its part, because the
    /// part is not cut further.
    /// # Errors
    /// [`Error::Communication`] on all processes if their nets differ; [`Error::OutOfMemory`].
    ///
    /// ```
    /// use anygpu::data::{DataLoader, mnist_5k};
    /// use anygpu::parallel::Communicator;
    /// use anygpu::{DataParallel, Device, nn, optim::SGD};
    ///
    /// let communicator = Communicator::init()?;
    /// let net = nn::Sequential::new().add("flat", nn::Flatten).add("fc", nn::Linear::new(784, 10)?);
    /// let net = DataParallel::new(net, &[anygpu::try_gpu(0)])?.with_communicator(&communicator)?;
    /// let mut sgd = SGD::new(net.parameters(), 0.1);
    /// let loader = DataLoader::new(mnist_5k()?.train, 500)?.shuffle(7).shard(&net.shard());
    /// for batch in &loader {
    ///     let (images, labels) = batch?;
    ///     net.train_batch(&images, &labels, nn::cross_entropy)?;
    ///     sgd.step()?;
    /// }
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn with_communicator(mut self, communicator: &Communicator) -> Result<DataParallel> {
        let ranks = communicator.world_size();
        self.on_host()?;
        let values: Vec<Tensor> = self.host.parameters.iter().cloned().chain(buffers(&*self.host.net)).collect();
        let sizes = values.iter().map(|value| value.elem_count());
        let all = communicator.agree(Act::Net, &[fingerprint(&self.plan), hash(sizes)]);
        if let Some(rank) = all.iter().position(|words| words[1..3] != all[0][1..3]) {
            let message = format!("the nets of rank {rank} and rank 0 differ in their parameters or buckets");
            return Err(communicator.error(message));
        }
        let no_thread = |error| communicator.error(format!("no thread for gradients: {error}"));
        let machines = Machines {
            gradients: GradientThread::start(communicator.channel()).map_err(no_thread)?,
            exchanges: Arc::new(communicator.channel()),
            speeds: Mutex::new(Speeds {
                balance: Balance::new(Shares::Measured, ranks)?,
                last: (0, 0.0),
                messages: [Duration::ZERO; 2],
            }),
            shard: Shard::equal(communicator.rank(), ranks),
            communicator: communicator.clone(),
        };
        for value in values {
            let mut words = value.to_words()?;
            communicator.broadcast_words(&mut words);
            if communicator.rank() > 0 {
                copy_(&value, &from_words(words, value.shape(), value.dtype(), Device::cpu())?)?;
            }
        }
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        state.members.iter_mut().for_each(Member::forget);
        self.machines = Some(machines);
        Ok(self)
    }

    /// Makes the host hold what is trained, as with several devices, if there is only one device.
    fn on_host(&mut self) -> Result<()> {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        if state.members.is_empty() {
            let host = Replica::new(&*self.host.net, &Device::cpu())?;
            let member = Member::new(&host, &self.host.device)?;
            lock(&self.roster).nets = vec![member.replica.net.clone()];
            (self.host, state.members) = (host, vec![member]);
        }
        Ok(())
    }
}

/// Returns a hash of the sizes of the trained parameters and of the buckets.
fn fingerprint(plan: &BucketPlan) -> u64 {
    let buckets = (0..plan.len()).flat_map(|bucket| [plan.range(bucket).start, plan.range(bucket).end]);
    hash(buckets.chain(plan.starts().iter().copied()))
}

fn hash(numbers: impl Iterator<Item = usize>) -> u64 {
    let mut hash = crc32fast::Hasher::new();
    numbers.for_each(|number| hash.update(&(number as u64).to_le_bytes()));
    u64::from(hash.finalize())
}

/// Returns a hash of the bits of the parameters.
fn checksum(host: &Replica) -> Result<u64> {
    let mut hash = crc32fast::Hasher::new();
    for parameter in host.parameters.iter() {
        hash.update(bytemuck::cast_slice(&parameter.to_words()?));
    }
    Ok(u64::from(hash.finalize()))
}
