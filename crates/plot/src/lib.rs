//! Pictures of training curves, as PNG and SVG: [`Animator`].
//!
//! A separate package from `anygpu`, since most programs that train draw nothing. The command `anygpu` uses it
//! (`--plot`).

mod animator;
mod draw;

pub use animator::Animator;
