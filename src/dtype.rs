//! Element types of tensors, and their promotion.

mod long;

use std::fmt;
use std::str::FromStr;

use half::{bf16, f16};

use crate::error::{Error, Result};
pub(crate) use long::{long_bits, long_words};

/// The type of a tensor's elements.
///
/// Ops compute in `F32`, `I32` and `U32`. The types of 8 and 16 bits are for storage and are packed: a 32-bit word
/// holds two 16-bit floats or four bytes on every device, whether or not its adapter supports the type. Ops convert
/// them to a wide type (16-bit floats to f32, so every sum is an f32 sum), compute, and convert the result back.
///
/// `I64` and `F64` take two words each. `cpu` stores them and computes with them exactly, without gradients. Adapters
/// have no 64-bit numbers. There, `I64` is for storage, moves and indices, and has to be converted to a 32-bit type to
/// compute; `F64` is refused. An op without a 64-bit form returns an error and never computes in 32 bits instead.
/// Functions with fractional results take `I64` as f32, as they take other integers.
///
/// A type can be parsed from its name here or in PyTorch. The order follows [`DType::ALL`], for sorted collections; it
/// has no relation to promotion.
///
/// ```
/// use anygpu::DType;
///
/// assert_eq!(("f16".parse::<DType>()?, "torch.bfloat16".parse()?), (DType::F16, DType::BF16));
/// assert_eq!(DType::try_from("uint8")?.to_string(), "u8");
/// # Ok::<(), anygpu::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "lowercase"))]
#[non_exhaustive]
pub enum DType {
    /// 32-bit float.
    F32,
    /// 16-bit float: 5 bits of exponent, 10 of fraction (IEEE 754 binary16).
    F16,
    /// 16-bit float: 8 bits of exponent, 7 of fraction; the upper half of an f32.
    BF16,
    /// 32-bit signed integer.
    I32,
    /// 32-bit unsigned integer, for labels and indices.
    U32,
    /// 8-bit unsigned integer, for pixels.
    U8,
    /// `true` or `false` in one byte each, for masks.
    Bool,
    /// 64-bit signed integer.
    I64,
    /// 64-bit float, on `cpu` only.
    F64,
}

impl DType {
    /// All element types.
    pub const ALL: [DType; 9] =
        [DType::F32, DType::F16, DType::BF16, DType::I32, DType::U32, DType::U8, DType::Bool, DType::I64, DType::F64];

    /// The element types that every device computes with: all types except the 64-bit ones.
    pub(crate) const COMPUTED: [DType; 7] =
        [DType::F32, DType::F16, DType::BF16, DType::I32, DType::U32, DType::U8, DType::Bool];

    /// Returns the size of one element in bytes.
    #[must_use]
    pub fn size(self) -> usize {
        match self {
            DType::I64 | DType::F64 => 8,
            DType::F32 | DType::I32 | DType::U32 => 4,
            DType::F16 | DType::BF16 => 2,
            DType::U8 | DType::Bool => 1,
        }
    }

    /// Returns whether this is a floating-point type. Only floats have gradients, except [`DType::F64`], which has
    /// none.
    #[must_use]
    pub fn is_float(self) -> bool {
        matches!(self, DType::F32 | DType::F16 | DType::BF16 | DType::F64)
    }

    /// Returns the common type of two types, by PyTorch's rule.
    ///
    /// Bool promotes to integers, integers promote to floats, and narrow types promote to wide ones. `f16` and `bf16`
    /// promote to `f32`, since neither can represent the other.
    ///
    /// # Errors
    /// [`Error::DTypeMismatch`] for `i32` with `u32`: neither can represent the other. Convert one of them to `i64`, or
    /// both to one of the two types. `i64` is not chosen automatically, since adapters do not compute with it.
    ///
    /// ```
    /// # use anygpu::DType;
    /// assert_eq!(DType::U8.promote(DType::I32)?, DType::I32);
    /// assert_eq!(DType::I32.promote(DType::F16)?, DType::F16);
    /// assert_eq!(DType::F16.promote(DType::BF16)?, DType::F32);
    /// assert!(DType::I32.promote(DType::U32).is_err());
    /// assert_eq!(DType::I64.promote(DType::U32)?, DType::I64);
    /// assert_eq!(DType::I64.promote(DType::F32)?, DType::F32);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn promote(self, other: DType) -> Result<DType> {
        if self == other {
            return Ok(self);
        }
        match (self.is_float(), other.is_float()) {
            (true, true) if self == DType::F64 || other == DType::F64 => return Ok(DType::F64),
            (true, true) => return Ok(DType::F32),
            (true, false) => return Ok(self),
            (false, true) => return Ok(other),
            (false, false) => {}
        }
        match (self, other) {
            (DType::I32, DType::U32) | (DType::U32, DType::I32) => Err(Error::DTypeMismatch {
                op: "promote",
                expected: format!("{self}, since no type holds the values of both"),
                got: other.to_string(),
            }),
            (narrow, wide) if narrow.size() < wide.size() => Ok(wide),
            (wide, narrow) if narrow.size() < wide.size() => Ok(wide),
            _ => Ok(DType::U8), // u8 and bool
        }
    }

    /// Returns the type in which ops compute with elements of this type. It has four bytes, or eight if this type has
    /// eight.
    pub(crate) fn wide(self) -> DType {
        match self {
            DType::I64 | DType::F64 => self,
            DType::F32 | DType::F16 | DType::BF16 => DType::F32,
            DType::I32 => DType::I32,
            DType::U32 | DType::U8 | DType::Bool => DType::U32,
        }
    }

    /// Returns the number that a word of the wide type stands for.
    pub(crate) fn number(self, word: u32) -> f64 {
        match self.wide() {
            DType::F32 => f32::from_bits(word).into(),
            DType::I32 => (word as i32).into(),
            _ => word.into(),
        }
    }

    /// Returns whether several elements share a word.
    pub(crate) fn is_packed(self) -> bool {
        self.size() < 4
    }

    /// Returns whether an element takes two words, the lower one first.
    pub(crate) fn is_long(self) -> bool {
        self.size() > 4
    }

    /// Returns the number of elements in a word of a packed type, and 1 for others.
    pub(crate) fn per_word(self) -> usize {
        (4 / self.size()).max(1)
    }

    /// Returns the number of words that hold `count` elements.
    pub(crate) fn words(self, count: usize) -> usize {
        if self.is_long() { count.saturating_mul(2) } else { count.div_ceil(self.per_word()) }
    }

    /// Returns the word in which element `at` of a storage begins.
    pub(crate) fn word_of(self, at: usize) -> usize {
        if self.is_long() { at.wrapping_mul(2) } else { at / self.per_word() }
    }

    /// Returns the first element of a storage that begins in word `at`, which is an even one for elements of two words.
    pub(crate) fn element_of(self, at: usize) -> usize {
        debug_assert!(!self.is_long() || at.is_multiple_of(2));
        if self.is_long() { at / 2 } else { at * self.per_word() }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            DType::F32 => "f32",
            DType::F16 => "f16",
            DType::BF16 => "bf16",
            DType::I32 => "i32",
            DType::U32 => "u32",
            DType::U8 => "u8",
            DType::Bool => "bool",
            DType::I64 => "i64",
            DType::F64 => "f64",
        })
    }
}

/// PyTorch's names of the types.
const TORCH: [(&str, DType); 14] = [
    ("float32", DType::F32),
    ("float", DType::F32),
    ("float16", DType::F16),
    ("half", DType::F16),
    ("bfloat16", DType::BF16),
    ("int32", DType::I32),
    ("int", DType::I32),
    ("uint32", DType::U32),
    ("uint8", DType::U8),
    ("bool", DType::Bool),
    ("int64", DType::I64),
    ("long", DType::I64),
    ("float64", DType::F64),
    ("double", DType::F64),
];

impl FromStr for DType {
    type Err = Error;

    fn from_str(text: &str) -> Result<DType> {
        let name = text.trim().to_ascii_lowercase();
        let name = name.strip_prefix("torch.").unwrap_or(&name);
        let ours = DType::ALL.into_iter().find(|dtype| dtype.to_string() == name);
        let found = ours.or_else(|| TORCH.iter().find(|(known, _)| *known == name).map(|&(_, dtype)| dtype));
        found.ok_or_else(|| {
            let remedy = match name {
                "u64" | "uint64" => "; there are no unsigned 64-bit integers: use i64, or u32 for labels",
                _ => "",
            };
            let names = DType::ALL.map(|dtype| dtype.to_string()).join(", ");
            Error::argument("DType", format!("unknown type '{text}': it is one of {names}{remedy}"))
        })
    }
}

crate::error::try_from_str!(DType);

mod sealed {
    use crate::error::Result;

    /// Allocates an empty vector with a capacity, or returns an error if memory is short.
    pub type Room<T> = fn(usize) -> Result<Vec<T>>;

    /// Conversion of elements to and from words.
    pub trait Sealed: Sized {
        /// The bits of one element; the higher bits are 0.
        fn bits(self) -> u64;
        /// Returns the elements as words, of types of four bytes.
        fn words(_values: &[Self]) -> Option<&[u32]> {
            None
        }
        fn pack(values: &[Self], room: Room<u32>) -> Result<Vec<u32>>;
        /// Like `pack`, without a copy if the type allows it.
        fn pack_vec(values: Vec<Self>, room: Room<u32>) -> Result<Vec<u32>> {
            Self::pack(&values, room)
        }
        fn unpack(words: Vec<u32>, count: usize, room: Room<Self>) -> Result<Vec<Self>>;
    }
}

use sealed::Room;

/// A Rust type that can be a tensor's element: `f32`, `half::f16`, `half::bf16`, `i32`, `u32`, `u8`, `bool`, `i64`.
///
/// `f64` is not an `Element`. If it were, a literal such as `1.5` could be of either float type, and Rust would choose
/// `f64` in `Tensor::full([2], 1.5, None)`. For tensors of [`DType::F64`], use
/// [`Tensor::from_f64`](crate::Tensor::from_f64) and [`Tensor::to_vec_f64`](crate::Tensor::to_vec_f64).
pub trait Element: Copy + PartialOrd + fmt::Debug + fmt::Display + Send + Sync + 'static + sealed::Sealed {
    /// The [`DType`] of this type.
    const DTYPE: DType;
}

/// The element types that kernels and host loops compute with.
pub(crate) trait Word: Element + bytemuck::Pod {}

macro_rules! words {
    ($($t:ty => $dtype:ident),*) => {$(
        impl Element for $t {
            const DTYPE: DType = DType::$dtype;
        }
        impl Word for $t {}
        impl sealed::Sealed for $t {
            fn bits(self) -> u64 {
                u64::from(bytemuck::cast::<$t, u32>(self))
            }
            fn words(values: &[Self]) -> Option<&[u32]> {
                Some(bytemuck::cast_slice(values))
            }
            fn pack(values: &[Self], room: Room<u32>) -> Result<Vec<u32>> {
                let mut words = room(values.len())?;
                words.extend_from_slice(bytemuck::cast_slice(values));
                Ok(words)
            }
            fn pack_vec(values: Vec<Self>, _: Room<u32>) -> Result<Vec<u32>> {
                Ok(bytemuck::cast_vec(values))
            }
            fn unpack(words: Vec<u32>, count: usize, _: Room<Self>) -> Result<Vec<Self>> {
                let mut values: Vec<Self> = bytemuck::cast_vec(words);
                values.truncate(count);
                Ok(values)
            }
        }
    )*};
}
words! { f32 => F32, i32 => I32, u32 => U32 }

/// Implements types of one or two bytes, through the unsigned integer of their size.
macro_rules! packed {
    ($($t:ty => $dtype:ident as $bits:ty, $to:expr, $from:expr;)*) => {$(
        impl Element for $t {
            const DTYPE: DType = DType::$dtype;
        }
        impl sealed::Sealed for $t {
            fn bits(self) -> u64 {
                $to(self).into()
            }
            fn pack(values: &[Self], room: Room<u32>) -> Result<Vec<u32>> {
                let count = DType::$dtype.words(values.len());
                let mut words = room(count)?;
                words.resize(count, 0);
                let bits: &mut [$bits] = bytemuck::cast_slice_mut(&mut words);
                bits.iter_mut().zip(values).for_each(|(to, &value)| *to = $to(value));
                Ok(words)
            }
            fn unpack(words: Vec<u32>, count: usize, room: Room<Self>) -> Result<Vec<Self>> {
                let mut values = room(count)?;
                values.extend(bytemuck::cast_slice::<u32, $bits>(&words)[..count].iter().copied().map($from));
                Ok(values)
            }
        }
    )*};
}
packed! {
    f16 => F16 as u16, f16::to_bits, f16::from_bits;
    bf16 => BF16 as u16, bf16::to_bits, bf16::from_bits;
    u8 => U8 as u8, u8::from, u8::from;
    bool => Bool as u8, u8::from, |bits| bits != 0;
}

#[cfg(test)]
mod tests {
    use super::sealed::Sealed as _;
    use super::*;

    #[test]
    fn promotion_is_symmetric_and_loses_nothing_but_size() {
        for a in DType::ALL {
            assert_eq!(a.promote(a).ok(), Some(a));
            for b in DType::ALL {
                assert_eq!(a.promote(b).ok(), b.promote(a).ok(), "{a} {b}");
            }
            assert_eq!(DType::Bool.promote(a).ok(), Some(a));
            assert_eq!(a.promote(DType::F64).ok(), Some(DType::F64));
            let float = if a == DType::F64 { a } else { DType::F32 };
            assert_eq!(a.promote(DType::F32).ok(), Some(float));
            let long = if a.is_float() { a } else { DType::I64 };
            assert_eq!(a.promote(DType::I64).ok(), Some(long));
        }
        assert_eq!(DType::U8.promote(DType::U32).ok(), Some(DType::U32));
    }

    #[test]
    fn names_are_read_back() -> Result<()> {
        for dtype in DType::ALL {
            assert_eq!(dtype.to_string().to_uppercase().parse::<DType>()?, dtype);
        }
        assert_eq!(("torch.half".parse::<DType>()?, DType::try_from("int")?), (DType::F16, DType::I32));
        let error = |name: &str| name.parse::<DType>().unwrap_err().to_string();
        assert_eq!(error("f8"), "DType: unknown type 'f8': it is one of f32, f16, bf16, i32, u32, u8, bool, i64, f64");
        assert_eq!(("torch.float64".parse::<DType>()?, DType::try_from("long")?), (DType::F64, DType::I64));
        assert!(error("uint64").ends_with("u32 for labels"));
        assert!(DType::F32 < DType::Bool);
        Ok(())
    }

    #[test]
    fn elements_survive_packing() -> Result<()> {
        fn room<T>(count: usize) -> Result<Vec<T>> {
            Ok(Vec::with_capacity(count))
        }
        let halves: Vec<f16> = (0..5).map(|i| f16::from_f32(i as f32 / 3.0)).collect();
        assert_eq!(f16::unpack(f16::pack(&halves, room)?, 5, room)?, halves);
        assert_eq!(f16::pack(&halves, room)?.len(), 3);
        let flags = [true, false, true, true, false];
        assert_eq!(bool::unpack(bool::pack(&flags, room)?, 5, room)?, flags);
        assert_eq!(bool::pack(&flags, room)?[0].to_le_bytes(), [1, 0, 1, 1]);
        assert_eq!(f32::unpack(f32::pack_vec(vec![1.5, -2.0], room)?, 2, room)?, [1.5, -2.0]);
        let long = [i64::MIN, -1, (1 << 53) + 1];
        assert_eq!(i64::unpack(i64::pack(&long, room)?, 3, room)?, long);
        assert_eq!(i64::pack(&[-2], room)?, [u32::MAX - 1, u32::MAX]);
        assert_eq!((bool::bits(true), u8::bits(9), f16::bits(f16::ONE), f32::bits(1.0)), (1, 9, 0x3c00, 0x3f80_0000));
        Ok(())
    }
}
