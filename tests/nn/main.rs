//! What programs build of ops: gradients, layers, optimisers, schedulers, losses and element types, with the numbers of PyTorch, of
//! plain loops, or of the mathematics. Nothing here seeds the generator or counts what a device does: see `tests/train/` and
//! `tests/alone/`.

#[path = "../common/mod.rs"]
mod common;

mod absurd_sizes;
mod autograd;
mod dtypes;
mod gradients;
mod inits;
mod learning;
mod mistakes;
mod mixed_precision;
mod modules;
mod optimisers;
mod param_groups;
mod properties;
mod pytorch;
mod pytorch_further;
mod pytorch_layers;
mod schedulers;
mod second_gradients;
mod user_nets;
mod wide_types;
