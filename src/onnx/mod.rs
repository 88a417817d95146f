//! Models of other frameworks: files of ONNX, run and trained on any device. Feature `onnx`.
//!
//! [`load`] gives a [`Model`], which is a [`Module`](crate::nn::Module): it moves between devices, its weights are parameters
//! that an optimiser and [`DataParallel`](crate::DataParallel) train, and its state is saved and loaded by the names of the file.
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
//! Operator sets 1 to 28, with the operators that map to ops of this crate, functions of the file, and `If`, `Loop` and `Scan`;
//! and those of ONNX Runtime's own that its tools for transformers write (`GroupQueryAttention`, `MatMulNBits` and others), and its
//! quantiser (`QLinearAdd`, `QGemm` and others), where a number may be one step of its scale from ONNX Runtime's.
//! A file with others is refused by [`load`], in one error that lists all of them. Elements are of the types that this crate
//! has: see [`ElementType::dtype`]. Strings, maps, optionals, sparse tensors and complex numbers are not supported.
//!
//! Numbers of 64 bits are exact, whatever the model's device is. Arithmetic of these is done on the host, to which tensors of a device
//! are copied; what only moves or compares integers stays on the device while they fit 32 bits. Sums and products of integers wrap,
//! and quotients are cut, as in ONNX Runtime; powers are exact. An operator that has no form for floats of 64 bits, which are computed
//! without gradients, is an error. So is a number of `uint64` from 2⁶³ on. A float that becomes an integer and is beyond it, which ONNX
//! leaves open, becomes −2⁶³ in `int64`.
//!
//! Where ONNX Runtime differs from the specification: the `clip` of `LSTM` bounds the inputs of its gates, not the cell, as in ONNX
//! Runtime. `Resize` with scales places pixels by the scale itself, as ONNX's own tests do, also where the new size is a rounded one;
//! ONNX Runtime takes the new size for `align_corners` and `tf_crop_and_resize`. A recurrent layer leaves a sequence of length 0 in
//! its initial state, which ONNX leaves open; ONNX Runtime gives 0.
//!
//! # Execution
//!
//! Tensors stay on the model's device between operators. Shapes and what is computed from them are on the host; nothing is read
//! back unless the graph itself asks for it: a condition, a size or a shape that depends on elements. Most nodes that read only
//! constants are computed once, at [`load`]; scales and shifts of channels, such as batch norms, become part of convolutions. Layer
//! norms, RMS norms, GELU, hard swish, swish and attention that the file has as several operators become one each, `FusedAttention`
//! for the last; its result is NaN for a query that a mask lets attend to nothing, as that of the several operators is. A value's
//! memory is free for others after its last use.
//!
//! # Training
//!
//! Parameters are the floats of the file that convolutions, products, normalisations, recurrent layers and elementwise arithmetic
//! read; statistics of batch norms and other large constants are buffers. Batch norms keep their statistics in training mode,
//! since a file without its training form has them fixed; dropout drops in training mode.
//!
//! # Files of unknown origin
//!
//! Nothing in a file can run. Damaged and hostile files are errors. Reading takes memory in proportion to the file's size,
//! and external data is read only from files in the model's own folder. Running a model may take much time and memory: it says
//! itself how large its tensors are and, up to 2²⁰ trips of `Loop` in one run, how often its loops run. A lack of memory is an error.

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

/// The text of an error, without the name of this module: to be part of another error's.
fn detail(error: &Error) -> String {
    let text = error.to_string();
    text.strip_prefix("onnx: ").unwrap_or(&text).to_owned()
}

/// Reads a model from a file, and the external data that it names from files in the same folder. Its tensors are on `cpu`.
///
/// # Errors
/// [`Error::InvalidArgument`] if the file cannot be read, is damaged, or needs what is not supported; operators that are not
/// supported are all listed.
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
/// As [`load`]; also if the model has external data.
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
