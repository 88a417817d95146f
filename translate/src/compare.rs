//! Runs kernels from their WGSL and from what DirectX's compiler made of their HLSL, on the same numbers.

use std::error::Error;
use std::path::Path;

use wgpu::util::DeviceExt as _;
use wgpu::{BindGroup, Buffer, BufferUsages, Device, Queue, ShaderModule};

use crate::cases::{Case, WORDS};
use crate::texts::{Catalogue, Kernel, Text};

/// Values for which a compiler's liberties show; the other inputs are numbers between −4 and 4.
const ODD: [f32; 12] =
    [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.0, -0.0, f32::MIN_POSITIVE, 1e30, -1e30, 88.8, -104.5, 1e6, -1e-6];

/// The largest difference of `a` and `b`, relative to the larger one or to 1.
const TOLERANCE: f32 = 1e-5;

struct Machine {
    name: String,
    device: Device,
    queue: Queue,
}

/// A text's bindings: the storage buffers with whether they are written, and the words of the params.
struct Interface {
    buffers: Vec<(u32, bool)>,
    params: Vec<u32>,
}

/// Compares all kernels that have a case; prints what differs. Returns whether all are equal.
///
/// # Errors
///
/// No adapter that takes SPIR-V, a file that is missing, or what the driver reports.
pub fn compare(folder: &Path) -> Result<bool, Box<dyn Error>> {
    let catalogue: Catalogue = serde_json::from_str(&std::fs::read_to_string(folder.join("kernels.json"))?)?;
    let machine = Machine::open()?;
    let (mut compared, mut largest, mut wrong) = (0, 0.0f32, 0);
    for text in &catalogue.texts {
        let source = std::fs::read_to_string(folder.join(&text.file))?;
        for kernel in &text.kernels {
            let Some(case) = crate::cases::of(&kernel.name) else { continue };
            compared += 1;
            match difference(&machine, folder, (text, &source), kernel, case) {
                Ok(difference) => largest = largest.max(difference),
                Err(why) => {
                    wrong += 1;
                    println!("{}: {why}", kernel.name);
                }
            }
        }
    }
    let name = &machine.name;
    println!("{compared} kernels by way of HLSL on {name}: {wrong} wrong; the others differ by {largest:.1e} at most");
    if compared < 60 {
        return Err(format!("only {compared} kernels have a case: have their names changed?").into());
    }
    Ok(wrong == 0)
}

/// Returns the largest difference of a kernel's results, or what is wrong with them.
fn difference(
    machine: &Machine,
    folder: &Path,
    (text, source): (&Text, &str),
    kernel: &Kernel,
    case: &Case,
) -> Result<f32, Box<dyn Error>> {
    let interface = Interface::of(source, &kernel.entry, case)?;
    let wgsl = machine.device.create_shader_module(wgpu::ShaderModuleDescriptor {
        label: Some(&text.file),
        source: wgpu::ShaderSource::Wgsl(source.into()),
    });
    let file = Path::new(&kernel.hlsl.file).with_extension("spv");
    let bytes = std::fs::read(folder.join(&file)).map_err(|e| format!("{}: {e}", file.display()))?;
    let spirv = machine.passthrough(&bytes, &kernel.hlsl.entry);
    let constants: Vec<(&str, f64)> = kernel.constants.iter().map(|(name, value)| (name.as_str(), *value)).collect();
    let expected = machine.run((&wgsl, &kernel.entry, &constants), &interface, case.groups)?;
    let got = machine.run((&spirv, &kernel.hlsl.entry, &[]), &interface, case.groups)?;
    let untouched = input(WORDS, 99);
    let written = expected.iter().zip(&untouched).filter(|(a, b)| a != b).count();
    if written < case.written {
        return Err(format!("the case writes {written} words, not {}: do its params fit?", case.written).into());
    }
    let floats = !kernel.name.contains("T=i32") && !kernel.name.contains("T=u32") && !kernel.name.contains("R=u32");
    let mut largest = 0.0f32;
    for (at, (&a, &b)) in expected.iter().zip(&got).enumerate() {
        let (x, y) = (f32::from_bits(a), f32::from_bits(b));
        let apart = (x - y).abs() / x.abs().max(y.abs()).max(1.0);
        let equal = a == b || floats && (apart <= TOLERANCE || x.is_nan() && y.is_nan());
        if !equal {
            return Err(format!("word {at} is {y} ({b:#x}) by way of HLSL, {x} ({a:#x}) without").into());
        }
        largest = if a == b || apart.is_nan() { largest } else { largest.max(apart) };
    }
    Ok(largest)
}

impl Interface {
    /// Reads the bindings of an entry point, and lays the params of a case out.
    fn of(source: &str, entry: &str, case: &Case) -> Result<Interface, Box<dyn Error>> {
        let module = naga::front::wgsl::parse_str(source)?;
        let mut validator =
            naga::valid::Validator::new(naga::valid::ValidationFlags::all(), naga::valid::Capabilities::default());
        let info = validator.validate(&module).map_err(|e| e.to_string())?;
        let at = module.entry_points.iter().position(|point| point.name == entry).ok_or("no such entry point")?;
        let mut interface = Interface { buffers: Vec::new(), params: Vec::new() };
        for (handle, global) in module.global_variables.iter() {
            let Some(binding) = global.binding else { continue };
            match global.space {
                naga::AddressSpace::Uniform => {
                    let naga::TypeInner::Struct { members, span } = &module.types[global.ty].inner else {
                        return Err("the params are no struct".into());
                    };
                    interface.params = vec![0; *span as usize / 4];
                    for (name, value) in case.params {
                        let member = members.iter().find(|member| member.name.as_deref() == Some(name));
                        let member = member.ok_or_else(|| format!("no param {name}"))?;
                        interface.params[member.offset as usize / 4] = *value;
                    }
                }
                naga::AddressSpace::Storage { access } if !info.get_entry_point(at)[handle].is_empty() => {
                    let written = access.contains(naga::StorageAccess::STORE);
                    interface.buffers.push((binding.binding, written));
                }
                _ => {}
            }
        }
        // wgpu's Vulkan closes gaps between bindings, which a shader that is passed through does not know.
        for gap in 1..interface.buffers.iter().map(|(binding, _)| *binding).max().unwrap_or(0) {
            if interface.buffers.iter().all(|(binding, _)| *binding != gap) {
                interface.buffers.push((gap, false));
            }
        }
        Ok(interface)
    }
}

/// Returns the numbers of an input.
fn input(count: usize, seed: u32) -> Vec<u32> {
    let number = |i: u32| (i.wrapping_add(seed << 20).wrapping_mul(2_654_435_761) >> 8) as f32 / 2_097_152.0 - 4.0;
    (0..count as u32).map(|i| number(i).to_bits()).collect()
}

impl Machine {
    /// Opens the first adapter that takes SPIR-V.
    fn open() -> Result<Machine, Box<dyn Error>> {
        let mut descriptor = wgpu::InstanceDescriptor::new_without_display_handle();
        descriptor.backends = wgpu::Backends::VULKAN;
        let adapters = wgpu::Instance::new(descriptor).enumerate_adapters(wgpu::Backends::VULKAN);
        let able = |adapter: &wgpu::Adapter| adapter.features().contains(wgpu::Features::PASSTHROUGH_SHADERS);
        let adapter =
            pollster::block_on(adapters).into_iter().find(able).ok_or("no Vulkan adapter that takes SPIR-V")?;
        // SAFETY: the shaders that are passed through come from a compiler, which made them from texts of this
        // crate.
        #[expect(unsafe_code, reason = "a shader that wgpu does not check")]
        let experimental_features = unsafe { wgpu::ExperimentalFeatures::enabled() };
        let (device, queue) = pollster::block_on(adapter.request_device(&wgpu::DeviceDescriptor {
            required_features: wgpu::Features::PASSTHROUGH_SHADERS,
            required_limits: adapter.limits(),
            experimental_features,
            ..Default::default()
        }))?;
        Ok(Machine { name: adapter.get_info().name, device, queue })
    }

    fn passthrough(&self, bytes: &[u8], entry: &str) -> ShaderModule {
        let words: Vec<u32> = bytes.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)).collect();
        let point = wgpu::PassthroughShaderEntryPoint { name: entry.into(), workgroup_size: (1, 1, 1) };
        let descriptor = wgpu::ShaderModuleDescriptorPassthrough {
            entry_points: vec![point].into(),
            spirv: Some(words.into()),
            ..Default::default()
        };
        // SAFETY: as above; the bindings are the bindings of the layout, and indices stay within the buffers.
        #[expect(unsafe_code, reason = "a shader that wgpu does not check")]
        unsafe {
            self.device.create_shader_module_passthrough(descriptor)
        }
    }

    fn buffer(&self, words: &[u32], usage: BufferUsages) -> Buffer {
        let contents: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.device.create_buffer_init(&wgpu::util::BufferInitDescriptor { label: None, contents: &contents, usage })
    }

    /// Returns a layout for buffers, and a group of it.
    fn group(&self, buffers: &[(u32, wgpu::BufferBindingType, &Buffer)]) -> (wgpu::BindGroupLayout, BindGroup) {
        let layout: Vec<_> = buffers
            .iter()
            .map(|&(binding, ty, _)| wgpu::BindGroupLayoutEntry {
                binding,
                visibility: wgpu::ShaderStages::COMPUTE,
                ty: wgpu::BindingType::Buffer { ty, has_dynamic_offset: false, min_binding_size: None },
                count: None,
            })
            .collect();
        let layout =
            self.device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor { label: None, entries: &layout });
        let entries: Vec<_> = buffers
            .iter()
            .map(|&(binding, _, buffer)| wgpu::BindGroupEntry { binding, resource: buffer.as_entire_binding() })
            .collect();
        let descriptor = wgpu::BindGroupDescriptor { label: None, layout: &layout, entries: &entries };
        let group = self.device.create_bind_group(&descriptor);
        (layout, group)
    }

    /// Runs an entry point; returns all that it may have written.
    fn run(
        &self,
        (module, entry, constants): (&ShaderModule, &str, &[(&str, f64)]),
        interface: &Interface,
        groups: [u32; 3],
    ) -> Result<Vec<u32>, Box<dyn Error>> {
        let params = self.buffer(&interface.params, BufferUsages::UNIFORM);
        let storage = BufferUsages::STORAGE | BufferUsages::COPY_SRC;
        let buffers: Vec<(u32, bool, Buffer)> = interface
            .buffers
            .iter()
            .map(|&(binding, written)| {
                let mut words = input(WORDS, if written { 99 } else { binding });
                if !written && interface.buffers.len() == 2 {
                    words.iter_mut().skip(64).zip(ODD).for_each(|(word, odd)| *word = odd.to_bits());
                }
                (binding, written, self.buffer(&words, storage))
            })
            .collect();
        let uniform = wgpu::BufferBindingType::Uniform;
        let bound: Vec<_> = std::iter::once((0, uniform, &params))
            .chain(buffers.iter().map(|(binding, written, buffer)| {
                (*binding, wgpu::BufferBindingType::Storage { read_only: !written }, buffer)
            }))
            .collect();
        let (group_layout, group) = self.group(&bound);
        let layout = self.device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
            label: None,
            bind_group_layouts: &[Some(&group_layout)],
            immediate_size: 0,
        });
        let pipeline = self.device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: Some(entry),
            layout: Some(&layout),
            module,
            entry_point: Some(entry),
            compilation_options: wgpu::PipelineCompilationOptions { constants, ..Default::default() },
            cache: None,
        });
        let mut encoder = self.device.create_command_encoder(&Default::default());
        let mut pass = encoder.begin_compute_pass(&Default::default());
        pass.set_pipeline(&pipeline);
        pass.set_bind_group(0, &group, &[]);
        pass.dispatch_workgroups(groups[0], groups[1], groups[2]);
        drop(pass);
        let written: Vec<&Buffer> = buffers.iter().filter(|(_, written, _)| *written).map(|(.., b)| b).collect();
        let [output] = written[..] else { return Err("not one output".into()) };
        let usage = BufferUsages::COPY_DST | BufferUsages::MAP_READ;
        let back = self.buffer(&vec![0; WORDS], usage);
        encoder.copy_buffer_to_buffer(output, 0, &back, 0, None);
        self.queue.submit([encoder.finish()]);
        back.map_async(wgpu::MapMode::Read, .., |_| {});
        self.device.poll(wgpu::PollType::wait_indefinitely())?;
        let mapped = back.get_mapped_range(..)?;
        Ok(mapped.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)).collect())
    }
}
