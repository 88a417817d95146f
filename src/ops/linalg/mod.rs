//! Products of matrices and vectors, and factorisations of matrices.

pub(in crate::ops) mod attention;
pub(in crate::ops) mod batched;
mod cholesky;
pub(in crate::ops) mod cooperative;
mod determinant;
pub(in crate::ops) mod distances;
pub(in crate::ops) mod einsum;
mod factor;
pub(in crate::ops) mod matmul;
pub(crate) mod matmul_tuning;
pub(in crate::ops) mod matmul_variants;
mod pack_variants;
pub(crate) mod packed;
pub(in crate::ops) mod panels;
pub(in crate::ops) mod plan;
mod qr;
mod solve;
mod svd;
pub(in crate::ops) mod triangle;
pub(in crate::ops) mod unpacked;
pub(in crate::ops) mod vectors;
