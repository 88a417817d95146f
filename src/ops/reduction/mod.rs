//! Functions of all elements along dimensions.

mod all;
pub(in crate::ops) mod argmax;
pub(in crate::ops) mod plan;
pub(in crate::ops) mod reduce;
pub(in crate::ops) mod scan;
pub(in crate::ops) mod softmax;
pub(in crate::ops) mod statistics;
pub(in crate::ops) mod vector_norm;
