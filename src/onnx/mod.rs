//! Loads models of other frameworks from ONNX files, and runs and trains them on any device. Needs the feature
//! `onnx`.
//!
//! [`load`] returns a [`Model`], which is a [`Module`](crate::nn::Module). It moves between devices. Its weights
//! are parameters that an optimiser and [`DataParallel`](crate::DataParallel) train. Its state is saved and loaded
//! under the names of the file.
//!
//! ```no_run
//! use anygpu::nn::Module;
//! use anygpu::{Tensor, onnx, try_gpu};
//!
//! let device = try_gpu(0);
//! let model = onnx::load("model.onnx")?.to(&device)?;
//! println!("{model}"); // its inputs, outputs and operators
//! let x = Tensor::rand([1, 3, 224, 224], &device)?;
//! let outputs = model.run(&[("images", &x)])?;
//! println!("{}", outputs["scores"]);
//! # Ok::<(), anygpu::Error>(())
//! ```
//!
//! # What is supported
//!
//! - Operator sets 1 to 28: the operators that map to ops of this crate, functions of the file, and `If`, `Loop`
//!   and `Scan`.
//! - The operators of ONNX Runtime that its tools for transformers write (`GroupQueryAttention`, `MatMulNBits` and
//!   others).
//! - The operators that ONNX Runtime's quantiser writes (`QLinearAdd`, `QGemm` and others). Their numbers may
//!   differ from ONNX Runtime's by one step of their scale.
//!
//! [`load`] refuses a file with other operators, in one error that lists all of them. Elements have the types of
//! this crate: see [`ElementType::dtype`]. Strings, maps, optionals, sparse tensors and complex numbers are not
//! supported.
//!
//! Numbers of 64 bits are exact, on whatever device the model is. Arithmetic on them is done on the host, to which
//! tensors of a device are copied. Operators that only move or compare integers stay on the device while the
//! integers fit 32 bits. As in ONNX Runtime, sums and products of integers wrap, and quotients are truncated;
//! powers are exact. Floats of 64 bits are computed without gradients. An operator that has no form for them is an
//! error, and so is a number of `uint64` from 2⁶³ on. If a float is beyond the integer type that it is cast to,
//! ONNX leaves the result open; in `int64`, it becomes −2⁶³ here.
//!
//! Where the specification and ONNX Runtime differ or leave something open:
//!
//! - The `clip` of `LSTM` bounds the inputs of its gates, not the cell, as in ONNX Runtime.
//! - `Resize` with scales places pixels by the scale itself, as ONNX's own tests do, even where the new size is
//!   rounded. For `align_corners` and `tf_crop_and_resize`, ONNX Runtime takes the new size instead.
//! - A recurrent layer leaves a sequence of length 0 in its initial state. ONNX leaves this open; ONNX Runtime
//!   gives 0.
//!
//! # Execution
//!
//! Tensors stay on the model's device between operators. Shapes and numbers computed from them are on the host.
//! Nothing is read back unless the graph itself needs it, for a condition, a size or a shape that depends on
//! elements.
//!
//! [`load`] simplifies the graph. Most nodes that read only constants are computed once. Scales and shifts of
//! channels, such as batch norms, become part of convolutions. Layer norms, RMS norms, GELU, hard swish, swish and
//! attention that the file has as several operators become one operator each. For attention, this is
//! `FusedAttention`: if a mask lets a query attend to nothing, its result is NaN, as with the separate operators.
//! The memory of a value is reused after its last use.
//!
//! # Training
//!
//! Parameters are the floats of the file that convolutions, products, normalisations, recurrent layers and
//! elementwise arithmetic read. Statistics of batch norms and other large constants are buffers. Batch norms keep
//! their statistics in training mode, since a file that is not in training form has them fixed. Dropout drops in
//! training mode.
//!
//! # Files of unknown origin
//!
//! Nothing in a file can be executed as code. Damaged and hostile files are errors. Reading takes memory in
//! proportion to the file's size, and external data is read only from files in the model's own folder. Running a
//! model may take much time and memory: the file sets how large its tensors are, and how often its loops run (up to
//! 2²⁰ trips of `Loop` in one run). A lack of memory is an error.

mod array;
mod attributes;
mod build;
mod call;
mod element_type;
mod exact;
mod export;
mod fold;
mod fuse;
mod host;
mod info;
mod minifloat;
mod model;
mod node;
mod ops;
mod proto;
mod run;
mod value;
mod weights;

use std::path::Path;

use prost::Message;
use prost::bytes::Bytes;

use crate::device::cpu::{read_whole, with_room};
use crate::error::{Error, Result};
use weights::ExternalData;

pub use element_type::ElementType;
pub use export::{Exporter, export};
pub use info::{Dimension, ValueInfo};
pub use model::{Model, Outputs};

/// An error of this module.
fn fault(detail: impl Into<String>) -> Error {
    Error::argument("onnx", detail)
}

/// Returns the text of an error without the name of this module, to be part of another error's text.
fn detail(error: &Error) -> String {
    let text = error.to_string();
    text.strip_prefix("onnx: ").unwrap_or(&text).to_owned()
}

/// Reads a model from a file.
///
/// External data is read from files in the same folder. The model's tensors are on `cpu`.
///
/// # Errors
/// [`Error::InvalidArgument`] if the file cannot be read, is damaged, or needs something that is not supported. It
/// lists all operators that are not supported.
///
/// ```
/// let error = anygpu::onnx::load("no such file.onnx").unwrap_err();
/// assert!(error.to_string().contains("no such file.onnx"));
/// ```
pub fn load(path: impl AsRef<Path>) -> Result<Model> {
    let path = path.as_ref();
    let failed = |why: &dyn std::fmt::Display| fault(format!("{}: {why}", path.display()));
    let bytes = read_whole(path, |error| failed(&error))?;
    parse(bytes.into(), ExternalData::beside(path)).map_err(|error| match &error {
        Error::InvalidArgument { detail, .. } => failed(detail),
        _ => error,
    })
}

/// Reads a model from the bytes of a file.
///
/// # Errors
/// The errors of [`load`]; also an error if the model has external data.
///
/// ```
/// assert!(anygpu::onnx::load_bytes(b"not a model").is_err());
/// ```
pub fn load_bytes(bytes: &[u8]) -> Result<Model> {
    let mut copy = with_room(bytes.len())?;
    copy.extend_from_slice(bytes);
    parse(copy.into(), ExternalData::default())
}

fn parse(bytes: Bytes, external: ExternalData) -> Result<Model> {
    let proto = proto::ModelProto::decode(bytes).map_err(|error| fault(format!("not a model of ONNX: {error}")))?;
    Model::new(&proto, external)
}
