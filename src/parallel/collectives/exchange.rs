//! How elements go from device to device: read in chunks, combined on the host, and written in chunks, all at the same time.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::{Scope, scope};

use crate::context::Context;
use crate::device::cpu::{self, CpuBuffer};
use crate::device::gpu::Chunk;
use crate::device::transfer::CHUNK;
use crate::device::{Backend, Device, Storage};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::ops::combine::{Combine, combine_words};
use crate::tensor::Tensor;
use crate::util::sync::lock;
use crate::util::threads::THREADS;

/// Chunks that may wait for the upload to one device.
const WAITING: usize = 8;

/// How the terms of a stream are reduced.
#[derive(Clone, Debug)]
pub(super) struct Reduction {
    pub dtype: DType,
    pub how: Combine,
    /// One for each term.
    pub weights: Vec<f32>,
}

/// Words that are copied from one tensor, or reduced from several, to other tensors. All are 1-D tensors of `u32`
/// without gaps, and have the same length.
#[derive(Debug)]
pub(super) struct Stream {
    pub terms: Vec<Tensor>,
    /// Absent if there is one term.
    pub reduction: Option<Reduction>,
    pub targets: Vec<Tensor>,
}

impl Stream {
    fn len(&self) -> usize {
        self.terms.first().map_or(0, Tensor::elem_count)
    }
}

/// Streams whose reads have begun.
#[derive(Debug)]
pub(super) struct Exchange {
    streams: Vec<Stream>,
    arrivals: Receiver<Arrival>,
}

/// The next chunk of a term on an adapter.
#[derive(Debug)]
struct Arrival {
    stream: usize,
    term: usize,
    chunk: Result<Chunk>,
}

/// Returns words of unspecified contents.
pub(super) fn uninitialised(words: usize, device: &Device) -> Result<Tensor> {
    let storage = match device.backend()? {
        Backend::Cpu(cpu) => Storage::Cpu(cpu.alloc(words)?),
        Backend::Gpu(gpu) => Storage::Gpu(gpu.alloc(words)?),
    };
    Ok(Tensor::from_storage(storage, &[words], DType::U32, device.clone()))
}

impl Exchange {
    /// Begins all reads. Tensors on adapters are read as they are at this moment; tensors on the host are read later.
    pub fn begin(mut streams: Vec<Stream>) -> Result<Exchange> {
        let (sender, arrivals) = channel();
        for stream in &mut streams {
            stream.copy_within_devices()?;
            if !THREADS && !stream.targets.is_empty() {
                // No chunk can be waited for.
                let here = stream.terms.iter().map(|term| term.to(Device::cpu()));
                stream.terms = here.collect::<Result<_>>()?;
            }
        }
        for (number, stream) in streams.iter().enumerate().filter(|(_, stream)| !stream.targets.is_empty()) {
            for (term, words) in stream.terms.iter().enumerate() {
                let (Storage::Gpu(buffer), Backend::Gpu(gpu)) = (words.storage(), words.device().backend()?) else {
                    continue;
                };
                let sender = sender.clone();
                let each = move |chunk| drop(sender.send(Arrival { stream: number, term, chunk })); // or it was given up
                gpu.read_chunks_later(buffer, words.layout().offset, words.elem_count(), each);
            }
        }
        Ok(Exchange { streams, arrivals })
    }

    /// Combines and writes what arrives, and returns when all is written or recorded.
    ///
    /// # Errors
    /// The first error of a device. The targets then have unspecified contents.
    pub fn finish(self) -> Result<()> {
        let failed = Mutex::new(None);
        let done = scope(|scope| {
            let mut uploads = Uploads { scope, failed: &failed, threads: Vec::new() };
            self.combine_all(&mut uploads)
        });
        done.and_then(|()| lock(&failed).take().map_or(Ok(()), Err))?;
        self.streams.iter().flat_map(|stream| &stream.targets).try_for_each(|target| target.device().flush())
    }

    fn combine_all(&self, uploads: &mut Uploads<'_, '_>) -> Result<()> {
        let mut queues: Vec<Vec<VecDeque<Chunk>>> = Vec::new();
        let mut next = Vec::new();
        for stream in &self.streams {
            queues.push(stream.terms.iter().map(|_| VecDeque::new()).collect());
            next.push(0);
        }
        for (number, stream) in self.streams.iter().enumerate() {
            stream.advance(&mut queues[number], &mut next[number], uploads)?;
        }
        let unfinished = |next: &[usize]| self.streams.iter().zip(next).any(|(stream, at)| !stream.ends_at(*at));
        while unfinished(&next) {
            let Ok(Arrival { stream, term, chunk }) = self.arrivals.recv() else {
                return Err(Error::internal("a read of a collective ended early"));
            };
            queues[stream][term].push_back(chunk?);
            self.streams[stream].advance(&mut queues[stream], &mut next[stream], uploads)?;
        }
        // What kernels found in their inputs comes after the last chunk.
        self.arrivals.iter().try_for_each(|arrival| arrival.chunk.map(drop))
    }
}

impl Stream {
    /// Copies a single term to the targets on its own adapter, which then need no upload.
    fn copy_within_devices(&mut self) -> Result<()> {
        let ([term], None) = (&self.terms[..], &self.reduction) else { return Ok(()) };
        let (Storage::Gpu(from), Backend::Gpu(gpu)) = (term.storage(), term.device().backend()?) else { return Ok(()) };
        let here = |target: &Tensor| target.device() == term.device();
        for target in self.targets.iter().filter(|target| here(target)) {
            let Storage::Gpu(to) = target.storage() else { return Err(target.misplaced()) };
            gpu.copy(from, term.layout().offset, to, target.layout().offset, term.elem_count())?;
        }
        self.targets.retain(|target| target.device() != term.device());
        Ok(())
    }

    fn ends_at(&self, at: usize) -> bool {
        self.targets.is_empty() || at >= self.len()
    }

    /// Combines and writes all chunks from word `at` that are there.
    fn advance(&self, queues: &mut [VecDeque<Chunk>], at: &mut usize, uploads: &mut Uploads<'_, '_>) -> Result<()> {
        let on_host = |term: &Tensor| matches!(term.storage(), Storage::Cpu(_));
        while !self.ends_at(*at) && self.terms.iter().zip(&*queues).all(|(t, queue)| on_host(t) || !queue.is_empty()) {
            let len = CHUNK.min(self.len() - *at);
            let chunks = queues.iter_mut().map(VecDeque::pop_front).collect();
            let words = self.combined(chunks, *at, len)?;
            for target in &self.targets {
                let place = Place { target: target.clone(), at: target.layout().offset + *at };
                uploads.write(place, &words, self.len())?;
            }
            *at += len;
        }
        Ok(())
    }

    /// Returns the words `at..at + len` of the stream. There is a chunk for each term that is on an adapter.
    fn combined(&self, mut chunks: Vec<Option<Chunk>>, at: usize, len: usize) -> Result<Words> {
        let Some(Reduction { dtype, how, weights }) = &self.reduction else {
            return match (chunks.pop().flatten(), self.terms.first().map(|term| (term.storage(), term.layout().offset)))
            {
                (Some(chunk), _) => Ok(Words::Read(chunk.into())),
                (None, Some((Storage::Cpu(buffer), offset))) => Ok(Words::Host(buffer.clone(), offset + at, len)),
                _ => Err(Error::internal("a stream of a collective has no words")),
            };
        };
        let mut guards = Vec::with_capacity(self.terms.len());
        for term in &self.terms {
            guards.push(match term.storage() {
                Storage::Cpu(buffer) => Some((buffer.read(), term.layout().offset + at)),
                Storage::Gpu(_) => None,
            });
        }
        let terms = guards.iter().zip(&chunks).map(|pair| match pair {
            (Some((words, start)), _) => Ok(&words[*start..start + len]),
            (None, Some(chunk)) => Ok(&chunk[..]),
            (None, None) => Err(Error::internal("a chunk of a reduction is missing")),
        });
        let terms = terms.collect::<Result<Vec<&[u32]>>>()?;
        let sum = cpu::host().alloc(len)?;
        combine_words(*dtype, *how, &mut sum.write()[..len], &terms, weights)?;
        Ok(Words::Host(sum, 0, len))
    }
}

/// Words of a stream on the host.
#[derive(Clone, Debug)]
enum Words {
    Read(Arc<Chunk>),
    /// A range of a buffer: start and length.
    Host(Arc<CpuBuffer>, usize, usize),
}

impl Words {
    fn with<T>(&self, f: impl FnOnce(&[u32]) -> T) -> T {
        match self {
            Words::Read(chunk) => f(chunk),
            Words::Host(buffer, start, len) => f(&buffer.read()[*start..start + len]),
        }
    }
}

/// Where words are written: from word `at` of the target's storage on.
struct Place {
    target: Tensor,
    at: usize,
}

impl Place {
    fn write(&self, words: &Words) -> Result<()> {
        match (self.target.storage(), self.target.device().backend()?) {
            (Storage::Gpu(buffer), Backend::Gpu(gpu)) => words.with(|words| gpu.write(buffer, self.at, words)),
            (Storage::Cpu(buffer), Backend::Cpu(_)) => {
                words.with(|words| cpu::copy(words, &mut buffer.write()[self.at..self.at + words.len()]));
                Ok(())
            }
            _ => Err(self.target.misplaced()),
        }
    }
}

/// The threads that write to adapters: one for each, so that uploads go on beside each other and beside the reduction.
struct Uploads<'scope, 'env> {
    scope: &'scope Scope<'scope, 'env>,
    /// The first error.
    failed: &'env Mutex<Option<Error>>,
    threads: Vec<(Device, SyncSender<(Place, Words)>)>,
}

impl Uploads<'_, '_> {
    /// Writes words of a stream of `all` words, or lets a thread do so.
    fn write(&mut self, place: Place, words: &Words, all: usize) -> Result<()> {
        if all <= CHUNK || place.target.device().is_cpu() || !THREADS {
            return place.write(words); // a thread would take longer to start
        }
        if let Some(error) = &*lock(self.failed) {
            return Err(error.clone());
        }
        let device = place.target.device();
        let sender = match self.threads.iter().find(|(other, _)| other == device) {
            Some((_, sender)) => sender.clone(),
            None => self.start(&device.clone()),
        };
        // A thread that has ended has left its error, which is returned in the end.
        sender.send((place, words.clone())).or(Ok(()))
    }

    fn start(&mut self, device: &Device) -> SyncSender<(Place, Words)> {
        let (sender, inbox) = sync_channel::<(Place, Words)>(WAITING);
        let (failed, context) = (self.failed, Context::current());
        self.scope.spawn(move || {
            let written = context.run(|| inbox.into_iter().try_for_each(|(place, words)| place.write(&words)));
            if let Err(error) = written {
                lock(failed).get_or_insert(error);
            }
        });
        self.threads.push((device.clone(), sender.clone()));
        sender
    }
}
