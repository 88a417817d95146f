use super::{Module, summary};
use crate::device::labelled_by_default;
use crate::error::{Error, Result};
use crate::tensor::Tensor;

/// A lookup table of vectors. Takes `ids: [..]` of u32, i32 or u8 and returns `[.., width]`. `weight: [count, width]`
/// is initialised from the standard normal distribution. An id beyond the table is an error on the CPU and selects a
/// row of zeros on adapters. PyTorch's `padding_idx` is not supported.
///
/// # Example
/// ```
/// use anygpu::nn::{Embedding, Module};
/// use anygpu::Tensor;
///
/// let table = Embedding::new(10, 4)?;
/// let ids = Tensor::try_from([[1u32, 2, 3], [1, 9, 0]])?;
/// assert_eq!(table.forward(&ids)?.shape(), [2, 3, 4]);
/// # Ok::<(), anygpu::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Embedding {
    weight: Tensor,
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
        })
    }

    /// Returns the weight, `[count, width]`.
    #[must_use]
    pub fn weight(&self) -> &Tensor {
        &self.weight
    }
}

impl Module for Embedding {
    crate::children!(weight);

    fn forward(&self, ids: &Tensor) -> Result<Tensor> {
        if ids.dtype().is_float() {
            let expected = "ids of u32, i32 or u8 (convert them with ids.to_dtype(DType::U32)?)".into();
            return Err(Error::DTypeMismatch { op: "Embedding", expected, got: ids.dtype().to_string() });
        }
        summary::seen(self, self.weight.embedding(ids))
    }
}
