//! The members of a kernel's uniform by name, and the numbers that a caller sets them to.

use naga::{ArraySize, GlobalVariable, Module, ScalarKind, TypeInner};

use super::reflect::number;
use crate::dtype::DType;

/// The params of a kernel: `var<uniform>`.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Uniform {
    pub binding: u32,
    /// Its size, with the padding at the end.
    pub words: usize,
    /// In the order of their places. A member of a struct within the struct has both names: `outer.inner`.
    pub members: Vec<Member>,
}

/// Numbers with a name: a scalar, a vector, a matrix, or an array of them.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Member {
    pub name: String,
    pub dtype: DType,
    /// The words of its numbers, in order: columns of a matrix one after the other, without the padding between them.
    pub places: Vec<usize>,
}

/// The most words of a uniform: the size that every adapter allows.
const MAX_WORDS: usize = 1 << 12;

impl Uniform {
    /// Returns the params that a variable holds.
    pub fn of(module: &Module, global: &GlobalVariable, binding: u32, name: &str) -> Result<Uniform, String> {
        let words = module.types[global.ty].inner.size(module.to_ctx()) as usize / 4;
        if words > MAX_WORDS {
            return Err(format!("'{name}' has {} bytes, and the limit is {}", 4 * words, 4 * MAX_WORDS));
        }
        let mut members = Vec::new();
        // A uniform that is no struct is one member with the variable's name.
        let prefix = if matches!(module.types[global.ty].inner, TypeInner::Struct { .. }) { "" } else { name };
        flatten(module, global.ty, prefix, 0, &mut members).ok_or_else(|| {
            format!("'{name}' must be made of f32, i32 and u32, and of vectors, matrices, arrays and structs of them")
        })?;
        Ok(Uniform { binding, words, members })
    }

    /// Returns the member with a name.
    pub fn member(&self, name: &str) -> Option<(usize, &Member)> {
        self.members.iter().enumerate().find(|(_, member)| member.name == name)
    }
}

/// Appends the members of a type that begins at a word; `None` if it holds anything but 4-byte numbers.
fn flatten(module: &Module, ty: naga::Handle<naga::Type>, name: &str, at: usize, to: &mut Vec<Member>) -> Option<()> {
    if let TypeInner::Struct { members, .. } = &module.types[ty].inner {
        for member in members {
            let own = member.name.as_deref().unwrap_or("");
            let name = if name.is_empty() { own.to_string() } else { format!("{name}.{own}") };
            flatten(module, member.ty, &name, at + member.offset as usize / 4, to)?;
        }
        return Some(());
    }
    if let TypeInner::Array { base, size: ArraySize::Constant(count), stride } = module.types[ty].inner
        && holds_structs(module, base)
    {
        for i in 0..count.get() {
            flatten(module, base, &format!("{name}[{i}]"), at + (i * stride) as usize / 4, to)?;
        }
        return Some(());
    }
    let mut places = Vec::new();
    let dtype = numbers(module, ty, at, &mut places)?;
    to.push(Member { name: name.to_string(), dtype, places });
    Some(())
}

/// Returns whether a type is a struct, or an array of arrays of structs.
fn holds_structs(module: &Module, ty: naga::Handle<naga::Type>) -> bool {
    match module.types[ty].inner {
        TypeInner::Struct { .. } => true,
        TypeInner::Array { base, .. } => holds_structs(module, base),
        _ => false,
    }
}

/// Appends the words of the numbers of a type that begins at a word, and returns their type.
fn numbers(module: &Module, ty: naga::Handle<naga::Type>, at: usize, to: &mut Vec<usize>) -> Option<DType> {
    match module.types[ty].inner {
        TypeInner::Scalar(scalar) => {
            to.push(at);
            number(scalar)
        }
        TypeInner::Vector { size, scalar } => {
            to.extend(at..at + size as usize);
            number(scalar)
        }
        TypeInner::Matrix { columns, rows, scalar } if scalar.kind == ScalarKind::Float => {
            // A column is aligned as a vector of so many: one of three takes four words.
            let stride = (rows as usize).next_power_of_two();
            (0..columns as usize)
                .for_each(|column| to.extend((0..rows as usize).map(|row| at + column * stride + row)));
            number(scalar)
        }
        TypeInner::Array { base, size: ArraySize::Constant(count), stride } => {
            let all = (0..count.get()).map(|i| numbers(module, base, at + (i * stride) as usize / 4, to));
            all.last().flatten()
        }
        _ => None,
    }
}

/// One or more numbers for a member of a kernel's params: see [`Launch::set`](super::Launch::set).
#[derive(Clone, Debug)]
pub struct ParamValue(Vec<Number>);

#[derive(Clone, Copy, Debug)]
enum Number {
    Float(f64),
    Whole(i128),
}

macro_rules! from_numbers {
    ($($t:ty: $variant:ident as $to:ty;)*) => {$(
        impl From<$t> for ParamValue {
            fn from(value: $t) -> ParamValue {
                ParamValue(vec![Number::$variant(value as $to)])
            }
        }
    )*};
}
from_numbers! {
    f32: Float as f64; f64: Float as f64;
    i32: Whole as i128; u32: Whole as i128; i64: Whole as i128; u64: Whole as i128; usize: Whole as i128;
}

/// The numbers of all elements: of a vector, of an array, or of a matrix by its columns.
impl<T: Into<ParamValue>, const N: usize> From<[T; N]> for ParamValue {
    fn from(values: [T; N]) -> ParamValue {
        ParamValue(values.into_iter().flat_map(|value| value.into().0).collect())
    }
}

impl<T: Into<ParamValue> + Copy> From<&[T]> for ParamValue {
    fn from(values: &[T]) -> ParamValue {
        ParamValue(values.iter().flat_map(|&value| value.into().0).collect())
    }
}

impl Member {
    /// Writes a value into the words of the params; the error says what does not fit.
    pub fn write(&self, value: &ParamValue, words: &mut [u32]) -> Result<(), String> {
        let (name, dtype, count) = (&self.name, self.dtype, self.places.len());
        if value.0.len() != count {
            let s = if count == 1 { "" } else { "s" };
            return Err(format!("param '{name}' takes {count} number{s} of {dtype}, got {}", value.0.len()));
        }
        for (&place, &number) in self.places.iter().zip(&value.0) {
            words[place] = number.word(dtype).map_err(|why| format!("param '{name}' is of {dtype}: {why}"))?;
        }
        Ok(())
    }
}

impl Number {
    /// Returns the bits of the number in a type, if it has the same value there; for a float, the bits of the
    /// nearest one.
    fn word(self, dtype: DType) -> Result<u32, String> {
        match (self, dtype) {
            (Number::Float(x), DType::F32) if x.is_finite() && !(x as f32).is_finite() => {
                Err(format!("{x} is too large"))
            }
            (Number::Float(x), DType::F32) => Ok((x as f32).to_bits()),
            (Number::Whole(n), DType::F32) if (n as f32) as i128 == n => Ok((n as f32).to_bits()),
            (Number::Whole(n), DType::F32) => Err(format!("{n} is no f32, pass a float to have it rounded")),
            (Number::Whole(n), DType::I32) => {
                i32::try_from(n).map(|n| n as u32).map_err(|_| format!("{n} is out of range"))
            }
            (Number::Whole(n), _) => u32::try_from(n).map_err(|_| format!("{n} is out of range")),
            (Number::Float(x), _) => Err(format!("got the float {x:?}")),
        }
    }
}
