//! Second derivatives of functions of one element, as compositions of ops, so that there are further ones.

use std::f64::consts::{FRAC_2_SQRT_PI, LN_2, PI};

use crate::error::{Error, Result};
use crate::tensor::Tensor;

/// The derivatives of what a gradient is multiplied by, as far as its formula reads the input x, and the result y.
type Both = [Option<Tensor>; 2];

/// Returns the derivative of a function's derivative, by x and by y: by that of the two that its gradient is computed from.
///
/// # Errors
/// [`Error::Autograd`] for a function without one here.
pub(super) fn derivatives(name: &str, x: &Tensor, y: &Tensor, [a, b]: [f32; 2]) -> Result<Both> {
    // 1 within the piece of a function that has pieces, else 0.
    let piece = |inside: Tensor| inside.detach().to_dtype(x.dtype());
    let by_x = |factor: Result<Tensor>| Ok([Some(factor?), None]);
    let by_y = |factor: Result<Tensor>| Ok([None, Some(factor?)]);
    // 1 − x²
    let rest = || x.square()?.neg()?.add(1.0);
    match name {
        // Straight pieces.
        "abs" | "relu" | "leaky_relu" | "clamp" | "hardtanh" | "hardsigmoid" => Ok([None, None]),
        "square" => by_x(x.ones_like()?.mul(2.0)),
        "recip" => by_y(y.mul(-2.0)),
        "exp" | "expm1" => by_y(y.ones_like()),
        "exp2" => by_y(y.ones_like()?.mul(LN_2)),
        "log" => by_x(x.square()?.recip()?.neg()),
        "log2" => by_x(x.square()?.recip()?.mul(-1.0 / LN_2)),
        "log1p" => by_x(x.add(1.0)?.square()?.recip()?.neg()),
        "sqrt" => by_y(y.square()?.recip()?.mul(-0.5)),
        "rsqrt" => by_y(y.square()?.mul(-1.5)),
        "sin" => by_x(x.sin()?.neg()),
        "cos" => by_x(x.cos()?.neg()),
        "tan" => by_y(y.mul(2.0)),
        "asin" => by_x(rest()?.pow(-1.5)?.mul(x)),
        "acos" => by_x(rest()?.pow(-1.5)?.mul(x)?.neg()),
        "atan" => by_x(x.square()?.add(1.0)?.square()?.recip()?.mul(x)?.mul(-2.0)),
        "sinh" => by_x(x.sinh()),
        "cosh" => by_x(x.cosh()),
        "asinh" => by_x(x.square()?.add(1.0)?.pow(-1.5)?.mul(x)?.neg()),
        "acosh" => by_x(x.square()?.sub(1.0)?.pow(-1.5)?.mul(x)?.neg()),
        "atanh" => by_x(rest()?.square()?.recip()?.mul(x)?.mul(2.0)),
        "tanh" => by_y(y.mul(-2.0)),
        "sigmoid" => by_y(y.mul(-2.0)?.add(1.0)),
        "erf" => by_x(x.square()?.neg()?.exp()?.mul(x)?.mul(-2.0 * FRAC_2_SQRT_PI)),
        "elu" => by_y(piece(x.le(0.0)?)),
        // φ(x) (2 − x²), for the density φ of the normal distribution
        "gelu" => {
            let density = x.square()?.mul(-0.5)?.exp()?.mul((2.0 * PI).sqrt().recip())?;
            by_x(density.mul(&x.square()?.neg()?.add(2.0)?))
        }
        // Of x σ(u), with u = 2 √(2/π) (x + 0.044715 x³): 2 σ′ u′ + x (σ″ u′² + σ′ u″), where σ′ = σ (1 − σ), σ″ = σ′ (1 − 2 σ)
        "gelu_tanh" => {
            let (scale, cubic) = ((8.0 / PI).sqrt(), 0.044715);
            let square = x.square()?;
            let gate = square.mul(cubic)?.add(1.0)?.mul(x)?.mul(scale)?.sigmoid()?;
            let slope = gate.mul(&gate.neg()?.add(1.0)?)?;
            let first = square.mul(3.0 * cubic)?.add(1.0)?.mul(scale)?;
            let second = x.mul(6.0 * cubic * scale)?;
            let bend = gate.mul(-2.0)?.add(1.0)?.mul(&first.square()?)?.add(&second)?;
            by_x(first.mul(2.0)?.add(&x.mul(&bend)?)?.mul(&slope))
        }
        // σ′ (2 + x (1 − 2 σ))
        "silu" => {
            let gate = x.sigmoid()?;
            let slope = gate.mul(&gate.neg()?.add(1.0)?)?;
            by_x(gate.mul(-2.0)?.add(1.0)?.mul(x)?.add(2.0)?.mul(&slope))
        }
        "softplus" => {
            let gate = x.mul(a)?.sigmoid()?;
            let below = piece(x.mul(a)?.le(b)?)?;
            by_x(gate.mul(&gate.neg()?.add(1.0)?)?.mul(a)?.mul(&below))
        }
        "log_sigmoid" => by_x(x.sigmoid()?.mul(&x.neg()?.sigmoid()?)?.neg()),
        "hardswish" => by_x(piece(x.abs()?.lt(3.0)?)?.mul(1.0 / 3.0)),
        "softsign" => by_x(x.abs()?.add(1.0)?.pow(-3.0)?.mul(&x.sign()?)?.mul(-2.0)),
        _ => Err(Error::Autograd(format!("the gradient of {name} has no gradient"))),
    }
}
