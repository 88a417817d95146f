//! Tests in a browser: `page.rs` has the functions that `run.mjs` calls in a page, and `runs.rs` what the page and native code both
//! compute (`src/bin/browser-native.rs`), to be compared.
#![allow(missing_docs, reason = "tests")]
#![cfg_attr(target_arch = "wasm32", allow(deprecated, reason = "wasm-bindgen calls JSPI experimental"))]

#[cfg(target_arch = "wasm32")]
mod page;
pub mod runs;
