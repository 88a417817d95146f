//! Functions of single elements: of one, of two, and choices between them.

pub(in crate::ops) mod binary;
pub(in crate::ops) mod cast;
pub(in crate::ops) mod masked_fill;
pub(in crate::ops) mod promote;
pub(in crate::ops) mod unary;
pub(in crate::ops) mod where_cond;
