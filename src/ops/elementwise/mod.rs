//! Functions of one element, functions of two elements, and choices between elements.

pub(in crate::ops) mod binary;
pub(in crate::ops) mod cast;
mod close;
pub(in crate::ops) mod masked_fill;
pub(in crate::ops) mod promote;
pub(in crate::ops) mod unary;
pub(in crate::ops) mod where_cond;
