//! Ops that take an index: gather, scatter, indexing by tensors, and sort; `range` reports indices that are out of range.

pub(in crate::ops) mod advanced;
pub(in crate::ops) mod gather;
pub(in crate::ops) mod order;
pub(in crate::ops) mod range;
pub(in crate::ops) mod scatter;
pub(in crate::ops) mod scatter_reduce;
mod scatter_variants;
pub(in crate::ops) mod search;
pub(in crate::ops) mod sort;
