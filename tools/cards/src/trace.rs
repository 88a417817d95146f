//! Runs the instrumented copy of a kernel for a sample of its workgroups, and reads the trace.

use std::borrow::Cow;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex};

use anygpu::interop::launches::{Launch, ParamsPlace};

use crate::instrument::{self, Instrumented, Site};

/// The most workgroups of a sample.
const SAMPLE: u64 = 8;

/// The most entries of a trace, of all invocations together; an entry has 8 bytes.
const MOST_ENTRIES: u64 = 8 << 20;

/// The most entries of an invocation.
const MOST_OF_ONE: u64 = 1 << 15;

/// What an invocation did.
#[derive(Clone, Debug, Default)]
pub struct Lane {
    /// The site, and the byte, in the order of the accesses. It ends early if there are too many.
    pub accesses: Vec<(u32, u32)>,
    /// The number of all accesses.
    pub all: u32,
    /// The operations of floats.
    pub flops: u32,
}

/// The invocations of the sampled workgroups.
#[derive(Debug)]
pub struct Trace {
    /// The sites, by their numbers.
    pub sites: Vec<Site>,
    /// The invocations of each sampled workgroup, by their index.
    pub groups: Vec<Vec<Lane>>,
    /// The number of workgroups in the grid that each sampled one stands for.
    pub weights: Vec<f64>,
    /// Bytes that each binding has.
    pub bound: Vec<(u32, u64)>,
}

/// The buffers that all traces use.
#[derive(Default)]
pub struct Machine(Mutex<Option<Buffers>>);

struct Buffers {
    device: wgpu::Device,
    trace: wgpu::Buffer,
    read: wgpu::Buffer,
    /// The copies of kernels, by what they were made of; the adapter's compiler takes seconds for one.
    compiled: HashMap<u64, Arc<Compiled>>,
}

/// The compiled copy of a kernel.
struct Compiled {
    sites: Vec<Site>,
    workgroup: [u32; 3],
    layouts: [wgpu::BindGroupLayout; 2],
    pipeline: wgpu::ComputePipeline,
}

impl Buffers {
    fn new(device: &wgpu::Device) -> Buffers {
        let buffer = |label, size, usage| {
            device.create_buffer(&wgpu::BufferDescriptor { label: Some(label), size, usage, mapped_at_creation: false })
        };
        let (storage, read) = (wgpu::BufferUsages::STORAGE, wgpu::BufferUsages::MAP_READ);
        Buffers {
            trace: buffer("trace", MOST_ENTRIES * 8, storage | wgpu::BufferUsages::COPY_SRC),
            read: buffer("read", MOST_ENTRIES * 8, read | wgpu::BufferUsages::COPY_DST),
            device: device.clone(),
            compiled: HashMap::new(),
        }
    }

    /// Returns the first words of a buffer.
    fn words(&self, queue: &wgpu::Queue, from: &wgpu::Buffer, words: u64) -> Result<Vec<[u32; 2]>, String> {
        if words == 0 {
            return Ok(Vec::new());
        }
        let mut commands = self.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        commands.copy_buffer_to_buffer(from, 0, &self.read, 0, words * 4);
        queue.submit([commands.finish()]);
        let part = self.read.slice(..words * 4);
        let (done, mapped) = std::sync::mpsc::channel();
        part.map_async(wgpu::MapMode::Read, move |result| drop(done.send(result)));
        self.device.poll(wgpu::PollType::wait_indefinitely()).map_err(|error| error.to_string())?;
        match mapped.try_recv() {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return Err(error.to_string()),
            Err(_) => return Err("a trace was not read".to_owned()),
        }
        let view = part.get_mapped_range().map_err(|error| error.to_string())?;
        let words = bytemuck::pod_collect_to_vec(&view);
        drop(view);
        self.read.unmap();
        Ok(words)
    }
}

/// Returns the numbers of the sampled workgroups, which are spread over the grid, and how many each stands for. The last one may have
/// invocations without work, and stands for itself.
fn sample(grid: u64) -> (Vec<u64>, Vec<f64>) {
    let count = grid.min(SAMPLE);
    if count < 2 {
        return ((0..count).collect(), vec![1.0; count as usize]);
    }
    let numbers: Vec<u64> = (0..count).map(|i| i * (grid - 1) / (count - 1)).collect();
    let mut weights = vec![(grid - 1) as f64 / (count - 1) as f64; numbers.len() - 1];
    weights.push(1.0);
    (numbers, weights)
}

impl Machine {
    /// Returns whether the copy of a kernel is compiled.
    pub fn has(&self, launch: &Launch<'_>) -> bool {
        let kept = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        kept.as_ref().is_some_and(|buffers| buffers.compiled.contains_key(&identity(launch)))
    }

    /// Returns the trace of a kernel, which reads its buffers as they are now. What it writes goes to copies.
    ///
    /// # Errors
    ///
    /// A message, if the kernel cannot be traced, or does not compile or run.
    pub fn trace(&self, launch: &Launch<'_>) -> Result<Trace, String> {
        let Launch { device, queue, .. } = *launch;
        let storage = launch.buffers.len() + 3;
        let most = device.limits().max_storage_buffers_per_shader_stage;
        if storage > most as usize {
            return Err(format!("with its trace it has {storage} storage buffers, the adapter takes {most}"));
        }
        let mut kept = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if kept.as_ref().is_none_or(|buffers| buffers.device != *device) {
            *kept = Some(Buffers::new(device));
        }
        let Some(buffers) = kept.as_mut() else { return Err("no buffers".to_owned()) };
        let key = identity(launch);
        let compiled = match buffers.compiled.get(&key) {
            Some(compiled) => compiled.clone(),
            None => Arc::new(compile(launch)?),
        };
        buffers.compiled.insert(key, compiled.clone());

        let [x, y, z] = launch.groups.map(u64::from);
        let grid = x * y * z;
        let (numbers, weights) = sample(grid);
        let places: Vec<[u32; 3]> = numbers.iter().map(|n| [n % x, n / x % y, n / x / y].map(|n| n as u32)).collect();
        let of_group = compiled.workgroup.into_iter().map(u64::from).product::<u64>();
        let slots = of_group * places.len() as u64;
        let most = (MOST_ENTRIES / slots.max(1)).min(MOST_OF_ONE).saturating_sub(1);
        let ends = run(launch, &compiled, buffers, &places, [slots as u32, most as u32])?;

        let ends = buffers.words(queue, &ends, slots * 2)?;
        let longest = ends.iter().map(|end| u64::from(end[0])).max().unwrap_or(0).min(most);
        let entries = buffers.words(queue, &buffers.trace, longest * slots * 2)?;
        let lane = |slot: usize| {
            let [all, flops] = ends[slot];
            let count = u64::from(all).min(most) as usize;
            let accesses = (1..count).filter_map(|n| {
                let [site, at] = entries.get(n * slots as usize + slot).copied()?;
                Some((site.checked_sub(1)?, at))
            });
            Lane { accesses: accesses.collect(), all: all.saturating_sub(1), flops }
        };
        let group = |group: usize| (0..of_group as usize).map(|i| lane(group * of_group as usize + i)).collect();
        Ok(Trace {
            sites: compiled.sites.clone(),
            groups: (0..places.len()).map(group).collect(),
            weights,
            bound: launch.buffers.iter().map(|buffer| (buffer.binding, buffer.used)).collect(),
        })
    }
}

/// Returns a number for what goes into the copy of a kernel.
fn identity(launch: &Launch<'_>) -> u64 {
    let mut hasher = DefaultHasher::new();
    (&launch.source.text, &launch.source.entry, launch.params.len(), launch.op.is_empty()).hash(&mut hasher);
    launch.source.constants.iter().for_each(|(name, value)| (name, value.to_bits()).hash(&mut hasher));
    launch.buffers.iter().for_each(|buffer| (buffer.binding, buffer.written).hash(&mut hasher));
    hasher.finish()
}

/// Calls a function, and returns the first error of the device within it.
fn scoped<T>(device: &wgpu::Device, f: impl FnOnce() -> T) -> Result<T, String> {
    let scopes = [wgpu::ErrorFilter::Internal, wgpu::ErrorFilter::Validation, wgpu::ErrorFilter::OutOfMemory]
        .map(|filter| device.push_error_scope(filter));
    let made = f();
    let mut errors = scopes.into_iter().rev().filter_map(|scope| pollster::block_on(scope.pop()));
    let first = errors.next().map(|error| error.to_string());
    errors.for_each(drop);
    first.map_or(Ok(made), Err)
}

/// Makes the copy of a kernel.
fn compile(launch: &Launch<'_>) -> Result<Compiled, String> {
    let Instrumented { module, sites, workgroup } = instrument::instrument(launch.source)?;
    let device = launch.device;
    let entry = |binding, ty| wgpu::BindGroupLayoutEntry {
        binding,
        visibility: wgpu::ShaderStages::COMPUTE,
        ty: wgpu::BindingType::Buffer { ty, has_dynamic_offset: false, min_binding_size: None },
        count: None,
    };
    let storage = |read_only| wgpu::BufferBindingType::Storage { read_only };
    let mut entries: Vec<_> = launch.buffers.iter().map(|part| entry(part.binding, storage(!part.written))).collect();
    if let ParamsPlace::Uniform(binding) = launch.params_at {
        entries.push(entry(binding, wgpu::BufferBindingType::Uniform));
    }
    let own = [entry(0, storage(false)), entry(1, storage(false)), entry(2, storage(true))];
    let immediates = launch.params_at == ParamsPlace::Immediates;
    let (layouts, pipeline) = scoped(device, || {
        let layouts = [&entries[..], &own[..]]
            .map(|entries| device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor { label: None, entries }));
        let layout = device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
            label: None,
            bind_group_layouts: &[Some(&layouts[0]), Some(&layouts[1])],
            immediate_size: if immediates { launch.params.len() as u32 * 4 } else { 0 },
        });
        let descriptor = wgpu::ShaderModuleDescriptor {
            label: Some(launch.name),
            source: wgpu::ShaderSource::Naga(Cow::Owned(module)),
        };
        let module = match launch.op {
            "" => device.create_shader_module(descriptor),
            // SAFETY: only kernels of the library have an op. Their indices stay within the buffers that it binds, and their loops
            // end; a trace has as many entries as its buffer, and the sample stays within the grid.
            #[expect(unsafe_code, reason = "with wgpu's checks, the adapter's compiler takes twice as long")]
            _ => unsafe { device.create_shader_module_trusted(descriptor, wgpu::ShaderRuntimeChecks::unchecked()) },
        };
        let pipeline = device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: Some(launch.name),
            layout: Some(&layout),
            module: &module,
            entry_point: Some(instrument::ENTRY),
            compilation_options: wgpu::PipelineCompilationOptions::default(),
            cache: None,
        });
        (layouts, pipeline)
    })?;
    Ok(Compiled { sites, workgroup, layouts, pipeline })
}

/// Runs the copy, and returns the buffer with the number of entries and of operations of each invocation.
fn run(
    launch: &Launch<'_>,
    compiled: &Compiled,
    buffers: &Buffers,
    places: &[[u32; 3]],
    [slots, most]: [u32; 2],
) -> Result<wgpu::Buffer, String> {
    use wgpu::BufferUsages as Usages;
    let Launch { device, queue, .. } = *launch;
    let [x, y, z] = launch.groups;
    let [sx, sy, sz] = compiled.workgroup;
    let mut sample = vec![[x, y, z, slots], [sx, sy, sz, most]];
    sample.extend(places.iter().map(|[x, y, z]| [*x, *y, *z, 0]));
    scoped(device, || {
        let empty = |label, size: u64, usage| {
            let size = size.next_multiple_of(256).max(256);
            device.create_buffer(&wgpu::BufferDescriptor { label: Some(label), size, usage, mapped_at_creation: false })
        };
        let filled = |label, bytes: &[u8], usage| {
            let buffer = empty(label, bytes.len() as u64, usage | Usages::COPY_DST);
            queue.write_buffer(&buffer, 0, bytes);
            buffer
        };
        let sample = filled("sample", bytemuck::cast_slice(&sample), Usages::STORAGE);
        let params = filled("params", bytemuck::cast_slice(launch.params), Usages::UNIFORM);
        let ends = empty("ends", u64::from(slots) * 8, Usages::STORAGE | Usages::COPY_SRC);

        let mut commands = device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        let bound = launch.buffers.iter().map(|part| {
            if !part.written {
                return (part.binding, part.raw.clone(), part.offset, part.bytes);
            }
            let copy = empty("copy", part.bytes, Usages::STORAGE | Usages::COPY_DST);
            commands.copy_buffer_to_buffer(part.raw, part.offset, &copy, 0, part.bytes);
            (part.binding, copy, 0, part.bytes)
        });
        let bound: Vec<(u32, wgpu::Buffer, u64, u64)> = bound.collect();
        let parts = bound.iter().map(|(binding, buffer, offset, bytes)| {
            let size = wgpu::BufferSize::new(*bytes);
            let part = wgpu::BufferBinding { buffer, offset: *offset, size };
            wgpu::BindGroupEntry { binding: *binding, resource: wgpu::BindingResource::Buffer(part) }
        });
        let uniform = match launch.params_at {
            ParamsPlace::Uniform(binding) => Some((binding, &params)),
            ParamsPlace::Nowhere | ParamsPlace::Immediates => None,
        };
        let mut parts: Vec<_> = parts.collect();
        parts.extend(
            uniform.map(|(binding, buffer)| wgpu::BindGroupEntry { binding, resource: buffer.as_entire_binding() }),
        );
        let own = [&buffers.trace, &ends, &sample].into_iter().enumerate();
        let own =
            own.map(|(at, buffer)| wgpu::BindGroupEntry { binding: at as u32, resource: buffer.as_entire_binding() });
        let own: Vec<_> = own.collect();
        let groups = [&parts, &own].into_iter().zip(&compiled.layouts).map(|(entries, layout)| {
            device.create_bind_group(&wgpu::BindGroupDescriptor { label: None, layout, entries })
        });
        let groups: Vec<_> = groups.collect();
        let mut pass = commands.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
        pass.set_pipeline(&compiled.pipeline);
        if launch.params_at == ParamsPlace::Immediates {
            pass.set_immediates(0, bytemuck::cast_slice(launch.params));
        }
        for (at, group) in groups.iter().enumerate() {
            pass.set_bind_group(at as u32, group, &[]);
        }
        pass.dispatch_workgroups(places.len() as u32, 1, 1);
        drop(pass);
        queue.submit([commands.finish()]);
        ends
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sample_stands_for_the_grid() {
        assert_eq!(sample(1), (vec![0], vec![1.0]));
        assert_eq!(sample(3), (vec![0, 1, 2], vec![1.0; 3]));
        let (numbers, weights) = sample(1000);
        assert_eq!((numbers.len(), numbers[0], numbers[7]), (8, 0, 999));
        assert!((weights.iter().sum::<f64>() - 1000.0).abs() < 1e-9);
    }
}
