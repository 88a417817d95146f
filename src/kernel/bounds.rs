//! Indices of arrays in workgroup, private and function memory, clamped for OpenGL.
//!
//! wgpu checks all indices, except the indices of unbound arrays on OpenGL: there, `t[i]` of four elements returns
//! foreign memory or ends the process. So the text of each such index is put into `min` or `clamp`.

use naga::proc::IndexableLength;
use naga::valid::{FunctionInfo, ModuleInfo};
use naga::{ArraySize, Expression, Function, Module, ScalarKind, TypeInner};

/// What ends a line, and so a comment, in WGSL.
const LINE_ENDS: [char; 7] = ['\n', '\u{b}', '\u{c}', '\r', '\u{85}', '\u{2028}', '\u{2029}'];

/// Returns the source with spaces in the place of comments, whose brackets would be taken for the brackets of
/// indices.
pub(super) fn without_comments(source: &str) -> String {
    let (mut text, mut rest, mut nested) = (String::with_capacity(source.len()), source, 0);
    while let Some(first) = rest.chars().next() {
        let (length, comment) = if rest.starts_with("/*") {
            nested += 1;
            (2, true)
        } else if nested > 0 && rest.starts_with("*/") {
            nested -= 1;
            (2, true)
        } else if nested == 0 && rest.starts_with("//") {
            (rest.find(LINE_ENDS).unwrap_or(rest.len()), true)
        } else {
            (first.len_utf8(), nested > 0)
        };
        let (now, later) = rest.split_at(length);
        match comment {
            // As many bytes, and the same lines.
            true => text.extend(now.bytes().map(|byte| if byte == b'\n' { '\n' } else { ' ' })),
            false => text.push_str(now),
        }
        rest = later;
    }
    text
}

/// Returns a source without comments, with every index of an array, vector or matrix of a fixed size clamped to that size.
pub(super) fn clamped(source: &str, module: &Module, info: &ModuleInfo) -> Result<String, String> {
    let mut insertions = Vec::new();
    for (handle, function) in module.functions.iter() {
        collect(source, module, function, &info[handle], &mut insertions)?;
    }
    for (i, point) in module.entry_points.iter().enumerate() {
        collect(source, module, &point.function, info.get_entry_point(i), &mut insertions)?;
    }
    insertions.sort();
    insertions.dedup();
    let mut text = source.to_string();
    for (at, inserted) in insertions.iter().rev() {
        text.insert_str(*at, inserted);
    }
    Ok(text)
}

/// Adds what is to be inserted into the source, by position.
fn collect(
    source: &str,
    module: &Module,
    function: &Function,
    info: &FunctionInfo,
    insertions: &mut Vec<(usize, String)>,
) -> Result<(), String> {
    for (handle, expression) in function.expressions.iter() {
        let Expression::Access { base, index } = *expression else { continue };
        let length = match info[base].ty.inner_with(&module.types).indexable_length(module) {
            Ok(IndexableLength::Known(length)) => length,
            Ok(IndexableLength::Dynamic) => continue,
            // The size is an override that the entry point does not use, so it does not use this function either.
            _ if is_pending(info[base].ty.inner_with(&module.types), module) => continue,
            Err(error) => return Err(format!("OpenGL cannot check the indices of an array: {error}")),
        };
        let span = function.expressions.get_span(handle);
        let range = span.to_range().filter(|range| range.end <= source.len());
        let Some((start, end)) = range.and_then(|range| last_brackets(&source[range.clone()], range.start)) else {
            let line = span.location(source).line_number;
            return Err(format!("line {line}: OpenGL cannot check an index here: name the array that it is of"));
        };
        let last = length.saturating_sub(1);
        let (before, after) = match info[index].ty.inner_with(&module.types) {
            TypeInner::Scalar(scalar) if scalar.kind == ScalarKind::Sint => ("clamp(", format!(", 0, {last})")),
            _ => ("min(", format!(", {last}u)")),
        };
        insertions.extend([(start, before.to_string()), (end, after)]);
    }
    Ok(())
}

/// Returns whether a type is an array whose size is an override, or a pointer to one.
fn is_pending(inner: &TypeInner, module: &Module) -> bool {
    match inner {
        TypeInner::Array { size: ArraySize::Pending(_), .. } => true,
        TypeInner::Pointer { base, .. } => is_pending(&module.types[*base].inner, module),
        _ => false,
    }
}

/// Returns where the text within the last brackets begins and ends, for a text that ends with `]` and begins at `offset`.
fn last_brackets(text: &str, offset: usize) -> Option<(usize, usize)> {
    let text = text.trim_end();
    let end = text.strip_suffix(']')?.len();
    let mut open = 0usize;
    for (at, byte) in text.bytes().enumerate().rev() {
        match byte {
            b']' => open += 1,
            b'[' => open -= 1,
            _ => {}
        }
        if open == 0 {
            return Some((offset + at + 1, offset + end));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indices_are_clamped_where_they_stand() {
        let source = "
            @group(0) @binding(0) var<storage, read_write> out: array<f32>;
            var<workgroup> t: array<array<f32, 4>, 3>;
            var<private> order: array<i32, 8>;
            fn at(p: ptr<function, array<u32, 2>>, i: i32) -> u32 { return (*p)[i]; }
            @compute @workgroup_size(1)
            fn f(@builtin(global_invocation_id) id: vec3<u32>) {
                var own = array<u32, 2>(1u, 2u);
                let i = id.x + 5u;
                t[i][order[i]] += out[i] + f32(id[i /* ] /* é */ */ ]); // [[ ü
                /* [ */
                t[1][2] = f32(at(&own, -7));
            }";
        let parse = |text: &str| {
            let module = naga::front::wgsl::parse_str(text).unwrap();
            let mut validator = naga::valid::Validator::new(Default::default(), naga::valid::Capabilities::all());
            let info = validator.validate(&module).unwrap();
            (module, info)
        };
        let source = without_comments(source);
        let (module, info) = parse(&source);
        let text = clamped(&source, &module, &info).unwrap();
        for expected in [
            "(*p)[clamp(i, 0, 1)]",
            "t[min(i, 2u)][clamp(order[min(i, 7u)], 0, 3)] += out[i]",
            "id[min(i, 2u)]",
            "t[1][2] =",
        ] {
            let packed = |text: &str| text.replace(' ', "");
            assert!(packed(&text).contains(&packed(expected)), "{expected}: {text}");
        }
        parse(&text);
    }
}
