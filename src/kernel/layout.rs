//! The layout of structs in buffers, as languages have it that know no `@align` and `@size`.
//!
//! naga translates both for every language but GLSL, in which each member is at the first place that its type allows: by the rules
//! of std140 in a uniform, and of std430 in storage (OpenGL 4.6, section 7.6.2.2).

use naga::{AddressSpace, ArraySize, GlobalVariable, Handle, Module, ScalarKind, Type, TypeInner};

/// The alignment and the size of a type in bytes.
type Extent = (u32, u32);

/// Returns the member that GLSL puts elsewhere, or the array whose elements it puts elsewhere: `None` if the layouts are equal.
pub(super) fn moved(module: &Module, global: &GlobalVariable) -> Option<String> {
    let rules = Rules { module, std140: global.space == AddressSpace::Uniform };
    rules.extent(global.ty, global.name.as_deref().unwrap_or("the binding")).err()
}

struct Rules<'a> {
    module: &'a Module,
    std140: bool,
}

impl Rules<'_> {
    /// Returns the extent of a type, if naga has the same layout. `name`: what has this type.
    fn extent(&self, ty: Handle<Type>, name: &str) -> Result<Extent, String> {
        let vector = |rows: u32, width: u32| (width * if rows == 2 { 2 } else { 4 }, rows * width);
        let whole = |align: u32| if self.std140 { align.next_multiple_of(16) } else { align };
        match &self.module.types[ty].inner {
            TypeInner::Scalar(scalar) | TypeInner::Atomic(scalar) => {
                let width = if scalar.kind == ScalarKind::Bool { 4 } else { scalar.width.into() };
                Ok((width, width))
            }
            TypeInner::Vector { size, scalar } => Ok(vector(*size as u32, scalar.width.into())),
            TypeInner::Matrix { columns, rows, scalar } => {
                let (align, _) = vector(*rows as u32, scalar.width.into());
                match whole(align) == align {
                    true => Ok((align, *columns as u32 * align)),
                    false => Err(name.into()),
                }
            }
            TypeInner::Array { base, size, stride } => {
                let (align, each) = self.extent(*base, name)?;
                let align = whole(align);
                let count = if let ArraySize::Constant(count) = size { count.get() } else { 0 };
                match each.next_multiple_of(align) == *stride {
                    true => Ok((align, count.saturating_mul(*stride))),
                    false => Err(name.into()),
                }
            }
            TypeInner::Struct { members, .. } => {
                let (mut most, mut end) = (whole(1), 0u32);
                for member in members {
                    let name = member.name.as_deref().unwrap_or(name);
                    let (align, size) = self.extent(member.ty, name)?;
                    if end.next_multiple_of(align) != member.offset {
                        return Err(name.into());
                    }
                    (most, end) = (most.max(align), member.offset.saturating_add(size));
                }
                Ok((most, end.checked_next_multiple_of(most).unwrap_or(u32::MAX)))
            }
            _ => Err(name.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moved_in(declarations: &str) -> Option<String> {
        let source = format!("{declarations} @compute @workgroup_size(1) fn f() {{ _ = &p; }}");
        let module = naga::front::wgsl::parse_str(&source).expect("a source");
        moved(&module, module.global_variables.iter().next().expect("a variable").1)
    }

    #[test]
    fn only_what_attributes_move_is_elsewhere() {
        let uniform = "@group(0) @binding(0) var<uniform> p: S;";
        let storage = "@group(0) @binding(0) var<storage> p: S;";
        let elements = "@group(0) @binding(0) var<storage> p: array<S>;";
        for (bindings, members, expected) in [
            (&[uniform, storage, elements][..], "a: u32, b: vec3f, c: f32, d: vec2u, e: mat4x3f", None),
            (&[uniform, storage, elements], "a: u32, @align(16) b: f32", Some("b")),
            (&[uniform, storage, elements], "@size(16) a: u32, b: f32", Some("b")),
            (&[uniform, storage, elements], "a: array<vec4f, 3>, b: f32", None),
            (&[storage, elements], "a: array<f32, 3>, b: vec2f", None),
            (&[uniform], "a: u32, m: mat2x2f", Some("m")),
            (&[storage], "a: u32, m: mat2x2f", None),
            // The attribute asks for what std140 does by itself, and std430 does not.
            (&[uniform], "a: u32, @align(16) inner: I, @align(16) b: u32", None),
            (&[storage], "a: u32, @align(16) inner: I", Some("inner")),
            (&[elements], "a: u32, @size(12) b: u32", Some("p")),
            (&[storage], "a: u32, rest: array<vec3f>", None),
        ] {
            for binding in bindings {
                let declarations = format!("struct I {{ x: f32 }} struct S {{ {members} }} {binding}");
                assert_eq!(moved_in(&declarations).as_deref(), expected, "{declarations}");
            }
        }
    }
}
