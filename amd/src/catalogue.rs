//! Every kernel of the crate with every specialisation, in SPIR-V as wgpu writes it for a driver.

#[path = "../../tests/specialisations/mod.rs"]
mod specialisations;

use std::collections::HashSet;

use naga::back::spv;
use naga::proc::{BoundsCheckPolicies, BoundsCheckPolicy};
use naga::valid::ModuleInfo;
use naga::{AddressSpace, ShaderStage};

/// A kernel.
pub struct Module {
    /// The shader, the entry point if it has another name, the header and the constants.
    pub kernel: String,
    pub entry: String,
    /// The numbers of the bindings, and whether they are uniform.
    pub bindings: Vec<(u32, bool)>,
    pub words: Vec<u32>,
    /// The rows and columns of its cooperative matrices; 0 if it has none.
    pub matrices: u32,
}

/// The bytes of immediates that AMD's cards have: enough for the params of all kernels, except some with an
/// epilogue.
const IMMEDIATES: u32 = 256;

/// Returns the size of the uniform block of a text.
fn bytes_of_params(text: &str) -> Option<u32> {
    let module = naga::front::wgsl::parse_str(text).ok()?;
    let block = module.global_variables.iter().find(|(_, global)| global.space == AddressSpace::Uniform)?;
    Some(module.types[block.1.ty].inner.size(module.to_ctx()))
}

/// Returns all kernels. Specialisations that are the same module are one.
pub fn modules() -> Result<Vec<Module>, String> {
    let mut modules = Vec::new();
    let mut seen = HashSet::new();
    for (shader, text) in anygpu::ops::shader_catalogue() {
        let text = if bytes_of_params(&text).is_some_and(|bytes| bytes <= IMMEDIATES) {
            text.replace("@group(0) @binding(0) var<uniform> p: Params;", "var<immediate> p: Params;")
        } else {
            text
        };
        let made = specialisations::each_specialisation(&text, |module, info, entry, constants| {
            let words = words(module, info, entry).map_err(|error| error.to_string())?;
            if seen.insert((shader, entry.to_owned(), words.clone())) {
                let kernel = specialisations::name(shader, &text, entry, constants);
                let matrices = specialisations::matrix_size(&text).unwrap_or_default();
                modules.push(Module { kernel, entry: entry.to_owned(), bindings: bindings(module), words, matrices });
            }
            Ok(())
        });
        made.map_err(|why| format!("{shader}: {why}"))?;
    }
    Ok(modules)
}

fn bindings(module: &naga::Module) -> Vec<(u32, bool)> {
    let globals = module.global_variables.iter().map(|(_, global)| global);
    let bound = globals.filter_map(|global| Some((global.binding.as_ref()?.binding, global.space)));
    let mut bindings: Vec<_> = bound.map(|(binding, space)| (binding, space == AddressSpace::Uniform)).collect();
    bindings.sort_unstable();
    bindings.dedup();
    bindings
}

/// Returns a module as wgpu gives it to a driver of Vulkan 1.3, without the checks that the crate's own kernels go without.
fn words(module: &naga::Module, info: &ModuleInfo, entry: &str) -> Result<Vec<u32>, spv::Error> {
    let unchecked = BoundsCheckPolicy::Unchecked;
    let options = spv::Options {
        lang_version: (1, 6),
        flags: spv::WriterFlags::empty(),
        bounds_check_policies: BoundsCheckPolicies {
            index: unchecked,
            buffer: unchecked,
            image_load: unchecked,
            binding_array: unchecked,
        },
        zero_initialize_workgroup_memory: spv::ZeroInitializeWorkgroupMemoryMode::None,
        force_loop_bounding: false,
        emit_int_div_checks: false,
        ..spv::Options::default()
    };
    let wanted = spv::PipelineOptions { shader_stage: ShaderStage::Compute, entry_point: entry.to_owned() };
    spv::write_vec(module, info, &options, Some(&wanted))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_of_the_table_have_names_of_their_own() {
        let modules = modules().expect("valid shaders");
        assert!(modules.len() > 500, "only {} kernels: has the catalogue lost some?", modules.len());
        let in_table = modules.iter().filter(|module| crate::is_in_table(module));
        let mut names = HashSet::new();
        in_table.for_each(|module| assert!(names.insert(&module.kernel), "{} twice", module.kernel));
        assert!(names.contains(&"matmul_tiles HAS_BIAS=1".to_owned()), "{names:?}");
    }
}
