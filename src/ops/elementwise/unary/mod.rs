//! Functions of one element, the contents of their rows in the table, and the two kernels that run the rows, forward
//! and gradient.
//!
//! A row has each formula in Rust and in WGSL; the WGSL formula is put before the shader as a header. Where functions
//! of WGSL are not accurate enough, it calls functions `m_…` of `shaders/common/math.wgsl` and `special.wgsl`. The rows are in `table`.

mod doubles;
mod gradient;
mod methods;
pub(in crate::ops) mod special;
mod table;

use std::sync::Arc;

use anygpu_host::tasks::share;

use crate::device::gpu::{Bits, Buffer, FOURS, Gpu, Kernel, Operand, Pointwise, operands, params, shader, wgsl};
use crate::dtype::{DType, Word};
use crate::error::{Error, Result};
use crate::ops::elementwise::onnx::{Composition, Onnx};
use crate::ops::elementwise::promote::to_float;
use crate::ops::inputs::elements_each;
use crate::ops::long::single;
use crate::ops::names::Names;
use crate::ops::parts::alike;
use crate::ops::traced::Traced;
use crate::ops::{CpuIn, CpuOut, Dense, Elements, GpuIn, Gradient, Gradients, Op, Output, Saves, apply, no_gradient};
use crate::tensor::Tensor;
use gradient::UnaryGrad;

pub(crate) use table::UnaryFn;

/// Functions of f32 that are put before the shaders of formulas.
pub(in crate::ops) const MATH: &str = wgsl!("common/math");
pub(in crate::ops) const SPECIAL: &str = wgsl!("common/special");
pub(in crate::ops) const INVERSE: &str = wgsl!("elementwise/inverse");

params! {
    struct Params { count: usize, offset: usize, run: usize, a: Bits, b: Bits }
}
params! {
    struct GradParams {
        count: usize, x_offset: usize, y_offset: usize, g_offset: usize, run: usize, a: f32, b: f32,
    }
}
shader!(SHADER: Params = "elementwise/unary", after [FOURS, MATH, SPECIAL, INVERSE], headers headers);
shader!(GRAD_SHADER: GradParams = "elementwise/unary_grad", after [FOURS, MATH, SPECIAL, INVERSE], headers grad_headers);

/// The number of elements of one task of the host: enough to justify the cost of a task.
pub(in crate::ops) const CHUNK: usize = 16 * 1024;

/// The chunks of a task whose arithmetic is quick: one thread computes them in the time that it takes to wake another one.
pub(in crate::ops) const FEW_CHUNKS: usize = 2;

/// Words of the input, of the result, and the two arguments.
type Each = fn(&[u32], &mut [u32], [u32; 2]);
/// Words of the gradient, the input and the result of the forward pass, of the input's gradient, and the arguments.
type EachGrad = fn([&[u32]; 3], &mut [u32], [u32; 2]);
/// A function of f64 and of the arguments. Truth is 0 or 1.
pub(in crate::ops) type Double = fn(f64, [f64; 2]) -> f64;
/// A function of i64. Truth is 0 or 1.
pub(in crate::ops) type Integer = fn(i64) -> i64;

/// A row of the table: everything about a function except its name.
pub(in crate::ops) struct Function {
    /// `None` for a function of integers alone.
    f32: Option<Formula>,
    /// `None` for a result that has no gradient: truth values and integers.
    gradient: Option<Slope>,
    /// `None` is an error for f64 that names the remedy.
    pub f64: Option<Double>,
    whole: Whole,
    onnx: Onnx<Composition>,
}

/// A function for words of one type.
pub(in crate::ops) struct Formula {
    /// The function `f` for the shader, with its types.
    header: &'static str,
    each: Each,
    /// How many chunks a task of the host has at least.
    chunks: usize,
    /// Whether the result is 0 or 1, which is converted to a boolean; else it has the type of the input.
    truth: bool,
}

/// What a function does with integers and booleans.
enum Whole {
    /// They become f32.
    AsFloats,
    /// They are the result.
    Unchanged,
    /// They have formulas of their own, and keep their type. A type without one does not change; i64 without one is an error.
    Own { i32: Option<Formula>, u32: Option<Formula>, i64: Option<Integer>, booleans: bool },
}

/// A gradient that is linear in the result's gradient.
struct Slope {
    /// The function `d` for the gradient's shader.
    header: &'static str,
    each: EachGrad,
    reads: Reads,
}

/// What the formula of a gradient reads, with the derivative of the factor that multiplies the result's gradient.
enum Reads {
    Nothing,
    /// The input.
    X(Bend),
    /// The result.
    Y(Bend),
    /// The derivatives by the input and by the result.
    Both(Bends),
}

/// Derivatives by the input and by the result, from both and the arguments.
type Bends = fn(&Tensor, &Tensor, [f32; 2]) -> Result<[Option<Tensor>; 2]>;

/// A derivative as a composition of ops, so that there are further ones.
enum Bend {
    /// The derivative is 0, except at jumps.
    Straight,
    /// Of what the gradient reads, and of the arguments.
    By(fn(&Tensor, [f32; 2]) -> Result<Tensor>),
}

impl Reads {
    /// Returns whether the formula reads the input.
    fn x(&self) -> bool {
        matches!(self, Reads::X(_) | Reads::Both(_))
    }

    /// Returns whether the formula reads the result.
    fn y(&self) -> bool {
        matches!(self, Reads::Y(_) | Reads::Both(_))
    }

    fn saves(&self) -> Saves {
        match self {
            Reads::Nothing => Saves::Nothing,
            Reads::X(_) => Saves::Inputs,
            Reads::Y(_) => Saves::Output,
            Reads::Both(_) => Saves::All,
        }
    }
}

impl Function {
    /// Returns whether the result is truth values.
    pub fn is_truth(&self) -> bool {
        self.f32.as_ref().is_some_and(|formula| formula.truth)
    }

    /// Returns the formula for i64, if there is one.
    pub fn i64(&self) -> Option<Integer> {
        match self.whole {
            Whole::Own { i64, .. } => i64,
            Whole::AsFloats | Whole::Unchanged => None,
        }
    }

    /// Returns the formula for a type that kernels compute with. A 64-bit type counts as the 32-bit type of its kind:
    /// it has a formula where that type has one.
    fn formula(&self, dtype: DType) -> Option<&Formula> {
        match (dtype, &self.whole) {
            (DType::F32 | DType::F64, _) => self.f32.as_ref(),
            (DType::I32 | DType::I64, Whole::Own { i32, .. }) => i32.as_ref(),
            (DType::U32, Whole::Own { u32, .. }) => u32.as_ref(),
            _ => None,
        }
    }

    /// Computes words of the f32 result from words of the input, without arguments.
    pub fn run(&self, x: &[u32], out: &mut [u32]) {
        if let Some(formula) = &self.f32 {
            (formula.each)(x, out, [0; 2]);
        }
    }

    /// Returns the text that precedes the forward shader for f32.
    pub fn header(&self) -> Option<&'static str> {
        self.f32.as_ref().map(|formula| formula.header)
    }

    /// Returns the text that precedes the gradient's shader.
    pub fn gradient_header(&self) -> Option<&'static str> {
        self.gradient.as_ref().map(|slope| slope.header)
    }
}

#[cfg_attr(not(feature = "onnx"), allow(dead_code, reason = "only the import and the export of ONNX ask for it"))]
impl UnaryFn {
    pub(crate) fn onnx(self) -> Onnx<Composition> {
        self.row().onnx
    }

    pub(crate) fn is_truth(self) -> bool {
        self.row().is_truth()
    }

    /// Returns the function that ONNX has as this operator.
    pub(crate) fn of_operator(op: &str) -> Option<UnaryFn> {
        UnaryFn::ALL.iter().copied().find(|function| matches!(function.onnx(), Onnx::Operator(name) if name == op))
    }
}

/// Returns the headers of the forward shader, one for each formula.
pub(in crate::ops) fn headers() -> Vec<&'static str> {
    let formulas = UnaryFn::ALL.iter().flat_map(|function| {
        let row = function.row();
        [DType::F32, DType::I32, DType::U32].into_iter().filter_map(|dtype| row.formula(dtype))
    });
    formulas.map(|formula| formula.header).collect()
}

/// Returns the headers of the gradient's shader, one for each row that has a gradient.
pub(in crate::ops) fn grad_headers() -> Vec<&'static str> {
    UnaryFn::ALL.iter().filter_map(|function| function.row().gradient_header()).collect()
}

#[inline(always)]
fn each<T: Word, R: Word>(x: &[u32], out: &mut [u32], args: [u32; 2], f: impl Fn(T, [T; 2]) -> R) {
    let args = args.map(bytemuck::cast);
    let (x, out): (&[T], &mut [R]) = (bytemuck::cast_slice(x), bytemuck::cast_slice_mut(out));
    // Not `for_each`: a long formula would not be inlined, and would keep the level of the build.
    for (out, &x) in out.iter_mut().zip(x) {
        *out = f(x, args);
    }
}

/// The loop of a gradient that reads only the result's gradient.
#[inline(always)]
fn each_slope(g: &[u32], out: &mut [u32], args: [u32; 2], d: impl Fn(f32, [f32; 2]) -> f32) {
    let args = args.map(f32::from_bits);
    let (g, out): (&[f32], &mut [f32]) = (bytemuck::cast_slice(g), bytemuck::cast_slice_mut(out));
    for (out, &g) in out.iter_mut().zip(g) {
        *out = d(g, args);
    }
}

/// The loop of a gradient that reads the input or the result.
#[inline(always)]
fn each_slope_of(inputs: [&[u32]; 2], out: &mut [u32], args: [u32; 2], d: impl Fn(f32, f32, [f32; 2]) -> f32) {
    let args = args.map(f32::from_bits);
    let [g, v]: [&[f32]; 2] = inputs.map(bytemuck::cast_slice);
    let out: &mut [f32] = bytemuck::cast_slice_mut(out);
    for ((out, &g), &v) in out.iter_mut().zip(g).zip(v) {
        *out = d(g, v, args);
    }
}

/// The loop of a gradient that reads the input and the result.
#[inline(always)]
fn each_slope_of_both(
    inputs: [&[u32]; 3],
    out: &mut [u32],
    args: [u32; 2],
    d: impl Fn(f32, f32, f32, [f32; 2]) -> f32,
) {
    let args = args.map(f32::from_bits);
    let [g, x, y]: [&[f32]; 3] = inputs.map(bytemuck::cast_slice);
    let out: &mut [f32] = bytemuck::cast_slice_mut(out);
    for (((out, &g), &x), &y) in out.iter_mut().zip(g).zip(x).zip(y) {
        *out = d(g, x, y, args);
    }
}

/// Returns 1 where booleans are true, as inside a piece of a piecewise function, else 0.
fn within(inside: &Tensor) -> Result<Tensor> {
    inside.detach().to_dtype(DType::F32)
}

/// A function with its arguments, as bits.
#[derive(Clone, Copy, Debug)]
struct Unary {
    function: UnaryFn,
    args: [u32; 2],
}

impl Unary {
    fn formula(&self, dtype: DType) -> Result<&'static Formula> {
        let expected = if self.function.row().f32.is_some() { "f32" } else { "integers" };
        let mismatch = || Error::DTypeMismatch { op: self.name(), expected: expected.into(), got: dtype.to_string() };
        self.function.row().formula(dtype.wide()).ok_or_else(mismatch)
    }
}

impl Op for Unary {
    type Layout = Dense;
    const ELEMENTS: Elements = Elements::Any;
    const NAMES: Names = Names::OfTables;

    fn name(&self) -> &'static str {
        self.function.name()
    }

    fn traced(&self, inputs: &[&Tensor]) -> Option<Traced> {
        let args = self.args.map(|word| inputs[0].dtype().wide().number(word));
        Some(Traced::Unary(self.function, args))
    }

    fn long(&self, inputs: &[&Tensor]) -> Result<Tensor> {
        single::of_one(self.function, self.args.map(f32::from_bits), inputs[0])
    }

    fn output(&self, inputs: &[&Tensor]) -> Result<Output> {
        let truth = self.formula(inputs[0].dtype())?.truth;
        Ok((inputs[0].shape().to_vec(), if truth { DType::Bool } else { inputs[0].dtype() }))
    }

    fn along(&self, shapes: &[&[usize]], dim: usize) -> Option<Vec<Option<usize>>> {
        alike(shapes, dim)
    }

    fn cpu(&self, inputs: &[CpuIn<Dense>], out: CpuOut) -> Result<()> {
        let formula = self.formula(inputs[0].dtype())?;
        let parts = out.0.chunks_mut(CHUNK).zip(inputs[0].slice::<u32>().chunks(CHUNK));
        share(parts, formula.chunks, |(out, x)| (formula.each)(x, out, self.args));
        Ok(())
    }

    fn gpu(&self, gpu: &Arc<Gpu>, inputs: &[GpuIn<Dense>], out: &Buffer) -> Result<Vec<Kernel>> {
        let (x, [a, b]) = (&inputs[0], self.args.map(Bits));
        let formula = self.formula(x.dtype())?;
        let (count, offset) = (x.elem_count(), x.offset());
        let each = elements_each(gpu, offset % 4 == 0);
        let params = Params { count, offset, run: each / 4, a, b };
        let kernel = Kernel::build(SHADER, if each > 1 { "fours" } else { "unary" }, params);
        let fusable = each > 1 && x.dtype() == DType::F32 && !formula.truth;
        let call = fusable.then_some(Pointwise {
            formula: formula.header,
            functions: &[MATH, SPECIAL, INVERSE],
            operands: operands(&[Operand::Input(0, offset)]),
            args: self.args,
            count,
        });
        let kernel = kernel.header(formula.header).input(x).output(out).each(count.div_ceil(each));
        Ok(vec![kernel.pointwise(call)])
    }

    fn saves(&self) -> Saves {
        self.function.row().gradient.as_ref().map_or(Saves::Nothing, |slope| slope.reads.saves())
    }

    fn backward(&self, ctx: &Gradient) -> Result<Gradients> {
        let Some(slope) = &self.function.row().gradient else { return Err(no_gradient(self.name())) };
        let op = UnaryGrad { function: self.function, slope, args: self.args };
        // In place of what is not saved, the formula gets elements that it does not use.
        let given = |saved: bool, x| if saved { x } else { ctx.grad };
        let (x, y) = (given(slope.reads.x(), &ctx.inputs[0]), given(slope.reads.y(), ctx.out));
        Ok(vec![Some(apply(op, &[ctx.grad, x, y])?)])
    }
}

/// Computes a function of the table. Halves are computed as f32, bytes as u32.
pub(crate) fn of_one(function: UnaryFn, x: &Tensor, args: [f32; 2]) -> Result<Tensor> {
    let (row, dtype, op) = (function.row(), x.dtype(), function.name());
    let run = |x: &Tensor| apply(Unary { function, args: args.map(f32::to_bits) }, &[x]);
    let x = &if row.is_truth() { x.detach() } else { x.clone() };
    match &row.whole {
        _ if dtype.is_float() => run(x),
        Whole::AsFloats => run(&to_float(x)?),
        Whole::Unchanged => Ok(x.clone()),
        Whole::Own { booleans, .. } => match row.formula(dtype.wide()) {
            None => Ok(x.clone()),
            Some(_) if dtype == DType::Bool && !booleans => {
                Err(Error::DTypeMismatch { op, expected: "numbers".into(), got: dtype.to_string() })
            }
            Some(_) => run(x),
        },
    }
}

/// Computes a function of integers, of which the arguments are words. Bytes are computed as u32.
fn of_integers(function: UnaryFn, x: &Tensor, args: [u32; 2]) -> Result<Tensor> {
    apply(Unary { function, args }, &[x])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns whether the body of a WGSL function has this word.
    fn uses(formula: &str, word: &str) -> bool {
        let body = formula.split_once('{').map_or(formula, |(_, body)| body);
        body.split(|c: char| !c.is_alphanumeric() && c != '_').any(|part| part == word)
    }

    /// What a row does not say that its gradient reads is not saved: the kernel would read other elements.
    #[test]
    fn kernels_of_gradients_read_what_their_rows_say() {
        for function in UnaryFn::ALL {
            let Some(Slope { header, reads, .. }) = &function.row().gradient else { continue };
            let (got, said) = ([uses(header, "x"), uses(header, "y")], [reads.x(), reads.y()]);
            assert_eq!(got, said, "{}: x and y in {header}", function.name());
        }
    }

    #[test]
    fn results_without_a_gradient_are_truths_and_integers() {
        for function in UnaryFn::ALL {
            let row = function.row();
            assert_eq!(row.gradient.is_none(), row.f32.is_none() || row.is_truth(), "{}", function.name());
        }
    }
}
