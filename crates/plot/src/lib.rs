//! Pictures of training curves, as PNG and SVG: [`Animator`].
//!
//! A package beside `anygpu`, since most programs that train draw nothing; the command `anygpu` draws by it (`--plot`).

mod animator;
mod draw;

pub use animator::Animator;
