//! Layers without parameters.

use super::{Mode, Module};
use crate::error::{Error, Result};
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

/// In training, zeros in place of each element with probability p, and `x / (1 − p)` of the others; in evaluation
/// ([`Module::eval`]) the identity. Of any shape: see [`Tensor::dropout`].
///
/// # Example
/// ```
/// use anygpu::nn::{Dropout, Module};
/// use anygpu::Tensor;
///
/// let (dropout, x) = (Dropout::new(0.5)?, Tensor::ones([100], None)?);
/// assert!(dropout.forward(&x)?.to_vec::<f32>()?.contains(&0.0));
/// dropout.eval();
/// assert_eq!(dropout.forward(&x)?.to_vec::<f32>()?, [1.0; 100]);
/// # Ok::<(), anygpu::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Dropout {
    p: f32,
    mode: Mode,
}

impl Dropout {
    /// Drops with probability `p`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] unless p is between 0 and 1.
    pub fn new(p: f32) -> Result<Dropout> {
        if !(0.0..=1.0).contains(&p) {
            return Err(Error::argument("Dropout", format!("{p} is no probability: between 0 and 1")));
        }
        Ok(Dropout { p, mode: Mode::default() })
    }
}

impl Module for Dropout {
    crate::children!(mode);

    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        input.dropout(self.p, self.mode.is_training())
    }
}
