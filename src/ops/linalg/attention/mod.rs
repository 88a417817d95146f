//! Scaled dot-product attention (Vaswani et al., "Attention is all you need", 2017, eq. 1): one op on the host, and for many
//! queries on hardware, unless there is a mask or dropout; else a composition, in blocks of queries where scores would fill the memory.

mod composed;
mod fused;
mod gpu;
mod plan;

use composed::Composed;
use fused::Fused;
use plan::block;

use crate::device::Device;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::ops::autocast::lowered;
use crate::ops::linalg::triangle::filled_above;
use crate::ops::long::refuse;
use crate::ops::traced::TRACE;
use crate::ops::{named, products};
use crate::tensor::Tensor;

/// The options of [`Tensor::attention`].
///
/// ```
/// use anygpu::{Attention, Tensor};
///
/// // One head of two positions; the first attends to itself only.
/// let q = Tensor::ones([1, 2, 4], None)?;
/// let v = Tensor::new([[1.0, 1.0], [3.0, 3.0]], None)?.unsqueeze(0)?;
/// let seen = q.attention(&q, &v, &Attention::new().causal())?;
/// assert_eq!(seen.to_vec::<f32>()?, [1.0, 1.0, 2.0, 2.0]);
/// # Ok::<(), anygpu::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct Attention {
    causal: bool,
    mask: Option<Tensor>,
    padding: Option<Tensor>,
    scale: Option<f32>,
    dropout: f32,
}

impl Attention {
    /// Returns the default options: every query attends to every key, and the scale is 1/√E.
    pub fn new() -> Attention {
        Attention::default()
    }

    /// Limits query i to the keys 0 to i.
    pub fn causal(mut self) -> Attention {
        self.causal = true;
        self
    }

    /// Sets a mask that broadcasts to `[.., L, S]`.
    ///
    /// A `bool` mask is true where a query attends to a key. A float mask is added to the scores before the softmax.
    pub fn mask(mut self, mask: &Tensor) -> Attention {
        self.mask = Some(mask.clone());
        self
    }

    /// Hides keys from all queries of their sample, such as padding after the end of a text. This is PyTorch's
    /// `key_padding_mask`.
    ///
    /// The mask is a bool tensor `[N, S]`, and **true where a key is hidden**, as in PyTorch. This is the opposite of
    /// [`mask`](Attention::mask). N is the first dimension of the keys, which have at least three. It can be combined
    /// with a mask and with [`causal`](Attention::causal). A query without any key has the result 0.
    ///
    /// ```
    /// use anygpu::{Attention, Tensor};
    ///
    /// let q = Tensor::ones([1, 1, 4], None)?;
    /// let (k, v) = (Tensor::ones([1, 3, 4], None)?, Tensor::new([[[1.0], [3.0], [50.0]]], None)?);
    /// let padding = Tensor::new([[false, false, true]], None)?;
    /// let seen = q.attention(&k, &v, &Attention::new().key_padding_mask(&padding))?;
    /// assert_eq!(seen.item::<f32>()?, 2.0);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn key_padding_mask(mut self, mask: &Tensor) -> Attention {
        self.padding = Some(mask.clone());
        self
    }

    /// Sets the factor of the scores. The default is 1/√E.
    pub fn scale(mut self, scale: f32) -> Attention {
        self.scale = Some(scale);
        self
    }

    /// Sets the probability of replacing a weight by 0, for training. The default is 0.
    pub fn dropout(mut self, p: f32) -> Attention {
        self.dropout = p;
        self
    }
}

impl Attention {
    /// Returns the mask, with the keys hidden that are padding.
    fn whole_mask(&self, keys: &Tensor) -> Result<Option<Tensor>> {
        let Some(padding) = &self.padding else { return Ok(self.mask.clone()) };
        if padding.dtype() != DType::Bool {
            let expected = "bool for a key padding mask, true where a key is hidden".into();
            return Err(Error::DTypeMismatch { op: "attention", expected, got: padding.dtype().to_string() });
        }
        let rank = keys.rank();
        let fits = rank >= 3 && padding.shape() == [keys.shape()[0], keys.shape()[rank - 2]];
        if !fits {
            let rule = "a key padding mask is [N, S] for keys [N, .., S, E]";
            return Err(Error::shapes("attention", keys.shape(), padding.shape(), rule));
        }
        let mut shape = vec![1; rank];
        (shape[0], shape[rank - 1]) = (padding.shape()[0], padding.shape()[1]);
        let padding = padding.reshape(shape)?;
        let Some(mask) = &self.mask else { return padding.logical_not().map(Some) };
        match mask.dtype() {
            DType::Bool => mask.logical_and(&padding.logical_not()?),
            _ => padding.where_cond(f32::NEG_INFINITY, &mask.to_dtype(DType::F32)?),
        }
        .map(Some)
    }
}

impl Tensor {
    /// Computes `softmax(q kᵀ · scale + mask) v`, like PyTorch's `scaled_dot_product_attention`.
    ///
    /// q is this tensor, `[.., L, E]`. `keys` are `[.., S, E]`, `values` are `[.., S, V]`, and the result is
    /// `[.., L, V]`. Leading dimensions are broadcast.
    ///
    /// If the mask excludes all keys of a query, its result is 0 and it has no gradient, as in PyTorch since 2.5.
    ///
    /// At most 256 MiB of scores are in memory at a time. Larger scores are computed in blocks, and again for the
    /// gradient. With dropout, and for gradients of gradients, all scores are in memory.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] if the shapes do not match; [`Error::DTypeMismatch`] unless all are of one float type;
    /// [`Error::DeviceMismatch`]; [`Error::InvalidArgument`] for a dropout that is not between 0 and 1.
    ///
    /// See [`Attention`] for an example.
    pub fn attention(&self, keys: &Tensor, values: &Tensor, options: &Attention) -> Result<Tensor> {
        named("attention", || self.attend(keys, values, options))
    }

    fn attend(&self, keys: &Tensor, values: &Tensor, options: &Attention) -> Result<Tensor> {
        let (&[.., _, e], &[.., _, _]) = (self.shape(), keys.shape()) else {
            return Err(Error::shapes("attention", self.shape(), keys.shape(), "takes [.., L, E] and [.., S, E]"));
        };
        // With halves, only the operands and the result are rounded: scores and weights stay f32. On adapters, products read keys
        // and values as they are stored.
        let dtype = lowered(self.dtype());
        refuse("attention", [self, keys, values].into_iter().chain(&options.mask))?;
        let mask = &options.whole_mask(keys)?;
        let rounded = |x: &Tensor| {
            if !dtype.is_float() || lowered(x.dtype()) != dtype {
                let expected = if dtype.is_float() { dtype.to_string() } else { "a float type".into() };
                return Err(Error::DTypeMismatch { op: "attention", expected, got: x.dtype().to_string() });
            }
            x.to_dtype(dtype)
        };
        let stored = |x: &Tensor| if x.device().is_cpu() { rounded(x)?.to_dtype(DType::F32) } else { rounded(x) };
        let (queries, keys, values) = (rounded(self)?.to_dtype(DType::F32)?, stored(keys)?, stored(values)?);
        let _products = products(None);
        let scale = options.scale.unwrap_or_else(|| (e as f32).sqrt().recip());
        let sizes = [self, &keys, &values].map(Tensor::elem_count);
        if mask.is_none() && options.dropout == 0.0 && !sizes.contains(&0) {
            let op = Fused { scale, causal: options.causal };
            if let Some(out) = fused::attention(op, [&queries, &keys, &values])? {
                return out.to_dtype(dtype);
            }
        }
        let op = Composed { scale, causal: options.causal, dropout: options.dropout };
        let mut inputs = vec![queries, keys, values];
        inputs.extend(mask.clone());
        let out = match block(self.device(), composed::scores(&inputs))? {
            // Dropout draws for all weights at once.
            Some(most) if options.dropout == 0.0 => {
                // Each block has gradients of keys and values, which are added up in f32.
                let wide =
                    inputs.iter().map(|x| if x.dtype().is_float() { x.to_dtype(DType::F32) } else { Ok(x.clone()) });
                op.in_blocks(&wide.collect::<Result<Vec<_>>>()?, most)?
            }
            _ => op.apply(&inputs, 0)?,
        };
        out.to_dtype(dtype)
    }
}

/// Returns whether each query comes with or after each key: `[L, S]`. `first` is the number of the first query.
fn past(sizes: [usize; 2], first: usize, device: &Device) -> Result<Tensor> {
    Tensor::full(sizes, true, device)?.tril(first as i64)
}

/// Returns the scores of query i with the keys 0 to i, and −∞ for later keys. `first` is the number of the first query.
fn hide_future(scores: &Tensor, first: usize) -> Result<Tensor> {
    if TRACE.get().is_some() {
        let sizes = [2, 1].map(|back| scores.shape()[scores.rank() - back]);
        return hide(scores, &past(sizes, first, scores.device())?); // which files of nets have ops for
    }
    filled_above(scores, first as i64, f32::NEG_INFINITY)
}

/// Returns the scores where `seen` is true, −∞ elsewhere.
fn hide(scores: &Tensor, seen: &Tensor) -> Result<Tensor> {
    let nothing = Tensor::scalar(f32::NEG_INFINITY, scores.device())?.to_dtype(scores.dtype())?;
    Tensor::where_cond(seen, scores, &nothing)
}
