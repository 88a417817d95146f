//! The bindings that a WGSL source declares: parsed and validated by naga, without a device.

use naga::valid::{Capabilities, GlobalUse, ModuleInfo, ValidationFlags, Validator};
use naga::{AddressSpace, Binding, BuiltIn, Scalar, ScalarKind, ShaderStage, Statement, StorageAccess, TypeInner};

use super::contents::{Contents, contents};
use super::uniform::Uniform;
use super::{bounds, directives, layout, limits, overrides};
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
    /// Numbers before the array: the members of a struct before its last member, which is the array.
    pub head: usize,
    /// Numbers in an element of the array: more than 1 for vectors, matrices and structs; 0 if the size is fixed.
    pub width: usize,
    /// The fewest numbers, with the padding at the end of a struct.
    pub least: usize,
}

/// The bindings of one entry point.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Reflection {
    /// Inputs and outputs together, in the order of their bindings.
    pub bindings: Vec<StorageBinding>,
    pub params: Option<Uniform>,
    /// `@workgroup_size`.
    pub workgroup_size: [u32; 3],
    /// Whether the entry point takes `@builtin(num_workgroups)`.
    pub counts_workgroups: bool,
    /// Bytes of `var<workgroup>` memory.
    pub workgroup_bytes: u64,
    /// Whether the source has `f16`, which not all adapters compute with.
    pub halves: bool,
    /// Whether the source has functions of subgroups, which not all adapters have.
    pub subgroups: bool,
    /// A member or an array that OpenGL would put elsewhere.
    pub moved: Option<String>,
}

/// A source that was parsed and checked.
pub(super) struct Reflected {
    /// With the overrides as constants.
    pub source: String,
    pub reflection: Reflection,
    /// Whether it contains a loop.
    pub loops: bool,
}

/// Parses and checks `source` with values for its overrides; the error has the line and an excerpt.
pub(super) fn reflect(source: &str, entry: &str, values: &[(&str, f64)]) -> Result<Reflected, String> {
    let (mut source, enabled) = directives::without_subgroups(source);
    let (mut module, mut info) = validate(&source)?;
    limits::check(&module, &info)?;
    if !module.overrides.is_empty() || !values.is_empty() {
        source = overrides::with_values(&source, &module, entry, values)?;
        (module, info) = validate(&source)?;
        limits::check(&module, &info)?;
    }
    let mut reflection = reflection(&module, &info, entry)?;
    reflection.subgroups = enabled.subgroups || has_subgroups(&source, &module);
    reflection.halves |= enabled.halves;
    Ok(Reflected { source, reflection, loops: has_loops(&module) })
}

fn reflection(module: &naga::Module, info: &ModuleInfo, entry: &str) -> Result<Reflection, String> {
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
        workgroup_size: point.workgroup_size,
        counts_workgroups: counts_workgroups(module, point),
        workgroup_bytes: 0,
        halves: module.types.iter().any(|(_, ty)| ty.inner.scalar().is_some_and(is_half)),
        subgroups: false,
        moved: None,
    };
    limits::check_private(module, uses)?;
    for (handle, global) in module.global_variables.iter().filter(|(handle, _)| !uses[*handle].is_empty()) {
        reflection.add(module, global, uses[handle])?;
    }
    reflection.bindings.sort_by_key(|arg| arg.binding);
    Ok(reflection)
}

/// Returns the names of the compute entry points.
pub(super) fn entry_points(source: &str) -> Result<Vec<String>, String> {
    let (module, _) = validate(&directives::without_subgroups(source).0)?;
    let points = module.entry_points.iter().filter(|point| point.stage == ShaderStage::Compute);
    Ok(points.map(|point| point.name.clone()).collect())
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

/// Returns whether a valid module needs an adapter with subgroups.
fn has_subgroups(source: &str, module: &naga::Module) -> bool {
    let without = Capabilities::all().difference(Capabilities::SUBGROUP | Capabilities::SUBGROUP_BARRIER);
    source.contains("subgroup") && Validator::new(ValidationFlags::all(), without).validate(module).is_err()
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
        self.moved = self.moved.take().or_else(|| layout::moved(module, global));
        match global.space {
            AddressSpace::Storage { access } => {
                let Contents { dtype, head, width, least, atomic } = contents(module, global.ty).ok_or_else(|| {
                    format!("'{name}' must be made of f32, f16, i32 and u32, or of atomics of the integers")
                })?;
                let written = access.contains(StorageAccess::STORE);
                let read = uses.contains(GlobalUse::READ) && !atomic;
                self.bindings.push(StorageBinding {
                    name,
                    binding: at.binding,
                    written,
                    read,
                    dtype,
                    head,
                    width,
                    least,
                });
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

/// Returns the element type of a scalar in storage.
pub(super) fn element(scalar: Scalar) -> Option<DType> {
    if is_half(scalar) { Some(DType::F16) } else { number(scalar) }
}

fn is_half(scalar: Scalar) -> bool {
    (scalar.kind, scalar.width) == (ScalarKind::Float, 2)
}

/// Returns the element type of a scalar in a uniform.
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
}
