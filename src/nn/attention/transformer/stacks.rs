//! Several layers after one another, with an optional norm at the end.

use super::layers::{TransformerDecoderLayer, TransformerEncoderLayer, needs_memory};
use crate::error::{Error, Result};
use crate::nn::{LayerNorm, Module, summary};
use crate::ops::Attention;
use crate::tensor::Tensor;

/// Returns `count` layers with the values of `layer`, each with parameters of its own.
fn copies<M: Module + Clone>(name: &'static str, layer: &M, count: usize) -> Result<Vec<M>> {
    if count == 0 {
        return Err(Error::argument(name, "there must be at least one layer"));
    }
    let one = |_| {
        let mut copy = layer.clone();
        let mut done = Ok(());
        copy.visit_mut(&mut |_, parameter| {
            let tracked = parameter.is_tracked();
            match crate::no_grad(|| parameter.copy()) {
                Ok(own) => *parameter = if tracked { own.requires_grad() } else { own },
                Err(error) => done = Err(error),
            }
        });
        done.map(|()| copy)
    };
    (0..count).map(one).collect()
}

/// Defines a stack from its docs, its type and its layers' type.
macro_rules! stack {
    ($(#[$doc:meta])* $name:ident, $layer:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug)]
        pub struct $name {
            layers: Vec<$layer>,
            norm: Option<LayerNorm>,
        }

        impl $name {
            /// Creates `count` layers with the settings and the values of `layer`, each with parameters of its own, as in
            /// PyTorch.
            ///
            /// # Errors
            /// [`Error::InvalidArgument`] if `count` is 0; [`Error::OutOfMemory`].
            pub fn new(layer: &$layer, count: usize) -> Result<$name> {
                Ok($name { layers: copies(stringify!($name), layer, count)?, norm: None })
            }

            /// Sets a norm for the result of the last layer.
            #[must_use]
            pub fn norm(mut self, norm: LayerNorm) -> $name {
                self.norm = Some(norm);
                self
            }

            fn finished(&self, x: Tensor) -> Result<Tensor> {
                self.norm.as_ref().map_or(Ok(x.clone()), |norm| norm.forward(&x))
            }
        }
    };
}

stack! {
    /// A sequence of [`TransformerEncoderLayer`]s: `[N, L, E]` → `[N, L, E]`. The parameters have PyTorch's names:
    /// `layers.0.linear1.weight`, `norm.weight`.
    ///
    /// # Example
    /// ```
    /// use anygpu::nn::{LayerNorm, Module, TransformerEncoder, TransformerEncoderLayer};
    /// use anygpu::Tensor;
    ///
    /// let layer = TransformerEncoderLayer::new(16, 4)?.dim_feedforward(32)?.norm_first();
    /// let encoder = TransformerEncoder::new(&layer, 3)?.norm(LayerNorm::new([16])?);
    /// assert_eq!(encoder.forward(&Tensor::rand([2, 5, 16], None)?)?.shape(), [2, 5, 16]);
    /// assert!(encoder.get("layers.2.self_attn.in_proj_weight").is_some());
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    TransformerEncoder, TransformerEncoderLayer
}

impl TransformerEncoder {
    /// Computes the layers with attention options, as in [`TransformerEncoderLayer::forward_with`].
    ///
    /// # Errors
    /// The errors of the layers.
    pub fn forward_with(&self, x: &Tensor, options: &Attention) -> Result<Tensor> {
        let mut x = x.clone();
        for layer in &self.layers {
            x = layer.forward_with(&x, options)?;
        }
        summary::seen(self, self.finished(x))
    }
}

impl Module for TransformerEncoder {
    crate::children!(layers, norm);

    /// Computes the layers without a mask.
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        self.forward_with(input, &Attention::new())
    }
}

stack! {
    /// A sequence of [`TransformerDecoderLayer`]s with the same memory: `target: [N, L, E]`, `memory: [N, S, E]` →
    /// `[N, L, E]`. The parameters have PyTorch's names: `layers.0.multihead_attn.in_proj_weight`, `norm.weight`.
    ///
    /// # Example
    /// ```
    /// use anygpu::nn::{TransformerDecoder, TransformerDecoderLayer};
    /// use anygpu::{Attention, Tensor};
    ///
    /// let decoder = TransformerDecoder::new(&TransformerDecoderLayer::new(16, 4)?.dim_feedforward(32)?, 2)?;
    /// let (target, memory) = (Tensor::rand([2, 5, 16], None)?, Tensor::rand([2, 7, 16], None)?);
    /// let y = decoder.decode(&target, &memory, &Attention::new().causal(), &Attention::new())?;
    /// assert_eq!(y.shape(), [2, 5, 16]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    TransformerDecoder, TransformerDecoderLayer
}

impl TransformerDecoder {
    /// Computes the layers with attention options, as in [`TransformerDecoderLayer::decode`].
    ///
    /// # Errors
    /// The errors of the layers.
    pub fn decode(&self, target: &Tensor, memory: &Tensor, own: &Attention, other: &Attention) -> Result<Tensor> {
        let mut x = target.clone();
        for layer in &self.layers {
            x = layer.decode(&x, memory, own, other)?;
        }
        summary::seen(self, self.finished(x))
    }
}

impl Module for TransformerDecoder {
    crate::children!(layers, norm);

    /// Returns an error: a decoder also needs a memory; call [`decode`](TransformerDecoder::decode).
    fn forward(&self, _input: &Tensor) -> Result<Tensor> {
        Err(needs_memory("TransformerDecoder"))
    }
}
