use super::{Module, init};
use crate::error::{Error, Result};
use crate::tensor::Tensor;

/// A fully connected layer: y = x Wᵀ + b.
///
/// `x: [.., in]` → `y: [.., out]`, with `weight: [out, in]` and `bias: [out]`, both uniform on ±1/√in at the start.
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
    /// A layer from `inputs` to `outputs` features.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when either is 0.
    pub fn new(inputs: usize, outputs: usize) -> Result<Linear> {
        if inputs == 0 || outputs == 0 {
            return Err(Error::argument(
                "Linear",
                format!("{inputs} inputs and {outputs} outputs: both must be at least 1"),
            ));
        }
        let weight = init::uniform(&[outputs, inputs], inputs)?;
        Ok(Linear { weight, bias: Some(init::uniform(&[outputs], inputs)?) })
    }

    /// The same layer without its bias: y = x Wᵀ.
    pub fn without_bias(mut self) -> Linear {
        self.bias = None;
        self
    }
}

impl Module for Linear {
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let [outputs, inputs] = [self.weight.shape()[0], self.weight.shape()[1]];
        let Some((&last, lead)) = input.shape().split_last().filter(|(last, _)| **last == inputs) else {
            let rule = format!("the input's last dimension must be {inputs}, the weight's");
            return Err(Error::shapes("Linear", input.shape(), self.weight.shape(), rule));
        };
        // One product of matrices whatever the leading dimensions.
        let rows = input.reshape([lead.iter().product(), last])?;
        let product = rows.matmul(&self.weight.t()?)?;
        let output = match &self.bias {
            Some(bias) => product.add(bias)?,
            None => product,
        };
        output.reshape([lead, &[outputs]].concat())
    }

    fn visit(&self, f: &mut dyn FnMut(&str, &Tensor)) {
        f("weight", &self.weight);
        self.bias.iter().for_each(|bias| f("bias", bias));
    }

    fn visit_mut(&mut self, f: &mut dyn FnMut(&str, &mut Tensor)) {
        f("weight", &mut self.weight);
        self.bias.iter_mut().for_each(|bias| f("bias", bias));
    }
}
