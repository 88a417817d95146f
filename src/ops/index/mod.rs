//! Ops that take an index: gather, scatter and sort; `range` reports indices that are out of range.

pub(in crate::ops) mod gather;
pub(in crate::ops) mod range;
pub(in crate::ops) mod scatter;
pub(in crate::ops) mod sort;
