//! Every shader with every specialisation is valid and can be translated to every language that drivers accept. No GPU
//! is needed.

mod source;

use naga::back::pipeline_constants::process_overrides;
use naga::back::{PipelineConstants, glsl, hlsl, msl, spv};
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
        // A size: all together get other values below.
        (_, Some(_)) if constant.init.is_some() => vec![],
        (_, name) => panic!("tell the shader test which values the override {name:?} takes"),
    };
    let mut all: Vec<_> = constant.init.map(|_| None).into_iter().collect();
    all.extend(values.drain(..).map(Some));
    all
}

/// Every combination of override values.
fn specialisations(module: &Module) -> Vec<PipelineConstants> {
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
    let sizes = module.overrides.iter().filter(|(_, c)| c.init.is_some() && choices(module, c).len() == 1);
    let threes: PipelineConstants = sizes.map(|(_, c)| (c.name.clone().expect("a name"), 3.0)).collect();
    if !threes.is_empty() {
        all.push(threes);
    }
    all
}

/// Translates one entry point of a specialised shader to every language; says which one refuses.
fn translate(module: &Module, info: &ModuleInfo, entry: &str) -> Result<(), String> {
    let point = || Some((ShaderStage::Compute, entry.to_owned()));
    let options = spv::PipelineOptions { shader_stage: ShaderStage::Compute, entry_point: entry.to_owned() };
    spv::write_vec(module, info, &spv::Options::default(), Some(&options)).map_err(|e| format!("SPIR-V: {e}"))?;

    let options = msl::PipelineOptions { entry_point: point(), ..Default::default() };
    msl::write_string(module, info, &msl::Options::default(), &options).map_err(|e| format!("MSL: {e}"))?;

    let (options, pipeline) = (hlsl::Options::default(), hlsl::PipelineOptions { entry_point: point() });
    let mut text = String::new();
    hlsl::Writer::new(&mut text, &options, &pipeline).write(module, info, None).map_err(|e| format!("HLSL: {e}"))?;

    let version = glsl::Version::Embedded { version: 310, is_webgl: false };
    let options = glsl::Options { version, ..Default::default() };
    let pipeline =
        glsl::PipelineOptions { shader_stage: ShaderStage::Compute, entry_point: entry.to_owned(), multiview: None };
    let mut text = String::new();
    let mut writer = glsl::Writer::new(&mut text, module, info, &options, &pipeline, Default::default())
        .map_err(|e| format!("GLSL: {e}"))?;
    writer.write().map_err(|e| format!("GLSL: {e}"))?;
    Ok(())
}

/// Checks one text of the catalogue; gives the number of translated specialisations.
fn check(text: &str) -> Result<usize, String> {
    let module = naga::front::wgsl::parse_str(text).map_err(|e| e.emit_to_string(text))?;
    // What every adapter can do, but for the variants that are only used where there are subgroups.
    let subgroups = text.contains("subgroup");
    let capabilities = if subgroups { Capabilities::SUBGROUP } else { Capabilities::default() };
    let mut validator = Validator::new(ValidationFlags::all(), capabilities);
    validator.subgroup_stages(naga::valid::ShaderStages::COMPUTE).subgroup_operations(SubgroupOperationSet::all());
    let info = validator.validate(&module).map_err(|e| e.emit_to_string(text))?;
    let mut translated = 0;
    for constants in specialisations(&module) {
        for entry in &module.entry_points {
            let say = |why: String| format!("{} with {constants:?}: {why}", entry.name);
            let point = Some((ShaderStage::Compute, entry.name.as_str()));
            let (module, info) =
                process_overrides(&module, &info, point, &constants).map_err(|e| say(e.to_string()))?;
            translate(&module, &info, &entry.name).map_err(say)?;
            translated += 1;
        }
    }
    Ok(translated)
}

#[test]
fn every_specialisation_translates_to_every_language() {
    let catalogue = anygpu::ops::shader_catalogue();
    let results: Vec<_> = catalogue.iter().map(|(name, text)| (name, check(text))).collect();
    let failures: Vec<_> =
        results.iter().filter_map(|(name, r)| r.as_ref().err().map(|why| format!("{name}: {why}"))).collect();
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
    let total: usize = results.into_iter().map(|(_, r)| r.unwrap_or(0)).sum();
    assert!(total > 60, "only {total} specialisations: has the catalogue lost some?");
}

#[test]
fn every_file_is_in_the_catalogue() {
    let catalogue = anygpu::ops::shader_catalogue();
    for (path, text) in source::files("shaders") {
        let used = catalogue.iter().any(|(_, full)| full.contains(&text));
        assert!(used, "no shader!(…) of src/ops is made of {}", path.display());
    }
}
