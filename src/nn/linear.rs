use super::{Module, init, summary};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::ops::lowered;
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
///     "shape mismatch in Linear: [3, 5] and [2, 4]: the input's last dimension must be 4, the weight's"
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
        let rule = format!("the input's last dimension must be {inputs}, the weight's");
        return Err(Error::shapes("Linear", x.shape(), weight.shape(), rule));
    };
    // A single matrix product, for any number of leading dimensions.
    let rows = x.reshape([lead.iter().product(), last])?;
    let weight = weight.t()?;
    let output = match bias {
        // The bias is added in f32, before the result is rounded to a half-precision type.
        Some(bias) => rows.matmul_f32(&weight)?.add(&bias.to_dtype(DType::F32)?)?.to_dtype(lowered(x.dtype()))?,
        None => rows.matmul(&weight)?,
    };
    output.reshape([lead, &[outputs]].concat())
}
