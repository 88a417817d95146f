//! The pages of the guide and README.md as documentation of empty modules, so that `cargo test --doc` runs their programs.
//! `build.rs` finds the pages.

include!(concat!(env!("OUT_DIR"), "/pages.rs"));
