//! One layer of an encoder and of a decoder.

use crate::error::{Error, Result};
use crate::nn::{Dropout, LayerNorm, Linear, Module, MultiheadAttention, summary};
use crate::ops::Attention;
use crate::tensor::Tensor;

/// PyTorch's defaults.
const FEEDFORWARD: usize = 2048;
const DROPOUT: f32 = 0.1;

/// The settings and the parts that both kinds of layers have.
#[derive(Clone, Debug)]
struct Common {
    width: usize,
    norm_first: bool,
    gelu: bool,
    /// After an attention, within and after the two linear layers. They take turns drawing from one probability.
    dropout: Dropout,
}

impl Common {
    /// Returns the two linear layers after the attentions.
    fn linear(width: usize, feedforward: usize) -> Result<[Linear; 2]> {
        Ok([Linear::new(width, feedforward)?, Linear::new(feedforward, width)?])
    }

    fn feed_forward(&self, x: &Tensor, [linear1, linear2]: [&Linear; 2]) -> Result<Tensor> {
        let inner = linear1.forward(x)?;
        let inner = if self.gelu { inner.gelu()? } else { inner.relu()? };
        self.dropout.forward(&linear2.forward(&self.dropout.forward(&inner)?)?)
    }

    /// Adds the result of `f` to x, with the norm before f or after the sum.
    fn residual(&self, x: &Tensor, norm: &LayerNorm, f: impl FnOnce(&Tensor) -> Result<Tensor>) -> Result<Tensor> {
        match self.norm_first {
            true => x.add(&f(&norm.forward(x)?)?),
            false => norm.forward(&x.add(&f(x)?)?),
        }
    }
}

/// Defines a layer from its docs, its type, its attentions and its norms, in PyTorch's order.
macro_rules! layer {
    ($(#[$doc:meta])* $name:ident, [$($attention:ident),*], [$($norm:ident),*]) => {
        $(#[$doc])*
        #[derive(Clone, Debug)]
        pub struct $name {
            $($attention: MultiheadAttention,)*
            linear1: Linear,
            linear2: Linear,
            $($norm: LayerNorm,)*
            common: Common,
        }

        impl $name {
            /// Creates a layer for vectors of `width` (E, PyTorch's `d_model`) elements, with `heads` heads. The other
            /// settings are PyTorch's defaults: a feed-forward part of 2048 features with ReLU, dropout 0.1, and norms
            /// after the sums.
            ///
            /// # Errors
            /// [`Error::InvalidArgument`] unless `heads` divides `width` and neither is 0.
            pub fn new(width: usize, heads: usize) -> Result<$name> {
                $(let $attention = MultiheadAttention::new(width, heads)?.dropout(DROPOUT)?;)*
                let [linear1, linear2] = Common::linear(width, FEEDFORWARD)?;
                $(let $norm = LayerNorm::new([width])?;)*
                let common = Common { width, norm_first: false, gelu: false, dropout: Dropout::new(DROPOUT)? };
                Ok($name { $($attention,)* linear1, linear2, $($norm,)* common })
            }

            /// Sets the number of features of the feed-forward part: PyTorch's `dim_feedforward`. Its parameters get a
            /// new shape and new random values: call this first, on a new layer.
            ///
            /// # Errors
            /// [`Error::InvalidArgument`] if it is 0.
            pub fn dim_feedforward(mut self, features: usize) -> Result<$name> {
                let biased = self.linear1.bias().is_some();
                [self.linear1, self.linear2] = Common::linear(self.common.width, features)?;
                Ok(if biased { self } else { self.without_bias() })
            }

            /// Sets the dropout probability. In training, dropout applies to attention weights, to the hidden features
            /// of the feed-forward part, and to all results that are added.
            ///
            /// # Errors
            /// [`Error::InvalidArgument`] unless `p` is between 0 and 1.
            pub fn dropout(mut self, p: f32) -> Result<$name> {
                self.common.dropout = Dropout::new(p)?;
                $(self.$attention = self.$attention.dropout(p)?;)*
                Ok(self)
            }

            /// Uses GELU instead of ReLU in the feed-forward part: PyTorch's `activation="gelu"`.
            #[must_use]
            pub fn gelu(mut self) -> $name {
                self.common.gelu = true;
                self
            }

            /// Normalises before the attentions and the feed-forward part instead of after the sums: PyTorch's
            /// `norm_first=True`.
            #[must_use]
            pub fn norm_first(mut self) -> $name {
                self.common.norm_first = true;
                self
            }

            /// Sets the number added to the variance in the norms: PyTorch's `layer_norm_eps`. The default is 10⁻⁵.
            #[must_use]
            pub fn layer_norm_eps(mut self, eps: f32) -> $name {
                $(self.$norm = self.$norm.eps(eps);)*
                self
            }

            /// Returns the same layer without the biases of attentions, linear layers and norms: PyTorch's `bias=False`.
            #[must_use]
            pub fn without_bias(mut self) -> $name {
                $(self.$attention = self.$attention.without_bias();)*
                (self.linear1, self.linear2) = (self.linear1.without_bias(), self.linear2.without_bias());
                $(self.$norm = self.$norm.without_bias();)*
                self
            }

            fn feed_forward(&self, x: &Tensor) -> Result<Tensor> {
                self.common.feed_forward(x, [&self.linear1, &self.linear2])
            }
        }
    };
}

layer! {
    /// A layer of a transformer's encoder (Vaswani et al., "Attention is all you need", 2017): self-attention and a feed-forward
    /// part, each added to its input.
    ///
    /// `x: [N, L, E]` → `[N, L, E]`: batches come first (PyTorch's `batch_first=True`). The parameters have PyTorch's names:
    /// `self_attn.in_proj_weight`, `self_attn.out_proj.weight`, `linear1.weight`, `linear2.weight`, `norm1.weight`,
    /// `norm2.weight` and their biases.
    ///
    /// # Example
    /// ```
    /// use anygpu::nn::{Module, TransformerEncoderLayer};
    /// use anygpu::{Attention, Tensor};
    ///
    /// let layer = TransformerEncoderLayer::new(16, 4)?.dim_feedforward(32)?.norm_first().gelu();
    /// let x = Tensor::rand([2, 5, 16], None)?;
    /// assert_eq!(layer.forward(&x)?.shape(), [2, 5, 16]);
    /// assert_eq!(layer.forward_with(&x, &Attention::new().causal())?.shape(), [2, 5, 16]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    TransformerEncoderLayer, [self_attn], [norm1, norm2]
}

impl TransformerEncoderLayer {
    /// Computes the layer with attention options, such as a mask that broadcasts to `[N, heads, L, L]`.
    ///
    /// A `bool` mask is true where a position *may* attend to another, which is the opposite of PyTorch.
    /// [`Attention::key_padding_mask`] hides padding: PyTorch's `src_key_padding_mask`.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] for another shape; the errors of [`Tensor::attention`].
    pub fn forward_with(&self, x: &Tensor, options: &Attention) -> Result<Tensor> {
        summary::seen(self, self.run(x, options))
    }

    fn run(&self, x: &Tensor, options: &Attention) -> Result<Tensor> {
        let attend = |x: &Tensor| self.common.dropout.forward(&self.self_attn.attend(x, x, x, options)?);
        let x = self.common.residual(x, &self.norm1, attend)?;
        self.common.residual(&x, &self.norm2, |x| self.feed_forward(x))
    }
}

impl Module for TransformerEncoderLayer {
    crate::children!(self_attn, linear1, linear2, norm1, norm2, common);

    /// Computes the layer without a mask.
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        self.forward_with(input, &Attention::new())
    }
}

layer! {
    /// A layer of a transformer's decoder (Vaswani et al., "Attention is all you need", 2017): self-attention,
    /// attention to the memory (the encoder's output), and a feed-forward part, each added to its input.
    ///
    /// [`decode`](TransformerDecoderLayer::decode) takes `target: [N, L, E]` and `memory: [N, S, E]` → `[N, L, E]`:
    /// batches come first (PyTorch's `batch_first=True`). The parameters have PyTorch's names: the names of a
    /// [`TransformerEncoderLayer`], `multihead_attn.in_proj_weight` and so on, and `norm3.weight`.
    ///
    /// # Example
    /// ```
    /// use anygpu::nn::TransformerDecoderLayer;
    /// use anygpu::{Attention, Tensor};
    ///
    /// let layer = TransformerDecoderLayer::new(16, 4)?.dim_feedforward(32)?;
    /// let (target, memory) = (Tensor::rand([2, 5, 16], None)?, Tensor::rand([2, 7, 16], None)?);
    /// let y = layer.decode(&target, &memory, &Attention::new().causal(), &Attention::new())?;
    /// assert_eq!(y.shape(), [2, 5, 16]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    TransformerDecoderLayer, [self_attn, multihead_attn], [norm1, norm2, norm3]
}

impl TransformerDecoderLayer {
    /// Computes the layer.
    ///
    /// `own` has the options of the self-attention, often [`causal`](Attention::causal); its mask broadcasts to
    /// `[N, heads, L, L]`. `other` has the options of the attention to the memory; its mask broadcasts to
    /// `[N, heads, L, S]`. A `bool` mask is true where a position *may* attend to another, which is the opposite of
    /// PyTorch. [`Attention::key_padding_mask`] hides padding: PyTorch's `tgt_key_padding_mask` in `own`, its
    /// `memory_key_padding_mask` in `other`.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] for other shapes; the errors of [`Tensor::attention`].
    pub fn decode(&self, target: &Tensor, memory: &Tensor, own: &Attention, other: &Attention) -> Result<Tensor> {
        summary::seen(self, self.run(target, memory, own, other))
    }

    fn run(&self, target: &Tensor, memory: &Tensor, own: &Attention, other: &Attention) -> Result<Tensor> {
        let dropout = &self.common.dropout;
        let to_itself = |x: &Tensor| dropout.forward(&self.self_attn.attend(x, x, x, own)?);
        let x = self.common.residual(target, &self.norm1, to_itself)?;
        let to_memory = |x: &Tensor| dropout.forward(&self.multihead_attn.attend(x, memory, memory, other)?);
        let x = self.common.residual(&x, &self.norm2, to_memory)?;
        self.common.residual(&x, &self.norm3, |x| self.feed_forward(x))
    }
}

impl Module for TransformerDecoderLayer {
    crate::children!(self_attn, multihead_attn, linear1, linear2, norm1, norm2, norm3, common);

    /// Returns an error: a decoder also needs a memory; call [`decode`](TransformerDecoderLayer::decode).
    fn forward(&self, _input: &Tensor) -> Result<Tensor> {
        Err(needs_memory("TransformerDecoderLayer"))
    }
}

pub(super) fn needs_memory(layer: &'static str) -> Error {
    Error::argument(layer, "a decoder needs a target and a memory: call decode(&target, &memory, ..)")
}

impl crate::nn::Child for Common {
    fn visit_as(&self, _name: &str, _f: &mut dyn FnMut(&str, &Tensor)) {}

    fn visit_as_mut(&mut self, _name: &str, _f: &mut dyn FnMut(&str, &mut Tensor)) {}

    fn tell_training(&self, training: bool) {
        self.dropout.set_training(training);
    }
}
