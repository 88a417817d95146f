#![doc = include_str!("../README.md")]

mod autograd;
pub mod check;
pub mod checkpoint;
mod context;
pub mod data;
pub mod device;
mod dtype;
mod error;
#[cfg(feature = "wgpu")]
pub mod interop;
pub mod kernel;
pub mod metrics;
pub mod nn;
pub mod npy;
#[cfg(feature = "onnx")]
pub mod onnx;
pub mod ops;
pub mod optim;
pub mod parallel;
mod philox;
pub mod prelude;
mod process_group;
pub mod profiler;
mod shape;
pub mod tensor;
pub mod testing;
pub mod tune;
mod util;
pub mod watch;

pub use autograd::{GradOptions, NoGrad, grad, no_grad};
pub use device::{
    CompileAhead, Device, DeviceInfo, DeviceKind, IntoDevice, KernelList, Vendor, device_count, init, is_available,
    memory_label, try_all_gpus, try_gpu,
};
pub use dtype::{DType, Element};
pub use error::{Error, Result};
#[cfg(feature = "wgpu")]
pub use interop::wgpu;
pub use kernel::WgslKernel;
pub use ops::{
    Attention, Backward, Conv, ConvPadding, GridMode, GridPadding, Interpolation, Operand, Padding, Pool, Resample,
    ResampleCoordinates, ResampleFilter, ResampleRounding, Scalar, ScatterReduce, Sizes, Unfold, autocast, custom_grad,
    narrow_64_bits,
};
#[doc(hidden)]
pub use ops::{Formula, Term};
pub use parallel::{DataParallel, Pipeline};
pub use shape::{Dim, Dims, Extent, NewShape, Shape};
pub use tensor::{
    Index, Indices, NewAxis, RandomState, Tensor, TensorData, manual_seed, random_state, set_random_state,
};
#[doc(hidden)]
pub use util::regular_file::read_text;
pub use util::waiting::jspi;
