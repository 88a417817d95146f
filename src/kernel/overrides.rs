//! Values for the overrides of a source: each becomes a constant of the text, before anything is checked or compiled.
//!
//! In this way all checks know the sizes of arrays and of workgroups, on every backend.

use naga::compact::{KeepUnused, compact};
use naga::{Module, Scalar, ScalarKind, TypeInner};

use super::arguments::check_names;
use super::bounds::without_comments;

/// Returns the source with the overrides as constants: with the given values, or with their defaults. Overrides
/// without a value stay as they are if the entry point does not use them.
pub(super) fn with_values(
    source: &str,
    module: &Module,
    entry: &str,
    values: &[(&str, f64)],
) -> Result<String, String> {
    let names: Vec<&str> = module.overrides.iter().filter_map(|(_, found)| found.name.as_deref()).collect();
    check_names("override", values, &names)?;
    if names.is_empty() {
        return Ok(source.to_string());
    }
    let used = used_by(module, entry);
    let source = without_comments(source);
    let mut text = String::with_capacity(source.len());
    let mut rest = &*source;
    while let Some((before, declaration, after)) = next_declaration(rest) {
        let (head, default) = match declaration.split_once('=') {
            Some((head, default)) => (head.trim(), Some(default.trim())),
            None => (declaration.trim(), None),
        };
        let name = head.split(':').next().unwrap_or(head).trim();
        let found = module.overrides.iter().map(|(_, found)| found).find(|found| found.name.as_deref() == Some(name));
        let scalar = match found.map(|found| &module.types[found.ty].inner) {
            Some(TypeInner::Scalar(scalar)) => *scalar,
            _ => return Err(format!("override '{name}' is not a number")),
        };
        let value = match (values.iter().find(|(given, _)| *given == name), default) {
            (Some((_, value)), _) => literal(name, scalar, *value)?,
            // Nothing that the entry point uses depends on it.
            _ if !used.iter().any(|used| used == name) => {
                text.push_str(&format!("{before}override{declaration};"));
                rest = after;
                continue;
            }
            (None, Some(default)) => default.to_string(),
            (None, None) => {
                let advice = "give it one, with WgslKernel::with_overrides or --override";
                return Err(format!("override '{name}' has no value: {advice}"));
            }
        };
        // A constant without a type would be of an abstract one, with other arithmetic.
        let start = without_id(before);
        text.push_str(&format!("{start} const {name}: {} = {value};", type_name(scalar)));
        // The lines of all that follows stay where they are.
        let lines = before[start.len()..].matches('\n').count() + declaration.matches('\n').count();
        text.push_str(&"\n".repeat(lines - value.matches('\n').count()));
        rest = after;
    }
    text.push_str(rest);
    Ok(text)
}

/// Returns the names of the overrides that an entry point needs, for its size, its variables or its statements.
fn used_by(module: &Module, entry: &str) -> Vec<String> {
    let mut module = module.clone();
    module.entry_points.retain(|point| point.name == entry);
    compact(&mut module, KeepUnused::No);
    module.overrides.iter().filter_map(|(_, found)| found.name.clone()).collect()
}

/// Returns the text before the next word `override`, its declaration up to the semicolon, and the text after that. The word
/// is a keyword: it is never a name.
fn next_declaration(text: &str) -> Option<(&str, &str, &str)> {
    const KEYWORD: &str = "override";
    let in_name = |c: char| c.is_alphanumeric() || c == '_';
    let at = text
        .match_indices(KEYWORD)
        .map(|(at, _)| at)
        .find(|&at| !text[..at].ends_with(in_name) && !text[at + KEYWORD.len()..].starts_with(in_name))?;
    let (declaration, after) = text[at + KEYWORD.len()..].split_once(';')?;
    Some((&text[..at], declaration, after))
}

/// Returns a text without an attribute `@id(…)` at its end, which constants do not have.
fn without_id(text: &str) -> &str {
    let end = text.trim_end();
    let mut open = 0usize;
    for (at, c) in end.char_indices().rev() {
        match c {
            ')' => open += 1,
            '(' => open = open.saturating_sub(1),
            _ => {}
        }
        if open == 0 {
            let attribute = end[..at].trim_end().strip_suffix("id").map(str::trim_end);
            return attribute.and_then(|text| text.strip_suffix('@')).unwrap_or(text);
        }
    }
    text
}

fn type_name(scalar: Scalar) -> &'static str {
    match (scalar.kind, scalar.width) {
        (ScalarKind::Bool, _) => "bool",
        (ScalarKind::Uint, _) => "u32",
        (ScalarKind::Sint, _) => "i32",
        (_, 2) => "f16",
        _ => "f32",
    }
}

/// Returns a value as a literal of an override's type.
fn literal(name: &str, scalar: Scalar, value: f64) -> Result<String, String> {
    let whole = |least: f64, most: f64| value.fract() == 0.0 && (least..=most).contains(&value);
    let (fits, text) = match type_name(scalar) {
        "bool" => (value == 0.0 || value == 1.0, (value == 1.0).to_string()),
        "u32" => (whole(0.0, u32::MAX.into()), format!("u32({value})")),
        "i32" => (whole(i32::MIN.into(), i32::MAX.into()), format!("i32({value})")),
        "f16" => (value.abs() <= 65504.0, format!("f16({value:?})")),
        _ => ((value as f32).is_finite(), format!("f32({value:?})")),
    };
    match (fits, type_name(scalar)) {
        (true, _) => Ok(text),
        (false, "bool") => Err(format!("override '{name}' is a bool: give 0 or 1, not {value}")),
        (false, kind) => Err(format!("override '{name}' is {kind}: {value} does not fit")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::WgslKernel;
    use crate::{DType, Device, Result, Tensor};

    const SOURCE: &str = "
        // override COMMENT: u32;
        override SIZE: u32;
        @id(7) override
            half = SIZE / 2u; override SCALE: f32 = 0.5;
        override overrides: bool = false; /* override */
        const override_of = 1u;
        var<workgroup> shared_by: array<f32, SIZE>;
        @group(0) @binding(0) var<storage, read> x: array<f32>;
        @group(0) @binding(1) var<storage, read_write> y: array<f32>;
        @compute @workgroup_size(SIZE)
        fn turned(@builtin(local_invocation_index) i: u32, @builtin(workgroup_id) group: vec3<u32>) {
            let at = min(group.x * SIZE + i, arrayLength(&x) - 1u);
            shared_by[i] = x[at];
            workgroupBarrier();
            let other = select((i + half) % SIZE, SIZE - override_of - i, overrides);
            if group.x * SIZE + i < arrayLength(&y) { y[at] = SCALE * shared_by[other]; }
        }";

    #[test]
    fn overrides_are_sizes_of_arrays_and_workgroups() -> Result<()> {
        let halves = WgslKernel::with_overrides(SOURCE, "turned", &[("SIZE", 4.0)])?;
        let values = [("SIZE", 8.0), ("SCALE", -2.0), ("overrides", 1.0)];
        let turned = WgslKernel::with_overrides(SOURCE, "turned", &values)?;
        for device in Device::all().into_iter().filter(|device| !device.is_cpu()) {
            let x = Tensor::arange(0.0, 8.0, 1.0, &device)?;
            let run =
                |kernel: &WgslKernel| kernel.on(&device).input("x", &x).output("y", ([8], DType::F32)).dispatch(8);
            assert_eq!(run(&halves)?[0].to_vec::<f32>()?, [1.0, 1.5, 0.0, 0.5, 3.0, 3.5, 2.0, 2.5], "{device}");
            let expected = [-14.0, -12.0, -10.0, -8.0, -6.0, -4.0, -2.0, 0.0];
            assert_eq!(run(&turned)?[0].to_vec::<f32>()?, expected, "{device}");
        }
        Ok(())
    }

    #[test]
    fn an_override_that_the_entry_point_does_not_use_needs_no_value() -> Result<()> {
        let source = "
            override SIZE: u32;
            override OTHER: u32;
            override FLAG: bool;
            var<workgroup> all: array<f32, OTHER>;
            @group(0) @binding(0) var<storage, read_write> y: array<f32>;
            @compute @workgroup_size(SIZE) fn ones() { y[0] = 1.0; }
            @compute @workgroup_size(1) fn last() { if FLAG { all[OTHER - 1u] = 2.0; } y[0] = all[OTHER - 1u]; }
            override TWICE = 2u * OTHER;
            fn second(i: u32) -> f32 { return all[1] + all[i] / f32(TWICE - OTHER); }
            @compute @workgroup_size(1) fn other() { y[0] = second(u32(y[0])); }";
        let ones = WgslKernel::with_overrides(source, "ones", &[("SIZE", 4.0)])?;
        assert_eq!(ones.workgroup_size(), [4, 1, 1]);
        for device in Device::all().into_iter().filter(|device| !device.is_cpu()) {
            let y = ones.on(&device).output("y", ([2], DType::F32)).dispatch(1)?;
            assert_eq!(y[0].to_vec::<f32>()?, [1.0, 0.0], "{device}");
        }
        let last = WgslKernel::with_overrides(source, "last", &[("FLAG", 1.0)]).map(drop).unwrap_err().to_string();
        assert!(last.contains("override 'OTHER' has no value"), "{last}");
        WgslKernel::with_overrides(source, "last", &[("FLAG", 1.0), ("OTHER", 3.0)])?;
        Ok(())
    }

    /// Constants without a type would be computed in 64 bits.
    #[test]
    fn overrides_keep_their_types() -> Result<()> {
        let source = "
            override SEED = 3; override @id((9)) NONE: u32 = 1; override LARGE = 16777216.0;
            @group(0) @binding(0) var<storage, read_write> y: array<i32>;
            @compute @workgroup_size(1) fn f() { // a comment\r y[0] = SEED * 5; /* another
                */ y[1] = (SEED - 4) >> 16u; y[2] = i32((LARGE + 1.0) - LARGE);
            }"
        .replace("override @id((9)) NONE", "@id((9)) override NONE");
        for device in Device::all().into_iter().filter(|device| !device.is_cpu()) {
            for (values, expected) in [(&[][..], [15, -1, 0]), (&[("SEED", -2.0), ("NONE", 2.0)], [-10, -1, 0])] {
                let kernel = WgslKernel::with_overrides(&source, "f", values)?;
                let y = kernel.on(&device).output("y", ([3], DType::I32)).dispatch(1)?;
                assert_eq!(y[0].to_vec::<i32>()?, expected, "{device}");
            }
        }
        Ok(())
    }

    #[test]
    fn values_that_do_not_fit_are_errors() {
        let fails = |values: &[(&str, f64)], expected: &str| {
            let error = WgslKernel::with_overrides(SOURCE, "turned", values).map(drop).unwrap_err().to_string();
            assert!(error.starts_with("kernel turned: ") && error.contains(expected), "{error}");
        };
        fails(&[], "override 'SIZE' has no value");
        fails(
            &[("SIZE", 4.0), ("WIDTH", 1.0)],
            "no override 'WIDTH': its overrides are [SIZE, half, SCALE, overrides]",
        );
        fails(&[("SIZE", 4.0), ("SIZE", 4.0)], "given twice");
        fails(&[("SIZE", 4.5)], "override 'SIZE' is u32: 4.5");
        fails(&[("SIZE", -1.0)], "override 'SIZE' is u32: -1");
        fails(&[("SIZE", 4.0), ("SCALE", 1e39)], "override 'SCALE' is f32");
        fails(&[("SIZE", 4.0), ("overrides", 2.0)], "is a bool");
        fails(&[("SIZE", 0.0)], "");
        let without = WgslKernel::new(SOURCE, "turned").map(drop).unwrap_err().to_string();
        assert!(without.contains("with_overrides"), "{without}");
        // The line numbers of errors refer to the source.
        let wrong = SOURCE.replace("shared_by[i] = x[at]", "shared_by[i] = 1u");
        let error = WgslKernel::with_overrides(&wrong, "turned", &[("SIZE", 4.0)]).map(drop).unwrap_err().to_string();
        assert!(error.contains("line 14"), "{error}");
    }
}
