//! Functions of one element: f32 in, f32 out, the same shape.

use std::sync::Arc;

use rayon::prelude::*;

use crate::device::gpu::{Buffer, Gpu, Kernel, Shader};
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::dispatch::{CpuIn, CpuOut, GpuIn, fits_u32, grid};
use crate::ops::promote::apply_float;
use crate::ops::{Gradient, Op, Spec, expect_dtype, shader};
use crate::tensor::Tensor;

pub(super) const SHADER: Shader = shader!("unary");

/// Elements that one task of the host handles: enough to be worth a thread's attention.
pub(super) const CHUNK: usize = 16 * 1024;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Unary {
    Neg,
    Exp,
    Log,
    Sqrt,
    Relu,
    /// `scale · x + shift`
    Affine {
        scale: f32,
        shift: f32,
    },
}

impl Unary {
    /// The case of the shader's switch.
    fn code(self) -> u32 {
        match self {
            Unary::Neg => 0,
            Unary::Exp => 1,
            Unary::Log => 2,
            Unary::Sqrt => 3,
            Unary::Relu => 4,
            Unary::Affine { .. } => 5,
        }
    }
}

impl Op for Unary {
    fn name(&self) -> &'static str {
        match self {
            Unary::Neg => "neg",
            Unary::Exp => "exp",
            Unary::Log => "log",
            Unary::Sqrt => "sqrt",
            Unary::Relu => "relu",
            Unary::Affine { .. } => "affine",
        }
    }

    fn output(&self, inputs: &[&Tensor]) -> Result<Spec> {
        expect_dtype(self.name(), inputs[0], DType::F32)?;
        Ok(Spec::Fresh(inputs[0].shape().to_vec(), DType::F32))
    }

    fn cpu(&self, inputs: &[CpuIn], out: CpuOut) -> Result<()> {
        let (x, out) = (inputs[0].slice::<f32>(), out.slice::<f32>());
        match *self {
            Unary::Neg => map(x, out, |v| -v),
            Unary::Exp => map(x, out, f32::exp),
            Unary::Log => map(x, out, f32::ln),
            Unary::Sqrt => map(x, out, f32::sqrt),
            Unary::Relu => map(x, out, |v| if v <= 0.0 { 0.0 } else { v }), // NaN stays NaN
            Unary::Affine { scale, shift } => map(x, out, |v| v * scale + shift),
        }
        Ok(())
    }

    fn gpu(&self, _gpu: &Arc<Gpu>, inputs: &[GpuIn], out: &Buffer) -> Result<Vec<Kernel>> {
        let x = &inputs[0];
        let (scale, shift) = match *self {
            Unary::Affine { scale, shift } => (scale, shift),
            _ => (1.0, 0.0),
        };
        let count = fits_u32(self.name(), x.layout.elem_count())?;
        Ok(vec![Kernel {
            shader: SHADER,
            entry: "unary",
            header: "",
            constants: vec![("OP", f64::from(self.code()))],
            params: vec![count, x.offset(), scale.to_bits(), shift.to_bits()],
            inputs: vec![x.buffer.clone()],
            outputs: vec![out.clone()],
            groups: grid(count as usize),
        }])
    }

    fn backward(&self, ctx: &Gradient) -> Result<Vec<Option<Tensor>>> {
        let (x, y, g) = (&ctx.inputs[0].detach(), ctx.out, ctx.grad);
        let grad = match *self {
            Unary::Neg => g.neg()?,
            Unary::Exp => g.mul(y)?,
            Unary::Log => g.div(x)?,
            Unary::Sqrt => g.div(&y.mul_scalar(2.0)?)?,
            Unary::Relu => g.where_positive(y)?,
            Unary::Affine { scale, .. } => g.mul_scalar(scale)?,
        };
        Ok(vec![Some(grad)])
    }
}

fn map(x: &[f32], out: &mut [f32], f: impl Fn(f32) -> f32 + Send + Sync) {
    out.par_chunks_mut(CHUNK).zip(x.par_chunks(CHUNK)).for_each(|(out, x)| {
        out.iter_mut().zip(x).for_each(|(out, &x)| *out = f(x));
    });
}

/// Methods for ops without arguments: each takes f32 of any shape and returns the same shape.
macro_rules! unary_methods {
    ($($(#[$doc:meta])* $name:ident => $op:expr;)*) => {
        impl Tensor {
            $(
                $(#[$doc])*
                ///
                /// # Errors
                /// [`Error::DTypeMismatch`](crate::Error::DTypeMismatch) unless the elements are f32.
                pub fn $name(&self) -> Result<Tensor> {
                    apply_float($op, &[&self.contiguous()?])
                }
            )*
        }
    };
}

unary_methods! {
    /// `−x`, element by element.
    neg => Unary::Neg;
    /// `eˣ`, element by element.
    exp => Unary::Exp;
    /// The natural logarithm, element by element: −∞ at 0, NaN below.
    log => Unary::Log;
    /// The square root, element by element: NaN below 0.
    sqrt => Unary::Sqrt;
    /// `max(x, 0)`, element by element; its gradient at 0 is 0.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// assert_eq!(Tensor::try_from([-1.0, 0.0, 2.0])?.relu()?.to_vec::<f32>()?, [0.0, 0.0, 2.0]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    relu => Unary::Relu;
}

impl Tensor {
    /// `x + value`, element by element.
    ///
    /// # Errors
    /// [`Error::DTypeMismatch`](crate::Error::DTypeMismatch) unless the elements are f32.
    pub fn add_scalar(&self, value: f32) -> Result<Tensor> {
        apply_float(Unary::Affine { scale: 1.0, shift: value }, &[&self.contiguous()?])
    }

    /// `value · x`, element by element.
    ///
    /// # Errors
    /// [`Error::DTypeMismatch`](crate::Error::DTypeMismatch) unless the elements are f32.
    pub fn mul_scalar(&self, value: f32) -> Result<Tensor> {
        apply_float(Unary::Affine { scale: value, shift: 0.0 }, &[&self.contiguous()?])
    }
}
