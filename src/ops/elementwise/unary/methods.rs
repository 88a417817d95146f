//! The public functions of one element: each returns a tensor of its input's shape.

use super::{Function, float, integer, predicate};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::ops::elementwise::promote::to_float;
use crate::ops::elementwise::unary;
use crate::ops::named;
use crate::tensor::Tensor;

/// Defines methods that return a tensor of the same shape.
macro_rules! methods {
    ($($(#[$doc:meta])* $name:ident($x:ident $(, $argument:ident: $t:ty)*) => $result:expr;)*) => {
        impl Tensor {
            $(
                $(#[$doc])*
                ///
                /// The result has the same shape. Halves are computed as f32 and keep their type, and f64 is computed as f64.
                ///
                /// # Errors
                /// [`Error::DTypeMismatch`](crate::Error::DTypeMismatch) if booleans are not allowed; an error if the
                /// device has too little memory for the result.
                pub fn $name(&self, $($argument: $t),*) -> Result<Tensor> {
                    let $x = self;
                    $result
                }
            )*
        }
    };
}

fn plain(x: &Tensor, function: &'static Function) -> Result<Tensor> {
    float(x, function, [0.0; 2])
}

/// Inverts the bits of integers; of booleans, the values.
fn inverted(x: &Tensor) -> Result<Tensor> {
    match x.dtype() {
        DType::Bool => named("bitwise_not", || x.logical_not()),
        DType::I32 | DType::I64 => integer(x, &unary::BITS_I32, [0; 2]),
        dtype if dtype.is_float() => {
            Err(Error::DTypeMismatch { op: "bitwise_not", expected: "integers".into(), got: dtype.to_string() })
        }
        _ => integer(x, &unary::BITS_U32, [0; 2]),
    }
}

/// Computes a function that keeps the element type, with the row for floats, i32 or u32; `None` is the identity.
fn kept(
    x: &Tensor,
    floats: &'static Function,
    i32s: Option<&'static Function>,
    u32s: Option<&'static Function>,
) -> Result<Tensor> {
    let row = match x.dtype().wide() {
        DType::F32 | DType::F64 => return plain(x, floats),
        DType::I32 | DType::I64 => i32s,
        _ => u32s,
    };
    match row {
        Some(row) if x.dtype() == DType::Bool && row.name != "sign" => {
            Err(Error::DTypeMismatch { op: row.name, expected: "numbers".into(), got: "bool".into() })
        }
        Some(row) => integer(x, row, [0; 2]),
        None => Ok(x.clone()),
    }
}

methods! {
    /// Returns `−x`. Integers keep their type and wrap around; booleans are an error (see [`Tensor::logical_not`]).
    neg(x) => kept(x, &unary::NEG, Some(&unary::NEG_I32), Some(&unary::NEG_U32));
    /// Returns `|x|` in the same type; the gradient at 0 is 0.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// assert_eq!(Tensor::try_from([-1.5, 2.0])?.abs()?.to_vec::<f32>()?, [1.5, 2.0]);
    /// assert_eq!(Tensor::try_from([-3, 2])?.abs()?.to_vec::<i32>()?, [3, 2]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    abs(x) => kept(x, &unary::ABS, Some(&unary::ABS_I32), None);
    /// Returns the integers with all bits inverted, in the same type; of booleans, the negation. Floats are an error.
    bitwise_not(x) => inverted(x);
    /// Returns −1, 0 or 1 by the sign, in the same type; 0 for NaN. The gradient is 0.
    sign(x) => kept(x, &unary::SIGN, Some(&unary::SIGN_I32), Some(&unary::SIGN_U32));
    /// Returns `x²`. Integers keep their type and wrap around; booleans are an error.
    square(x) => kept(x, &unary::SQUARE, Some(&unary::SQUARE_I32), Some(&unary::SQUARE_U32));
    /// Returns the largest whole number that is not above x. Integers do not change. The gradient is 0.
    floor(x) => kept(x, &unary::FLOOR, None, None);
    /// Returns the smallest whole number that is not below x. Integers do not change. The gradient is 0.
    ceil(x) => kept(x, &unary::CEIL, None, None);
    /// Returns the nearest whole number, in a tie the even one. Integers do not change. The gradient is 0.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let x = Tensor::try_from([0.5, 1.5, 2.5, -1.2])?;
    /// assert_eq!(x.round()?.to_vec::<f32>()?, [0.0, 2.0, 2.0, -1.0]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    round(x) => kept(x, &unary::ROUND, None, None);
    /// Returns x without its fraction. Integers do not change. The gradient is 0.
    trunc(x) => kept(x, &unary::TRUNC, None, None);
    /// Returns `1 / x`; ±∞ at 0. Integers become f32.
    recip(x) => plain(x, &unary::RECIP);
    /// Returns `eˣ`. Integers become f32.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// assert_eq!(Tensor::try_from([0.0, f32::NEG_INFINITY])?.exp()?.to_vec::<f32>()?, [1.0, 0.0]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    exp(x) => plain(x, &unary::EXP);
    /// Returns `2ˣ`. Integers become f32.
    exp2(x) => plain(x, &unary::EXP2);
    /// Returns `eˣ − 1`, precise near 0. Integers become f32.
    expm1(x) => plain(x, &unary::EXPM1);
    /// Returns the natural logarithm: −∞ at 0, NaN below 0. Integers become f32.
    log(x) => plain(x, &unary::LOG);
    /// Returns the logarithm to base 2, exact for powers of 2: −∞ at 0, NaN below 0. Integers become f32.
    log2(x) => plain(x, &unary::LOG2);
    /// Returns `ln(1 + x)`, precise near 0: −∞ at −1, NaN below −1. Integers become f32.
    log1p(x) => plain(x, &unary::LOG1P);
    /// Returns the square root: NaN below 0. Integers become f32.
    sqrt(x) => plain(x, &unary::SQRT);
    /// Returns `1 / √x`: ∞ at 0, NaN below 0. Integers become f32.
    rsqrt(x) => plain(x, &unary::RSQRT);
    /// Returns the sine of x in radians, however large x is; NaN for ±∞. Integers become f32.
    sin(x) => plain(x, &unary::SIN);
    /// Returns the cosine of x in radians, however large x is; NaN for ±∞. Integers become f32.
    cos(x) => plain(x, &unary::COS);
    /// Returns the tangent of x in radians, however large x is; NaN for ±∞. Integers become f32.
    tan(x) => plain(x, &unary::TAN);
    /// Returns the angle in radians, from −π/2 to π/2, whose sine is x: NaN beyond ±1. Integers become f32.
    asin(x) => plain(x, &unary::ASIN);
    /// Returns the angle in radians, from 0 to π, whose cosine is x: NaN beyond ±1. Integers become f32.
    acos(x) => plain(x, &unary::ACOS);
    /// Returns the angle in radians, from −π/2 to π/2, whose tangent is x. Integers become f32. See also
    /// [`Tensor::atan2`].
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let x = Tensor::try_from([0.0, f32::INFINITY])?;
    /// assert_eq!(x.atan()?.to_vec::<f32>()?, [0.0, std::f32::consts::FRAC_PI_2]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    atan(x) => plain(x, &unary::ATAN);
    /// Returns the hyperbolic sine. Integers become f32.
    sinh(x) => plain(x, &unary::SINH);
    /// Returns the hyperbolic cosine. Integers become f32.
    cosh(x) => plain(x, &unary::COSH);
    /// Returns the number whose hyperbolic sine is x. Integers become f32.
    asinh(x) => plain(x, &unary::ASINH);
    /// Returns the number, at least 0, whose hyperbolic cosine is x: NaN below 1. Integers become f32.
    acosh(x) => plain(x, &unary::ACOSH);
    /// Returns the number whose hyperbolic tangent is x: ±∞ at ±1, NaN beyond. Integers become f32.
    atanh(x) => plain(x, &unary::ATANH);
    /// Returns the hyperbolic tangent. Integers become f32.
    tanh(x) => plain(x, &unary::TANH);
    /// Returns `1 / (1 + e⁻ˣ)`. Integers become f32.
    sigmoid(x) => plain(x, &unary::SIGMOID);
    /// Returns the error function, `2/√π · ∫₀ˣ e^(−t²) dt`. Integers become f32.
    erf(x) => plain(x, &unary::ERF);
    /// Returns the Gaussian error linear unit, `x · Φ(x)` with the normal distribution function Φ: PyTorch's default
    /// form. At ∞ it is ∞; PyTorch 2.15 returns NaN there.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let y = Tensor::try_from([-1.0, 0.0, 1.0])?.gelu()?.to_vec::<f32>()?;
    /// assert!((y[0] + 0.158_655_25).abs() < 1e-6 && y[1] == 0.0 && (y[2] - 0.841_344_75).abs() < 1e-6);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    gelu(x) => plain(x, &unary::GELU);
    /// Returns GELU's approximation, `½ x (1 + tanh(√(2/π) (x + 0.044715 x³)))`: PyTorch's `approximate='tanh'`.
    gelu_tanh(x) => plain(x, &unary::GELU_TANH);
    /// Returns the sigmoid linear unit or swish, `x / (1 + e⁻ˣ)`.
    silu(x) => plain(x, &unary::SILU);
    /// Returns `ln(1 / (1 + e⁻ˣ))`, without overflow.
    log_sigmoid(x) => plain(x, &unary::LOG_SIGMOID);
    /// Returns `x · tanh(ln(1 + eˣ))`.
    mish(x) => plain(x, &unary::MISH);
    /// Returns `x · min(max(x + 3, 0), 6) / 6`.
    hardswish(x) => plain(x, &unary::HARDSWISH);
    /// Returns `min(max(x + 3, 0), 6) / 6`.
    hardsigmoid(x) => plain(x, &unary::HARDSIGMOID);
    /// Returns `x / (1 + |x|)`.
    softsign(x) => plain(x, &unary::SOFTSIGN);
    /// Returns whether each element is NaN, as [`DType::Bool`] of the same shape.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let x = Tensor::try_from([1.0, f32::NAN, f32::INFINITY])?;
    /// assert_eq!(x.isnan()?.to_vec::<bool>()?, [false, true, false]);
    /// assert_eq!(x.isfinite()?.to_vec::<bool>()?, [true, false, false]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    isnan(x) => predicate(&to_float(x)?, &unary::IS_NAN);
    /// Returns whether each element is ∞ or −∞, as [`DType::Bool`] of the same shape.
    isinf(x) => predicate(&to_float(x)?, &unary::IS_INF);
    /// Returns whether each element is neither infinite nor NaN, as [`DType::Bool`] of the same shape.
    isfinite(x) => predicate(&to_float(x)?, &unary::IS_FINITE);
    /// Returns whether each element is 0 or false, as [`DType::Bool`].
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// assert_eq!(Tensor::try_from([0, 2])?.logical_not()?.to_vec::<bool>()?, [true, false]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    logical_not(x) => predicate(x, match x.dtype().wide() {
        DType::F32 => &unary::NOT_F32,
        DType::I32 => &unary::NOT_I32,
        _ => &unary::NOT_U32,
    });
    /// Returns `min(max(x, 0), 6)`. Integers become f32.
    relu6(x) => named("relu6", || x.hardtanh(0.0, 6.0));
    /// Returns `x` if it is above 0, else `negative_slope · x` (PyTorch's default slope is 0.01). Integers become f32.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// assert_eq!(Tensor::try_from([-2.0, 3.0])?.leaky_relu(0.5)?.to_vec::<f32>()?, [-1.0, 3.0]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    leaky_relu(x, negative_slope: f32) => float(x, &unary::LEAKY_RELU, [negative_slope, 0.0]);
    /// Returns `x` if it is above 0, else `alpha · (eˣ − 1)` (PyTorch's default alpha is 1). Integers become f32.
    elu(x, alpha: f32) => float(x, &unary::ELU, [alpha, 0.0]);
    /// Returns `ln(1 + e^(beta · x)) / beta`, or `x` where `beta · x` is above `threshold` (PyTorch's defaults: 1 and
    /// 20). Integers become f32.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let y = Tensor::try_from([0.0, 100.0])?.softplus(1.0, 20.0)?.to_vec::<f32>()?;
    /// assert!((y[0] - 2f32.ln()).abs() < 1e-6 && y[1] == 100.0);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    softplus(x, beta: f32, threshold: f32) => float(x, &unary::SOFTPLUS, [beta, threshold]);
}

impl Tensor {
    /// Returns `max(x, 0)` in the same type. The gradient is 0 at 0, and 1 at NaN.
    ///
    /// # Errors
    /// [`Error::DTypeMismatch`] for booleans.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// assert_eq!(Tensor::try_from([-1.0, 0.0, 2.0])?.relu()?.to_vec::<f32>()?, [0.0, 0.0, 2.0]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn relu(&self) -> Result<Tensor> {
        if self.dtype().is_float() {
            return float(self, &unary::RELU, [0.0; 2]);
        }
        self.clamp_integers("relu", Some(0.0), None)
    }

    /// Limits the elements to the range from `min` to `max`; each bound is optional. If `min` is above `max`, the
    /// result is `max`. NaN stays NaN. The gradient is 1 between the bounds and 0 at them and beyond, as in PyTorch 2.15. Integers keep their type; fractional bounds are rounded inwards to whole numbers.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] without any bound or with NaN as one; [`Error::DTypeMismatch`] for booleans.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let x = Tensor::try_from([-2.0, 0.5, 3.0])?;
    /// assert_eq!(x.clamp(Some(-1.0), Some(1.0))?.to_vec::<f32>()?, [-1.0, 0.5, 1.0]);
    /// assert_eq!(x.clamp(None, Some(1.0))?.to_vec::<f32>()?, [-2.0, 0.5, 1.0]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn clamp(&self, min: Option<f32>, max: Option<f32>) -> Result<Tensor> {
        if (min.is_none() && max.is_none()) || [min, max].into_iter().flatten().any(f32::is_nan) {
            return Err(Error::argument("clamp", "needs min or max, and neither may be NaN"));
        }
        if self.dtype().is_float() {
            let bounds = [min.unwrap_or(f32::NEG_INFINITY), max.unwrap_or(f32::INFINITY)];
            return float(self, &unary::CLAMP, bounds);
        }
        self.clamp_integers("clamp", min, max)
    }

    fn clamp_integers(&self, op: &'static str, min: Option<f32>, max: Option<f32>) -> Result<Tensor> {
        match self.dtype() {
            DType::Bool => Err(Error::DTypeMismatch { op, expected: "numbers".into(), got: "bool".into() }),
            DType::I64 => named(op, || {
                let (low, high) = (min.map(|v| v.ceil() as i64), max.map(|v| v.floor() as i64));
                let x = low.map_or_else(|| Ok(self.clone()), |low| self.maximum(low))?;
                high.map_or_else(|| Ok(x.clone()), |high| x.minimum(high))
            }),
            DType::I32 => {
                let (low, high) =
                    (min.map_or(i32::MIN, |v| v.ceil() as i32), max.map_or(i32::MAX, |v| v.floor() as i32));
                integer(self, &unary::CLAMP_I32, [low as u32, high as u32])
            }
            _ => {
                let most = if self.dtype() == DType::U8 { 255 } else { u32::MAX };
                let (low, high) = (min.map_or(0, |v| v.ceil() as u32), max.map_or(most, |v| v.floor() as u32));
                integer(self, &unary::CLAMP_U32, [low.min(most), high.min(most)])
            }
        }
    }

    /// Limits the elements to the range from `min` to `max`, as an activation: integers become f32, and the gradient is
    /// that of [`Tensor::clamp`]. `hardtanh(0.0, 6.0)` is [`Tensor::relu6`].
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] unless `min` is below `max`.
    pub fn hardtanh(&self, min: f32, max: f32) -> Result<Tensor> {
        if min.is_nan() || max.is_nan() || min >= max {
            return Err(Error::argument("hardtanh", format!("min {min} is not below max {max}")));
        }
        float(self, &unary::HARDTANH, [min, max])
    }
}
