//! The op table: every op × every device × value, shape, type, gradient and odd layouts, against naive loops.

#[path = "../common/mod.rs"]
mod common;

mod conv;
mod elementwise;
mod errors;
mod matmul;
mod reduce;
mod softmax;
mod table;
mod views;
