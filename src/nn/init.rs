//! Initialisation of parameters, as in `torch.nn.init`. The functions overwrite a tensor in place.
//!
//! Random values come from the generator that [`manual_seed`](crate::manual_seed) sets and are the same on every
//! device. Use [`Module::apply`](super::Module::apply) to initialise all layers of a net.
//!
//! For a weight `[OUT, IN, ..]`, with R the product of its further dimensions, fan_in is IN · R and fan_out is OUT · R.
//!
//! ```
//! use anygpu::nn::init::{self, Fan, Nonlinearity};
//! use anygpu::nn::{Conv2d, Linear, Module};
//!
//! fn kaiming(layer: &dyn Module) -> anygpu::Result<()> {
//!     if let Some(conv) = layer.downcast_ref::<Conv2d>() {
//!         init::kaiming_normal_(conv.weight(), Fan::Out, Nonlinearity::ReLU)?;
//!     } else if let Some(linear) = layer.downcast_ref::<Linear>() {
//!         init::normal_(linear.weight(), 0.0, 0.01)?;
//!         linear.bias().map_or(Ok(()), init::zeros_)?;
//!     }
//!     Ok(())
//! }
//!
//! let net = anygpu::nn::models::lenet()?;
//! net.apply(kaiming)?;
//! assert_eq!(net["fc1"].get("bias").unwrap().to_vec::<f32>()?, [0.0; 128]);
//! # Ok::<(), anygpu::Error>(())
//! ```

use crate::autograd::no_grad;
use crate::device::labelled_by_default;
use crate::error::{Error, Result};
use crate::tensor::Tensor;

/// Returns a trainable tensor on `cpu`, uniform on ±1 / √`fan_in`. This is PyTorch's initialisation of `Linear` and of
/// convolutions, for weights and biases. (For weights, PyTorch uses Kaiming uniform with a = √5, whose bound
/// √(6 / ((1 + a²) · fan_in)) is the same.)
pub(super) fn fresh(shape: &[usize], fan_in: usize) -> Result<Tensor> {
    let bound = 1.0 / (fan_in.max(1) as f32).sqrt();
    labelled_by_default("parameters", || {
        let drawn = Tensor::rand(shape, None)?; // on [0, 1)
        Ok(drawn.mul_scalar(2.0 * bound)?.add_scalar(-bound)?.requires_grad())
    })
}

/// Selects the pass in which the Kaiming rules preserve the variance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fan {
    /// Preserves the variance of values in the forward pass: PyTorch's `"fan_in"`, its default.
    In,
    /// Preserves the variance of gradients in the backward pass: PyTorch's `"fan_out"`.
    Out,
}

/// The function that follows the layer; see [`calculate_gain`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Nonlinearity {
    /// None: another convolution or linear layer follows directly.
    Linear,
    /// [`Sigmoid`](super::Sigmoid).
    Sigmoid,
    /// [`Tanh`](super::Tanh).
    Tanh,
    /// [`ReLU`](super::ReLU).
    ReLU,
    /// [`LeakyReLU`](super::LeakyReLU) with this slope. PyTorch's default is a slope of 0.
    LeakyReLU(f32),
    /// The scaled exponential linear unit.
    SELU,
}

/// Returns the recommended gain for a nonlinearity, like PyTorch's `calculate_gain`.
///
/// The gain is a factor of the standard deviation. It is 1 for none and sigmoid, 5/3 for tanh, √2 for ReLU, √(2 / (1 +
/// slope²)) for leaky ReLU and 3/4 for SELU.
///
/// ```
/// use anygpu::nn::init::{Nonlinearity, calculate_gain};
///
/// assert_eq!(calculate_gain(Nonlinearity::Tanh), 5.0 / 3.0);
/// assert_eq!(calculate_gain(Nonlinearity::LeakyReLU(1.0)), 1.0);
/// ```
#[must_use]
pub fn calculate_gain(nonlinearity: Nonlinearity) -> f32 {
    match nonlinearity {
        Nonlinearity::Linear | Nonlinearity::Sigmoid => 1.0,
        Nonlinearity::Tanh => 5.0 / 3.0,
        Nonlinearity::ReLU => 2f32.sqrt(),
        Nonlinearity::LeakyReLU(slope) => (2.0 / (1.0 + slope * slope)).sqrt(),
        Nonlinearity::SELU => 0.75,
    }
}

/// Returns fan_in and fan_out.
fn fans(op: &'static str, tensor: &Tensor) -> Result<[f32; 2]> {
    let &[outputs, inputs, ref rest @ ..] = tensor.shape() else {
        let detail = format!(
            "a tensor of shape {:?} has no fan_in and fan_out: at least two dimensions are needed",
            tensor.shape()
        );
        return Err(Error::argument(op, detail));
    };
    let reach: usize = rest.iter().product();
    if tensor.elem_count() == 0 {
        return Err(Error::argument(op, format!("a tensor of shape {:?} has no elements", tensor.shape())));
    }
    Ok([(inputs * reach) as f32, (outputs * reach) as f32])
}

/// Overwrites the tensor with values of its shape, outside the graph.
fn write(tensor: &Tensor, values: impl FnOnce(&[usize]) -> Result<Tensor>) -> Result<()> {
    no_grad(|| tensor.copy_(&values(tensor.shape())?))
}

/// Fills the tensor with random values, uniformly distributed from `low` (included) to `high` (excluded).
///
/// # Errors
/// Same as [`Tensor::copy_`]; errors of the device.
pub fn uniform_(tensor: &Tensor, low: f32, high: f32) -> Result<()> {
    write(tensor, |shape| Tensor::uniform(low, high, shape, tensor.device()))
}

/// Fills the tensor with random values from the normal distribution with this mean and standard deviation.
///
/// # Errors
/// Same as [`uniform_`].
pub fn normal_(tensor: &Tensor, mean: f32, std: f32) -> Result<()> {
    write(tensor, |shape| Tensor::normal(mean, std, shape, tensor.device()))
}

/// Fills the tensor with one value.
///
/// # Errors
/// Same as [`uniform_`].
pub fn constant_(tensor: &Tensor, value: f32) -> Result<()> {
    no_grad(|| tensor.fill_(value))
}

/// Fills the tensor with zeros.
///
/// # Errors
/// Same as [`uniform_`].
pub fn zeros_(tensor: &Tensor) -> Result<()> {
    constant_(tensor, 0.0)
}

/// Fills the tensor with ones.
///
/// # Errors
/// Same as [`uniform_`].
pub fn ones_(tensor: &Tensor) -> Result<()> {
    constant_(tensor, 1.0)
}

/// Fills the tensor by Xavier's uniform rule (Glorot & Bengio, 2010).
///
/// The values are uniformly distributed on ±`gain` · √(6 / (fan_in + fan_out)). PyTorch's default gain is 1.
///
/// # Errors
/// [`Error::InvalidArgument`] for fewer than two dimensions or no elements; otherwise the errors of [`uniform_`].
pub fn xavier_uniform_(tensor: &Tensor, gain: f32) -> Result<()> {
    let [fan_in, fan_out] = fans("xavier_uniform_", tensor)?;
    let bound = gain * (6.0 / (fan_in + fan_out)).sqrt();
    uniform_(tensor, -bound, bound)
}

/// Fills the tensor by Xavier's normal rule (Glorot & Bengio, 2010).
///
/// The values are normally distributed with mean 0 and standard deviation `gain` · √(2 / (fan_in + fan_out)).
///
/// # Errors
/// Same as [`xavier_uniform_`].
pub fn xavier_normal_(tensor: &Tensor, gain: f32) -> Result<()> {
    let [fan_in, fan_out] = fans("xavier_normal_", tensor)?;
    normal_(tensor, 0.0, gain * (2.0 / (fan_in + fan_out)).sqrt())
}

/// Returns gain / √fan.
fn kaiming(op: &'static str, tensor: &Tensor, fan: Fan, nonlinearity: Nonlinearity) -> Result<f32> {
    let [fan_in, fan_out] = fans(op, tensor)?;
    let fan = match fan {
        Fan::In => fan_in,
        Fan::Out => fan_out,
    };
    Ok(calculate_gain(nonlinearity) / fan.sqrt())
}

/// Fills the tensor by Kaiming's uniform rule (He et al., "Delving deep into rectifiers", 2015).
///
/// The values are uniformly distributed on ±√3 · gain / √fan.
///
/// # Errors
/// Same as [`xavier_uniform_`].
pub fn kaiming_uniform_(tensor: &Tensor, fan: Fan, nonlinearity: Nonlinearity) -> Result<()> {
    let bound = 3f32.sqrt() * kaiming("kaiming_uniform_", tensor, fan, nonlinearity)?;
    uniform_(tensor, -bound, bound)
}

/// Fills the tensor by Kaiming's normal rule (He et al., "Delving deep into rectifiers", 2015).
///
/// The values are normally distributed with mean 0 and standard deviation gain / √fan.
///
/// # Errors
/// Same as [`xavier_uniform_`].
pub fn kaiming_normal_(tensor: &Tensor, fan: Fan, nonlinearity: Nonlinearity) -> Result<()> {
    normal_(tensor, 0.0, kaiming("kaiming_normal_", tensor, fan, nonlinearity)?)
}
