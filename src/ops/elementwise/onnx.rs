//! How ONNX writes the functions of the elementwise tables: what its export, and the import of plain operators, know of a row.

#![cfg_attr(not(feature = "onnx"), allow(dead_code, reason = "only the import and the export of ONNX read it"))]

/// The form of a function in ONNX.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Onnx<C> {
    /// An operator of this name, without attributes.
    Operator(&'static str),
    /// An operator with attributes, or several operators: `onnx/export/elementwise.rs` has them.
    Composed(C),
    /// None: the export of the function is an error.
    Nothing,
}

/// The functions of one element that are more than one plain operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Composition {
    Square,
    Trunc,
    Exp2,
    Expm1,
    Log2,
    Log1p,
    Rsqrt,
    Gelu,
    GeluTanh,
    Silu,
    LogSigmoid,
    HardSigmoid,
    LeakyRelu,
    Elu,
    Softplus,
    IsFinite,
    /// `clamp` and `hardtanh`.
    Clip,
}

/// The functions of two elements that are more than one plain operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PairComposition {
    DivTrunc,
    DivFloor,
    Fmod,
    Rem,
    NotEqual,
}
