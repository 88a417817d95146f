//! Every specialisation of a shader, for all who go through them: the test that translates them, and `amd/` and
//! `translate/`, which hand them to compilers.

use naga::back::PipelineConstants;
use naga::back::pipeline_constants::process_overrides;
use naga::valid::{Capabilities, ModuleInfo, SubgroupOperationSet, ValidationFlags, Validator};
use naga::{Module, ShaderStage};

/// Values that no code of an `OP` goes beyond.
const CODES: u32 = 8;

/// All values that an override is tried with: `None` leaves it at its default.
fn choices(module: &Module, constant: &naga::Override) -> Vec<Option<f64>> {
    use naga::{Scalar, ScalarKind, TypeInner};
    let TypeInner::Scalar(Scalar { kind, .. }) = module.types[constant.ty].inner else {
        panic!("override {:?} is no scalar", constant.name);
    };
    let mut values: Vec<f64> = match (kind, constant.name.as_deref()) {
        (ScalarKind::Bool, _) => vec![0.0, 1.0],
        (_, Some("OP")) => (0..CODES).map(f64::from).collect(),
        (_, Some("W")) => vec![8.0, 64.0],
        (_, Some("PANELS")) => vec![1.0, 2.0, 3.0, 4.0],
        (_, Some("FEATURE")) => vec![0.0, 1.0, 2.0],
        (_, Some("RELU")) => vec![0.0, 1.0, 2.0],
        // A size, or the type of an operand: all together get other values below.
        (_, Some(_)) if constant.init.is_some() => vec![],
        (_, name) => panic!("tell the shader test which values the override {name:?} takes"),
    };
    let default = constant.init.and_then(|init| match module.global_expressions[init] {
        naga::Expression::Literal(naga::Literal::Bool(value)) => Some(f64::from(u8::from(value))),
        naga::Expression::Literal(naga::Literal::U32(value)) => Some(value.into()),
        _ => None,
    });
    values.retain(|value| Some(*value) != default);
    let mut all: Vec<_> = constant.init.map(|_| None).into_iter().collect();
    all.extend(values.drain(..).map(Some));
    all
}

/// Every combination of override values.
fn values(module: &Module) -> Vec<PipelineConstants> {
    let mut all = vec![PipelineConstants::default()];
    for (_, constant) in module.overrides.iter() {
        let name = constant.name.clone().expect("overrides have names");
        let mut next = Vec::new();
        for chosen in &all {
            for value in choices(module, constant) {
                let mut chosen = chosen.clone();
                value.map(|value| chosen.insert(name.clone(), value));
                next.push(chosen);
            }
        }
        all = next;
    }
    let others = module.overrides.iter().filter(|(_, c)| c.init.is_some() && choices(module, c).len() == 1);
    let names = others.map(|(_, c)| c.name.clone().expect("a name"));
    let (types, sizes): (Vec<_>, Vec<_>) = names.partition(|name| name.ends_with("HALVES"));
    for (names, value) in [(&sizes, 3.0), (&types, 1.0), (&types, 2.0)] {
        let chosen: PipelineConstants = names.iter().map(|name| (name.clone(), value)).collect();
        if !chosen.is_empty() {
            all.push(chosen);
        }
    }
    all
}

/// Returns a valid module of a text of the catalogue.
fn parsed(text: &str) -> Result<(Module, ModuleInfo), String> {
    let module = naga::front::wgsl::parse_str(text).map_err(|e| e.emit_to_string(text))?;
    // What every adapter can do, but for the variants that are only used where there are subgroups.
    let subgroups = if text.contains("subgroup") { Capabilities::SUBGROUP } else { Capabilities::default() };
    let matrices = Capabilities::COOPERATIVE_MATRIX | Capabilities::SHADER_FLOAT16;
    let matrices = if matrix_size(text).is_some() { matrices } else { Capabilities::default() };
    let capabilities = Capabilities::IMMEDIATES | subgroups | matrices;
    let mut validator = Validator::new(ValidationFlags::all(), capabilities);
    validator.subgroup_stages(naga::valid::ShaderStages::COMPUTE).subgroup_operations(SubgroupOperationSet::all());
    let info = validator.validate(&module).map_err(|e| e.emit_to_string(text))?;
    Ok((module, info))
}

/// Returns the rows and columns of the cooperative matrices of a text that has such.
pub fn matrix_size(text: &str) -> Option<u32> {
    [16, 8].into_iter().find(|size| text.contains(&format!("coop_mat{size}x{size}")))
}

/// The first line of the text that follows the header of each shader.
const AFTER_HEADER: &str = "// Precedes every shader";

/// Returns the name of a specialisation: the shader, the entry point if it has another name, the header of the text and the
/// constants.
pub fn name(shader: &str, text: &str, entry: &str, constants: &PipelineConstants) -> String {
    let header = text.split(AFTER_HEADER).next().unwrap_or_default();
    let mut constants: Vec<String> = constants.iter().map(|(name, value)| format!("{name}={value}")).collect();
    constants.sort();
    let own = if entry == shader { String::new() } else { entry.to_owned() };
    let parts = [shader.to_owned(), own, short(header), constants.join(" ")];
    parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" ")
}

/// Returns a header in one line, without what can be guessed.
fn short(header: &str) -> String {
    let known = matrix_size(header).is_some();
    let lines = header.lines().filter(|line| !known || line.starts_with("//"));
    let line = lines.flat_map(str::split_whitespace).collect::<Vec<_>>().join(" ");
    let line = line.replace("alias ", "").replace(" = ", "=").replace(';', "");
    if line.chars().count() > 80 { line.chars().take(79).chain(['…']).collect() } else { line }
}

/// Calls `f` with every specialisation of every entry point of a text of the catalogue: the module, the name of the entry
/// point and the constants. An error names the specialisation.
pub fn each_specialisation(
    text: &str,
    mut f: impl FnMut(&Module, &ModuleInfo, &str, &PipelineConstants) -> Result<(), String>,
) -> Result<(), String> {
    let (module, info) = parsed(text)?;
    for constants in values(&module) {
        for entry in &module.entry_points {
            let say = |why: String| format!("{} with {constants:?}: {why}", entry.name);
            let point = Some((ShaderStage::Compute, entry.name.as_str()));
            let (module, info) =
                process_overrides(&module, &info, point, &constants).map_err(|e| say(e.to_string()))?;
            f(&module, &info, &entry.name, &constants).map_err(say)?;
        }
    }
    Ok(())
}
