//! Products of matrices and vectors, and factorisations of matrices.

pub(in crate::ops) mod attention;
pub(in crate::ops) mod batched;
mod cholesky;
pub(in crate::ops) mod cooperative;
mod determinant;
pub(in crate::ops) mod distances;
pub(in crate::ops) mod dots;
pub(in crate::ops) mod einsum;
mod factor;
mod few_rows;
pub(in crate::ops) mod gemm;
mod host;
pub(in crate::ops) mod lane_sums;
mod large;
pub(in crate::ops) mod lines;
pub(in crate::ops) mod matmul;
pub(crate) mod matmul_tuning;
pub(in crate::ops) mod matmul_variants;
pub(in crate::ops) mod panels;
mod qr;
mod solve;
mod svd;
pub(in crate::ops) mod tiles;
pub(in crate::ops) mod triangle;
pub(in crate::ops) mod turn;
pub(in crate::ops) mod unpacked;
pub(in crate::ops) mod vectors;
