//! What most programs use: `use anygpu::prelude::*;`.
//!
//! It has no `Result`, so that the standard library's stays visible: write `anygpu::Result`.

pub use crate::data::Dataset;
pub use crate::nn::Module;
pub use crate::optim::Optimizer;
pub use crate::{
    Conv, ConvPadding, DType, DataParallel, Device, NoGrad, Pipeline, Pool, Tensor, checkpoint, children, data,
    device_count, is_available, manual_seed, metrics, module, nn, no_grad, optim, parallel, s, t, try_all_gpus,
    try_gpu,
};
