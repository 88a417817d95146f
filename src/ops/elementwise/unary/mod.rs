//! Functions of one element: a table of formulas, and the two kernels that run them, forward and gradient.
//!
//! A row has each formula in Rust and in WGSL; the WGSL formula is put before the shader as a header. Where functions
//! of WGSL are not accurate enough, it calls functions `m_…` of `shaders/math.wgsl` and `special.wgsl`. The public
//! methods are in `methods`.

mod gradient;
mod methods;
mod second;
pub(in crate::ops) mod special;

use std::f32::consts::{FRAC_2_SQRT_PI, LN_2};
use std::sync::Arc;

use crate::device::gpu::{Bits, Buffer, FOURS, Gpu, Kernel, Operand, Pointwise, operands, params, shader, wgsl};
use crate::dtype::{DType, Word};
use crate::error::Result;
use crate::ops::elementwise::promote::to_float;
use crate::ops::inputs::elements_each;
use crate::ops::long::single::of_one;
use crate::ops::parts::alike;
use crate::ops::traced::Traced;
use crate::ops::{
    CpuIn, CpuOut, Dense, Elements, GpuIn, Gradient, Gradients, Op, Output, Saves, apply, expect_dtype, no_gradient,
};
use crate::tensor::Tensor;
use anygpu_host::tasks::share;
use anygpu_host::vectorised;
use anygpu_host::vectors::Unfused;
use gradient::UnaryGrad;
use special::{
    clamp, erf, exp, gelu_gradient, gelu_inner, gelu_slope, inside, normal, sigmoid, sign, softplus, tanh,
    tanh_softplus, wide,
};

/// Functions of f32 that are put before the shaders of formulas.
pub(in crate::ops) const MATH: &str = wgsl!("math");
pub(in crate::ops) const SPECIAL: &str = wgsl!("special");
pub(in crate::ops) const INVERSE: &str = wgsl!("inverse");

params! {
    struct Params { count: usize, offset: usize, run: usize, a: Bits, b: Bits }
}
params! {
    struct GradParams {
        count: usize, x_offset: usize, y_offset: usize, g_offset: usize, run: usize, a: f32, b: f32,
    }
}
shader!(SHADER: Params = "unary", after [FOURS, MATH, SPECIAL, INVERSE], headers headers);
shader!(GRAD_SHADER: GradParams = "unary_grad", after [FOURS, MATH, SPECIAL, INVERSE], headers grad_headers);

/// The number of elements of one task of the host: enough to justify the cost of a task.
pub(in crate::ops) const CHUNK: usize = 16 * 1024;

/// The chunks of a task whose arithmetic is quick: one thread computes them in the time that it takes to wake another one.
pub(in crate::ops) const FEW_CHUNKS: usize = 2;

/// Words of the input, of the result, and the two arguments.
type Each = fn(&[u32], &mut [u32], [u32; 2]);
/// Words of the gradient, the input and the result of the forward pass, of the input's gradient, and the arguments.
type EachGrad = fn([&[u32]; 3], &mut [u32], [u32; 2]);

/// A row of the table.
#[derive(Debug)]
pub(in crate::ops) struct Function {
    pub name: &'static str,
    /// The function `f` for the shader, with its types.
    header: &'static str,
    each: Each,
    /// The function `d` for the gradient's shader.
    gradient: Option<(&'static str, EachGrad)>,
    /// How many chunks a task of the host has at least.
    chunks: usize,
    takes: DType,
    /// Whether the result is 0 or 1, which is converted to a boolean; else it has the type of the input.
    truth: bool,
}

impl Function {
    /// Computes words of the result from those of the input, without arguments.
    pub fn run(&self, x: &[u32], out: &mut [u32]) {
        (self.each)(x, out, [0; 2]);
    }

    /// Returns the text that precedes the forward shader.
    pub fn header(&self) -> &'static str {
        self.header
    }

    /// Returns the text that precedes the gradient's shader.
    pub fn gradient_header(&self) -> Option<&'static str> {
        self.gradient.map(|(header, _)| header)
    }
}

/// Defines rows from f32 to f32: the function of x and of the arguments p; its gradient from g, x, y and p. `vectorised`
/// is for rows whose arithmetic takes longer than the access to memory or to a cache. In those with `<M>`, products and sums are
/// rounded as M does.
macro_rules! floats {
    ($($row:ident $name:literal $($level:ident $(<$m:ident>)?)?: $f:expr, $wgsl:literal; $d:expr, $d_wgsl:literal;)*) => {
        $(pub(in crate::ops) static $row: Function = Function {
            name: $name,
            header: concat!("alias T = f32;\nalias R = f32;\nfn f(x: f32) -> f32 { return ", $wgsl, "; }\n"),
            each: |x, out, p| floats!(@run $($level $(<$m>)?)? each::<f32, f32>(x, out, p, $f)),
            gradient: Some((
                concat!("fn d(g: f32, x: f32, y: f32) -> f32 { return ", $d_wgsl, "; }\n"),
                |inputs, out, p| floats!(@run $($level $(<$m>)?)? each_grad(inputs, out, p, $d)),
            )),
            chunks: floats!(@chunks $($level)?),
            takes: DType::F32,
            truth: false,
        };)*
        static FLOATS: &[&Function] = &[$(&$row),*];
    };
    (@run vectorised<$m:ident> $loop:expr) => { vectorised!(<$m> $loop) };
    (@run vectorised $loop:expr) => { vectorised!($loop) };
    (@run $loop:expr) => { $loop };
    (@chunks vectorised) => { FEW_CHUNKS };
    (@chunks) => { 1 };
}

/// Defines rows without a gradient: from words to words of the same type, or to 0 or 1.
macro_rules! others {
    ($($row:ident $name:literal: $t:ident as $takes:ident => $kind:ident, $f:expr, $wgsl:literal;)*) => {
        $(pub(super) static $row: Function = Function {
            name: $name,
            header: concat!(
                "alias T = ", stringify!($t), ";\nalias R = ", others!(@wgsl $kind $t), ";\nfn f(x: T) -> R { return ", $wgsl, "; }\n"
            ),
            each: |x, out, p| each::<$t, others!(@rust $kind $t)>(x, out, p, $f),
            gradient: None,
            chunks: 1,
            takes: DType::$takes,
            truth: others!(@truth $kind),
        };)*
        static OTHERS: &[&Function] = &[$(&$row),*];
    };
    (@wgsl truth $t:ident) => { "u32" };
    (@wgsl same $t:ident) => { stringify!($t) };
    (@rust truth $t:ident) => { u32 };
    (@rust same $t:ident) => { $t };
    (@truth truth) => { true };
    (@truth same) => { false };
}

floats! {
    NEG "neg": |x, _| -x, "-x"; |g, _, _, _| -g, "-g";
    ABS "abs": |x, _| x.abs(), "abs(x)"; |g, x, _, _| g * sign(x), "g * select(sign(x), 0.0, is_nan(x))";
    SIGN "sign": |x, _| sign(x), "select(sign(x), 0.0, is_nan(x))"; |_, _, _, _| 0.0, "0.0";
    SQUARE "square": |x, _| x * x, "x * x"; |g, x, _, _| 2.0 * g * x, "2.0 * g * x";
    RECIP "recip": |x, _| 1.0 / x, "1.0 / x"; |g, _, y, _| -g * y * y, "-g * y * y";
    EXP "exp" vectorised<M>: |x, _| exp::<M>(x), "m_exp(x)"; |g, _, y, _| g * y, "g * y";
    EXP2 "exp2": |x, _| x.exp2(), "m_exp2(x)"; |g, _, y, _| g * y * LN_2, "g * y * LN2";
    EXPM1 "expm1": |x, _| x.exp_m1(), "m_expm1(x)"; |g, _, y, _| g * (y + 1.0), "g * (y + 1.0)";
    LOG "log": |x, _| x.ln(), "m_log(x)"; |g, x, _, _| g / x, "g / x";
    LOG2 "log2": |x, _| x.log2(), "m_log2(x)"; |g, x, _, _| g / (x * LN_2), "g / (x * LN2)";
    LOG1P "log1p": |x, _| x.ln_1p(), "m_log1p(x)"; |g, x, _, _| g / (x + 1.0), "g / (x + 1.0)";
    SQRT "sqrt": |x, _| x.sqrt(), "sqrt(x)"; |g, _, y, _| g / (2.0 * y), "g / (2.0 * y)";
    RSQRT "rsqrt": |x, _| 1.0 / x.sqrt(), "1.0 / sqrt(x)"; |g, _, y, _| -0.5 * g * y * y * y, "-0.5 * g * y * y * y";
    SIN "sin": |x, _| x.sin(), "m_sin(x)"; |g, x, _, _| g * x.cos(), "g * m_cos(x)";
    COS "cos": |x, _| x.cos(), "m_cos(x)"; |g, x, _, _| -g * x.sin(), "-g * m_sin(x)";
    TAN "tan": |x, _| x.tan(), "m_tan(x)"; |g, _, y, _| g * (1.0 + y * y), "g * (1.0 + y * y)";
    ASIN "asin": |x, _| x.asin(), "m_asin(x)";
        |g, x, _, _| g / ((1.0 - x) * (1.0 + x)).sqrt(), "g / sqrt((1.0 - x) * (1.0 + x))";
    ACOS "acos": |x, _| x.acos(), "m_acos(x)";
        |g, x, _, _| -g / ((1.0 - x) * (1.0 + x)).sqrt(), "-g / sqrt((1.0 - x) * (1.0 + x))";
    ATAN "atan": |x, _| x.atan(), "m_atan(x)"; |g, x, _, _| g / (1.0 + x * x), "g / (1.0 + x * x)";
    SINH "sinh": |x, _| x.sinh(), "m_sinh(x)"; |g, x, _, _| g * x.cosh(), "g * m_cosh(x)";
    COSH "cosh": |x, _| x.cosh(), "m_cosh(x)"; |g, x, _, _| g * x.sinh(), "g * m_sinh(x)";
    ASINH "asinh": |x, _| wide(x, f64::asinh), "m_asinh(x)"; |g, x, _, _| g / (x * x + 1.0).sqrt(), "g / sqrt(x * x + 1.0)";
    ACOSH "acosh": |x, _| wide(x, f64::acosh), "m_acosh(x)";
        |g, x, _, _| g / ((x - 1.0) * (x + 1.0)).sqrt(), "g / sqrt((x - 1.0) * (x + 1.0))";
    ATANH "atanh": |x, _| wide(x, f64::atanh), "m_atanh(x)";
        |g, x, _, _| g / ((1.0 - x) * (1.0 + x)), "g / ((1.0 - x) * (1.0 + x))";
    TANH "tanh" vectorised<M>: |x, _| tanh::<M>(x), "m_tanh(x)"; |g, _, y, _| g * (1.0 - y * y), "g * (1.0 - y * y)";
    SIGMOID "sigmoid" vectorised<M>: |x, _| sigmoid::<M>(x), "m_sigmoid(x)"; |g, _, y, _| g * y * (1.0 - y), "g * y * (1.0 - y)";
    ERF "erf": |x, _| erf(x), "m_erf(x)"; |g, x, _, _| g * FRAC_2_SQRT_PI * exp::<Unfused>(-x * x), "g * 1.1283792 * m_exp(-x * x)";
    FLOOR "floor": |x, _| x.floor(), "floor(x)"; |_, _, _, _| 0.0, "0.0";
    CEIL "ceil": |x, _| x.ceil(), "ceil(x)"; |_, _, _, _| 0.0, "0.0";
    ROUND "round": |x, _| x.round_ties_even(), "round(x)"; |_, _, _, _| 0.0, "0.0";
    TRUNC "trunc": |x, _| x.trunc(), "trunc(x)"; |_, _, _, _| 0.0, "0.0";
    CLAMP "clamp" vectorised: clamp, "select(min(max(x, p.a), p.b), x, is_nan(x))";
        |g, x, _, p| if inside(x, p) { g } else { 0.0 },
        "select(0.0, g, (x > p.a || (bitcast<u32>(x) == 0xff800000u && bitcast<u32>(p.a) == 0xff800000u)) \
            && (x < p.b || (bitcast<u32>(x) == 0x7f800000u && bitcast<u32>(p.b) == 0x7f800000u)))";
    HARDTANH "hardtanh": clamp, "select(min(max(x, p.a), p.b), x, is_nan(x))";
        |g, x, _, p| if x > p[0] && x < p[1] { g } else { 0.0 }, "select(0.0, g, x > p.a && x < p.b)";
    // Tests the bits for a number that is not above 0. A compiler may replace a comparison by max, which drops NaN.
    RELU "relu" vectorised: |x, _| if x <= 0.0 { 0.0 } else { x },
        "select(x, 0.0, bitcast<u32>(x) - 0x80000000u <= 0x7f800000u)";
        |g, _, y, _| if y == 0.0 { 0.0 } else { g }, "select(g, 0.0, bitcast<u32>(y) == 0u)"; // NaN keeps the gradient, as in PyTorch
    LEAKY_RELU "leaky_relu": |x, p| if x > 0.0 { x } else { p[0] * x }, "select(p.a * x, x, x > 0.0)";
        |g, x, _, p| if x > 0.0 { g } else { p[0] * g }, "select(p.a * g, g, x > 0.0)";
    ELU "elu": |x, p| if x > 0.0 { x } else { p[0] * x.exp_m1() }, "select(p.a * m_expm1(x), x, x > 0.0)";
        |g, x, y, p| if x > 0.0 { g } else { g * (y + p[0]) }, "select(g * (y + p.a), g, x > 0.0)";
    GELU "gelu" vectorised<M>: |x, _| x * normal::<M>(x).0, "x * normal_cdf(x)";
        |g, x, _, _| g * gelu_slope::<M>(x), "g * (normal_cdf(x) + x * normal_density(x))";
    GELU_TANH "gelu_tanh" vectorised<M>: |x, _| x * sigmoid::<M>(gelu_inner(x)), "x * m_sigmoid(gelu_inner(x))";
        |g, x, _, _| g * gelu_gradient(x, sigmoid::<M>(gelu_inner(x))), "g * gelu_gradient(x, m_sigmoid(gelu_inner(x)))";
    SILU "silu" vectorised<M>: |x, _| x * sigmoid::<M>(x), "x * m_sigmoid(x)";
        |g, x, _, _| g * sigmoid::<M>(x) * (1.0 + x * sigmoid::<M>(-x)), "g * m_sigmoid(x) * (1.0 + x * m_sigmoid(-x))";
    SOFTPLUS "softplus": |x, p| if x * p[0] > p[1] { x } else { softplus(x * p[0]) / p[0] },
        "select(m_softplus(x * p.a) / p.a, x, x * p.a > p.b)";
        |g, x, _, p| if x * p[0] > p[1] { g } else { g * sigmoid::<Unfused>(x * p[0]) },
        "select(g * m_sigmoid(x * p.a), g, x * p.a > p.b)";
    LOG_SIGMOID "log_sigmoid": |x, _| -softplus(-x), "-m_softplus(-x)"; |g, x, _, _| g * sigmoid::<Unfused>(-x), "g * m_sigmoid(-x)";
    MISH "mish" vectorised<M>: |x, _| x * tanh_softplus::<M>(x), "x * tanh_softplus(x)";
        |g, x, _, _| g * (tanh_softplus::<M>(x) + x * (1.0 - tanh_softplus::<M>(x).powi(2)) * sigmoid::<M>(x)),
        "g * (tanh_softplus(x) + x * (1.0 - tanh_softplus(x) * tanh_softplus(x)) * m_sigmoid(x))";
    HARDSWISH "hardswish" vectorised: |x, _| x * clamp(x + 3.0, [0.0, 6.0]) / 6.0, "x * clamp(x + 3.0, 0.0, 6.0) / 6.0";
        |g, x, _, _| if x <= -3.0 { 0.0 } else if x >= 3.0 { g } else { g * (x / 3.0 + 0.5) },
        "g * select(select(x / 3.0 + 0.5, 1.0, x >= 3.0), 0.0, x <= -3.0)";
    HARDSIGMOID "hardsigmoid" vectorised: |x, _| clamp(x + 3.0, [0.0, 6.0]) / 6.0,
        "select(clamp(x + 3.0, 0.0, 6.0) / 6.0, x, is_nan(x))";
        |g, x, _, _| if x > -3.0 && x < 3.0 { g / 6.0 } else { 0.0 }, "select(0.0, g / 6.0, x > -3.0 && x < 3.0)";
    SOFTSIGN "softsign": |x, _| x / (1.0 + x.abs()), "x / (1.0 + abs(x))";
        |g, x, _, _| if x.is_finite() { g / (1.0 + x.abs()) / (1.0 + x.abs()) } else { f32::NAN },
        "finite_only(x, g / (1.0 + abs(x)) / (1.0 + abs(x)))";
}

others! {
    IS_NAN "isnan": f32 as F32 => truth, |x, _| u32::from(x.is_nan()), "select(0u, 1u, is_nan(x))";
    IS_INF "isinf": f32 as F32 => truth, |x, _| u32::from(x.is_infinite()),
        "select(0u, 1u, (bitcast<u32>(x) & 0x7fffffffu) == 0x7f800000u)";
    IS_FINITE "isfinite": f32 as F32 => truth, |x, _| u32::from(x.is_finite()),
        "select(0u, 1u, (bitcast<u32>(x) & 0x7f800000u) != 0x7f800000u)";
    NOT_F32 "logical_not": f32 as F32 => truth, |x, _| u32::from(x == 0.0), "select(0u, 1u, x == 0.0 && !is_nan(x))";
    NOT_U32 "logical_not": u32 as U32 => truth, |x, _| u32::from(x == 0), "select(0u, 1u, x == 0u)";
    NOT_I32 "logical_not": i32 as I32 => truth, |x, _| u32::from(x == 0), "select(0u, 1u, x == 0i)";
    BITS_I32 "bitwise_not": i32 as I32 => same, |x, _| !x, "~x";
    BITS_U32 "bitwise_not": u32 as U32 => same, |x, _| !x, "~x";
    NEG_I32 "neg": i32 as I32 => same, |x, _| x.wrapping_neg(), "0i - x";
    NEG_U32 "neg": u32 as U32 => same, |x, _| x.wrapping_neg(), "0u - x";
    ABS_I32 "abs": i32 as I32 => same, |x, _| x.wrapping_abs(), "abs(x)";
    SIGN_I32 "sign": i32 as I32 => same, |x, _| x.signum(), "sign(x)";
    SIGN_U32 "sign": u32 as U32 => same, |x, _| x.min(1), "min(x, 1u)";
    SQUARE_I32 "square": i32 as I32 => same, |x, _| x.wrapping_mul(x), "x * x";
    SQUARE_U32 "square": u32 as U32 => same, |x, _| x.wrapping_mul(x), "x * x";
    CLAMP_I32 "clamp": i32 as I32 => same, clamp, "min(max(x, p.a), p.b)";
    CLAMP_U32 "clamp": u32 as U32 => same, clamp, "min(max(x, p.a), p.b)";
}

/// Returns the headers of the forward shader, one for each row.
pub(in crate::ops) fn headers() -> Vec<&'static str> {
    FLOATS.iter().chain(OTHERS).map(|row| row.header).collect()
}

/// Returns the headers of the gradient's shader, one for each row that has a gradient.
pub(in crate::ops) fn grad_headers() -> Vec<&'static str> {
    FLOATS.iter().filter_map(|row| row.gradient.map(|(header, _)| header)).collect()
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

#[inline(always)]
fn each_grad(inputs: [&[u32]; 3], out: &mut [u32], args: [u32; 2], d: impl Fn(f32, f32, f32, [f32; 2]) -> f32) {
    let args = args.map(f32::from_bits);
    let [g, x, y]: [&[f32]; 3] = inputs.map(bytemuck::cast_slice);
    let out: &mut [f32] = bytemuck::cast_slice_mut(out);
    for (((out, &g), &x), &y) in out.iter_mut().zip(g).zip(x).zip(y) {
        *out = d(g, x, y, args);
    }
}

/// A row with its arguments, as bits.
#[derive(Clone, Copy, Debug)]
struct Unary {
    function: &'static Function,
    args: [u32; 2],
}

impl Op for Unary {
    type Layout = Dense;
    const ELEMENTS: Elements = Elements::Any;

    fn name(&self) -> &'static str {
        self.function.name
    }

    fn traced(&self, _inputs: &[&Tensor]) -> Option<Traced> {
        let args = self.args.map(|word| self.function.takes.number(word));
        Some(Traced::Unary(self.name(), args))
    }

    fn long(&self, inputs: &[&Tensor]) -> Result<Tensor> {
        of_one(self.name(), self.args.map(f32::from_bits), self.function.truth, inputs[0])
    }

    fn output(&self, inputs: &[&Tensor]) -> Result<Output> {
        let dtype = inputs[0].dtype();
        if dtype.wide() != self.function.takes {
            expect_dtype(self.name(), inputs[0], self.function.takes)?;
        }
        Ok((inputs[0].shape().to_vec(), if self.function.truth { DType::Bool } else { dtype }))
    }

    fn along(&self, shapes: &[&[usize]], dim: usize) -> Option<Vec<Option<usize>>> {
        alike(shapes, dim)
    }

    fn cpu(&self, inputs: &[CpuIn<Dense>], out: CpuOut) -> Result<()> {
        let parts = out.0.chunks_mut(CHUNK).zip(inputs[0].slice::<u32>().chunks(CHUNK));
        share(parts, self.function.chunks, |(out, x)| (self.function.each)(x, out, self.args));
        Ok(())
    }

    fn gpu(&self, gpu: &Arc<Gpu>, inputs: &[GpuIn<Dense>], out: &Buffer) -> Result<Vec<Kernel>> {
        let (x, [a, b]) = (&inputs[0], self.args.map(Bits));
        let (count, offset) = (x.elem_count(), x.offset());
        let each = elements_each(gpu, offset % 4 == 0);
        let params = Params { count, offset, run: each / 4, a, b };
        let kernel = Kernel::build(SHADER, if each > 1 { "fours" } else { "unary" }, params);
        let fusable = each > 1 && self.function.takes == DType::F32 && !self.function.truth;
        let call = fusable.then_some(Pointwise {
            formula: self.function.header,
            functions: &[MATH, SPECIAL, INVERSE],
            operands: operands(&[Operand::Input(0, offset)]),
            args: self.args,
            count,
        });
        let kernel = kernel.header(self.function.header).input(x).output(out).each(count.div_ceil(each));
        Ok(vec![kernel.pointwise(call)])
    }

    fn saves(&self) -> Saves {
        match self.function.gradient.map_or([false; 2], |(formula, _)| ["x", "y"].map(|name| uses(formula, name))) {
            [true, true] => Saves::All,
            [true, false] => Saves::Inputs,
            [false, true] => Saves::Output,
            [false, false] => Saves::Nothing,
        }
    }

    fn backward(&self, ctx: &Gradient) -> Result<Gradients> {
        let Some(gradient) = self.function.gradient else { return Err(no_gradient(self.name())) };
        let op = UnaryGrad { name: self.name(), gradient, args: self.args };
        // In the place of what is not saved, the formula is given elements that it does not use.
        let given = |saved: bool, x| if saved { x } else { ctx.grad };
        let (x, y) = (given(self.saves().input(0), &ctx.inputs[0]), given(self.saves().output(), ctx.out));
        Ok(vec![Some(apply(op, &[ctx.grad, x, y])?)])
    }
}

/// Returns whether the body of a WGSL function has this word.
fn uses(formula: &str, word: &str) -> bool {
    let body = formula.split_once('{').map_or(formula, |(_, body)| body);
    body.split(|c: char| !c.is_alphanumeric() && c != '_').any(|part| part == word)
}

/// Computes a function of f32. Integers and booleans are converted to f32; halves are computed as f32.
pub(in crate::ops) fn float(x: &Tensor, function: &'static Function, args: [f32; 2]) -> Result<Tensor> {
    apply(Unary { function, args: args.map(f32::to_bits) }, &[&to_float(x)?])
}

/// Computes a function of integers. Bytes are computed as u32.
pub(in crate::ops) fn integer(x: &Tensor, function: &'static Function, args: [u32; 2]) -> Result<Tensor> {
    apply(Unary { function, args }, &[x])
}

/// Returns whether each element has a property, as booleans.
pub(in crate::ops) fn predicate(x: &Tensor, function: &'static Function) -> Result<Tensor> {
    apply(Unary { function, args: [0; 2] }, &[&x.detach()])
}
