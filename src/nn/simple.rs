//! Layers without parameters and without settings.

use super::Module;
use crate::error::Result;
use crate::tensor::Tensor;

/// max(x, 0), element by element, of any shape.
///
/// # Example
/// ```
/// use anygpu::nn::{Module, ReLU};
/// use anygpu::Tensor;
///
/// let x = Tensor::from_slice(&[-1.0f32, 0.0, 2.0], [3], None)?;
/// assert_eq!(ReLU.forward(&x)?.to_vec::<f32>()?, [0.0, 0.0, 2.0]);
/// # Ok::<(), anygpu::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct ReLU;

impl Module for ReLU {
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        input.relu()
    }

    fn visit(&self, _: &mut dyn FnMut(&str, &Tensor)) {}

    fn visit_mut(&mut self, _: &mut dyn FnMut(&str, &mut Tensor)) {}
}

/// One row per sample: `[N, ..]` → `[N, product of the rest]`.
///
/// # Example
/// ```
/// use anygpu::nn::{Flatten, Module};
/// use anygpu::Tensor;
///
/// assert_eq!(Flatten.forward(&Tensor::ones([2, 50, 4, 4], None)?)?.shape(), [2, 800]);
/// # Ok::<(), anygpu::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Flatten;

impl Module for Flatten {
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        input.flatten_from(1)
    }

    fn visit(&self, _: &mut dyn FnMut(&str, &Tensor)) {}

    fn visit_mut(&mut self, _: &mut dyn FnMut(&str, &mut Tensor)) {}
}
