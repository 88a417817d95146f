//! Tensors, training and WGSL kernels on every GPU of a machine and on its CPU, of any vendor and in any mix, through WebGPU.
//!
//! ```
//! use anygpu::nn::{self, models::lenet};
//! use anygpu::{DataParallel, Device, Tensor, data, optim, try_gpu};
//!
//! fn main() -> anygpu::Result<()> {
//!     let gpu = try_gpu(0); // gpu:0, or cpu when there is none
//!     let x = Tensor::new([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], &gpu)?;
//!     let y = Tensor::ones(3, &gpu)?;
//!     println!("{}", (&x + (&y * 0.5))?); // tensor([[1.5000, …]], device='gpu:0')
//!
//!     let (train, _test) = data::mnist_5k()?.loaders(64, 0)?;
//!     let net = DataParallel::new(lenet()?, &Device::all())?; // any mix of devices
//!     let mut sgd = optim::SGD::new(net.parameters(), 0.1);
//!     for batch in train.epoch(0).take(2) {
//!         let (images, labels) = batch?;
//!         net.train_batch(&images, &labels, nn::cross_entropy)?;
//!         sgd.step()?;
//!     }
//!     Ok(())
//! }
//! ```
//!
//! # Where to look
//!
//! | for | see |
//! |---|---|
//! | devices by name, and what they can do | [`Device`], [`try_gpu`], [`try_all_gpus`], [`device`] |
//! | tensors and ops | [`Tensor`], whose page groups its methods by subject |
//! | gradients | [`Tensor::backward`], [`grad`], [`no_grad`], [`custom_grad`] |
//! | layers and losses, a net of your own | [`nn`], [`module!`] |
//! | optimisers and schedules | [`optim`] |
//! | several devices, several machines | [`DataParallel`], [`Pipeline`], [`parallel`] |
//! | data sets, loaders, metrics | [`data`], [`metrics`] |
//! | saving, PyTorch's files | [`checkpoint`], [`npy`] |
//! | models of ONNX (feature `onnx`) | `onnx` |
//! | kernels in WGSL | [`WgslKernel`], [`kernel`] |
//! | programs that use wgpu (feature `wgpu`) | `interop` |
//! | times, tests, the check of an adapter | [`profiler`], [`testing`], [`check`] |
//!
//! `use anygpu::prelude::*;` brings what most programs need. The repository has a guide with a page for each subject, and
//! pages for those who know PyTorch, burn, candle or TensorFlow.js.
//!
//! # Rules that hold everywhere
//!
//! - An op never moves a tensor between devices: tensors on two devices are [`Error::DeviceMismatch`].
//! - A step on several devices gives the numbers of one device over the whole batch, within rounding.
//! - Ops on adapters return before they are computed. [`Tensor::to_vec`], [`Tensor::item`] and printing wait. In a browser, the forms
//!   that end in `_async` wait.
//! - What a caller can do wrong is an [`Error`] with the method's name. A lost device or a lack of memory is an [`Error`] too, and the
//!   rest of the process goes on.
//!
//! # Features
//!
//! `onnx`, `image`, `ndarray`, `wgpu`, `mpi` (several machines), `fft`, `download` (Fashion-MNIST), `serde`, `static-dxc` (DirectX 12 with
//! its current compiler), `jspi` (calls that wait in a browser). None is on by default.

// To find whether wgpu's types are Send and Sync, rustc may go through more than 128 of their fields: that depends on the order in
// which it asks, so a change elsewhere can make it fail (E0275).
#![recursion_limit = "256"]

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
