//! Kernels: plain data in, a compiled pipeline out, once per device and specialisation.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex};

use super::health::describe;
use super::{Buffer, Gpu};
use crate::error::{Error, Result};
use crate::sync;

/// A WGSL file of this crate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Shader {
    /// The file's stem; no two sources share a name.
    pub name: &'static str,
    /// The file's text.
    pub source: &'static str,
}

/// One dispatch, as plain data. Bindings, all in group 0: the params at 0, then the inputs, then the outputs.
#[derive(Clone, Debug)]
pub(crate) struct Kernel {
    /// The file.
    pub shader: Shader,
    /// The entry point in it.
    pub entry: &'static str,
    /// Text before the file's: types and sizes that `override` cannot set. Usually empty.
    pub header: &'static str,
    /// Values of the file's `override` constants.
    pub constants: Vec<(&'static str, f64)>,
    /// `@binding(0) var<uniform>`, padded to 16 bytes.
    pub params: Vec<u32>,
    /// `var<storage, read>`, whole.
    pub inputs: Vec<Buffer>,
    /// `var<storage, read_write>`, whole; none of them may be an input.
    pub outputs: Vec<Buffer>,
    /// Workgroups in x, y, z; nothing runs if one is 0.
    pub groups: [u32; 3],
}

/// The bindings of group 0: where the uniform params are, and each storage buffer with whether it is written.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Signature {
    /// Binding of the params.
    pub params: Option<u32>,
    /// Bindings of the storage buffers, in the order of the arguments.
    pub buffers: Vec<(u32, bool)>,
    /// Bind just the words that were asked for, so that `arrayLength` is a tensor's length; else the whole page.
    pub exact: bool,
}

impl Signature {
    fn of(inputs: usize, outputs: usize) -> Signature {
        let buffers = (0..inputs + outputs).map(|i| (i as u32 + 1, i >= inputs)).collect();
        Signature { params: Some(0), buffers, exact: false }
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
}

/// What makes two kernels the same pipeline.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Key {
    shader: &'static str,
    entry: &'static str,
    header: &'static str,
    constants: Vec<(&'static str, u64)>,
    inputs: usize,
    outputs: usize,
}

#[derive(Debug, Default)]
pub(super) struct Cache(Mutex<HashMap<Key, Arc<Pipeline>>>);

/// Own kernels are trusted, because wgpu's checks cost them 25 to 50 %; with this variable set, tests run them checked.
static CHECKED: LazyLock<bool> = LazyLock::new(|| std::env::var_os("ANYGPU_CHECKED_KERNELS").is_some_and(|v| v == "1"));

/// What to compile.
struct Source<'a> {
    name: &'a str,
    text: Cow<'a, str>,
    entry: &'a str,
    constants: &'a [(&'a str, f64)],
    checked: bool,
}

impl Gpu {
    /// Records a kernel of this crate.
    ///
    /// # Errors
    ///
    /// [`Error::Gpu`] if it does not compile or its buffers do not fit it; [`Error::LimitExceeded`] for too many workgroups or
    /// buffers; [`Error::DeviceLost`].
    pub(crate) fn run(&self, kernel: Kernel) -> Result<()> {
        if kernel.groups.contains(&0) {
            return self.check();
        }
        let pipeline = self.pipeline(&kernel)?;
        let buffers: Vec<&Buffer> = kernel.inputs.iter().chain(&kernel.outputs).collect();
        self.dispatch(&pipeline, &kernel.params, &buffers, kernel.groups)
    }

    fn pipeline(&self, kernel: &Kernel) -> Result<Arc<Pipeline>> {
        let key = Key {
            shader: kernel.shader.name,
            entry: kernel.entry,
            header: kernel.header,
            constants: kernel.constants.iter().map(|&(name, value)| (name, value.to_bits())).collect(),
            inputs: kernel.inputs.len(),
            outputs: kernel.outputs.len(),
        };
        // The lock is held while compiling: a second thread would only compile the same.
        let mut cache = sync::lock(&self.kernels.0);
        if let Some(pipeline) = cache.get(&key) {
            return Ok(pipeline.clone());
        }
        let source = Source {
            name: &format!("{}.{}", kernel.shader.name, kernel.entry),
            text: [kernel.header, kernel.shader.source].concat().into(),
            entry: kernel.entry,
            constants: &kernel.constants,
            checked: *CHECKED,
        };
        let signature = Signature::of(key.inputs, key.outputs);
        let pipeline = Arc::new(self.compile(&source, signature).map_err(|message| self.error(message))?);
        cache.insert(key, pipeline.clone());
        Ok(pipeline)
    }

    /// Compiles a user's kernel, with all of wgpu's checks.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`] with the driver's words.
    pub(crate) fn compile_checked(&self, text: &str, entry: &str, signature: Signature) -> Result<Pipeline> {
        let source = Source { name: entry, text: text.into(), entry, constants: &[], checked: true };
        self.compile(&source, signature).map_err(|message| Error::Kernel { name: entry.into(), message })
    }

    fn compile(&self, source: &Source<'_>, signature: Signature) -> Result<Pipeline, String> {
        static IDS: AtomicU64 = AtomicU64::new(1);
        let internal = self.device.push_error_scope(wgpu::ErrorFilter::Internal);
        let validation = self.device.push_error_scope(wgpu::ErrorFilter::Validation);
        let layout = self.bind_group_layout(&signature);
        let pipeline_layout = self.device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
            label: Some(source.name),
            bind_group_layouts: &[Some(&layout)],
            immediate_size: 0,
        });
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
        let errors = [pollster::block_on(validation.pop()), pollster::block_on(internal.pop())];
        match errors.iter().flatten().next() {
            Some(error) => Err(format!("kernel {} does not compile: {}", source.name, describe(error))),
            None => {
                let id = IDS.fetch_add(1, Ordering::Relaxed);
                Ok(Pipeline { id, name: source.name.into(), raw, layout, signature })
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
        // SAFETY: only the shaders of this crate come here. Their indices stay inside of the buffers that `ops` gives them
        // and their loops end; the test suite also runs them checked.
        #[expect(unsafe_code, reason = "wgpu's checks cost the crate's own kernels 25 to 50 %")]
        unsafe {
            self.device.create_shader_module_trusted(descriptor, wgpu::ShaderRuntimeChecks::unchecked())
        }
    }

    /// An explicit layout: one inferred from the shader would lack the bindings that an entry point does not use.
    fn bind_group_layout(&self, signature: &Signature) -> wgpu::BindGroupLayout {
        let entry = |binding, ty, has_dynamic_offset| wgpu::BindGroupLayoutEntry {
            binding,
            visibility: wgpu::ShaderStages::COMPUTE,
            ty: wgpu::BindingType::Buffer { ty, has_dynamic_offset, min_binding_size: None },
            count: None,
        };
        let params = signature.params.map(|binding| entry(binding, wgpu::BufferBindingType::Uniform, true));
        let buffers = signature
            .buffers
            .iter()
            .map(|&(binding, written)| entry(binding, wgpu::BufferBindingType::Storage { read_only: !written }, false));
        let entries: Vec<_> = params.into_iter().chain(buffers).collect();
        self.device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor { label: None, entries: &entries })
    }
}
