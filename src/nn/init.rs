//! How parameters start.

use crate::error::Result;
use crate::tensor::Tensor;

/// A trainable tensor on `cpu`, uniform on ±1 / √`fan_in`: PyTorch's start of `Linear` and `Conv2d`, weights (Kaiming
/// uniform with a = √5, whose bound √(6 / ((1 + a²) · fan_in)) is the same) and biases alike.
pub(super) fn uniform(shape: &[usize], fan_in: usize) -> Result<Tensor> {
    let bound = 1.0 / (fan_in.max(1) as f32).sqrt();
    let drawn = Tensor::rand(shape, None)?; // on [0, 1)
    Ok(drawn.mul_scalar(2.0 * bound)?.add_scalar(-bound)?.requires_grad())
}
