//! Functions of two elements, with broadcasting.

use std::sync::Arc;

use rayon::prelude::*;

use crate::device::gpu::{Buffer, Gpu, Kernel, Shader};
use crate::dtype::{DType, Word};
use crate::error::{Error, Result};
use crate::ops::dispatch::{CpuIn, CpuOut, GpuIn, collapse, grid, scalar_header, strided_params};
use crate::ops::promote::apply_wide;
use crate::ops::unary::CHUNK;
use crate::ops::{Gradient, Op, Spec, expect_dtype, shader};
use crate::shape::{Layout, broadcast_shapes};
use crate::tensor::Tensor;

pub(super) const SHADER: Shader = shader!("binary");

#[derive(Clone, Copy, Debug)]
enum Binary {
    Add,
    Sub,
    Mul,
    Div,
    /// The first operand where the second is positive, else 0: the gradient of relu.
    WherePositive,
    /// 1 where equal, else 0, in the operands' type.
    Eq,
}

impl Op for Binary {
    fn name(&self) -> &'static str {
        match self {
            Binary::Add => "add",
            Binary::Sub => "sub",
            Binary::Mul => "mul",
            Binary::Div => "div",
            Binary::WherePositive => "where_positive",
            Binary::Eq => "eq",
        }
    }

    fn output(&self, inputs: &[&Tensor]) -> Result<Spec> {
        let (a, b) = (inputs[0], inputs[1]);
        expect_dtype(self.name(), b, a.dtype())?;
        Ok(Spec::Fresh(broadcast_shapes(self.name(), a.shape(), b.shape())?, a.dtype()))
    }

    fn cpu(&self, inputs: &[CpuIn], out: CpuOut) -> Result<()> {
        let (a, b) = (&inputs[0], &inputs[1]);
        match a.dtype {
            DType::F32 => {
                let f: fn(f32, f32) -> f32 = match self {
                    Binary::Add => return zip(a, b, out, |x: f32, y| x + y),
                    Binary::Mul => return zip(a, b, out, |x: f32, y| x * y),
                    Binary::WherePositive => return zip(a, b, out, |x: f32, y| if y > 0.0 { x } else { 0.0 }),
                    Binary::Sub => |x, y| x - y,
                    Binary::Div => |x, y| x / y,
                    Binary::Eq => |x, y| f32::from(u8::from(x == y)),
                };
                zip(a, b, out, f)
            }
            DType::I32 => zip(
                a,
                b,
                out,
                match self {
                    Binary::Add => i32::wrapping_add,
                    Binary::Sub => i32::wrapping_sub,
                    Binary::Mul => i32::wrapping_mul,
                    Binary::Div => |x: i32, y: i32| if y == 0 { x } else { x.wrapping_div(y) }, // as WGSL defines it
                    Binary::WherePositive => |x, y| if y > 0 { x } else { 0 },
                    Binary::Eq => |x, y| i32::from(x == y),
                },
            ),
            _ => zip(
                a,
                b,
                out,
                match self {
                    Binary::Add => u32::wrapping_add,
                    Binary::Sub => u32::wrapping_sub,
                    Binary::Mul => u32::wrapping_mul,
                    Binary::Div => |x: u32, y: u32| x.checked_div(y).unwrap_or(x), // as WGSL defines it
                    Binary::WherePositive => |x, y| if y > 0 { x } else { 0 },
                    Binary::Eq => |x, y| u32::from(x == y),
                },
            ),
        }
    }

    fn gpu(&self, _gpu: &Arc<Gpu>, inputs: &[GpuIn], out: &Buffer) -> Result<Vec<Kernel>> {
        let (a, b) = (&inputs[0], &inputs[1]);
        let (shape, la, lb) = broadcast(self.name(), a.layout, b.layout)?;
        let dense = la.is_contiguous() && lb.is_contiguous();
        let params = strided_params(self.name(), &shape, (&la.strides, la.offset), (&lb.strides, lb.offset))?;
        Ok(vec![Kernel {
            shader: SHADER,
            entry: if dense { "dense" } else { "strided" },
            header: scalar_header(a.dtype),
            constants: vec![("OP", f64::from(*self as u32))],
            groups: grid(params[0] as usize),
            params,
            inputs: vec![a.buffer.clone(), b.buffer.clone()],
            outputs: vec![out.clone()],
        }])
    }

    fn backward(&self, ctx: &Gradient) -> Result<Vec<Option<Tensor>>> {
        let (a, b, g) = (&ctx.inputs[0].detach(), &ctx.inputs[1].detach(), ctx.grad);
        let wants = |i: usize, f: &dyn Fn() -> Result<Tensor>| ctx.needs[i].then(f).transpose();
        Ok(match self {
            Binary::Add => vec![Some(g.clone()), Some(g.clone())],
            Binary::Sub => vec![Some(g.clone()), wants(1, &|| g.neg())?],
            Binary::Mul => vec![wants(0, &|| g.mul(b))?, wants(1, &|| g.mul(a))?],
            // d(a/b)/db = −a/b² = −out/b
            Binary::Div => vec![wants(0, &|| g.div(b))?, wants(1, &|| g.mul(ctx.out)?.div(b)?.neg())?],
            Binary::WherePositive => vec![wants(0, &|| g.where_positive(b))?, None],
            Binary::Eq => vec![None, None],
        })
    }
}

/// Both layouts stretched to their common shape.
fn broadcast(op: &'static str, a: &Layout, b: &Layout) -> Result<(Vec<usize>, Layout, Layout)> {
    let shape = broadcast_shapes(op, &a.shape, &b.shape)?;
    let (a, b) = (a.broadcast_to(&shape), b.broadcast_to(&shape));
    Ok((shape, a, b))
}

/// Applies `f` to every pair of broadcast elements.
fn zip<T: Word>(a: &CpuIn, b: &CpuIn, out: CpuOut, f: impl Fn(T, T) -> T + Send + Sync) -> Result<()> {
    let (shape, la, lb) = broadcast("zip", a.layout, b.layout)?;
    let (x, y, out) = (a.all::<T>(), b.all::<T>(), out.slice::<T>());
    if la.is_contiguous() && lb.is_contiguous() {
        let (x, y) = (&x[la.offset..][..out.len()], &y[lb.offset..][..out.len()]);
        let parts = out.par_chunks_mut(CHUNK).zip(x.par_chunks(CHUNK)).zip(y.par_chunks(CHUNK));
        parts.for_each(|((out, x), y)| {
            out.iter_mut().zip(x).zip(y).for_each(|((out, &x), &y)| *out = f(x, y));
        });
        return Ok(());
    }
    // Rows along the innermost dimension that is left after merging, each with constant strides.
    let (dims, [sa, sb]) = collapse(&shape, [&la.strides, &lb.strides]);
    let inner = dims.len() - 1;
    let rows = |strides: &[usize], offset| Layout {
        shape: dims[..inner].to_vec(),
        strides: strides[..inner].to_vec(),
        offset,
    };
    let (rows_a, rows_b) = (rows(&sa, la.offset), rows(&sb, lb.offset));
    for ((row, pa), pb) in out.chunks_mut(dims[inner]).zip(rows_a.positions()).zip(rows_b.positions()) {
        row.iter_mut().enumerate().for_each(|(i, out)| *out = f(x[pa + i * sa[inner]], y[pb + i * sb[inner]]));
    }
    Ok(())
}

impl Tensor {
    /// `a + b`, broadcast by NumPy's rule.
    ///
    /// # Errors
    /// [`Error::DeviceMismatch`], [`Error::ShapeMismatch`] or [`Error::DTypeMismatch`] if the operands do not go together.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let rows = Tensor::try_from([[1.0], [2.0]])?;
    /// let columns = Tensor::try_from([10.0, 20.0, 30.0])?;
    /// assert_eq!(rows.add(&columns)?.to_vec::<f32>()?, [11.0, 21.0, 31.0, 12.0, 22.0, 32.0]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn add(&self, other: &Tensor) -> Result<Tensor> {
        apply_wide(Binary::Add, &[self, other])
    }

    /// `a − b`, broadcast by NumPy's rule.
    ///
    /// # Errors
    /// As [`Tensor::add`].
    pub fn sub(&self, other: &Tensor) -> Result<Tensor> {
        apply_wide(Binary::Sub, &[self, other])
    }

    /// `a · b` element by element, broadcast by NumPy's rule.
    ///
    /// # Errors
    /// As [`Tensor::add`].
    pub fn mul(&self, other: &Tensor) -> Result<Tensor> {
        apply_wide(Binary::Mul, &[self, other])
    }

    /// `a / b`, broadcast by NumPy's rule. Integers are rounded towards zero; an integer divided by 0 stays as it is.
    ///
    /// # Errors
    /// As [`Tensor::add`].
    pub fn div(&self, other: &Tensor) -> Result<Tensor> {
        apply_wide(Binary::Div, &[self, other])
    }

    /// 1 where the elements are equal, else 0, in the operands' type; broadcast by NumPy's rule.
    ///
    /// # Errors
    /// As [`Tensor::add`].
    pub fn eq(&self, other: &Tensor) -> Result<Tensor> {
        apply_wide(Binary::Eq, &[self, other])
    }

    /// These elements where `mask` is positive, else 0.
    pub(super) fn where_positive(&self, mask: &Tensor) -> Result<Tensor> {
        apply_wide(Binary::WherePositive, &[self, mask])
    }
}

macro_rules! operator {
    ($($trait:ident $method:ident;)*) => {$(
        impl std::ops::$trait for &Tensor {
            type Output = Result<Tensor, Error>;
            fn $method(self, other: &Tensor) -> Self::Output {
                Tensor::$method(self, other)
            }
        }
    )*};
}
operator! { Add add; Sub sub; Mul mul; Div div; }
