//! Sums, means and maxima of embedded ids.

use super::Embedding;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::nn::{Module, summary};
use crate::ops::ScatterReduce;
use crate::tensor::Tensor;

const NAME: &str = "EmbeddingBag";

/// How [`EmbeddingBag`] combines the vectors of a bag.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BagMode {
    /// The sum.
    Sum,
    /// The mean.
    #[default]
    Mean,
    /// The maximum of each element.
    Max,
}

/// A lookup table of vectors that returns one vector for each bag of ids: the mean of the bag's vectors (the default),
/// their sum, or the maximum of each element.
///
/// `weight: [count, width]` is initialised from the standard normal distribution. The vector of an empty bag is 0.
///
/// [`forward`](Module::forward) takes bags of one size, `ids: [N, L]` → `[N, width]`.
/// [`forward_with_offsets`](EmbeddingBag::forward_with_offsets) takes bags of different sizes. Ids are u32, i32, u8 or
/// i64. An id beyond the table is an error, as with [`Embedding`].
///
/// # Example
/// ```
/// use anygpu::nn::{BagMode, EmbeddingBag, Module};
/// use anygpu::Tensor;
///
/// let bag = EmbeddingBag::new(10, 4)?.mode(BagMode::Sum);
/// let ids = Tensor::new([1u32, 2, 3, 9, 0], None)?;
/// let vectors = bag.forward_with_offsets(&ids, &Tensor::new([0u32, 3], None)?)?; // the ids 1, 2, 3 and 9, 0
/// assert_eq!(vectors.shape(), [2, 4]);
/// assert_eq!(bag.forward(&Tensor::new([[1u32, 2], [3, 3]], None)?)?.shape(), [2, 4]);
/// # Ok::<(), anygpu::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct EmbeddingBag {
    weight: Tensor,
    mode: BagMode,
}

impl EmbeddingBag {
    /// Creates a table of `count` vectors of `width` elements. Bags are combined by their mean.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if either is 0.
    pub fn new(count: usize, width: usize) -> Result<EmbeddingBag> {
        if count == 0 || width == 0 {
            let detail = format!("{count} vectors of {width} elements: both must be at least 1");
            return Err(Error::argument(NAME, detail));
        }
        Ok(EmbeddingBag { weight: Embedding::new(count, width)?.weight, mode: BagMode::default() })
    }

    /// Sets how the vectors of a bag are combined.
    #[must_use]
    pub fn mode(mut self, mode: BagMode) -> EmbeddingBag {
        self.mode = mode;
        self
    }

    /// Returns the weight, `[count, width]`.
    #[must_use]
    pub fn weight(&self) -> &Tensor {
        &self.weight
    }

    /// Returns the vectors of bags of different sizes: `ids: [n]` and `offsets: [N]` → `[N, width]`.
    ///
    /// Bag i has the ids from offset i up to the next offset; the last bag extends to the end. The first offset is 0.
    /// The offsets are read back, so the call waits for the device.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the offsets do not begin with 0, descend or are beyond the ids;
    /// [`Error::ShapeMismatch`] for other shapes; [`Error::DTypeMismatch`] unless both are u32, i32, u8 or i64;
    /// [`Error::DeviceMismatch`].
    pub fn forward_with_offsets(&self, ids: &Tensor, offsets: &Tensor) -> Result<Tensor> {
        summary::seen(self, self.in_bags(ids, offsets, None))
    }

    /// Returns weighted sums of the vectors of bags: `ids: [n]`, `offsets: [N]` and `weights: [n]` → `[N, width]`.
    ///
    /// The weights are f32: one factor for each id, like PyTorch's `per_sample_weights`. Ids and offsets are as in
    /// [`forward_with_offsets`](EmbeddingBag::forward_with_offsets). The mode must be [`BagMode::Sum`].
    ///
    /// # Errors
    /// The errors of `forward_with_offsets`; [`Error::InvalidArgument`] for another mode.
    pub fn forward_weighted(&self, ids: &Tensor, offsets: &Tensor, weights: &Tensor) -> Result<Tensor> {
        if self.mode != BagMode::Sum {
            let detail = format!("weights are for sums, and the mode is {:?}: call mode(BagMode::Sum)", self.mode);
            return Err(Error::argument(NAME, detail));
        }
        if weights.shape() != ids.shape() {
            return Err(Error::shapes(NAME, ids.shape(), weights.shape(), "there must be one weight for each id"));
        }
        summary::seen(self, self.in_bags(ids, offsets, Some(weights)))
    }

    fn in_bags(&self, ids: &Tensor, offsets: &Tensor, weights: Option<&Tensor>) -> Result<Tensor> {
        whole(ids)?;
        whole(offsets)?;
        let (&[count], &[bags]) = (ids.shape(), offsets.shape()) else {
            let rule = "ids and offsets have one dimension each";
            return Err(Error::shapes(NAME, ids.shape(), offsets.shape(), rule));
        };
        let device = self.weight.device();
        let starts = starts(offsets, count)?;
        let sizes: Vec<usize> = (0..bags).map(|i| starts[i + 1] - starts[i]).collect();
        let of: Vec<u32> = (0u32..).zip(&sizes).flat_map(|(i, &size)| std::iter::repeat_n(i, size)).collect();
        let of = Tensor::from_vec(of, count, device)?;
        let mut vectors = self.weight.embedding(ids)?;
        if let Some(weights) = weights {
            vectors = vectors.mul(&weights.unsqueeze(-1)?)?;
        }
        let none = Tensor::zeros([bags, self.weight.shape()[1]], device)?.to_dtype(vectors.dtype())?;
        match self.mode {
            BagMode::Sum => none.index_add(0, &of, &vectors),
            BagMode::Mean => {
                let shares: Vec<f32> = sizes.iter().map(|&size| 1.0 / size.max(1) as f32).collect();
                let shares = Tensor::from_vec(shares, [bags, 1], device)?.to_dtype(vectors.dtype())?;
                none.index_add(0, &of, &vectors)?.mul(&shares)
            }
            BagMode::Max => none.index_reduce(0, &of, &vectors, ScatterReduce::Amax, false),
        }
    }

    fn of_equal_size(&self, ids: &Tensor) -> Result<Tensor> {
        whole(ids)?;
        let &[bags, size] = ids.shape() else {
            let detail = format!("ids must be [N, L], not {:?}: for others, use forward_with_offsets", ids.shape());
            return Err(Error::argument(NAME, detail));
        };
        if size == 0 {
            return Tensor::zeros([bags, self.weight.shape()[1]], self.weight.device())?.to_dtype(self.weight.dtype());
        }
        let vectors = self.weight.embedding(ids)?;
        match self.mode {
            BagMode::Sum => vectors.sum(1, false),
            BagMode::Mean => vectors.mean(1, false),
            BagMode::Max => vectors.max(1, false),
        }
    }
}

/// Returns an error unless these are integers.
fn whole(numbers: &Tensor) -> Result<()> {
    if numbers.dtype().is_float() || numbers.dtype() == DType::Bool {
        let expected = "ids and offsets of u32, i32, u8 or i64".into();
        return Err(Error::DTypeMismatch { op: NAME, expected, got: numbers.dtype().to_string() });
    }
    Ok(())
}

/// Returns where each bag starts, and the end of the last.
fn starts(offsets: &Tensor, count: usize) -> Result<Vec<usize>> {
    let mut all = Vec::with_capacity(offsets.elem_count() + 1);
    for (i, offset) in offsets.to_vec_f64()?.into_iter().enumerate() {
        let before = all.last().copied().unwrap_or(0);
        let fits = offset >= before as f64 && offset <= count as f64 && (i > 0 || offset == 0.0);
        if !fits {
            let detail = format!("offset {i} is {offset}: offsets begin with 0, ascend, and are at most {count}");
            return Err(Error::argument(NAME, detail));
        }
        all.push(offset as usize);
    }
    if all.is_empty() && count > 0 {
        return Err(Error::argument(NAME, format!("there are {count} ids, but no bags: offsets are empty")));
    }
    all.push(count);
    Ok(all)
}

impl Module for EmbeddingBag {
    crate::children!(weight);

    /// Returns the vectors of bags of one size.
    fn forward(&self, ids: &Tensor) -> Result<Tensor> {
        summary::seen(self, self.of_equal_size(ids))
    }
}
