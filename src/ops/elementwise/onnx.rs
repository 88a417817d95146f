//! How ONNX writes the functions of the elementwise tables: what its export, and the import of plain operators, know of a row.

#![cfg_attr(not(feature = "onnx"), allow(dead_code, reason = "only the import and the export of ONNX read it"))]

/// The form of a function in ONNX.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Onnx<C> {
    /// An operator of this name, without attributes.
    Operator(&'static str),
    /// An operator with attributes, or several operators: `onnx/export/elementwise.rs` has them.
    Composed(C),
    /// None: the export of the function is an error.
    Nothing,
}

/// Returns the form of a function of one element that consists of several operators without attributes. The last one
/// has the result.
pub(crate) const fn nodes(nodes: &'static [Node]) -> Onnx<Composition> {
    Onnx::Composed(Composition::Nodes(nodes))
}

/// An operator, and what it reads.
pub(crate) type Node = (&'static str, &'static [Value]);

/// What an operator reads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Value {
    /// The element.
    X,
    /// The result of an earlier node.
    Node(usize),
    Number(f64),
}

/// The functions of one element that are more than one plain operator.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Composition {
    /// Operators without attributes: see [`nodes`].
    Nodes(&'static [Node]),
    Trunc,
    Expm1,
    Log1p,
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
