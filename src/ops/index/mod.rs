//! Elements by index: gathered, scattered, sorted.

pub(in crate::ops) mod gather;
pub(in crate::ops) mod scatter;
pub(in crate::ops) mod sort;
