//! What most programs use: `use anygpu::prelude::*;`.
//!
//! It has no `Result`, so that the standard library's stays visible: write `anygpu::Result`.

pub use crate::nn::Module;
pub use crate::{
    Conv, DType, DataParallel, Device, Pool, Tensor, checkpoint, children, data, manual_seed, module, nn, no_grad,
    optim, s, try_all_gpus, try_gpu,
};
