//! Compiled kernels, once for each device and specialisation.
//!
//! Kernels of convolution and pooling have a layer's settings as constants, so each layer has pipelines of its own.

use std::borrow::Cow;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex};

use web_time::Instant;

use super::health::describe;
use super::shader::ShaderText;
use super::{Gpu, Kernel};
use crate::error::Result;
use crate::util::sync;

/// Where a kernel reads its params.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ParamsAt {
    /// There are none.
    Nowhere,
    /// In a uniform block at this binding, of this many words.
    Uniform(u32, usize),
    /// In this many words of immediates.
    Immediates(usize),
}

impl ParamsAt {
    /// Returns where a kernel of this crate reads its params, if a dispatch carries up to `max_immediates` bytes.
    pub(super) fn of(words: usize, max_immediates: u32) -> ParamsAt {
        if words * 4 <= max_immediates as usize { ParamsAt::Immediates(words) } else { ParamsAt::Uniform(0, words) }
    }
}

/// The bindings of group 0, and the params.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Signature {
    pub params: ParamsAt,
    /// The bindings of the storage buffers and whether they are written, in the order of the arguments.
    pub buffers: Vec<(u32, bool)>,
    /// Whether to bind only the requested words, so that `arrayLength` is a tensor's length; otherwise the whole page
    /// is bound.
    pub exact: bool,
}

impl Signature {
    /// Returns the signature of a kernel with `words` words of params on a device whose dispatches carry up to
    /// `max_immediates` bytes.
    fn of(key: &Key, words: usize, max_immediates: u32) -> Signature {
        let buffers = (0..key.inputs + key.outputs).map(|i| (i as u32 + 1, i >= key.inputs)).collect();
        Signature { params: ParamsAt::of(words, max_immediates), buffers, exact: false }
    }
}

/// A compiled kernel on one device.
#[derive(Debug)]
pub(crate) struct Pipeline {
    /// Unique in the process.
    pub(super) id: u64,
    pub(super) name: String,
    pub(super) raw: wgpu::ComputePipeline,
    pub(super) layout: wgpu::BindGroupLayout,
    pub(super) signature: Signature,
    /// What it was compiled from, if a tool wants to know.
    #[cfg(feature = "wgpu")]
    pub(super) source: Option<Box<super::launches::KernelSource>>,
}

/// The properties by which kernels share a pipeline.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub shader: &'static str,
    pub entry: Cow<'static, str>,
    pub header: &'static str,
    /// Values by their bits.
    pub constants: Vec<(Cow<'static, str>, u64)>,
    pub inputs: usize,
    pub outputs: usize,
}

impl Key {
    pub fn of(kernel: &Kernel) -> Key {
        Key {
            shader: kernel.shader.name,
            entry: kernel.entry.into(),
            header: kernel.header,
            constants: kernel.constants.iter().map(|&(name, value)| (name.into(), value.to_bits())).collect(),
            inputs: kernel.inputs.len(),
            outputs: kernel.outputs.len(),
        }
    }

    /// Returns a hash of the properties. It takes less time than theirs: of texts, it takes the place in memory.
    pub fn hashed(kernel: &Kernel) -> u64 {
        let mut hasher = DefaultHasher::new();
        let texts = [kernel.shader.name, kernel.entry, kernel.header].map(|text| text.as_ptr() as usize);
        (texts, kernel.inputs.len(), kernel.outputs.len()).hash(&mut hasher);
        for (_, value) in &kernel.constants {
            value.to_bits().hash(&mut hasher);
        }
        hasher.finish()
    }
}

/// The most pipelines that are kept. The sizes of images are constants of some kernels, so a program that sees images of
/// many sizes compiles many of them, of 0.1 to 0.3 MB each.
pub(super) const MAX_PIPELINES: usize = 512;

/// The pipelines of a device. If there are too many, the quarter that was not used for longest is dropped.
#[derive(Debug, Default)]
pub(super) struct Cache(Mutex<Pipelines>);

#[derive(Debug, Default)]
struct Pipelines {
    /// With the number of the last use.
    all: HashMap<Key, (Arc<Pipeline>, u64)>,
    /// The kernels that are being compiled: the thread that does so holds the lock.
    compiling: HashMap<Key, Arc<Mutex<()>>>,
    uses: u64,
}

impl Pipelines {
    fn get(&mut self, key: &Key) -> Option<Arc<Pipeline>> {
        self.uses += 1;
        let (pipeline, used) = self.all.get_mut(key)?;
        *used = self.uses;
        Some(pipeline.clone())
    }

    /// Keeps a pipeline, and returns those that it replaces.
    fn insert(&mut self, key: Key, pipeline: Arc<Pipeline>) -> Vec<Arc<Pipeline>> {
        let mut dropped = Vec::new();
        if self.all.len() >= MAX_PIPELINES {
            let mut uses: Vec<u64> = self.all.values().map(|(_, used)| *used).collect();
            let (_, &mut oldest, _) = uses.select_nth_unstable(MAX_PIPELINES / 4);
            dropped.extend(self.all.extract_if(|_, (_, used)| *used < oldest).map(|(_, (pipeline, _))| pipeline));
        }
        self.all.insert(key, (pipeline, self.uses));
        dropped
    }
}

/// The crate's own kernels are not checked, as wgpu's checks cost them 25 to 50 %; if this variable is set, they are.
static CHECKED: LazyLock<bool> = LazyLock::new(|| std::env::var_os("ANYGPU_CHECKED_KERNELS").is_some_and(|v| v == "1"));

/// A kernel whose text this crate made, not compiled yet.
#[derive(Debug)]
pub(super) struct Generated {
    pub name: String,
    pub text: String,
    pub entry: &'static str,
    pub constants: Vec<(&'static str, f64)>,
    pub signature: Signature,
}

/// The text and the options of one compilation.
struct Source<'a> {
    name: &'a str,
    text: Cow<'a, str>,
    entry: &'a str,
    constants: &'a [(&'a str, f64)],
    checked: bool,
}

impl Gpu {
    /// Returns how many pipelines are kept, and whether one of them is of this entry point.
    #[cfg(test)]
    pub(super) fn kept_pipelines(&self, entry: &str) -> (usize, bool) {
        let cache = sync::lock(&self.kernels.0);
        (cache.all.len(), cache.all.keys().any(|key| key.entry == entry))
    }

    /// Returns the pipeline of a kernel, which is compiled if it is new.
    pub(super) fn pipeline(&self, kernel: &Kernel) -> Result<Arc<Pipeline>> {
        let compiled = self.compiled(Key::of(kernel), &kernel.shader, kernel.params.words.len());
        compiled.map_err(|message| self.error(message))
    }

    /// Returns the keys of all pipelines that are kept, in the order in which they were compiled.
    pub(super) fn compiled_keys(&self) -> Vec<Key> {
        let cache = sync::lock(&self.kernels.0);
        let mut keys: Vec<(u64, &Key)> = cache.all.iter().map(|(key, (pipeline, _))| (pipeline.id, key)).collect();
        keys.sort_unstable_by_key(|(id, _)| *id);
        keys.into_iter().map(|(_, key)| key.clone()).collect()
    }

    /// Returns the pipeline of a kernel of `shader` with `words` words of params, which is compiled if it is new.
    ///
    /// # Errors
    ///
    /// The driver's message.
    pub(super) fn compiled(&self, key: Key, shader: &ShaderText, words: usize) -> Result<Arc<Pipeline>, String> {
        let mut cache = sync::lock(&self.kernels.0);
        if let Some(pipeline) = cache.get(&key) {
            return Ok(pipeline);
        }
        let compiling = cache.compiling.entry(key.clone()).or_default().clone();
        drop(cache);
        // Threads that need this kernel wait until one of them has compiled it; the others go on.
        let _turn = sync::lock(&compiling);
        if let Some(pipeline) = sync::lock(&self.kernels.0).get(&key) {
            return Ok(pipeline);
        }
        let compiled = self.compile_kernel(&key, shader, words);
        let mut cache = sync::lock(&self.kernels.0);
        cache.compiling.remove(&key);
        let pipeline = Arc::new(compiled?);
        let dropped = cache.insert(key, pipeline.clone());
        drop(cache);
        if !dropped.is_empty() {
            self.forget_bind_groups();
            let _gl = self.gl.enter();
            drop(dropped);
        }
        Ok(pipeline)
    }

    fn compile_kernel(&self, key: &Key, shader: &ShaderText, words: usize) -> Result<Pipeline, String> {
        let signature = Signature::of(key, words, self.caps.max_immediates);
        let text = match signature.params {
            ParamsAt::Immediates(_) => shader.with_immediates(key.header),
            _ => shader.assembled(key.header),
        };
        let constants: Vec<(&str, f64)> =
            key.constants.iter().map(|(name, bits)| (name.as_ref(), f64::from_bits(*bits))).collect();
        let source = Source {
            name: &format!("{}.{}", key.shader, key.entry),
            text: text.into(),
            entry: &key.entry,
            constants: &constants,
            checked: *CHECKED,
        };
        self.compile(&source, signature)
    }

    /// Compiles a user's kernel, with all of wgpu's checks.
    ///
    /// # Errors
    ///
    /// The driver's message.
    pub(crate) fn compile_checked(&self, text: &str, entry: &str, signature: Signature) -> Result<Pipeline, String> {
        self.compile(&Source { name: entry, text: text.into(), entry, constants: &[], checked: true }, signature)
    }

    /// Compiles a kernel whose text this crate made.
    ///
    /// # Errors
    ///
    /// The driver's message.
    pub(super) fn compile_generated(&self, kernel: Generated) -> Result<Pipeline, String> {
        let Generated { name, text, entry, constants, signature } = kernel;
        let source = Source { name: &name, text: text.into(), entry, constants: &constants, checked: *CHECKED };
        self.compile(&source, signature)
    }

    fn compile(&self, source: &Source<'_>, signature: Signature) -> Result<Pipeline, String> {
        static IDS: AtomicU64 = AtomicU64::new(1);
        let _within = self.within_driver();
        let _gl = self.gl.enter();
        let internal = self.device.push_error_scope(wgpu::ErrorFilter::Internal);
        let validation = self.device.push_error_scope(wgpu::ErrorFilter::Validation);
        let layout = self.bind_group_layout(&signature);
        let immediate_size = if let ParamsAt::Immediates(words) = signature.params { words as u32 * 4 } else { 0 };
        let pipeline_layout = self.device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
            label: Some(source.name),
            bind_group_layouts: &[Some(&layout)],
            immediate_size,
        });
        let began = Instant::now();
        let raw = self.device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: Some(source.name),
            layout: Some(&pipeline_layout),
            module: &self.module(source),
            entry_point: Some(source.entry),
            compilation_options: wgpu::PipelineCompilationOptions {
                constants: source.constants,
                zero_initialize_workgroup_memory: source.checked,
            },
            cache: None,
        });
        let errors = [self.health.popped(validation), self.health.popped(internal)];
        match errors.iter().flatten().next() {
            Some(error) => Err(format!("kernel {} does not compile: {}", source.name, describe(error))),
            None => {
                log::debug!("kernel {} {:?}: pipeline made in {:.0?}", source.name, source.constants, began.elapsed());
                let id = IDS.fetch_add(1, Ordering::Relaxed);
                Ok(Pipeline {
                    id,
                    name: source.name.into(),
                    raw,
                    layout,
                    signature,
                    #[cfg(feature = "wgpu")]
                    source: super::launches::kept(&source.text, source.entry, source.constants),
                })
            }
        }
    }

    fn module(&self, source: &Source<'_>) -> wgpu::ShaderModule {
        let descriptor = wgpu::ShaderModuleDescriptor {
            label: Some(source.name),
            source: wgpu::ShaderSource::Wgsl(Cow::Borrowed(&source.text)),
        };
        if source.checked {
            return self.device.create_shader_module(descriptor);
        }
        // SAFETY: only the shaders of this crate come here. Their indices stay within the buffers that `ops` binds, and
        // their loops end; the test suite also runs them with checks.
        #[expect(unsafe_code, reason = "wgpu's checks cost the crate's own kernels 25 to 50 %")]
        unsafe {
            self.device.create_shader_module_trusted(descriptor, wgpu::ShaderRuntimeChecks::unchecked())
        }
    }

    /// Returns an explicit layout. One inferred from the shader would lack bindings that an entry point does not use.
    fn bind_group_layout(&self, signature: &Signature) -> wgpu::BindGroupLayout {
        let entry = |binding, ty, has_dynamic_offset, min_binding_size| wgpu::BindGroupLayoutEntry {
            binding,
            visibility: wgpu::ShaderStages::COMPUTE,
            ty: wgpu::BindingType::Buffer { ty, has_dynamic_offset, min_binding_size },
            count: None,
        };
        // Because the layout has the size of the params, wgpu rejects a pipeline whose shader reads more.
        let params = match signature.params {
            ParamsAt::Uniform(binding, words) => {
                let size = wgpu::BufferSize::new(words as u64 * 4);
                Some(entry(binding, wgpu::BufferBindingType::Uniform, true, size))
            }
            ParamsAt::Nowhere | ParamsAt::Immediates(_) => None,
        };
        let buffers = signature.buffers.iter().map(|&(binding, written)| {
            entry(binding, wgpu::BufferBindingType::Storage { read_only: !written }, false, None)
        });
        let entries: Vec<_> = params.into_iter().chain(buffers).collect();
        self.device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor { label: None, entries: &entries })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::thread;
    use std::time::Duration;

    use super::*;
    use crate::device::gpu::{Shader, params};
    use crate::device::{Backend, Device};

    params! {
        struct Params { value: u32 }
    }

    const SHADER: Shader<Params> = Shader::new(
        "pipeline-tests",
        &["
            struct Params { value: u32 }
            override FACTOR: u32;
            @group(0) @binding(0) var<uniform> p: Params;
            @group(0) @binding(1) var<storage, read_write> y: array<u32>;
            @compute @workgroup_size(1) fn scaled() { y[0] = FACTOR * p.value; }
        "],
        || vec![""],
    );

    /// A kernel that one thread compiles delays only threads that need it.
    #[test]
    fn a_compilation_delays_no_other_kernel() -> Result<()> {
        const LONGEST: Duration = Duration::from_secs(120);
        for device in Device::all().into_iter().filter(|device| !device.is_cpu()) {
            let Backend::Gpu(gpu) = device.backend()? else { continue };
            let y = gpu.alloc(1)?;
            let kernel = |factor: u32| {
                Kernel::build(SHADER, "scaled", Params { value: 3 }).constant("FACTOR", factor).output(&y).each(1)
            };
            let (slow, other) = (kernel(5), kernel(7));
            let compiling = Arc::new(Mutex::new(()));
            let held = sync::lock(&compiling);
            sync::lock(&gpu.kernels.0).compiling.insert(Key::of(&slow), compiling.clone());
            thread::scope(|scope| {
                let (done, slow_done) = channel();
                scope.spawn(move || done.send(gpu.run(slow)));
                let (done, other_done) = channel();
                scope.spawn(move || done.send(gpu.run(other)));
                let first = other_done.recv_timeout(LONGEST);
                let waits = slow_done.try_recv().is_err();
                drop(held); // before anything fails, so that the threads end
                let second = slow_done.recv_timeout(LONGEST);
                assert!(waits && matches!(first, Ok(Ok(()))), "{device}: {waits} {first:?}");
                assert!(matches!(second, Ok(Ok(()))), "{device}: {second:?}");
            });
            assert_eq!(gpu.download(&y, 0, 1)?, [15], "{device}: the last one was not the slow one");
            assert!(sync::lock(&gpu.kernels.0).compiling.keys().all(|key| key.shader != SHADER.text.name));
        }
        Ok(())
    }
}
