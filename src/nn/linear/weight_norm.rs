//! Weight normalisation.

use crate::error::{Error, Result};
use crate::nn::{Module, summary};
use crate::shape::{Dim, dimension};
use crate::tensor::Tensor;

const NAME: &str = "WeightNorm";

/// A layer whose weight is `g · v / |v|`: the length and the direction of the weight are separate parameters (Salimans
/// and Kingma, "Weight normalization", 2016), as with PyTorch's `nn.utils.weight_norm`.
///
/// The layer is any module with a parameter called `weight`, such as a [`Linear`](crate::nn::Linear) or a convolution.
/// The parameter is replaced by `weight_g`, with size 1 except along one dimension, and `weight_v`, with the shape of
/// the weight. The norms are over all other dimensions. The weight is recomputed in each forward pass.
///
/// # Example
/// ```
/// use anygpu::nn::{Linear, Module, WeightNorm};
/// use anygpu::Tensor;
///
/// let linear = Linear::new(3, 2)?;
/// let x = Tensor::rand([5, 3], None)?;
/// let normed = WeightNorm::new(linear.clone())?;
/// assert!(normed.forward(&x)?.allclose(&linear.forward(&x)?, 1e-5, 1e-6)?);
/// let names: Vec<String> = normed.named_parameters().into_iter().map(|(name, _)| name).collect();
/// assert_eq!(names, ["weight_g", "weight_v", "bias"]);
/// let plain = normed.into_inner()?; // with the weight that was computed
/// assert_eq!(plain.weight().shape(), [2, 3]);
/// # Ok::<(), anygpu::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct WeightNorm<M> {
    /// Its weight is v.
    inner: M,
    length: Tensor,
    dim: usize,
}

impl<M: Module + Clone> WeightNorm<M> {
    /// Creates the layer with one length for each slice of its weight along dimension 0: each output of a linear layer,
    /// each output channel of a convolution.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the layer has no parameter called `weight`, or it has rank 0.
    pub fn new(layer: M) -> Result<WeightNorm<M>> {
        WeightNorm::along(layer, 0)
    }

    /// Creates the layer with one length for each slice of its weight along dimension `dim`.
    ///
    /// # Errors
    /// The errors of [`new`](WeightNorm::new); [`Error::InvalidArgument`] if there is no such dimension.
    pub fn along(mut layer: M, dim: impl Dim) -> Result<WeightNorm<M>> {
        let Some(weight) = direct(&layer) else {
            return Err(Error::argument(NAME, format!("{} has no parameter called weight", layer.type_name())));
        };
        let dim = dimension(NAME, dim, weight.shape())?;
        let length = norm(&weight.detach(), dim)?.requires_grad();
        // A copy: the layer that was given, and its clones, keep their weight.
        let own = crate::no_grad(|| weight.detach().copy())?.requires_grad();
        put(&mut layer, &own);
        Ok(WeightNorm { inner: layer, length, dim })
    }

    /// Returns the plain layer, with the weight that is computed now as its parameter.
    ///
    /// # Errors
    /// Errors of the ops that compute the weight.
    pub fn into_inner(mut self) -> Result<M> {
        let weight = crate::no_grad(|| self.weight())?.detach().requires_grad();
        put(&mut self.inner, &weight);
        Ok(self.inner)
    }

    /// Returns the weight that is computed now, `g · v / |v|`, with its gradient.
    ///
    /// # Errors
    /// Errors of the ops that compute it.
    pub fn weight(&self) -> Result<Tensor> {
        let Some(v) = direct(&self.inner) else {
            return Err(Error::internal("a WeightNorm without a weight"));
        };
        v.mul(&self.length.div(&norm(&v, self.dim)?)?)
    }

    fn run(&self, input: &Tensor) -> Result<Tensor> {
        let mut layer = self.inner.clone();
        put(&mut layer, &self.weight()?);
        layer.forward(input)
    }
}

/// Returns the norms of the slices along `dim`: `[1, .., n, .., 1]`.
fn norm(weight: &Tensor, dim: usize) -> Result<Tensor> {
    let others: Vec<usize> = (0..weight.rank()).filter(|&d| d != dim).collect();
    if others.is_empty() { weight.abs() } else { weight.norm(2.0, others, true) }
}

/// Returns the parameter called `weight`.
fn direct(layer: &impl Module) -> Option<Tensor> {
    let mut found = None;
    layer.visit(&mut |name, parameter| {
        if name == "weight" {
            found = Some(parameter.clone());
        }
    });
    found
}

fn put(layer: &mut impl Module, weight: &Tensor) {
    layer.visit_mut(&mut |name, parameter| {
        if name == "weight" {
            *parameter = weight.clone();
        }
    });
}

impl<M: Module + Clone> Module for WeightNorm<M> {
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        summary::seen(self, self.run(input))
    }

    fn visit(&self, f: &mut dyn FnMut(&str, &Tensor)) {
        self.inner.visit(&mut |name, parameter| {
            if name == "weight" {
                f("weight_g", &self.length);
                f("weight_v", parameter);
            } else {
                f(name, parameter);
            }
        });
    }

    fn visit_mut(&mut self, f: &mut dyn FnMut(&str, &mut Tensor)) {
        let length = &mut self.length;
        self.inner.visit_mut(&mut |name, parameter| {
            if name == "weight" {
                f("weight_g", length);
                f("weight_v", parameter);
            } else {
                f(name, parameter);
            }
        });
    }

    fn visit_buffers(&self, f: &mut dyn FnMut(&str, &Tensor)) {
        self.inner.visit_buffers(f);
    }

    fn visit_buffers_mut(&mut self, f: &mut dyn FnMut(&str, &mut Tensor)) {
        self.inner.visit_buffers_mut(f);
    }

    fn set_training(&self, training: bool) {
        self.inner.set_training(training);
    }
}
