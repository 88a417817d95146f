//! What can be loaded: [`Dataset`], and the datasets that are made of others.

use std::sync::Arc;

use super::random::Random;
use super::{Array, Sample};
use crate::error::{Error, Result};
use crate::tensor::Tensor;

/// Samples with a number each; a [`DataLoader`](crate::data::DataLoader) makes batches of them.
///
/// `get` is called from several threads where the loader has workers, hence `&self` and `Sync`.
///
/// # Example
/// ```
/// use anygpu::Result;
/// use anygpu::data::{Array, DataLoader, Dataset, Sample};
///
/// /// i → (i, i²)
/// struct Squares;
///
/// impl Dataset for Squares {
///     fn len(&self) -> usize {
///         5
///     }
///     fn get(&self, index: usize) -> Result<Sample> {
///         Ok(vec![Array::new(vec![index as f32], [1])?, Array::scalar((index * index) as f32)])
///     }
/// }
///
/// for batch in &DataLoader::new(Squares, 5)? {
///     let (x, y) = batch?;
///     assert_eq!((x.shape(), y.shape()), (&[5, 1][..], &[5][..]));
///     assert_eq!(y.to_vec::<f32>()?, [0.0, 1.0, 4.0, 9.0, 16.0]);
/// }
/// # Ok::<(), anygpu::Error>(())
/// ```
pub trait Dataset: Send + Sync {
    /// The number of samples.
    fn len(&self) -> usize;

    /// Sample `index`, which is below [`len`](Dataset::len).
    ///
    /// # Errors
    /// What keeps it from being read; it becomes the error of its batch.
    fn get(&self, index: usize) -> Result<Sample>;

    /// Whether there is no sample at all.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<D: Dataset + ?Sized> Dataset for Arc<D> {
    fn len(&self) -> usize {
        (**self).len()
    }

    fn get(&self, index: usize) -> Result<Sample> {
        (**self).get(index)
    }
}

/// Samples that are the rows of tensors: sample i is element i of each tensor's first dimension.
///
/// ```
/// use anygpu::Tensor;
/// use anygpu::data::{Dataset, TensorDataset};
///
/// let x = Tensor::arange(0.0, 12.0, 1.0, None)?.reshape([4, 3])?;
/// let y = Tensor::from_slice(&[0u32, 1, 0, 1], 4, None)?;
/// let set = TensorDataset::new(&[&x, &y])?;
/// assert_eq!(set.len(), 4);
/// assert_eq!(set.get(1)?[0].as_slice::<f32>()?, [3.0, 4.0, 5.0]);
/// # Ok::<(), anygpu::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct TensorDataset {
    parts: Vec<Array>,
    len: usize,
}

impl TensorDataset {
    /// Reads the tensors once, from whatever device.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] without a tensor, or for a scalar; [`Error::ShapeMismatch`] unless the first
    /// dimensions are equal; those of [`Tensor::to_vec`].
    pub fn new(tensors: &[&Tensor]) -> Result<TensorDataset> {
        let Some(&len) = tensors.first().and_then(|tensor| tensor.shape().first()) else {
            return Err(Error::argument("TensorDataset", "needs at least one tensor, and no scalar"));
        };
        if let Some(other) = tensors.iter().find(|tensor| tensor.shape().first() != Some(&len)) {
            let rule = "the first dimensions, the samples, must be equal";
            return Err(Error::shapes("TensorDataset", tensors[0].shape(), other.shape(), rule));
        }
        let parts = tensors.iter().map(|tensor| Array::from_tensor(tensor)).collect::<Result<_>>()?;
        Ok(TensorDataset { parts, len })
    }
}

impl Dataset for TensorDataset {
    fn len(&self) -> usize {
        self.len
    }

    fn get(&self, index: usize) -> Result<Sample> {
        within("TensorDataset", index, self.len)?;
        Ok(self.parts.iter().map(|part| part.row(index)).collect())
    }
}

/// Some samples of another dataset, in an order of their own.
///
/// ```
/// use anygpu::data::{Dataset, Subset, mnist_5k};
///
/// let digits = mnist_5k()?.train;
/// let few = Subset::first(digits.clone(), 100);
/// assert_eq!(few.len(), 100);
/// assert_eq!(Subset::new(digits.clone(), vec![7, 3])?.get(1)?, digits.get(3)?);
/// assert!(Subset::new(digits, vec![4000]).is_err());
/// # Ok::<(), anygpu::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Subset<D> {
    dataset: D,
    indices: Arc<[usize]>,
}

impl<D: Dataset> Subset<D> {
    /// The samples of `dataset` with these numbers.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when there is no sample of such a number.
    pub fn new(dataset: D, indices: Vec<usize>) -> Result<Subset<D>> {
        indices.iter().try_for_each(|&index| within("Subset", index, dataset.len()))?;
        Ok(Subset { dataset, indices: indices.into() })
    }

    /// The first `count` samples, or all if there are fewer.
    pub fn first(dataset: D, count: usize) -> Subset<D> {
        let indices = (0..count.min(dataset.len())).collect();
        Subset { dataset, indices }
    }
}

impl<D: Dataset> Dataset for Subset<D> {
    fn len(&self) -> usize {
        self.indices.len()
    }

    fn get(&self, index: usize) -> Result<Sample> {
        within("Subset", index, self.indices.len())?;
        self.dataset.get(self.indices[index])
    }
}

/// Cuts a dataset into parts of these lengths at random, without a sample in two of them. One seed gives one cut.
///
/// ```
/// use anygpu::data::{Dataset, mnist_5k, random_split};
///
/// let parts = random_split(mnist_5k()?.train, &[3500, 500], 0)?;
/// assert_eq!((parts[0].len(), parts[1].len()), (3500, 500));
/// # Ok::<(), anygpu::Error>(())
/// ```
///
/// # Errors
/// [`Error::InvalidArgument`] unless the lengths add up to the dataset's.
pub fn random_split<D: Dataset>(dataset: D, lengths: &[usize], seed: u64) -> Result<Vec<Subset<Arc<D>>>> {
    let all = lengths.iter().try_fold(0usize, |sum, &len| sum.checked_add(len));
    if all != Some(dataset.len()) {
        let detail = format!("lengths {lengths:?} do not add up to the {} samples", dataset.len());
        return Err(Error::argument("random_split", detail));
    }
    let dataset = Arc::new(dataset);
    let mut order: Vec<usize> = (0..dataset.len()).collect();
    Random::of_split(seed).shuffle(&mut order);
    let mut rest = order.as_slice();
    let mut next = |&len: &usize| {
        let (part, after) = rest.split_at(len);
        rest = after;
        Subset { dataset: dataset.clone(), indices: part.into() }
    };
    Ok(lengths.iter().map(&mut next).collect())
}

/// Whether there is a sample `index` of `len`.
pub(super) fn within(what: &'static str, index: usize, len: usize) -> Result<()> {
    if index < len {
        return Ok(());
    }
    Err(Error::argument(what, format!("there is no sample {index}: there are {len}")))
}
