//! Ops whose gradient a user writes.

use std::fmt;

use crate::autograd::{is_recording, record};
use crate::error::{Error, Result};
use crate::ops::{Differentiable, Gradient, Gradients, Saves};
use crate::tensor::Tensor;

/// The values from which a user's gradient is computed: see [`custom_grad`].
#[derive(Debug)]
pub struct Backward<'a> {
    inputs: &'a [Tensor],
    output: &'a Tensor,
    grad: &'a Tensor,
    needs: &'a [bool],
}

impl Backward<'_> {
    /// Returns the inputs of the op, in order.
    ///
    /// They are outside the graph, unless the gradient is computed with [`GradOptions::create_graph`].
    ///
    /// [`GradOptions::create_graph`]: crate::GradOptions::create_graph
    #[must_use]
    pub fn inputs(&self) -> &[Tensor] {
        self.inputs
    }

    /// Returns the result of the op.
    ///
    /// It is outside the graph if the [`inputs`](Backward::inputs) are.
    #[must_use]
    pub fn output(&self) -> &Tensor {
        self.output
    }

    /// Returns the gradient of the result, with its shape.
    #[must_use]
    pub fn grad(&self) -> &Tensor {
        self.grad
    }

    /// Returns for each input whether its gradient is needed. The gradients of other inputs may be `None`.
    #[must_use]
    pub fn needs(&self) -> &[bool] {
        self.needs
    }
}

/// Computes a result from tensors, with a gradient that the caller writes, like `torch.autograd.Function`.
///
/// `forward` gets the inputs outside the graph, and its ops are not recorded. [`Tensor::backward`] later calls
/// `backward` once, with the gradient of the result. `backward` returns a gradient for each input, of the input's
/// shape, or `None` for an input without a gradient. The ops of `backward` are recorded only if the gradient needs a
/// gradient itself; the gradient of the gradient is then computed from these ops.
///
/// Inputs and result stay in memory until the backward pass. Do not write to them in place before it.
///
/// # Errors
///
/// The errors of `forward`; [`Error::Autograd`] if an input is tracked and the result is not of a float type.
/// [`Tensor::backward`] returns the errors of `backward`, and [`Error::Autograd`] if its gradients do not fit the
/// inputs.
///
/// ```
/// use anygpu::{Tensor, custom_grad};
///
/// // The sign, with the gradient of the identity between −1 and 1: a "straight-through estimator".
/// let x = Tensor::new([-3.0, -0.5, 0.5], None)?.requires_grad();
/// let y = custom_grad(&[&x], |x| x[0].sign(), |b| {
///     let inside = b.inputs()[0].abs()?.le(1.0)?;
///     Ok(vec![Some(b.grad().mul(&inside.to_dtype(b.grad().dtype())?)?)])
/// })?;
/// assert_eq!(y.to_vec::<f32>()?, [-1.0, -1.0, 1.0]);
/// y.sum_all()?.backward()?;
/// assert_eq!(x.grad().unwrap().to_vec::<f32>()?, [0.0, 1.0, 1.0]);
/// # Ok::<(), anygpu::Error>(())
/// ```
pub fn custom_grad(
    inputs: &[&Tensor],
    forward: impl FnOnce(&[Tensor]) -> Result<Tensor>,
    backward: impl Fn(&Backward) -> Result<Vec<Option<Tensor>>> + Send + Sync + 'static,
) -> Result<Tensor> {
    let detached: Vec<Tensor> = inputs.iter().map(|input| input.detach()).collect();
    let out = crate::autograd::no_grad(|| forward(&detached))?;
    custom("custom_grad", inputs, out, Box::new(backward), true)
}

pub(crate) type Function = Box<dyn Fn(&Backward) -> Result<Gradients> + Send + Sync>;

/// Returns a tensor as the result of an op on some inputs. Its gradient has no gradient itself, because the function
/// computes it from more than the inputs.
pub(crate) fn attached(name: &'static str, inputs: &[&Tensor], out: Tensor, backward: Function) -> Result<Tensor> {
    custom(name, inputs, out, backward, false)
}

/// Returns a tensor as the result of an op on some inputs. `again` says whether the ops that compute the gradient have gradients.
pub(super) fn custom(
    name: &'static str,
    inputs: &[&Tensor],
    out: Tensor,
    backward: Function,
    again: bool,
) -> Result<Tensor> {
    if !inputs.iter().any(|input| input.is_tracked()) {
        return Ok(out);
    }
    if !out.dtype().is_float() {
        return Err(Error::Autograd(format!("{name}: a result of {} has no gradient", out.dtype())));
    }
    // A forward pass may return one of its inputs: the result is another tensor of the graph.
    Ok(record(CustomGrad { name, backward, again }, inputs, out.detach()))
}

struct CustomGrad {
    name: &'static str,
    backward: Function,
    /// Whether the ops that compute the gradient have gradients themselves.
    again: bool,
}

impl fmt::Debug for CustomGrad {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.debug_struct("CustomGrad").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Differentiable for CustomGrad {
    fn op_name(&self) -> &'static str {
        self.name
    }

    fn saves(&self) -> Saves {
        Saves::All
    }

    /// The function knows what its gradient depends on.
    fn gradient_changes_with(&self, _input: usize) -> Saves {
        Saves::Nothing
    }

    fn gradients(&self, ctx: &Gradient) -> Result<Gradients> {
        if !self.again && is_recording() {
            return Err(Error::Autograd(format!("the gradient of {} has no gradient", self.name)));
        }
        let &Gradient { inputs, out: output, grad, needs } = ctx;
        let gradients = (self.backward)(&Backward { inputs, output, grad, needs })?;
        let wrong = |detail: String| Err(Error::Autograd(format!("{}: the backward function {detail}", self.name)));
        if gradients.len() != inputs.len() {
            return wrong(format!("returned {} gradients for {} inputs", gradients.len(), inputs.len()));
        }
        for (i, (gradient, input)) in gradients.iter().zip(inputs).enumerate() {
            let Some(gradient) = gradient else { continue };
            if gradient.shape() != input.shape() {
                let (shape, of) = (gradient.shape(), input.shape());
                return wrong(format!("returned a gradient of shape {shape:?} for input {i}, of shape {of:?}"));
            }
            if gradient.device() != input.device() {
                let (device, of) = (gradient.device(), input.device());
                return wrong(format!("returned a gradient on {device} for input {i}, on {of}"));
            }
            if !gradient.dtype().is_float() {
                return wrong(format!("returned a gradient of {} for input {i}", gradient.dtype()));
            }
        }
        Ok(gradients)
    }
}
