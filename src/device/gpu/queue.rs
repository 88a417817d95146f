//! Records kernels into an open batch. The batch is submitted after a number of kernels, or when the host waits.
//!
//! All kernels of a batch are in one compute pass that stays open: a separate pass or submit for each kernel would take
//! many times longer than recording it. The params of a kernel are immediates (push constants) where the device has them
//! and they are few. Otherwise the host collects them and writes them with one `write_buffer` just before the submit, into
//! one uniform buffer that the kernels read at dynamic offsets. This write takes effect before the batch and after
//! everything submitted earlier.

use std::borrow::Cow;
use std::sync::MutexGuard;
use std::sync::atomic::Ordering;

use web_time::Instant;

use super::bind_groups::BindGroups;
use super::timestamps::{PassQueries, Timing};
use super::{Buffer, Gpu, ParamsAt, Pipeline};
use crate::device::MemoryStats;
use crate::error::Result;
use crate::util::sync;

/// Kernels of the first batch after the host has waited: few, because the device is idle and needs work soon. Each
/// further batch has twice as many, up to `LAST_BATCH`.
const FIRST_BATCH: usize = 16;
pub(super) const LAST_BATCH: usize = 256;
/// The most bytes of the params of one batch.
const PARAMS_BYTES: usize = 1 << 17;
/// The most bytes of the params of one kernel: the size that every adapter allows for a uniform buffer.
const MAX_PARAMS: usize = 1 << 14;
/// Uniform offsets must be multiples of this; it is enough for every adapter.
const SLOT: usize = 256;
/// The most bytes of small uploads that may wait for the next submit.
const MAX_PENDING: usize = 4 << 20;

/// A kernel with all that it is called with.
pub(crate) struct Dispatch<'a> {
    pub pipeline: &'a Pipeline,
    pub params: &'a [u32],
    /// The buffers of the pipeline's signature.
    pub buffers: &'a [&'a Buffer],
    /// Workgroups in x, y, z.
    pub groups: [u32; 3],
    /// What it computes, for profiles; empty if the kernel's own name says it.
    pub op: Cow<'a, str>,
}

/// The open batch.
pub(super) struct Recorder {
    /// The number of the batch, from 1.
    pub(super) batch: u64,
    encoder: Option<wgpu::CommandEncoder>,
    pass: Option<wgpu::ComputePass<'static>>,
    pipeline: u64,
    kernels: usize,
    /// Kernels of all batches.
    dispatched: u64,
    batch_limit: usize,
    pending: usize,
    params: Vec<u32>,
    params_buffer: wgpu::Buffer,
    bind_groups: BindGroups<wgpu::BindGroup>,
}

impl Recorder {
    pub(super) fn new(device: &wgpu::Device) -> Recorder {
        let params_buffer = device.create_buffer(&wgpu::BufferDescriptor {
            label: Some("params"),
            size: PARAMS_BYTES as u64,
            usage: wgpu::BufferUsages::UNIFORM | wgpu::BufferUsages::COPY_DST,
            mapped_at_creation: false,
        });
        Recorder {
            batch: 1,
            encoder: None,
            pass: None,
            pipeline: 0,
            kernels: 0,
            dispatched: 0,
            batch_limit: FIRST_BATCH,
            pending: 0,
            params: Vec::new(),
            params_buffer,
            bind_groups: BindGroups::default(),
        }
    }

    /// Returns the encoder of the batch, with no pass open: for copies.
    pub(super) fn encoder(&mut self, device: &wgpu::Device) -> &mut wgpu::CommandEncoder {
        self.close_pass();
        self.encoder.get_or_insert_with(|| new_encoder(device))
    }

    /// Marks a buffer as used by the open batch.
    pub(super) fn touch(&self, buffer: &Buffer) {
        buffer.page().batch.store(self.batch, Ordering::Relaxed);
    }

    /// Returns whether the open batch uses a buffer.
    pub(super) fn touched(&self, buffer: &Buffer) -> bool {
        buffer.page().batch.load(Ordering::Relaxed) == self.batch
    }

    fn close_pass(&mut self) {
        self.pass = None;
        self.pipeline = 0;
    }

    /// Opens a pass whose begin and end the device writes down.
    pub(super) fn timed_pass(&mut self, device: &wgpu::Device, queries: &PassQueries) {
        self.close_pass();
        let encoder = self.encoder.get_or_insert_with(|| new_encoder(device));
        let descriptor = wgpu::ComputePassDescriptor { label: None, timestamp_writes: Some(queries.writes()) };
        self.pass = Some(encoder.begin_compute_pass(&descriptor).forget_lifetime());
    }

    /// Returns the open pass, and opens it if necessary.
    fn pass(&mut self, device: &wgpu::Device) -> &mut wgpu::ComputePass<'static> {
        let Recorder { pass, encoder, .. } = self;
        pass.get_or_insert_with(|| {
            let encoder = encoder.get_or_insert_with(|| new_encoder(device));
            encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default()).forget_lifetime()
        })
    }
}

fn new_encoder(device: &wgpu::Device) -> wgpu::CommandEncoder {
    device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default())
}

impl Gpu {
    /// Records one dispatch.
    pub(crate) fn dispatch(&self, dispatch: &Dispatch<'_>) -> Result<()> {
        self.check_lengths(dispatch.buffers.iter().copied())?;
        self.pace()?;
        self.collect_times();
        self.flush_chain()?;
        self.record(dispatch)
    }

    /// Checks that a kernel can bind these buffers.
    pub(super) fn check_lengths<'a>(&self, mut buffers: impl Iterator<Item = &'a Buffer>) -> Result<()> {
        let most = self.largest_binding();
        match buffers.find(|buffer| buffer.len() > most) {
            Some(long) => Err(self.limit("max_storage_buffer_binding_size", long.len() as u64 * 4, most as u64 * 4)),
            None => Ok(()),
        }
    }

    /// Records one dispatch now. It shares no buffer with the open chain that one of them writes.
    pub(super) fn record(&self, dispatch: &Dispatch<'_>) -> Result<()> {
        let &Dispatch { pipeline, params, buffers, groups, .. } = dispatch;
        self.check()?;
        self.check_dispatch(dispatch)?;
        let timing = self.timing();
        let mut recorder = sync::lock(&self.recorder);
        if let Timing::Host(_) = timing {
            let before = self.submit_for_wait(&mut recorder);
            self.wait_for_earlier(&before)?;
        }
        #[cfg(feature = "wgpu")]
        if self.tell_observer(&mut recorder, dispatch)? {
            return Ok(());
        }
        let uniform = matches!(pipeline.signature.params, ParamsAt::Uniform(..));
        let slot = if uniform { (params.len() * 4).next_multiple_of(SLOT).max(SLOT) } else { 0 };
        if recorder.params.len() * 4 + slot > PARAMS_BYTES {
            self.submit(&mut recorder);
        }
        let offset = recorder.params.len() * 4;
        let bind_group = self.bind_group(&mut recorder, pipeline, slot, buffers)?;
        if uniform {
            recorder.params.extend_from_slice(params);
            recorder.params.resize((offset + slot) / 4, 0);
        }
        buffers.iter().for_each(|buffer| recorder.touch(buffer));

        if let Timing::Pass = timing {
            match self.queries(dispatch) {
                Some(queries) => recorder.timed_pass(&self.device, &queries),
                None => self.miss_time(),
            }
        }
        let same_pipeline = recorder.pass.is_some() && recorder.pipeline == pipeline.id;
        let pass = recorder.pass(&self.device);
        if !same_pipeline {
            pass.set_pipeline(&pipeline.raw);
        }
        if let ParamsAt::Immediates(_) = pipeline.signature.params {
            pass.set_immediates(0, bytemuck::cast_slice(params));
        }
        let offsets = uniform.then_some(offset as u32);
        pass.set_bind_group(0, &bind_group, offsets.as_slice());
        pass.dispatch_workgroups(groups[0], groups[1], groups[2]);
        recorder.pipeline = pipeline.id;
        recorder.kernels += 1;
        recorder.dispatched += 1;
        if self.chaos.lose() {
            self.destroy();
        }
        self.trace(pipeline, buffers);
        match timing {
            Timing::Off => {}
            Timing::Pass => recorder.close_pass(), // or the pass would be that of later kernels too
            Timing::Host(record) => {
                let start = Instant::now();
                let submission = self.submit_for_wait(&mut recorder);
                return self.time_on_host(&record, dispatch, start, &submission);
            }
        }
        if recorder.kernels >= self.pacing.most_kernels(recorder.batch_limit) {
            let kernels = recorder.kernels;
            let submission = self.submit(&mut recorder);
            self.pacing.submitted(submission, kernels);
        }
        Ok(())
    }

    /// Writes a line to the log for a kernel: its name, the bytes of the buffers that it reads, and the bytes of
    /// the buffers that it writes.
    fn trace(&self, pipeline: &Pipeline, buffers: &[&Buffer]) {
        const TARGET: &str = "anygpu::kernels";
        if !log::log_enabled!(target: TARGET, log::Level::Trace) {
            return;
        }
        let bytes = |written: bool| {
            let bound = pipeline.signature.buffers.iter().zip(buffers).filter(|((_, writes), _)| *writes == written);
            bound.map(|(_, buffer)| buffer.len() as u64 * 4).collect::<Vec<_>>()
        };
        log::trace!(target: TARGET, "{} {} reads {:?} writes {:?}", self.name, pipeline.name, bytes(false), bytes(true));
    }

    /// Checks a dispatch now, because wgpu would reject it only together with the whole batch.
    pub(super) fn check_dispatch(&self, dispatch: &Dispatch<'_>) -> Result<()> {
        let &Dispatch { pipeline, params, buffers, groups, .. } = dispatch;
        let most = groups.into_iter().max().unwrap_or(0);
        if most > self.caps.max_workgroups {
            let limit = "max_compute_workgroups_per_dimension";
            return Err(self.limit(limit, most.into(), self.caps.max_workgroups.into()));
        }
        if params.len() * 4 > MAX_PARAMS {
            return Err(self.limit("max_uniform_buffer_binding_size", params.len() as u64 * 4, MAX_PARAMS as u64));
        }
        if buffers.len() > self.caps.max_storage_buffers as usize {
            let (value, max) = (buffers.len() as u64, self.caps.max_storage_buffers.into());
            return Err(self.limit("max_storage_buffers_per_shader_stage", value, max));
        }
        let (name, bindings) = (&pipeline.name, &pipeline.signature.buffers);
        if buffers.len() != bindings.len() {
            return Err(self.error(format!("kernel {name} takes {} buffers, got {}", bindings.len(), buffers.len())));
        }
        if buffers.iter().any(|buffer| !buffer.belongs_to(self)) {
            return Err(self.error(format!("kernel {name} was given a buffer of another device")));
        }
        let written = bindings.iter().zip(buffers).filter(|((_, written), _)| *written);
        for (binding, buffer) in written {
            let twice = bindings.iter().zip(buffers).any(|(b, other)| b.0 != binding.0 && other.id() == buffer.id());
            if twice {
                return Err(
                    self.error(format!("kernel {name} writes a buffer that it also binds elsewhere: copy it first"))
                );
            }
        }
        Ok(())
    }

    fn bind_group(
        &self,
        recorder: &mut Recorder,
        pipeline: &Pipeline,
        slot: usize,
        buffers: &[&Buffer],
    ) -> Result<wgpu::BindGroup> {
        let exact = pipeline.signature.exact;
        let bound = |buffer: &Buffer| if exact { (0, buffer.len() as u64 * 4) } else { buffer.bound() };
        let pages = buffers.iter().map(|buffer| (buffer.page().id, bound(buffer)));
        let key = (pipeline.id, slot, pages.collect());
        // A kept bind group would keep the program's buffer, or hide that the program has destroyed the pool's
        // buffer.
        let private = buffers.iter().all(|buffer| buffer.is_private());
        if let Some(bind_group) = recorder.bind_groups.get(&key).filter(|_| private) {
            return Ok(bind_group);
        }
        self.drop_retired(recorder);
        let uniform = match pipeline.signature.params {
            ParamsAt::Uniform(binding, _) => Some(binding),
            ParamsAt::Nowhere | ParamsAt::Immediates(_) => None,
        };
        let params = uniform.map(|binding| wgpu::BindGroupEntry {
            binding,
            resource: wgpu::BindingResource::Buffer(wgpu::BufferBinding {
                buffer: &recorder.params_buffer,
                offset: 0,
                size: wgpu::BufferSize::new(slot as u64),
            }),
        });
        let bindings = pipeline.signature.buffers.iter().zip(buffers);
        let storage = bindings.map(|((binding, _), buffer)| {
            let (offset, bytes) = bound(buffer);
            let size = wgpu::BufferSize::new(bytes);
            let part = wgpu::BufferBinding { buffer: &buffer.page().raw, offset, size };
            wgpu::BindGroupEntry { binding: *binding, resource: wgpu::BindingResource::Buffer(part) }
        });
        let entries: Vec<_> = params.into_iter().chain(storage).collect();
        // wgpu keeps some 260 bytes for each thread that ever opened a scope, and threads of training are many. Without a scope, an
        // error goes to the handler of this crate, if the device has it.
        let scoped = self.health.is_shared() || !private;
        let scope = scoped.then(|| self.device.push_error_scope(wgpu::ErrorFilter::Validation));
        let bind_group = self.device.create_bind_group(&wgpu::BindGroupDescriptor {
            label: Some(&pipeline.name),
            layout: &pipeline.layout,
            entries: &entries,
        });
        if scope.is_none() {
            self.check()?;
        }
        if let Some(error) = scope.and_then(|scope| self.health.popped(scope)) {
            return Err(self.failure(format!("kernel {}: {}", pipeline.name, super::health::describe(&error))));
        }
        if !private {
            return Ok(bind_group);
        }
        for buffer in buffers {
            buffer.page().bind_groups.fetch_add(1, Ordering::Relaxed);
        }
        recorder.bind_groups.insert(key, bind_group.clone());
        Ok(bind_group)
    }

    /// Drops the pages that the pool does not keep, with the bind groups of them.
    fn drop_retired(&self, recorder: &mut Recorder) {
        let retired = self.pool.take_retired();
        if !retired.is_empty() {
            let _gl = self.gl.enter();
            recorder.bind_groups.forget(&retired.iter().map(|page| page.id).collect::<Vec<_>>());
            drop(retired);
        }
    }

    /// Submits the open batch to the driver, together with the uploads that wait for it.
    pub(super) fn submit(&self, recorder: &mut Recorder) -> wgpu::SubmissionIndex {
        self.chaos.slow_down();
        let _within = self.within_driver();
        let _gl = self.gl.enter();
        self.health.observe(&self.device, || self.submit_now(recorder))
    }

    fn submit_now(&self, recorder: &mut Recorder) -> wgpu::SubmissionIndex {
        recorder.close_pass();
        if !recorder.params.is_empty() {
            self.queue.write_buffer(&recorder.params_buffer, 0, bytemuck::cast_slice(&recorder.params));
            recorder.params.clear();
        }
        let commands = recorder.encoder.take().map(wgpu::CommandEncoder::finish);
        #[cfg(test)]
        let commands = commands.filter(|_| !self.submit_fails());
        if recorder.kernels > 0 {
            recorder.batch_limit = (recorder.batch_limit * 2).min(LAST_BATCH);
        }
        recorder.kernels = 0;
        recorder.pending = 0;
        recorder.batch += 1;
        self.queue.submit(commands)
    }

    /// Returns whether a test lets this submit fail, and keeps the error as for one that the driver refuses.
    #[cfg(test)]
    fn submit_fails(&self) -> bool {
        use crate::device::injected_faults::{Fault, fails};

        let refused = fails(Fault::Submit);
        if refused {
            self.health.refuse("the submit was refused, for a test");
        }
        refused
    }

    /// Counts bytes given to `write_buffer`. They stay in host memory until the next submit, so this submits the batch
    /// if there are many.
    pub(super) fn uploaded(&self, recorder: &mut Recorder, bytes: usize) {
        recorder.pending += bytes;
        if recorder.pending > MAX_PENDING {
            self.submit(recorder);
        }
    }

    /// Locks the open batch, with all kernels so far, for `transfer.rs`.
    pub(super) fn recorder(&self) -> Result<MutexGuard<'_, Recorder>> {
        self.flush_chain()?;
        Ok(sync::lock(&self.recorder))
    }

    /// Submits the batch before the host waits. The next batch is small again.
    pub(super) fn submit_for_wait(&self, recorder: &mut Recorder) -> wgpu::SubmissionIndex {
        let index = self.submit(recorder);
        recorder.batch_limit = FIRST_BATCH;
        index
    }

    /// Returns the number of kernels that were recorded since the device was opened.
    pub(crate) fn dispatches(&self) -> u64 {
        self.flush_chain_for_counts();
        sync::lock(&self.recorder).dispatched
    }

    /// Returns the bytes of tensors, and the number of kernels, without those that wait to be recorded.
    pub(crate) fn activity(&self) -> (MemoryStats, u64) {
        (self.pool.memory(), sync::lock(&self.recorder).dispatched)
    }

    pub(super) fn forget_bind_groups(&self) {
        sync::lock(&self.recorder).bind_groups.clear();
    }
}
