//! Functions of two elements, and the contents of their rows in the table. A row has each formula in Rust and in WGSL,
//! for each type that kernels compute with, and the gradients of both operands. The rows are in `table`.
//!
//! The WGSL formula is put before `binary.wgsl` as a header. It calls functions `m_…` of `float_pairs.wgsl`, or the
//! functions of whole numbers of `whole_pairs.wgsl`.

pub(in crate::ops) mod formula;
mod methods;
mod number;
pub(in crate::ops) mod operand;
mod run;
mod table;

use crate::device::gpu::{FOURS, Shader, shader, wgsl};
use crate::dtype::{DType, Word};
use crate::error::Result;
use crate::ops::Saves;
use crate::ops::elementwise::onnx::{Onnx, PairComposition};
use crate::ops::elementwise::unary::{MATH, SPECIAL};
use crate::ops::inplace::filled;
use crate::ops::inputs::{STRIDED, StridedParams};
use crate::ops::long::pair::LongFunction;
use crate::tensor::Tensor;
use operand::Operand;
use run::binary;

pub(in crate::ops) use number::Number;
#[cfg(feature = "onnx")]
pub(crate) use run::of_two;
pub(crate) use table::BinaryFn;

shader!(SHADER: StridedParams = "elementwise/binary", after [STRIDED, FOURS], headers || headers(Calls::Nothing));
// The same shader twice: with the functions for rows of floats, and with the functions for rows of integers.
shader!(FLOATS: StridedParams = "elementwise/binary" named "binary_floats", after [STRIDED, FOURS, MATH, SPECIAL, FLOAT_PAIRS], headers || headers(Calls::OfFloats));
shader!(WHOLE: StridedParams = "elementwise/binary" named "binary_whole", after [STRIDED, FOURS, WHOLE_PAIRS], headers || headers(Calls::OfWhole));

pub(in crate::ops) const FLOAT_PAIRS: &str = wgsl!("elementwise/float_pairs");
const WHOLE_PAIRS: &str = wgsl!("elementwise/whole_pairs");

/// Words of two operands, each with the step from one element to the next, and the words of the result.
pub(in crate::ops) type Each = fn(&[u32], usize, &[u32], usize, &mut [u32]);

/// The gradient of one operand, computed with tensors.
type PairGradient = fn(&Chain) -> Result<Tensor>;

/// The inputs of the chain rule: the operands, the result and its gradient, outside the graph.
struct Chain<'a> {
    g: &'a Tensor,
    a: Operand<'a>,
    b: Operand<'a>,
    out: &'a Tensor,
}

impl Chain<'_> {
    fn unchanged(&self) -> Result<Tensor> {
        Ok(self.g.clone())
    }

    /// Returns zeros, in the graph if g is.
    fn zero(&self) -> Result<Tensor> {
        match self.g.is_tracked() {
            true => self.g.masked_fill(&Tensor::full(self.g.shape(), true, self.g.device())?, 0.0),
            false => filled(self.g.shape(), 0f32, self.g.device()),
        }
    }

    /// Returns g times a function of two operands.
    fn times(&self, pair: BinaryFn, x: Operand, y: Operand) -> Result<Tensor> {
        self.g.mul(&binary(pair, x, y)?)
    }

    /// Returns g times the derivative of y xʸ⁻¹ by x, which is y times this function of x and y − 1.
    fn of_power(&self) -> Result<Tensor> {
        let times = |y: Operand, less: Operand| self.g.mul(y)?.mul(&binary(BinaryFn::PowBase, self.a, less)?);
        match self.b {
            Operand::Tensor(y) => times(self.b, (&y.sub(1.0)?).into()),
            Operand::Scalar(y) => times(self.b, (y.as_f64() - 1.0).into()),
        }
    }
}

/// The functions that the WGSL of a formula calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Calls {
    Nothing,
    /// Functions of floats, `m_…`.
    OfFloats,
    /// Functions of whole numbers.
    OfWhole,
}

impl Calls {
    /// Returns the shader that has these functions.
    fn shader(self) -> Shader<StridedParams> {
        match self {
            Calls::Nothing => SHADER,
            Calls::OfFloats => FLOATS,
            Calls::OfWhole => WHOLE,
        }
    }

    /// Returns the texts of the functions.
    fn texts(self) -> &'static [&'static str] {
        match self {
            Calls::Nothing => &[],
            Calls::OfFloats => &[MATH, SPECIAL, FLOAT_PAIRS],
            Calls::OfWhole => &[WHOLE_PAIRS],
        }
    }
}

/// A function for one type.
pub(in crate::ops) struct TypedFunction {
    calls: Calls,
    header: &'static str,
    each: Each,
}

/// The formulas of a function.
pub(in crate::ops) struct Types {
    /// Whether the result is 0 or 1, which is converted to a boolean.
    pub truth: bool,
    f32: Option<TypedFunction>,
    i32: Option<TypedFunction>,
    u32: Option<TypedFunction>,
    pub f64: Option<LongFunction>,
    pub i64: Option<LongFunction>,
}

/// What the gradient of an operand reads, by bits: the operands and the result.
const A: u32 = 1;
const B: u32 = 2;
const OUT: u32 = 4;

/// The gradient of one operand.
struct Side {
    reads: u32,
    /// Whether the gradient changes only by jumps with what it reads.
    jumps: bool,
    gradient: PairGradient,
}

/// Returns a gradient that changes smoothly with what it reads.
const fn smooth(reads: u32, gradient: PairGradient) -> Side {
    Side { reads, jumps: false, gradient }
}

/// Returns a gradient that is the result's gradient times a piecewise constant factor.
const fn jumps(reads: u32, gradient: PairGradient) -> Side {
    Side { reads, jumps: true, gradient }
}

/// A row of the table: everything about a function except its name.
pub(in crate::ops) struct Pair {
    pub types: Types,
    /// The gradients of the first and the second operand; a function without them cannot be differentiated.
    gradient: Option<[Side; 2]>,
    onnx: Onnx<PairComposition>,
}

/// Returns what a gradient reads of an op's inputs and of its result. `inputs` says which operand each input is.
fn saves(reads: u32, inputs: &[u32]) -> Saves {
    let bits = inputs.iter().enumerate().map(|(i, operand)| u32::from(reads & operand != 0) << i).sum();
    match (bits, reads & OUT != 0) {
        (0, false) => Saves::Nothing,
        (1, false) => Saves::Input(0),
        (2, false) => Saves::Input(1),
        (_, false) => Saves::Inputs,
        (bits, true) => Saves::OutputAnd(bits),
    }
}

impl Pair {
    /// Returns the text that precedes the shader for f32.
    pub fn float_header(&self) -> Option<&'static str> {
        self.types.f32.as_ref().map(|function| function.header)
    }

    /// Returns the function for a type that kernels compute with; `None` if there is none. A 64-bit type has a function
    /// exactly where the 32-bit type has one.
    pub fn for_type(&self, dtype: DType) -> Option<&TypedFunction> {
        match dtype {
            DType::F32 | DType::F64 => self.types.f32.as_ref(),
            DType::I32 | DType::I64 => self.types.i32.as_ref(),
            DType::U32 => self.types.u32.as_ref(),
            _ => None,
        }
    }

    /// Returns what the gradients of some operands read of an op's inputs. `inputs` says which operand each input is.
    fn saves(&self, inputs: &[u32]) -> Saves {
        let Some(sides) = &self.gradient else { return Saves::Nothing };
        let reads = |operand: u32| sides[if operand == A { 0 } else { 1 }].reads;
        saves(inputs.iter().fold(0, |all, &operand| all | reads(operand)), inputs)
    }

    /// Returns what the gradient of one input depends on, except by jumps. `inputs` says which operand each input is.
    fn changes_with(&self, input: usize, inputs: &[u32]) -> Saves {
        let Some(sides) = &self.gradient else { return Saves::Nothing };
        let side = &sides[if inputs[input] == A { 0 } else { 1 }];
        saves(if side.jumps { 0 } else { side.reads }, inputs)
    }
}

#[cfg_attr(not(feature = "onnx"), allow(dead_code, reason = "only the import and the export of ONNX ask for it"))]
impl BinaryFn {
    pub(crate) fn onnx(self) -> Onnx<PairComposition> {
        self.row().onnx
    }

    pub(crate) fn is_truth(self) -> bool {
        self.row().types.truth
    }

    /// Returns the function that ONNX has as this operator.
    pub(crate) fn of_operator(op: &str) -> Option<BinaryFn> {
        BinaryFn::ALL.iter().copied().find(|function| matches!(function.onnx(), Onnx::Operator(name) if name == op))
    }
}

/// Returns the headers of a shader, one for each formula that calls its functions.
fn headers(calls: Calls) -> Vec<&'static str> {
    let types = BinaryFn::ALL.iter().map(|function| &function.row().types);
    let formulas = types.flat_map(|types| [&types.f32, &types.i32, &types.u32]).flatten();
    formulas.filter(|formula| formula.calls == calls).map(|formula| formula.header).collect()
}

fn each<T: Word, R: Word>(x: &[u32], sx: usize, y: &[u32], sy: usize, out: &mut [u32], f: impl Fn(T, T) -> R) {
    let (x, y): (&[T], &[T]) = (bytemuck::cast_slice(x), bytemuck::cast_slice(y));
    let out: &mut [R] = bytemuck::cast_slice_mut(out);
    match (sx, sy) {
        (1, 1) => out.iter_mut().zip(x).zip(y).for_each(|((out, &x), &y)| *out = f(x, y)),
        (1, 0) => out.iter_mut().zip(x).for_each(|(out, &x)| *out = f(x, y[0])),
        (0, 1) => out.iter_mut().zip(y).for_each(|(out, &y)| *out = f(x[0], y)),
        _ => out.iter_mut().enumerate().for_each(|(i, out)| *out = f(x[i * sx], y[i * sy])),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a row does not say is freed, and may be written in place.
    #[test]
    fn graphs_keep_what_the_gradients_of_a_row_read() {
        let of_tensors = |function: BinaryFn| function.row().saves(&[A, B]);
        let of_tensor_and_number = |function: BinaryFn| function.row().saves(&[A]);
        let of_number_and_tensor = |function: BinaryFn| function.row().saves(&[B]);
        assert_eq!([BinaryFn::Add, BinaryFn::Sub].map(of_tensors), [Saves::Nothing; 2]);
        assert_eq!([BinaryFn::Mul, BinaryFn::Pow, BinaryFn::Maximum].map(of_tensors), [Saves::Inputs; 3]);
        assert_eq!(of_tensors(BinaryFn::Div), Saves::OutputAnd(0b10));
        let linear = [BinaryFn::Add, BinaryFn::Mul, BinaryFn::Div, BinaryFn::Rem];
        assert_eq!(linear.map(of_tensor_and_number), [Saves::Nothing; 4]);
        assert_eq!(of_number_and_tensor(BinaryFn::Div), Saves::OutputAnd(1));
        assert_eq!(of_number_and_tensor(BinaryFn::Pow), Saves::Input(0));
        assert_eq!(of_tensor_and_number(BinaryFn::Pow), Saves::Input(0));
    }

    #[test]
    fn gradients_change_with_what_they_read_smoothly() {
        let product = BinaryFn::Mul.row();
        assert_eq!([0, 1].map(|i| product.changes_with(i, &[A, B])), [Saves::Input(1), Saves::Input(0)]);
        assert_eq!(BinaryFn::Div.row().changes_with(0, &[A, B]), Saves::Input(1));
        assert_eq!(BinaryFn::Maximum.row().changes_with(1, &[A, B]), Saves::Nothing);
    }
}
