//! Multi-head attention, and the layers of transformers, which use it.

mod transformer;

pub use transformer::{TransformerDecoder, TransformerDecoderLayer, TransformerEncoder, TransformerEncoderLayer};

use super::linear::linear;
use super::simple::probability;
use super::{Linear, Mode, Module, init, summary};
use crate::device::labelled_by_default;
use crate::error::{Error, Result};
use crate::ops::Attention;
use crate::tensor::Tensor;

/// Multi-head attention (Vaswani et al., "Attention is all you need", 2017), with the parameters of PyTorch's layer:
/// `in_proj_weight: [3 E, E]`, `in_proj_bias: [3 E]` (queries, keys, values), `out_proj.weight: [E, E]`,
/// `out_proj.bias: [E]`.
///
/// Batches come first (`batch_first=True`).
///
/// [`forward`](Module::forward) computes self-attention, `[N, L, E]` → `[N, L, E]`.
/// [`attend`](MultiheadAttention::attend) takes separate queries, keys and values.
///
/// # Example
/// ```
/// use anygpu::nn::{Module, MultiheadAttention};
/// use anygpu::{Attention, Tensor};
///
/// let layer = MultiheadAttention::new(16, 4)?.causal(); // each position attends to itself and earlier ones
/// let x = Tensor::rand([2, 5, 16], None)?;
/// assert_eq!(layer.forward(&x)?.shape(), [2, 5, 16]);
///
/// let text = Tensor::rand([2, 9, 16], None)?;
/// let cross = MultiheadAttention::new(16, 4)?;
/// assert_eq!(cross.attend(&x, &text, &text, &Attention::new())?.shape(), [2, 5, 16]);
/// # Ok::<(), anygpu::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct MultiheadAttention {
    in_proj_weight: Tensor,
    in_proj_bias: Option<Tensor>,
    out_proj: Linear,
    heads: usize,
    causal: bool,
    dropout: f32,
    mode: Mode,
}

impl MultiheadAttention {
    /// Creates a layer with `heads` heads for vectors of `width` (E) elements.
    ///
    /// As in PyTorch, `in_proj_weight` is initialised with Xavier's uniform rule, `out_proj.weight` like the weight of
    /// a [`Linear`], and the biases with zeros.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] unless `heads` divides `width` and neither is 0.
    pub fn new(width: usize, heads: usize) -> Result<MultiheadAttention> {
        if width == 0 || heads == 0 || !width.is_multiple_of(heads) {
            let detail = format!("{width} elements cannot be split equally into {heads} heads");
            return Err(Error::argument("MultiheadAttention", detail));
        }
        let all = width.saturating_mul(3); // creating the weight fails if this is too large
        let in_proj_weight = labelled_by_default("parameters", || Tensor::zeros([all, width], None))?.requires_grad();
        init::xavier_uniform_(&in_proj_weight, 1.0)?;
        let out_proj = Linear::new(width, width)?;
        out_proj.bias().map_or(Ok(()), init::zeros_)?;
        let in_proj_bias = Some(Tensor::zeros([all], None)?.requires_grad());
        let (causal, dropout, mode) = (false, 0.0, Mode::default());
        Ok(MultiheadAttention { in_proj_weight, in_proj_bias, out_proj, heads, causal, dropout, mode })
    }

    /// Returns the same layer without its biases.
    #[must_use]
    pub fn without_bias(mut self) -> MultiheadAttention {
        self.in_proj_bias = None;
        self.out_proj = self.out_proj.without_bias();
        self
    }

    /// Makes the attention causal: query i attends to the keys 0 to i only.
    #[must_use]
    pub fn causal(mut self) -> MultiheadAttention {
        self.causal = true;
        self
    }

    /// Sets the dropout probability: in training, each attention weight is set to zero with this probability.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] unless `p` is between 0 and 1.
    pub fn dropout(mut self, p: f32) -> Result<MultiheadAttention> {
        self.dropout = probability("MultiheadAttention", p)?;
        Ok(self)
    }

    /// Computes attention with separate queries, keys and values.
    ///
    /// Takes `queries: [N, L, E]`, `keys: [N, S, E]` and `values: [N, S, E]`. Returns `[N, L, E]`. The options may
    /// contain a mask that broadcasts to `[N, heads, L, S]`. A `bool` mask is true where a query *may* attend to a key,
    /// which is the opposite of PyTorch's layer. [`Attention::key_padding_mask`] hides padding, as in PyTorch.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] for other shapes; the errors of [`Tensor::attention`].
    pub fn attend(&self, queries: &Tensor, keys: &Tensor, values: &Tensor, options: &Attention) -> Result<Tensor> {
        let width = self.out_proj.weight().shape()[0];
        for x in [queries, keys, values] {
            if !matches!(x.shape(), [_, _, last] if *last == width) {
                let rule = format!("queries, keys and values must be [N, length, {width}]");
                return Err(Error::shapes("MultiheadAttention", queries.shape(), x.shape(), rule));
            }
        }
        let [q, k, v] = self.projected([queries, keys, values])?;
        let mut options = options.clone();
        if self.causal {
            options = options.causal();
        }
        if self.mode.is_training() && self.dropout != 0.0 {
            options = options.dropout(self.dropout);
        }
        let seen = q.attention(&k, &v, &options)?.transpose(1, 2)?;
        let seen = seen.reshape([seen.shape()[0], seen.shape()[1], width])?;
        self.out_proj.forward(&seen)
    }

    /// Returns the projected queries, keys and values, `[N, heads, length, E / heads]` each. If all three are the same
    /// tensor, they are computed with one matrix product.
    fn projected(&self, [q, k, v]: [&Tensor; 3]) -> Result<[Tensor; 3]> {
        let width = self.out_proj.weight().shape()[0];
        let project = |x: &Tensor, first: usize, count: usize| {
            let part = |of: &Tensor| of.narrow(0, first * width, count * width);
            linear(x, &part(&self.in_proj_weight)?, self.in_proj_bias.as_ref().map(part).transpose()?.as_ref())
        };
        let heads = |x: Tensor| {
            let [n, length] = [x.shape()[0], x.shape()[1]];
            x.reshape([n, length, self.heads, width / self.heads])?.transpose(1, 2)
        };
        if q.is_same(k) && k.is_same(v) {
            let all = project(q, 0, 3)?;
            let part = |i: usize| heads(all.narrow(2, i * width, width)?);
            return Ok([part(0)?, part(1)?, part(2)?]);
        }
        Ok([heads(project(q, 0, 1)?)?, heads(project(k, 1, 1)?)?, heads(project(v, 2, 1)?)?])
    }
}

impl Module for MultiheadAttention {
    crate::children!(in_proj_weight, in_proj_bias, out_proj, mode);

    /// Self-attention.
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        summary::seen(self, self.attend(input, input, input, &Attention::new()))
    }
}
