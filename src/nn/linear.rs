mod weight_norm;

pub use weight_norm::WeightNorm;

use super::{Module, init, summary};
use crate::error::{Error, Result};
use crate::ops::long::refuse;
use crate::tensor::Tensor;

/// A fully connected layer: y = x Wᵀ + b.
///
/// `x: [.., in]` → `y: [.., out]`, with `weight: [out, in]` and `bias: [out]`, both initialised uniformly on ±1/√in.
///
/// # Example
/// ```
/// use anygpu::nn::{Linear, Module};
/// use anygpu::Tensor;
///
/// let layer = Linear::new(4, 2)?;
/// assert_eq!(layer.forward(&Tensor::ones([3, 4], None)?)?.shape(), [3, 2]);
/// assert_eq!(layer.forward(&Tensor::ones([5, 3, 4], None)?)?.shape(), [5, 3, 2]);
///
/// let error = layer.forward(&Tensor::ones([3, 5], None)?).unwrap_err();
/// assert_eq!(
///     error.to_string(),
///     "shape mismatch in Linear: [3, 5] and [2, 4]: the layer is from 4 to 2 features, and the input's last dimension is 5"
/// );
/// # Ok::<(), anygpu::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Linear {
    weight: Tensor,
    bias: Option<Tensor>,
}

impl Linear {
    /// Creates a layer from `inputs` to `outputs` features.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if either is 0.
    pub fn new(inputs: usize, outputs: usize) -> Result<Linear> {
        if inputs == 0 || outputs == 0 {
            return Err(Error::argument(
                "Linear",
                format!("{inputs} inputs and {outputs} outputs: both must be at least 1"),
            ));
        }
        let weight = init::fresh(&[outputs, inputs], inputs)?;
        Ok(Linear { weight, bias: Some(init::fresh(&[outputs], inputs)?) })
    }

    /// Returns the layer with this `weight: [out, in]` and `bias: [out]`.
    pub(crate) fn of_parts(weight: Tensor, bias: Option<Tensor>) -> Linear {
        Linear { weight, bias }
    }

    /// Returns the same layer without its bias: y = x Wᵀ.
    #[must_use]
    pub fn without_bias(mut self) -> Linear {
        self.bias = None;
        self
    }

    /// Returns the weight, `[out, in]`.
    #[must_use]
    pub fn weight(&self) -> &Tensor {
        &self.weight
    }

    /// Returns the bias, `[out]`, if the layer has one.
    #[must_use]
    pub fn bias(&self) -> Option<&Tensor> {
        self.bias.as_ref()
    }
}

impl Module for Linear {
    crate::children!(weight, bias);

    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        summary::seen(self, linear(input, &self.weight, self.bias.as_ref()))
    }
}

/// Returns x Wᵀ + b: `x: [.., in]`, `weight: [out, in]`, `bias: [out]` → `[.., out]`.
pub(super) fn linear(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    let [outputs, inputs] = [weight.shape()[0], weight.shape()[1]];
    let Some((&last, lead)) = x.shape().split_last().filter(|(last, _)| **last == inputs) else {
        return Err(Error::shapes("Linear", x.shape(), weight.shape(), last_dimension(x, inputs, outputs)));
    };
    if !x.dtype().is_float() {
        let expected = "a float type (convert integers with x.to_dtype(DType::F32)?)".into();
        return Err(Error::DTypeMismatch { op: "Linear", expected, got: x.dtype().to_string() });
    }
    refuse("Linear", bias)?;
    // A single matrix product, for any number of leading dimensions.
    let rows = x.reshape([lead.iter().product(), last])?;
    let weight = weight.t()?;
    let output = match bias {
        Some(bias) => rows.matmul_and_bias(&weight, bias)?,
        None => rows.matmul(&weight)?,
    };
    output.reshape([lead, &[outputs]].concat())
}

/// Returns why an input does not fit, and what would make it fit.
fn last_dimension(x: &Tensor, inputs: usize, outputs: usize) -> String {
    let layer = format!("the layer is from {inputs} to {outputs} features");
    match x.shape() {
        [] => format!("{layer}, and the input has no dimension"),
        [_, sample @ ..] if sample.len() > 1 && sample.iter().product::<usize>() == inputs => {
            format!("{layer}: flatten the samples first, with the layer Flatten or x.flatten(1)?")
        }
        [.., last] => format!("{layer}, and the input's last dimension is {last}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_input_that_does_not_fit_is_told_what_would() -> Result<()> {
        let layer = Linear::new(12, 2)?;
        let error = |x: &Tensor| layer.forward(x).unwrap_err().to_string();
        assert!(error(&Tensor::ones([5, 3, 2, 2], None)?).ends_with("Flatten or x.flatten(1)?"));
        assert!(error(&Tensor::ones((), None)?).ends_with("and the input has no dimension"));
        assert!(error(&Tensor::ones([5, 11], None)?).ends_with("and the input's last dimension is 11"));
        let integers = error(&Tensor::from_slice(&[1u32; 12], 12, None)?);
        assert!(integers.starts_with("Linear: ") && integers.contains("to_dtype(DType::F32)"), "{integers}");
        Ok(())
    }
}
