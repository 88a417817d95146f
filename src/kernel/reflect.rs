//! The bindings that a WGSL source declares: parsed and validated by naga, without a device.

use naga::valid::{Capabilities, GlobalUse, ModuleInfo, ValidationFlags, Validator};
use naga::{
    AddressSpace, ArraySize, Binding, BuiltIn, Scalar, ScalarKind, ShaderStage, Statement, StorageAccess, TypeInner,
    VectorSize,
};

use super::uniform::Uniform;
use super::{bounds, limits};
use crate::dtype::DType;

/// A storage binding.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct StorageBinding {
    pub name: String,
    pub binding: u32,
    /// `read_write`: an output.
    pub written: bool,
    /// Whether the entry point reads its elements other than by atomics.
    pub read: bool,
    pub dtype: DType,
    /// Elements of the tensor in an element of the array: 2 or 4 for vectors.
    pub width: usize,
}

/// The bindings of one entry point.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Reflection {
    /// Inputs and outputs together, in the order of their bindings.
    pub bindings: Vec<StorageBinding>,
    pub params: Option<Uniform>,
    /// `@workgroup_size`; `None` if it is an `override`.
    pub workgroup_size: Option<[u32; 3]>,
    /// Whether the entry point takes `@builtin(num_workgroups)`.
    pub counts_workgroups: bool,
    /// Whether the source contains a loop.
    pub loops: bool,
    /// Bytes of `var<workgroup>` memory.
    pub workgroup_bytes: u64,
}

/// Parses and checks `source`; the error has the line and an excerpt.
pub(super) fn reflect(source: &str, entry: &str) -> Result<Reflection, String> {
    let (module, info) = validate(source)?;
    limits::check(&module)?;
    let is_entry = |point: &naga::EntryPoint| point.name == entry && point.stage == ShaderStage::Compute;
    let index = module.entry_points.iter().position(is_entry).ok_or_else(|| {
        let names: Vec<_> = module.entry_points.iter().map(|point| &*point.name).collect();
        format!("there is no such @compute entry point; the source has [{}]", names.join(", "))
    })?;
    let uses = info.get_entry_point(index);
    let point = &module.entry_points[index];
    let mut reflection = Reflection {
        bindings: Vec::new(),
        params: None,
        workgroup_size: point.workgroup_size_overrides.is_none().then_some(point.workgroup_size),
        counts_workgroups: counts_workgroups(&module, point),
        loops: has_loops(&module),
        workgroup_bytes: 0,
    };
    for (handle, global) in module.global_variables.iter().filter(|(handle, _)| !uses[*handle].is_empty()) {
        reflection.add(&module, global, uses[handle])?;
    }
    reflection.bindings.sort_by_key(|arg| arg.binding);
    Ok(reflection)
}

/// Returns the source with the indices that OpenGL does not check clamped.
pub(super) fn clamped(source: &str) -> Result<String, String> {
    let source = bounds::without_comments(source);
    let (module, info) = validate(&source)?;
    bounds::clamped(&source, &module, &info)
}

fn validate(source: &str) -> Result<(naga::Module, ModuleInfo), String> {
    let at_line = |location: Option<naga::SourceLocation>, text: String| match location {
        Some(location) => format!("line {}: {text}", location.line_number),
        None => text,
    };
    let module = naga::front::wgsl::parse_str(source)
        .map_err(|error| at_line(error.location(source), error.emit_to_string(source)))?;
    // wgpu does not check what a fragment of a cooperative matrix reads and writes.
    if bounds::without_comments(source).contains("wgpu_cooperative_matrix") {
        return Err(
            "cooperative matrices are not for kernels of users: their loads and stores cannot be checked".into()
        );
    }
    let info = Validator::new(ValidationFlags::all(), Capabilities::all())
        .validate(&module)
        .map_err(|error| at_line(error.location(source), error.emit_to_string(source)))?;
    Ok((module, info))
}

impl Reflection {
    /// Adds a global variable that the entry point uses; workgroup and private variables are not bound.
    fn add(&mut self, module: &naga::Module, global: &naga::GlobalVariable, uses: GlobalUse) -> Result<(), String> {
        if global.space == AddressSpace::WorkGroup {
            self.workgroup_bytes += u64::from(module.types[global.ty].inner.size(module.to_ctx()).next_multiple_of(16));
        }
        let Some(at) = &global.binding else { return Ok(()) };
        let name = global.name.clone().unwrap_or_else(|| format!("@binding({})", at.binding));
        if at.group != 0 {
            return Err(format!("'{name}' is in @group({}): put all bindings into group 0", at.group));
        }
        match global.space {
            AddressSpace::Storage { access } => {
                let Element { dtype, width, atomic } = element_type(module, global.ty).ok_or_else(|| {
                    format!(
                        "'{name}' is not an array<f32>, array<i32> or array<u32> (or vec2, vec4 or atomic of them) \
                         without a size"
                    )
                })?;
                let written = access.contains(StorageAccess::STORE);
                let read = uses.contains(GlobalUse::READ) && !atomic;
                self.bindings.push(StorageBinding { name, binding: at.binding, written, read, dtype, width });
            }
            AddressSpace::Uniform if self.params.is_some() => {
                return Err(format!("'{name}' is a second uniform: put all params into one struct"));
            }
            AddressSpace::Uniform => {
                self.params = Some(Uniform::of(module, global, at.binding, &name)?);
            }
            _ => return Err(format!("'{name}' is neither a storage array nor a uniform")),
        }
        Ok(())
    }
}

/// The element of an array.
struct Element {
    dtype: DType,
    width: usize,
    atomic: bool,
}

/// The element of a runtime-sized array of 4-byte numbers, or of vectors of them that have no gaps between them.
fn element_type(module: &naga::Module, ty: naga::Handle<naga::Type>) -> Option<Element> {
    let TypeInner::Array { base, size: ArraySize::Dynamic, .. } = module.types[ty].inner else { return None };
    let (scalar, width, atomic) = match module.types[base].inner {
        TypeInner::Scalar(scalar) => (scalar, 1, false),
        TypeInner::Atomic(scalar) => (scalar, 1, true),
        TypeInner::Vector { size: VectorSize::Bi, scalar } => (scalar, 2, false),
        TypeInner::Vector { size: VectorSize::Quad, scalar } => (scalar, 4, false),
        _ => return None,
    };
    Some(Element { dtype: number(scalar)?, width, atomic })
}

pub(super) fn number(scalar: Scalar) -> Option<DType> {
    match (scalar.kind, scalar.width) {
        (ScalarKind::Float, 4) => Some(DType::F32),
        (ScalarKind::Sint, 4) => Some(DType::I32),
        (ScalarKind::Uint, 4) => Some(DType::U32),
        _ => None,
    }
}

/// Returns whether an entry point takes the number of workgroups, as an argument or in a struct.
fn counts_workgroups(module: &naga::Module, point: &naga::EntryPoint) -> bool {
    let counts = |binding: &Option<Binding>| *binding == Some(Binding::BuiltIn(BuiltIn::NumWorkGroups));
    point.function.arguments.iter().any(|argument| match &module.types[argument.ty].inner {
        TypeInner::Struct { members, .. } => members.iter().any(|member| counts(&member.binding)),
        _ => counts(&argument.binding),
    })
}

fn has_loops(module: &naga::Module) -> bool {
    let helpers = module.functions.iter().map(|(_, function)| &function.body);
    let entries = module.entry_points.iter().map(|point| &point.function.body);
    helpers.chain(entries).any(block_loops)
}

fn block_loops(block: &naga::Block) -> bool {
    block.iter().any(|statement| match statement {
        Statement::Loop { .. } => true,
        Statement::Block(inner) => block_loops(inner),
        Statement::If { accept, reject, .. } => block_loops(accept) || block_loops(reject),
        Statement::Switch { cases, .. } => cases.iter().any(|case| block_loops(&case.body)),
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use super::super::WgslKernel;
    use crate::{DType, Device, Result, Tensor};

    /// What a fragment reads and writes is not checked, so a kernel could leave its buffers.
    #[test]
    fn cooperative_matrices_are_refused() {
        let source = |body: &str| {
            format!(
                "enable wgpu_cooperative_matrix;
                @group(0) @binding(0) var<storage, read> x: array<f32>;
                @group(0) @binding(1) var<storage, read_write> y: array<f32>;
                @compute @workgroup_size(64) fn f() {{ {body} }}"
            )
        };
        let other = source("y[0] = x[0];").replace("enable wgpu_cooperative_matrix;", "/* wgpu_cooperative_matrix */");
        assert!(WgslKernel::new(&other, "f").is_ok());
        let body = "coopStore(coopLoad<coop_mat8x8<f32, C>>(&x[0], 1000u), &y[0], 1000u);";
        let error = WgslKernel::new(&source(body), "f").map(drop).unwrap_err().to_string();
        assert!(error.contains("cooperative matrices"), "{error}");
    }

    #[test]
    fn arrays_of_vectors_are_bound_to_whole_numbers_of_them() -> Result<()> {
        let source = "
            @group(0) @binding(0) var<storage, read> x: array<vec4<f32>>;
            @group(0) @binding(1) var<storage, read> y: array<vec2<i32>>;
            @group(0) @binding(2) var<storage, read_write> z: array<vec4<f32>>;
            @compute @workgroup_size(64)
            fn reversed(@builtin(global_invocation_id) id: vec3<u32>) {
                if id.x < arrayLength(&z) { z[id.x] = x[id.x].wzyx + vec4<f32>(y[id.x].xyxy) + f32(arrayLength(&x)); }
            }";
        let kernel = WgslKernel::new(source, "reversed")?;
        for device in Device::all().into_iter().filter(|device| !device.is_cpu()) {
            let x = Tensor::from_slice(&[1f32, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0], [8], &device)?;
            let y = Tensor::from_slice(&[10i32, 20, 30, 40], [2, 2], &device)?;
            let run = |x: &Tensor, len: usize| kernel.run(&[x, &y], &[([len], DType::F32)], &[], [1, 1, 1]);
            let z = run(&x, 8)?[0].to_vec::<f32>()?;
            assert_eq!(z, [16.0, 25.0, 14.0, 23.0, 40.0, 49.0, 38.0, 47.0], "{device}");
            let wrong = run(&x.narrow(0, 0, 6)?, 8).map(drop).unwrap_err().to_string();
            assert!(wrong.contains("input 'x' is of vectors of 4 elements") && wrong.contains("6 elements"), "{wrong}");
            let wrong = run(&x, 7).map(drop).unwrap_err().to_string();
            assert!(wrong.contains("output 'z' is of vectors of 4 elements"), "{wrong}");
        }
        Ok(())
    }
}
