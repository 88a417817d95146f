//! The road that every op takes: `apply` checks the devices, asks the op for its output, runs it where its inputs live,
//! and remembers it for the backward pass.
//!
//! An op is a value with five small parts: a name, the rule for its output (the only check of its inputs), a loop for
//! the CPU, kernels for an adapter, and a gradient in terms of tensors. Each family is a file, with a shader of the same
//! stem in `shaders/`. Compositions of ops need none of this: they are in `derived`.

mod autocast;
mod dispatch;
mod elementwise;
mod index;
pub(crate) mod inplace;
mod linalg;
pub(crate) mod nll;
mod norm;
pub(crate) mod optim;
mod promote;
pub(crate) mod random;
mod reduction;
mod shape;
mod spatial;
mod sums;
pub(crate) mod variants;

pub use autocast::autocast;
pub(crate) use autocast::{AsItIs, Autocast, of_sums};
pub(crate) use dispatch::{CpuIn, CpuOut, GpuIn};
pub use elementwise::binary::operand::{Operand, Scalar};
pub(crate) use elementwise::cast::repacked;
pub use linalg::attention::Attention;
pub(crate) use shape::copy::{cat, duplicate};
pub use shape::pad::Padding;
pub(crate) use shape::view::Part;
pub use spatial::conv::Conv;
pub use spatial::pool::Pool;
pub use spatial::resize::Interpolation;
pub use spatial::window::Sizes;

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use elementwise::{binary as pairs, cast, masked_fill as masked, unary, where_cond as choose};
use index::{gather, sort};
use linalg::{matmul, matmul_variants, triangle};
use reduction::{argmax, reduce, scan, softmax};
use shape::{copy, pad};
use spatial::{conv, pool, resize, window};

use crate::device::gpu::{Buffer, Gpu, Kernel};
use crate::device::{Backend, Storage};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::shape::{Layout, checked_elem_count};
use crate::tensor::Tensor;

/// What an op produces.
#[derive(Debug)]
pub(crate) enum Spec {
    /// New elements, row-major.
    Fresh(Vec<usize>, DType),
    /// The input's elements seen through another layout: nothing is computed.
    View(Layout),
}

/// The inputs, the output and the output's gradient of a recorded op.
pub(crate) struct Gradient<'a> {
    pub inputs: &'a [Tensor],
    pub out: &'a Tensor,
    /// Has the shape of `out`.
    pub grad: &'a Tensor,
    /// Which inputs want a gradient; the others may be skipped.
    pub needs: &'a [bool],
}

/// One operation on tensors of one device.
pub(crate) trait Op: fmt::Debug + Send + Sync + 'static {
    /// The name that errors, profiles and the op table use.
    fn name(&self) -> &'static str;

    /// Whether the op reads packed elements itself; else only words reach it (see `promote`).
    fn takes_packed(&self) -> bool {
        false
    }

    /// Checks the inputs and says what comes out.
    fn output(&self, inputs: &[&Tensor]) -> Result<Spec>;

    /// Computes on the host. `out` holds unspecified values.
    fn cpu(&self, _inputs: &[CpuIn], _out: CpuOut) -> Result<()> {
        Err(Error::argument(self.name(), "computes nothing by itself"))
    }

    /// The kernels that compute this on an adapter, in order. `out` holds unspecified values.
    fn gpu(&self, _gpu: &Arc<Gpu>, _inputs: &[GpuIn], _out: &Buffer) -> Result<Vec<Kernel>> {
        Err(Error::argument(self.name(), "computes nothing by itself"))
    }

    /// The gradient with respect to each input, with that input's shape before any broadcast is undone.
    fn backward(&self, _ctx: &Gradient) -> Result<Vec<Option<Tensor>>> {
        Err(Error::Autograd(format!("{} has no gradient", self.name())))
    }
}

/// Runs an op on its inputs' device and records it if an input is tracked.
pub(crate) fn apply<O: Op>(op: O, inputs: &[&Tensor]) -> Result<Tensor> {
    same_device(op.name(), inputs)?;
    let first = inputs[0];
    let (storage, layout, dtype) = match op.output(inputs)? {
        Spec::View(layout) => (first.storage().clone(), layout, first.dtype()),
        Spec::Fresh(shape, dtype) => {
            let packed = inputs.iter().find(|x| x.dtype().is_packed()).filter(|_| !op.takes_packed());
            if let Some(x) = packed {
                let (expected, got) = ("f32, i32 or u32 (use .to_dtype())".into(), x.dtype().to_string());
                return Err(Error::DTypeMismatch { op: op.name(), expected, got });
            }
            let words = dtype.words(checked_elem_count(op.name(), &shape)?);
            (compute(&op, inputs, words)?, Layout::contiguous(&shape), dtype)
        }
    };
    let out = Tensor::new(storage, layout, dtype, first.device().clone());
    Ok(crate::autograd::record(op, inputs, out))
}

/// `words` is the size of the output. The one place that decides between the host and an adapter.
fn compute(op: &dyn Op, inputs: &[&Tensor], words: usize) -> Result<Storage> {
    match inputs[0].device().backend()? {
        Backend::Cpu(cpu) => {
            let out = cpu.alloc(words)?;
            if words > 0 {
                let guards = dispatch::read_all(inputs)?;
                let views: Vec<CpuIn> = inputs.iter().map(|t| dispatch::view(t, &guards)).collect::<Result<_>>()?;
                op.cpu(&views, CpuOut(&mut out.write()[..words]))?;
            }
            Ok(Storage::Cpu(out))
        }
        Backend::Gpu(gpu) => {
            let out = gpu.alloc(words)?;
            if words > 0 {
                let views: Vec<GpuIn> = inputs.iter().map(|t| dispatch::gpu_view(t)).collect::<Result<_>>()?;
                for kernel in op.gpu(gpu, &views, &out)? {
                    gpu.run(variants::settle(gpu, kernel)?)?;
                }
            }
            Ok(Storage::Gpu(out))
        }
    }
}

/// The rule that tensors of two devices never meet in silence.
pub(crate) fn same_device(op: &'static str, inputs: &[&Tensor]) -> Result<()> {
    let first = inputs.first().ok_or_else(|| Error::argument(op, "needs at least one tensor"))?;
    match inputs.iter().find(|t| t.device() != first.device()) {
        None => Ok(()),
        Some(other) => Err(Error::DeviceMismatch {
            op,
            left: first.device().name().to_owned(),
            right: other.device().name().to_owned(),
        }),
    }
}

/// Checks an input's element type.
fn expect_dtype(op: &'static str, tensor: &Tensor, expected: DType) -> Result<()> {
    if tensor.dtype() == expected {
        return Ok(());
    }
    Err(Error::DTypeMismatch { op, expected: expected.to_string(), got: tensor.dtype().to_string() })
}

/// Every shader of the crate with the headers that it is compiled with: what the shader tests and `anygpu check` go through.
#[doc(hidden)]
pub fn shader_catalogue() -> Vec<(&'static str, String)> {
    let mut all = HashMap::new();
    for (shader, headers) in [
        (argmax::SHADER, &dispatch::SCALAR_HEADERS[..]),
        (conv::SHADER, &[window::HEADER.source][..]),
        (conv::DIRECT_SHADER, &[window::HEADER.source][..]),
        (copy::SHADER, &[""][..]),
        (choose::SHADER, &[""][..]),
        (cast::SHADER, &cast::HEADERS[..]),
        (cast::PACKED_SHADER, &[""][..]),
        (gather::SHADER, &dispatch::SCALAR_HEADERS[..]),
        (masked::SHADER, &[""][..]),
        (matmul::HEADER, &[""][..]),
        (matmul::SHADER, &[matmul::HEADER.source][..]),
        (matmul::PACK_SHADER, &[""][..]),
        (matmul_variants::PLAIN_SHADER, &[matmul::HEADER.source][..]),
        (matmul_variants::TILES_SHADER, &[matmul::HEADER.source][..]),
        (nll::SHADER, &[""][..]),
        (norm::SHADER, &[""][..]),
        (optim::SHADER, &[""][..]),
        (pad::SHADER, &[""][..]),
        (pool::ADAPTIVE_SHADER, &[""][..]),
        (pool::AVG_SHADER, &[window::HEADER.source][..]),
        (pool::MAX_SHADER, &[window::HEADER.source][..]),
        (crate::device::gpu::probe::SHADER, &[""][..]),
        (random::SHADER, &[""][..]),
        (reduce::SHADER, &dispatch::SCALAR_HEADERS[..]),
        (scan::SHADER, &dispatch::SCALAR_HEADERS[..]),
        (resize::SHADER, &[""][..]),
        (softmax::SHADER, &[""][..]),
        (sort::SHADER, &[""][..]),
        (triangle::SHADER, &[""][..]),
        (unary::GRAD_SHADER, &unary::grad_headers()[..]),
        (unary::SHADER, &unary::headers()[..]),
        (window::HEADER, &[""][..]),
    ] {
        for header in headers {
            all.insert((shader.name, *header), format!("{header}{}", shader.source));
        }
    }
    for (shader, headers) in pairs::catalogue() {
        all.extend(headers.into_iter().map(|header| ((shader.name, header), format!("{header}{}", shader.source))));
    }
    let mut list: Vec<_> = all.into_iter().map(|((name, _), text)| (name, text)).collect();
    list.sort();
    list
}

/// Names a shader file: `shader!("matmul")` is `shaders/matmul.wgsl`.
macro_rules! shader {
    ($name:literal) => {
        $crate::device::gpu::Shader {
            name: $name,
            source: include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/shaders/", $name, ".wgsl")),
        }
    };
}
use shader;
