//! Copies between the host and devices. Only this file maps buffers; `wait.rs` waits for what it reads, `reader.rs` takes what
//! nobody waits for.
//!
//! **Order of uploads.** `queue.write_buffer` takes effect before the commands that are recorded and not yet submitted.
//! An upload into a buffer that the open batch uses (the pool recycles buffers) would be visible to kernels recorded
//! before it. [`Gpu::write`] prevents this: it uses `write_buffer` for a buffer that the open batch does not use, and
//! otherwise records a copy into the batch. Large uploads submit the batch first.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use futures_channel::oneshot::{self, Receiver};
use wgpu::BufferUsages;

use super::{Buffer, Gpu};
use crate::device::cpu::{Grant, copy, with_room};
use crate::device::{Backend, Device, Storage};
use crate::error::{Error, Result};
use crate::util::{sync, waiting};

/// Words of a chunk (1 MiB): small enough for the cache, and small enough that both directions of a copy overlap.
pub(crate) const CHUNK: usize = 1 << 18;
/// Words of a large chunk (4 MiB), in which a copy of many of them goes: each chunk is a submit, for which a thread wakes up.
const LARGE: usize = 1 << 20;
/// The most chunks that are read from a device at the same time.
const IN_FLIGHT: usize = 3;
/// The most chunks that are kept for later reads: reads that nobody waits for begin with all chunks of a tensor at once, and memory
/// that is new to the process is several times slower.
const KEPT: usize = 64;

/// Returns the words of the chunks in which a copy of `len` words goes, while this thread waits for it.
fn chunk_of(len: usize) -> usize {
    if len >= (IN_FLIGHT + 1) * LARGE { LARGE } else { CHUNK }
}

/// Copies words `offset..offset + len` of `storage` from device `src` to device `dst`, into new storage of `len` words.
///
/// # Errors
///
/// The errors of either device.
pub(crate) fn to(storage: &Storage, offset: usize, len: usize, src: &Device, dst: &Device) -> Result<Storage> {
    if offset.checked_add(len).is_none_or(|end| end > storage.len()) {
        let end = storage.len();
        return Err(Error::internal(format!("words {offset}..+{len} of a storage of {end} words")));
    }
    match (storage, src.backend()?, dst.backend()?) {
        (Storage::Cpu(from), Backend::Cpu(_), Backend::Cpu(cpu)) => {
            let to = cpu.alloc(len)?;
            copy(&from.read()[offset..offset + len], &mut to.write()[..len]);
            Ok(Storage::Cpu(to))
        }
        (Storage::Cpu(from), Backend::Cpu(_), Backend::Gpu(gpu)) => {
            Ok(Storage::Gpu(gpu.upload(&from.read()[offset..offset + len])?))
        }
        (Storage::Gpu(from), Backend::Gpu(gpu), Backend::Cpu(cpu)) => {
            let to = cpu.alloc(len)?;
            let mut at = 0;
            let mut words = to.write();
            gpu.read_chunks(from, offset, len, |chunk| {
                words[at..at + chunk.len()].copy_from_slice(chunk);
                at += chunk.len();
                Ok(())
            })?;
            drop(words);
            Ok(Storage::Cpu(to))
        }
        (Storage::Gpu(from), Backend::Gpu(a), Backend::Gpu(b)) => between(from, offset, len, a, b).map(Storage::Gpu),
        (Storage::Cpu(_), Backend::Gpu(_), Backend::Cpu(_) | Backend::Gpu(_))
        | (Storage::Gpu(_), Backend::Cpu(_), Backend::Cpu(_) | Backend::Gpu(_)) => {
            Err(Error::internal(format!("the storage of a tensor is not on its device, {src}")))
        }
    }
}

/// Copies from adapter `a` to adapter `b`: within the device if they are the same, otherwise chunk by chunk
/// through the host.
fn between(from: &Buffer, offset: usize, len: usize, a: &Arc<Gpu>, b: &Arc<Gpu>) -> Result<Buffer> {
    let to = b.alloc(len)?;
    if Arc::ptr_eq(a, b) {
        a.copy(from, offset, &to, 0, len)?;
        return Ok(to);
    }
    let mut at = 0;
    a.read_chunks(from, offset, len, |chunk| {
        b.write(&to, at, chunk)?;
        at += chunk.len();
        if len > CHUNK {
            let mut recorder = b.recorder()?;
            b.submit(&mut recorder);
        }
        Ok(())
    })?;
    Ok(to)
}

impl Gpu {
    /// Creates a buffer with these words.
    ///
    /// # Errors
    ///
    /// Same as [`Gpu::alloc`].
    pub(crate) fn upload(&self, words: &[u32]) -> Result<Buffer> {
        let buffer = self.alloc(words.len())?;
        self.write(&buffer, 0, words)?;
        Ok(buffer)
    }

    /// Writes `words` at word `at` of a buffer, after all work recorded before and before all work recorded later.
    pub(crate) fn write(&self, buffer: &Buffer, at: usize, words: &[u32]) -> Result<()> {
        self.check()?;
        self.check_range("write", buffer, at, words.len())?;
        if words.is_empty() {
            return Ok(());
        }
        let mut recorder = self.recorder()?;
        let raw = &buffer.page().raw;
        if words.len() > CHUNK {
            let len = chunk_of(words.len());
            self.submit(&mut recorder);
            for (i, chunk) in words.chunks(len).enumerate() {
                self.write_raw(raw, at + i * len, chunk);
                self.submit(&mut recorder);
            }
        } else if !recorder.touched(buffer) {
            self.write_raw(raw, at, words);
            self.uploaded(&mut recorder, words.len() * 4);
        } else {
            let staging = self.filled_staging(words)?;
            recorder.encoder(&self.device).copy_buffer_to_buffer(&staging, 0, raw, byte(at), byte(words.len()));
        }
        drop(recorder);
        self.check()
    }

    fn write_raw(&self, raw: &wgpu::Buffer, at: usize, words: &[u32]) {
        let _gl = self.gl.enter();
        self.queue.write_buffer(raw, byte(at), bytemuck::cast_slice(words));
    }

    /// Returns a buffer to copy `words` from, mapped at its creation.
    fn filled_staging(&self, words: &[u32]) -> Result<wgpu::Buffer> {
        let _gl = self.gl.enter();
        let staging = self.device.create_buffer(&wgpu::BufferDescriptor {
            label: Some("upload"),
            size: byte(words.len()),
            usage: BufferUsages::COPY_SRC,
            mapped_at_creation: true,
        });
        let mut view = staging.get_mapped_range_mut(..).map_err(|error| self.failure(error.to_string()))?;
        view.copy_from_slice(bytemuck::cast_slice(words));
        drop(view);
        staging.unmap();
        Ok(staging)
    }

    /// Returns the words `offset..offset + len` of a buffer, after all recorded work.
    ///
    /// # Errors
    ///
    /// Any error of the device since the last call.
    pub(crate) fn download(&self, buffer: &Buffer, offset: usize, len: usize) -> Result<Vec<u32>> {
        let mut words = with_room(len)?;
        self.read_chunks(buffer, offset, len, |chunk| {
            words.extend_from_slice(chunk);
            Ok(())
        })?;
        Ok(words)
    }

    /// Copies `len` words on the device.
    pub(crate) fn copy(&self, src: &Buffer, so: usize, dst: &Buffer, d: usize, len: usize) -> Result<()> {
        self.check()?;
        self.check_range("copy", src, so, len)?;
        self.check_range("copy", dst, d, len)?;
        if len == 0 {
            return Ok(());
        }
        if src.id() == dst.id() {
            let between = self.alloc(len)?;
            self.copy(src, so, &between, 0, len)?;
            return self.copy(&between, 0, dst, d, len);
        }
        let mut recorder = self.recorder()?;
        recorder.touch(src);
        recorder.touch(dst);
        let encoder = recorder.encoder(&self.device);
        encoder.copy_buffer_to_buffer(&src.page().raw, byte(so), &dst.page().raw, byte(d), byte(len));
        Ok(())
    }

    /// Fills a buffer with zeros.
    pub(crate) fn clear(&self, buffer: &Buffer) -> Result<()> {
        self.check()?;
        self.check_range("clear", buffer, 0, buffer.len())?;
        let mut recorder = self.recorder()?;
        recorder.touch(buffer);
        recorder.encoder(&self.device).clear_buffer(&buffer.page().raw, 0, None);
        Ok(())
    }

    /// Calls `take` with a range of a buffer, chunk by chunk, while the next chunks are copied.
    pub(super) fn read_chunks(
        &self,
        buffer: &Buffer,
        offset: usize,
        len: usize,
        mut take: impl FnMut(&[u32]) -> Result<()>,
    ) -> Result<()> {
        match self.read_again(buffer, offset, len) {
            Some(words) => take(&words?),
            None => waiting::wait_for(self.read_in_turn(buffer, offset, len, take)),
        }
    }

    async fn read_in_turn(
        &self,
        buffer: &Buffer,
        offset: usize,
        len: usize,
        mut take: impl FnMut(&[u32]) -> Result<()>,
    ) -> Result<()> {
        self.check()?;
        self.check_range("read", buffer, offset, len)?;
        let mut in_flight = VecDeque::new();
        let chunk = chunk_of(len);
        for start in (0..len).step_by(chunk) {
            if in_flight.len() == IN_FLIGHT {
                self.finish_read(in_flight.pop_front(), &mut take).await?;
            }
            in_flight.push_back(self.start_read(buffer, offset + start, chunk.min(len - start))?);
        }
        while let Some(read) = in_flight.pop_front() {
            self.finish_read(Some(read), &mut take).await?;
        }
        self.check()?;
        self.take_fault().await
    }

    /// Reads a few words, after all recorded work.
    pub(super) async fn read_words(&self, buffer: &Buffer, words: &mut [u32]) -> Result<()> {
        let read = self.start_read(buffer, 0, words.len())?;
        let mut take = |chunk: &[u32]| {
            words.copy_from_slice(chunk);
            Ok(())
        };
        self.finish_read(Some(read), &mut take).await
    }

    /// Submits the copies of a range of a buffer to memory that the host can read: one read for each chunk.
    pub(super) fn start_reads(&self, buffer: &Buffer, offset: usize, len: usize) -> Result<Vec<Read>> {
        self.check()?;
        self.check_range("read", buffer, offset, len)?;
        (0..len).step_by(CHUNK).map(|start| self.start_read(buffer, offset + start, CHUNK.min(len - start))).collect()
    }

    pub(super) fn start_read(&self, buffer: &Buffer, at: usize, len: usize) -> Result<Read> {
        let (staging, grant) = self.staging_buffer(if len > CHUNK { LARGE } else { CHUNK })?;
        let mut recorder = self.recorder()?;
        recorder.touch(buffer);
        let encoder = recorder.encoder(&self.device);
        encoder.copy_buffer_to_buffer(&buffer.page().raw, byte(at), &staging, 0, byte(len));
        let submission = self.submit_for_wait(&mut recorder);
        drop(recorder);
        let (done, mapped) = oneshot::channel();
        let _gl = self.gl.enter();
        self.health.observe(&self.device, || {
            staging.map_async(wgpu::MapMode::Read, ..byte(len), move |result| {
                // The receiver is dropped if an error ended the read.
                let _ = done.send(result);
            });
        });
        Ok(Read { staging, _grant: grant, len, submission, mapped })
    }

    /// Returns a buffer of one chunk that the host can read, and the host memory that a new one may take until it is written.
    fn staging_buffer(&self, chunk: usize) -> Result<(wgpu::Buffer, Option<Grant>)> {
        if let Some(kept) = self.staging.take(chunk) {
            return Ok((kept, None));
        }
        let created = self.create_buffer(byte(chunk), BufferUsages::MAP_READ | BufferUsages::COPY_DST)?;
        let created = created.map_err(|available| self.short(byte(chunk), available))?;
        Ok((created.raw, created.grant))
    }

    async fn finish_read(&self, read: Option<Read>, take: &mut impl FnMut(&[u32]) -> Result<()>) -> Result<()> {
        let Some(mut read) = read else { return Ok(()) };
        let mapped = self.arrived(&mut read).await?;
        self.take_read(read, mapped, take)
    }

    /// Calls `take` with what a read has brought.
    pub(super) fn take_read(
        &self,
        read: Read,
        mapped: Mapped,
        take: &mut impl FnMut(&[u32]) -> Result<()>,
    ) -> Result<()> {
        let (staging, view) = self.mapped(read, mapped)?;
        take(bytemuck::cast_slice(&view))?;
        drop(view);
        self.end_read(staging);
        Ok(())
    }

    /// Returns what a read has brought, and the buffer that it is in, for [`Gpu::end_read`].
    pub(super) fn mapped(&self, read: Read, mapped: Mapped) -> Result<(wgpu::Buffer, wgpu::BufferView)> {
        if let Err(error) = mapped {
            // The submit was not refused, or the call that made it would have returned that.
            self.health.submission_failed();
            return Err(self.failure(format!("reading back: {error}")));
        }
        let Read { staging, len, .. } = read;
        let view = staging.get_mapped_range(..byte(len)).map_err(|error| self.failure(error.to_string()))?;
        Ok((staging, view))
    }

    /// Keeps the buffer of a read for later ones. There is no view of it any more.
    pub(super) fn end_read(&self, staging: wgpu::Buffer) {
        let _gl = self.gl.enter();
        staging.unmap();
        self.staging.put(staging);
    }

    fn check_range(&self, what: &str, buffer: &Buffer, offset: usize, len: usize) -> Result<()> {
        if !buffer.belongs_to(self) {
            return Err(Error::internal(format!("{what} on {}: the buffer belongs to another device", self.name)));
        }
        if offset.checked_add(len).is_none_or(|end| end > buffer.len()) {
            let (name, end) = (&self.name, buffer.len());
            return Err(Error::internal(format!("{what} on {name}: words {offset}..+{len} of a buffer of {end}")));
        }
        self.check_usable(buffer)
    }
}

/// A chunk that is being read.
pub(super) struct Read {
    staging: wgpu::Buffer,
    /// Host memory of the buffer until the device has written it.
    _grant: Option<Grant>,
    len: usize,
    pub submission: wgpu::SubmissionIndex,
    /// Where the driver says that the host can read it.
    pub mapped: Receiver<Mapped>,
}

pub(super) type Mapped = Result<(), wgpu::BufferAsyncError>;

/// Buffers of one chunk that the host can read.
#[derive(Debug, Default)]
pub(super) struct Staging {
    chunks: Mutex<Vec<wgpu::Buffer>>,
    large: Mutex<Vec<wgpu::Buffer>>,
}

impl Staging {
    fn take(&self, chunk: usize) -> Option<wgpu::Buffer> {
        sync::lock(if chunk == LARGE { &self.large } else { &self.chunks }).pop()
    }

    fn put(&self, buffer: wgpu::Buffer) {
        let (kept, most) = if buffer.size() == byte(LARGE) { (&self.large, IN_FLIGHT) } else { (&self.chunks, KEPT) };
        let mut kept = sync::lock(kept);
        if kept.len() < most {
            kept.push(buffer);
        }
    }

    pub(super) fn trim(&self) {
        sync::lock(&self.chunks).clear();
        sync::lock(&self.large).clear();
    }
}

fn byte(words: usize) -> u64 {
    words as u64 * 4
}
