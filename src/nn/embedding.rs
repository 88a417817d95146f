mod bag;

pub use bag::{BagMode, EmbeddingBag};

use super::{Module, summary};
use crate::device::labelled_by_default;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::tensor::Tensor;

/// A lookup table of vectors.
///
/// Takes `ids: [..]` (u32, i32, u8 or i64) and returns `[.., width]`. `weight: [count, width]` is initialised from the
/// standard normal distribution. An id beyond the table is an error on the CPU and selects a row of zeros on adapters.
/// [`padding_idx`](Embedding::padding_idx) is the id of padding.
///
/// # Example
/// ```
/// use anygpu::nn::{Embedding, Module};
/// use anygpu::Tensor;
///
/// let table = Embedding::new(10, 4)?;
/// let ids = Tensor::new([[1u32, 2, 3], [1, 9, 0]], None)?;
/// assert_eq!(table.forward(&ids)?.shape(), [2, 3, 4]);
/// # Ok::<(), anygpu::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Embedding {
    weight: Tensor,
    padding: Option<usize>,
}

impl Embedding {
    /// Creates a table of `count` vectors of `width` elements.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if either is 0.
    pub fn new(count: usize, width: usize) -> Result<Embedding> {
        if count == 0 || width == 0 {
            let detail = format!("{count} vectors of {width} elements: both must be at least 1");
            return Err(Error::argument("Embedding", detail));
        }
        Ok(Embedding {
            weight: labelled_by_default("parameters", || Tensor::randn([count, width], None))?.requires_grad(),
            padding: None,
        })
    }

    /// Sets the id of padding, like PyTorch's `padding_idx`. Its vector is filled with zeros now, and gets no gradient,
    /// so training does not change it.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the table has no such vector.
    ///
    /// ```
    /// use anygpu::nn::{Embedding, Module};
    /// use anygpu::Tensor;
    ///
    /// let table = Embedding::new(3, 2)?.padding_idx(0)?;
    /// let vectors = table.forward(&Tensor::new([0u32, 1, 0], None)?)?;
    /// vectors.sum_all()?.backward()?;
    /// assert_eq!(table.weight().grad().unwrap().to_vec::<f32>()?, [0.0, 0.0, 1.0, 1.0, 0.0, 0.0]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn padding_idx(mut self, id: usize) -> Result<Embedding> {
        let [count, width] = [self.weight.shape()[0], self.weight.shape()[1]];
        if id >= count {
            let detail = format!("the id {id} of padding is not within the table of {count} vectors");
            return Err(Error::argument("Embedding", detail));
        }
        crate::no_grad(|| self.weight.narrow(0, id, 1)?.copy_(&Tensor::zeros([1, width], self.weight.device())?))?;
        self.padding = Some(id);
        Ok(self)
    }

    /// Returns the weight, `[count, width]`.
    #[must_use]
    pub fn weight(&self) -> &Tensor {
        &self.weight
    }
}

impl Embedding {
    fn looked_up(&self, ids: &Tensor) -> Result<Tensor> {
        let vectors = self.weight.embedding(ids)?;
        match self.padding.filter(|_| vectors.is_tracked()) {
            // The same values, without a gradient where padding is.
            Some(id) => ids.to_dtype(DType::U32)?.eq(id as u32)?.unsqueeze(-1)?.where_cond(&vectors.detach(), &vectors),
            None => Ok(vectors),
        }
    }
}

impl Module for Embedding {
    crate::children!(weight);

    fn forward(&self, ids: &Tensor) -> Result<Tensor> {
        if ids.dtype().is_float() {
            let expected = "ids of u32, i32, u8 or i64 (convert them with ids.to_dtype(DType::U32)?)".into();
            return Err(Error::DTypeMismatch { op: "Embedding", expected, got: ids.dtype().to_string() });
        }
        summary::seen(self, self.looked_up(ids))
    }
}
