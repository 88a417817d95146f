//! Element types of tensors, all of them four bytes wide.

use std::fmt;

/// The type of a tensor's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DType {
    /// 32-bit float: all that is computed and differentiated.
    F32,
    /// 32-bit signed integer.
    I32,
    /// 32-bit unsigned integer: labels and indices.
    U32,
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DType::F32 => "f32",
            DType::I32 => "i32",
            DType::U32 => "u32",
        })
    }
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for i32 {}
    impl Sealed for u32 {}
}

/// A Rust type that can be a tensor's element: `f32`, `i32`, `u32`.
pub trait Element: bytemuck::Pod + PartialOrd + fmt::Debug + fmt::Display + Send + Sync + sealed::Sealed {
    /// The tensor's name for this type.
    const DTYPE: DType;
}

impl Element for f32 {
    const DTYPE: DType = DType::F32;
}
impl Element for i32 {
    const DTYPE: DType = DType::I32;
}
impl Element for u32 {
    const DTYPE: DType = DType::U32;
}
