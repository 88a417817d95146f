//! Ops that take an index: gather, scatter and sort.

pub(in crate::ops) mod gather;
pub(in crate::ops) mod scatter;
pub(in crate::ops) mod sort;
