//! What the repository's texts say: the structure of the code, shaders, and the ways of writing calls.

#[path = "../common/mod.rs"]
mod common;
#[path = "../source/mod.rs"]
mod source;
#[path = "../specialisations/mod.rs"]
mod specialisations;

mod docs;
mod error_names;
mod shaders;
mod structure;
mod surface;
mod turns;
