//! Datasets of tensors, on any device.

use std::sync::{Arc, OnceLock};

use super::dataset::within;
use super::{Array, Dataset, Sample};
use crate::error::{Error, Result};
use crate::tensor::Tensor;

/// Samples that are rows of tensors: sample i is element i of each tensor's first dimension.
///
/// The tensors stay on their device: a [`DataLoader`](crate::data::DataLoader) gathers each batch there, without a copy
/// through the host. With transforms or a `collate` function, which work on the host, the elements are read back once.
/// The dataset shares the elements of the tensors, and is outside the graph.
///
/// ```
/// use anygpu::data::{DataLoader, Dataset, TensorDataset};
/// use anygpu::{Tensor, try_gpu};
///
/// let device = try_gpu(0);
/// let x = Tensor::arange(0.0, 12.0, 1.0, &device)?.reshape([4, 3])?;
/// let y = Tensor::from_slice(&[0u32, 1, 0, 1], 4, &device)?;
/// let set = TensorDataset::new(&[&x, &y])?;
/// assert_eq!(set.len(), 4);
/// assert_eq!(set.get(1)?[0].as_slice::<f32>()?, [3.0, 4.0, 5.0]);
///
/// for batch in &DataLoader::new(set, 2)?.shuffle(0) {
///     let (x, y) = batch?;
///     assert_eq!((x.shape(), y.shape(), x.device()), (&[2, 3][..], &[2][..], &device));
/// }
/// # Ok::<(), anygpu::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct TensorDataset {
    tensors: Vec<Tensor>,
    /// The elements on the host, read when a single sample is first asked for.
    host: Arc<OnceLock<Result<Vec<Array>>>>,
    len: usize,
}

impl TensorDataset {
    /// Creates a dataset of the rows of tensors, which may be on several devices. Copies nothing.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] without tensors or for a scalar; [`Error::ShapeMismatch`] unless the first dimensions
    /// are equal.
    pub fn new(tensors: &[&Tensor]) -> Result<TensorDataset> {
        let Some(&len) = tensors.first().and_then(|tensor| tensor.shape().first()) else {
            return Err(Error::argument("TensorDataset", "needs at least one tensor, and no scalar"));
        };
        if let Some(other) = tensors.iter().find(|tensor| tensor.shape().first() != Some(&len)) {
            let rule = "the first dimensions, the samples, must be equal";
            return Err(Error::shapes("TensorDataset", tensors[0].shape(), other.shape(), rule));
        }
        let tensors = tensors.iter().map(|tensor| tensor.detach()).collect();
        Ok(TensorDataset { tensors, host: Arc::default(), len })
    }

    /// Returns the elements on the host.
    fn host(&self) -> Result<&[Array]> {
        let read = || self.tensors.iter().map(Array::from_tensor).collect();
        self.host.get_or_init(read).as_deref().map_err(Error::clone)
    }
}

impl Dataset for TensorDataset {
    fn len(&self) -> usize {
        self.len
    }

    fn get(&self, index: usize) -> Result<Sample> {
        within("TensorDataset", index, self.len)?;
        self.host()?.iter().map(|part| part.row(index)).collect()
    }

    fn get_batch(&self, indices: &[usize]) -> Result<Option<Vec<Tensor>>> {
        indices.iter().try_for_each(|&index| within("TensorDataset", index, self.len))?;
        // An index of a kernel has 32 bits; more samples are read one by one.
        let Ok(rows) = indices.iter().map(|&index| u32::try_from(index)).collect::<Result<Vec<_>, _>>() else {
            return Ok(None);
        };
        let mut index: Option<Tensor> = None;
        let mut gathered = Vec::with_capacity(self.tensors.len());
        for tensor in &self.tensors {
            let here = match index.take().filter(|index| index.device() == tensor.device()) {
                Some(index) => index,
                None => Tensor::from_slice(&rows, rows.len(), tensor.device())?,
            };
            gathered.push(tensor.index_select(0, &here)?);
            index = Some(here);
        }
        Ok(Some(gathered))
    }
}
