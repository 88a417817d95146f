//! Ops that only the host computes. Tensors of an adapter are copied to the host, and the result is copied back.
//!
//! They compute in f64, from f32 (and round the result) or from f64. Adapters have none of their kernels.

use std::fmt;
use std::sync::{Arc, Once};

use anygpu_host::tasks::try_share;

use crate::device::Device;
use crate::device::cpu::with_room;
use crate::device::gpu::{Buffer, Gpu, Kernel};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::ops::long::{Long, of_pairs, pairs, untracked};
use crate::ops::names::Names;
use crate::ops::{
    Casting, CpuIn, CpuOut, Dense, Elements, GpuIn, Gradient, Gradients, Op, Output, Saves, apply, named, of_sums,
    one_float_type, only_on_the_host, same_device,
};
use crate::tensor::Tensor;

/// An element as it is stored: an f32, or the two words of an f64.
pub(in crate::ops) trait Stored: bytemuck::Pod + Send + Sync {
    fn number(self) -> f64;
    fn of(number: f64) -> Self;
}

impl Stored for f32 {
    fn number(self) -> f64 {
        self.into()
    }
    fn of(number: f64) -> f32 {
        number as f32
    }
}

impl Stored for [u32; 2] {
    fn number(self) -> f64 {
        <f64 as Long>::of(self)
    }
    fn of(number: f64) -> [u32; 2] {
        number.pair()
    }
}

/// An input: its shape, and its elements in row-major order.
pub(in crate::ops) struct Array<'a, S> {
    pub shape: &'a [usize],
    pub elements: &'a [S],
}

/// What the host computes.
pub(in crate::ops) trait HostOp: fmt::Debug + Copy + Send + Sync + 'static {
    /// As [`Op::NAMES`].
    const NAMES: Names;

    /// As [`Op::name`].
    fn name(&self) -> &'static str {
        const { Self::NAMES.only() }
    }

    /// Returns the shape of the result.
    fn shape(&self, inputs: &[&[usize]]) -> Result<Vec<usize>>;

    /// Writes every element of the result, of which there is at least one.
    fn compute<S: Stored>(&self, inputs: &[Array<S>], out: &mut [S]) -> Result<()>;

    fn saves(&self) -> Saves;

    /// As [`Op::backward`]; never called for f64.
    fn backward(&self, ctx: &Gradient) -> Result<Gradients>;
}

/// A [`HostOp`] of f32, or of f64 by [`Doubles`].
#[derive(Debug)]
struct OnHost<H>(H);

impl<H: HostOp> Op for OnHost<H> {
    type Layout = Dense;
    const ELEMENTS: Elements = Elements::Floats(Casting::Raise);
    const NAMES: Names = H::NAMES;

    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn output(&self, inputs: &[&Tensor]) -> Result<Output> {
        Ok((self.0.shape(&inputs.iter().map(|x| x.shape()).collect::<Vec<_>>())?, DType::F32))
    }

    fn long(&self, inputs: &[&Tensor]) -> Result<Tensor> {
        one_float_type(self.name(), inputs)?;
        untracked(self.name(), inputs)?;
        let words: Vec<Tensor> = inputs.iter().map(|x| pairs(x)).collect();
        of_pairs(&apply(Doubles(self.0), &words.iter().collect::<Vec<_>>())?, DType::F64)
    }

    fn cpu(&self, inputs: &[CpuIn<Dense>], out: CpuOut) -> Result<()> {
        let inputs: Vec<_> = inputs.iter().map(|x| Array { shape: x.shape(), elements: x.slice::<f32>() }).collect();
        self.0.compute(&inputs, out.slice::<f32>())
    }

    fn gpu(&self, _gpu: &Arc<Gpu>, _inputs: &[GpuIn<Dense>], _out: &Buffer) -> Result<Vec<Kernel>> {
        Err(only_on_the_host(self.name()))
    }

    fn saves(&self) -> Saves {
        self.0.saves()
    }

    fn backward(&self, ctx: &Gradient) -> Result<Gradients> {
        self.0.backward(ctx)
    }
}

/// A [`HostOp`] of the pairs of words of f64, `[.., 2]`.
#[derive(Debug)]
struct Doubles<H>(H);

impl<H: HostOp> Op for Doubles<H> {
    type Layout = Dense;
    const ELEMENTS: Elements = Elements::Any;
    const NAMES: Names = H::NAMES;

    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn output(&self, inputs: &[&Tensor]) -> Result<Output> {
        let shapes: Vec<_> = inputs.iter().map(|x| of_elements(x.shape())).collect();
        let mut shape = self.0.shape(&shapes)?;
        shape.push(2);
        Ok((shape, DType::U32))
    }

    fn cpu(&self, inputs: &[CpuIn<Dense>], out: CpuOut) -> Result<()> {
        let mut arrays = Vec::with_capacity(inputs.len());
        for x in inputs {
            arrays.push(Array { shape: of_elements(x.shape()), elements: x.slice::<u32>().as_chunks().0 });
        }
        let inputs = arrays;
        self.0.compute(&inputs, out.0.as_chunks_mut().0)
    }

    fn gpu(&self, _gpu: &Arc<Gpu>, _inputs: &[GpuIn<Dense>], _out: &Buffer) -> Result<Vec<Kernel>> {
        Err(only_on_the_host(self.name()))
    }
}

/// The shape of elements, from the shape of their pairs of words.
fn of_elements(pairs: &[usize]) -> &[usize] {
    pairs.split_last().map_or(pairs, |(_, shape)| shape)
}

/// Applies an op to tensors of the host.
pub(in crate::ops) fn host_op<H: HostOp>(op: H, inputs: &[&Tensor]) -> Result<Tensor> {
    apply(OnHost(op), inputs)
}

/// Runs the body of a method on the host: `f` gets the tensors there, and its result comes back to their device. Both copies have
/// gradients. The first such copy of a process is logged.
pub(in crate::ops) fn on_host(
    op: &'static str,
    inputs: &[&Tensor],
    f: impl FnOnce(&[Tensor]) -> Result<Tensor>,
) -> Result<Tensor> {
    static LOGGED: Once = Once::new();
    named(op, || {
        same_device(op, inputs)?;
        let taken = |x: &&&Tensor| matches!(of_sums(x.dtype()), DType::F32 | DType::F64);
        if let Some(other) = inputs.iter().find(|x| !taken(x)) {
            let expected = "f32, or of f64 on cpu".to_owned();
            return Err(Error::DTypeMismatch { op, expected, got: other.dtype().to_string() });
        }
        let device = inputs[0].device();
        if !device.is_cpu() {
            LOGGED.call_once(|| {
                log::info!(
                    "{op} is computed on the host: tensors of {device} are copied there, and the result back. So are the \
                     other ops of linear algebra and Fourier transforms, by whose documentation the host computes them"
                );
            });
        }
        let host = inputs.iter().map(|x| x.to(Device::cpu())).collect::<Result<Vec<_>>>()?;
        f(&host)?.to(device)
    })
}

/// Returns some f64, all 0.
pub(in crate::ops) fn zeros(count: usize) -> Result<Vec<f64>> {
    let mut all = with_room(count)?;
    all.resize(count, 0.0);
    Ok(all)
}

/// Returns elements as f64.
pub(in crate::ops) fn numbers<S: Stored>(elements: &[S]) -> Result<Vec<f64>> {
    let mut all = with_room(elements.len())?;
    all.extend(elements.iter().map(|element| element.number()));
    Ok(all)
}

/// Writes numbers as elements.
pub(in crate::ops) fn write<S: Stored>(numbers: impl IntoIterator<Item = f64>, out: &mut [S]) {
    out.iter_mut().zip(numbers).for_each(|(out, number)| *out = S::of(number));
}

/// Calls `f` with each matrix's number and its part of the result, in parallel. `operations` counts the operations of
/// one matrix. The error is the error of the first matrix that has one.
pub(in crate::ops) fn each_matrix<S: Send>(
    out: &mut [S],
    part: usize,
    operations: usize,
    f: impl Fn(usize, &mut [S]) -> Result<()> + Sync,
) -> Result<()> {
    /// A thread is worth so many operations.
    const WORTHWHILE: usize = 1 << 16;
    try_share(out.chunks_mut(part.max(1)).enumerate(), WORTHWHILE / operations.max(1), |(i, out)| f(i, out))
}

/// Names a matrix of a batch, in an error.
pub(in crate::ops) fn the_matrix(batch: &[usize], mut number: usize) -> String {
    if batch.is_empty() {
        return "the matrix".to_owned();
    }
    let mut index = vec![0; batch.len()];
    for (i, &size) in index.iter_mut().zip(batch).rev() {
        (*i, number) = (number % size.max(1), number / size.max(1));
    }
    format!("matrix {index:?} of the batch")
}
