//! The kernels as files: the WGSL as the crate assembles it, with the specialisations to compile it with, and each
//! specialisation in HLSL as wgpu writes it for DirectX 12.

#[path = "../../tests/specialisations/mod.rs"]
mod specialisations;

use std::collections::{BTreeMap, HashMap};
use std::error::Error;
use std::fs;
use std::path::Path;

use naga::back::hlsl;
use naga::back::hlsl::ShaderModel;
use naga::valid::ModuleInfo;
use naga::{Module, ShaderStage};
use serde::{Deserialize, Serialize};

use crate::cases;

/// What `kernels.json` has.
#[derive(Debug, Deserialize, Serialize)]
pub struct Catalogue {
    /// The version of HLSL's shader model, as compilers name it.
    profile: String,
    pub texts: Vec<Text>,
}

/// A WGSL file.
#[derive(Debug, Deserialize, Serialize)]
pub struct Text {
    pub file: String,
    subgroups: bool,
    pub kernels: Vec<Kernel>,
}

/// A specialisation of an entry point.
#[derive(Debug, Deserialize, Serialize)]
pub struct Kernel {
    pub name: String,
    pub entry: String,
    pub constants: BTreeMap<String, f64>,
    pub hlsl: Hlsl,
    /// Whether `compare` runs it: then it is wanted in SPIR-V too.
    compared: bool,
}

/// The HLSL of a kernel. It is also the HLSL of an earlier kernel, if the constants do not change it.
#[derive(Debug, Deserialize, Serialize)]
pub struct Hlsl {
    pub entry: String,
    pub file: String,
    /// With wgpu's checks of indices and loops.
    checked: String,
}

/// Files that were written, by their texts.
struct Files<'a> {
    folder: &'a Path,
    by_text: HashMap<String, String>,
}

impl Files<'_> {
    /// Returns the name of a file with this text.
    fn put(&mut self, text: String, extension: &str) -> Result<String, String> {
        if let Some(name) = self.by_text.get(&text) {
            return Ok(name.clone());
        }
        let name = format!("{:04}.{extension}", self.by_text.len());
        fs::write(self.folder.join(&name), &text).map_err(|e| format!("{name}: {e}"))?;
        self.by_text.insert(text, name.clone());
        Ok(name)
    }
}

/// The lowest shader model of DirectX's current compiler.
const MODEL: ShaderModel = ShaderModel::V6_0;

/// Returns the text of a kernel, and the name of its entry point, as wgpu gives them to DirectX 12, except for the
/// number of workgroups, which no kernel asks for.
///
/// # Errors
///
/// The writer's message.
fn to_hlsl(module: &Module, info: &ModuleInfo, entry: &str, checked: bool) -> Result<(String, String), String> {
    let options = hlsl::Options {
        shader_model: MODEL,
        zero_initialize_workgroup_memory: checked,
        restrict_indexing: checked,
        force_loop_bounding: checked,
        ..hlsl::Options::default()
    };
    let pipeline = hlsl::PipelineOptions { entry_point: Some((ShaderStage::Compute, entry.to_owned())) };
    let mut text = String::new();
    let reflection =
        hlsl::Writer::new(&mut text, &options, &pipeline).write(module, info, None).map_err(|e| e.to_string())?;
    let [Ok(name)] = &reflection.entry_point_names[..] else { return Err("no entry point".into()) };
    Ok((text, name.clone()))
}

/// Writes every kernel into a folder that is empty, and `kernels.json`; returns the number of kernels.
///
/// # Errors
///
/// A text that is not valid, or a file that cannot be written.
pub fn write(folder: &Path) -> Result<usize, Box<dyn Error>> {
    let mut files = Files { folder, by_text: HashMap::new() };
    let mut catalogue = Catalogue { profile: format!("cs_{}", MODEL.to_str()), texts: Vec::new() };
    for (shader, text) in anygpu::ops::shader_catalogue() {
        // Cooperative matrices are wgpu's own extension of WGSL: Tint does not know it, and DirectX has none.
        if specialisations::matrix_size(&text).is_some() {
            continue;
        }
        let mut kernels = Vec::new();
        let made = specialisations::each_specialisation(&text, |module, info, entry, constants| {
            let (unchecked, hlsl_entry) = to_hlsl(module, info, entry, false)?;
            let (checked, _) = to_hlsl(module, info, entry, true)?;
            let name = specialisations::name(shader, &text, entry, constants);
            kernels.push(Kernel {
                compared: cases::of(&name).is_some(),
                name,
                entry: entry.to_owned(),
                constants: constants.iter().map(|(name, value)| (name.clone(), *value)).collect(),
                hlsl: Hlsl {
                    entry: hlsl_entry,
                    file: files.put(unchecked, "hlsl")?,
                    checked: files.put(checked, "hlsl")?,
                },
            });
            Ok(())
        });
        made.map_err(|why| format!("{shader}: {why}"))?;
        let subgroups = text.contains("subgroup");
        catalogue.texts.push(Text { file: files.put(text, "wgsl")?, subgroups, kernels });
    }
    fs::write(folder.join("kernels.json"), serde_json::to_string_pretty(&catalogue)?)?;
    Ok(catalogue.texts.iter().map(|text| text.kernels.len()).sum())
}
