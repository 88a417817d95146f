//! [`Dataset`], and datasets made from other datasets.

use std::sync::Arc;

use super::Sample;
use super::random::Random;
use crate::device::cpu::with_room;
use crate::error::{Error, Result};
use crate::tensor::Tensor;

/// Numbered samples, from which a [`DataLoader`](crate::data::DataLoader) makes batches.
///
/// If the loader has workers, `get` is called from several threads.
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
    /// Returns the number of samples.
    fn len(&self) -> usize;

    /// Returns sample `index`, which is below [`len`](Dataset::len).
    ///
    /// # Errors
    /// Any error of reading the sample. It becomes the error of its batch.
    fn get(&self, index: usize) -> Result<Sample>;

    /// Returns a batch of these samples as tensors `[N, ..]`, one for each part, or `None` if the dataset does not make
    /// batches itself, which is the default.
    ///
    /// A [`DataLoader`](crate::data::DataLoader) without transforms and `collate` calls this before it requests single
    /// samples, so samples that are on a device stay there.
    ///
    /// # Errors
    /// Any error of reading the samples. It becomes the error of the batch.
    fn get_batch(&self, _indices: &[usize]) -> Result<Option<Vec<Tensor>>> {
        Ok(None)
    }

    /// Returns whether there are no samples.
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

    fn get_batch(&self, indices: &[usize]) -> Result<Option<Vec<Tensor>>> {
        (**self).get_batch(indices)
    }
}

/// A selection of the samples of another dataset, in any order.
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
    selection: Selection,
}

#[derive(Clone, Debug)]
enum Selection {
    /// The first so many samples. This needs no memory for their numbers.
    First(usize),
    These(Arc<[usize]>),
}

impl<D: Dataset> Subset<D> {
    /// Selects the samples of `dataset` with these numbers.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a number that no sample has.
    pub fn new(dataset: D, indices: Vec<usize>) -> Result<Subset<D>> {
        indices.iter().try_for_each(|&index| within("Subset", index, dataset.len()))?;
        Ok(Subset { dataset, selection: Selection::These(indices.into()) })
    }

    /// Selects the first `count` samples, or all if there are fewer.
    pub fn first(dataset: D, count: usize) -> Subset<D> {
        let selection = Selection::First(count.min(dataset.len()));
        Subset { dataset, selection }
    }
}

impl<D: Dataset> Dataset for Subset<D> {
    fn len(&self) -> usize {
        match &self.selection {
            Selection::First(count) => *count,
            Selection::These(indices) => indices.len(),
        }
    }

    fn get(&self, index: usize) -> Result<Sample> {
        within("Subset", index, self.len())?;
        match &self.selection {
            Selection::First(_) => self.dataset.get(index),
            Selection::These(indices) => self.dataset.get(indices[index]),
        }
    }

    fn get_batch(&self, indices: &[usize]) -> Result<Option<Vec<Tensor>>> {
        indices.iter().try_for_each(|&index| within("Subset", index, self.len()))?;
        match &self.selection {
            Selection::First(_) => self.dataset.get_batch(indices),
            Selection::These(these) => self.dataset.get_batch(&indices.iter().map(|&i| these[i]).collect::<Vec<_>>()),
        }
    }
}

/// Splits a dataset at random into parts of these lengths.
///
/// Each sample is in exactly one part. The split depends only on the seed.
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
/// [`Error::InvalidArgument`] unless the lengths add up to the dataset's length; [`Error::OutOfMemory`] if there is no
/// memory for the numbers of all samples.
pub fn random_split<D: Dataset>(dataset: D, lengths: &[usize], seed: u64) -> Result<Vec<Subset<Arc<D>>>> {
    let all = lengths.iter().try_fold(0usize, |sum, &len| sum.checked_add(len));
    if all != Some(dataset.len()) {
        let detail = format!("lengths {lengths:?} do not add up to the {} samples", dataset.len());
        return Err(Error::argument("random_split", detail));
    }
    let dataset = Arc::new(dataset);
    let mut order: Vec<usize> = with_room(dataset.len())?;
    order.extend(0..dataset.len());
    Random::of_split(seed).shuffle(&mut order);
    let mut rest = order.as_slice();
    let mut next = |&len: &usize| {
        let (part, after) = rest.split_at(len);
        rest = after;
        Subset { dataset: dataset.clone(), selection: Selection::These(part.into()) }
    };
    Ok(lengths.iter().map(&mut next).collect())
}

/// Returns an error unless there is a sample `index` of `len`.
pub(super) fn within(what: &'static str, index: usize, len: usize) -> Result<()> {
    if index < len {
        return Ok(());
    }
    Err(Error::argument(what, format!("there is no sample {index}: there are {len}")))
}
