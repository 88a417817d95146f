//! Every shader with every specialisation is valid and can be translated to every language that drivers accept. No GPU
//! is needed.

use naga::back::{glsl, hlsl, msl, spv};
use naga::valid::ModuleInfo;
use naga::{Module, ShaderStage};

use crate::source;
use crate::specialisations::{each_specialisation, matrix_size, name};

/// Translates one entry point of a specialised shader to every language; says which one refuses. Cooperative matrices of 16 × 16
/// are in SPIR-V only, and those of 8 × 8 also in Metal's language.
fn translate(module: &Module, info: &ModuleInfo, entry: &str, matrices: Option<u32>) -> Result<(), String> {
    let point = || Some((ShaderStage::Compute, entry.to_owned()));
    let options = spv::PipelineOptions { shader_stage: ShaderStage::Compute, entry_point: entry.to_owned() };
    spv::write_vec(module, info, &spv::Options::default(), Some(&options)).map_err(|e| format!("SPIR-V: {e}"))?;

    if matrices == Some(16) {
        return Ok(());
    }

    let options = msl::PipelineOptions { entry_point: point(), ..Default::default() };
    let version = if matrices.is_some() { (2, 3) } else { msl::Options::default().lang_version };
    let language = msl::Options { lang_version: version, ..Default::default() };
    msl::write_string(module, info, &language, &options).map_err(|e| format!("MSL: {e}"))?;
    if matrices.is_some() {
        return Ok(());
    }

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

/// Checks one text of the catalogue; returns the number of translated specialisations.
fn check(shader: &str, text: &str) -> Result<usize, String> {
    let mut translated = 0;
    // naga's HLSL has the place of the workgroup in its stead, except where an entry point itself reads it.
    if text.contains("num_workgroups") {
        return Err("a kernel must not ask for the number of workgroups".into());
    }
    each_specialisation(text, |module, info, entry, constants| {
        translated += 1;
        translate(module, info, entry, matrix_size(text))
            .map_err(|why| format!("{}: {why}", name(shader, text, entry, constants)))
    })?;
    Ok(translated)
}

#[test]
fn every_specialisation_translates_to_every_language() {
    let catalogue = anygpu::ops::shader_catalogue();
    let results: Vec<_> = catalogue.iter().map(|(name, text)| (name, check(name, text))).collect();
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

/// naga translates no attributes of members, such as `@align`, to GLSL: each is where its type allows it. So every member of the
/// params has to be there.
#[test]
fn members_of_params_are_where_their_types_put_them() -> Result<(), Box<dyn std::error::Error>> {
    for (name, text) in anygpu::ops::shader_catalogue() {
        let module = naga::front::wgsl::parse_str(&text).map_err(|e| e.emit_to_string(&text))?;
        let mut layouter = naga::proc::Layouter::default();
        layouter.update(module.to_ctx())?;
        for (_, block) in module.global_variables.iter().filter(|(_, v)| v.space == naga::AddressSpace::Uniform) {
            let naga::TypeInner::Struct { members, .. } = &module.types[block.ty].inner else { continue };
            let mut end = 0;
            for member in members {
                let layout = &layouter[member.ty];
                let place = layout.alignment.round_up(end);
                assert_eq!(member.offset, place, "{name}: {:?} has an attribute, or follows one", member.name);
                end = place + layout.size;
            }
        }
    }
    Ok(())
}
