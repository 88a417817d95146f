//! Batches of tensors out of an [`ImageSet`].

use std::sync::atomic::{AtomicU64, Ordering};

use crate::data::ImageSet;
use crate::error::{Error, Result};
use crate::tensor::{Tensor, seed_for};

/// Cuts an [`ImageSet`] into batches: images `[N, 1, h, w]` f32 and labels `[N]` u32, both on `cpu`.
///
/// A pixel p (0 to 255) becomes (p / 255 − mean) / deviation. The last batch of an epoch is shorter when the batch size
/// does not divide the number of images; none is dropped. [`DataParallel`](crate::DataParallel) moves each batch, or
/// each device's part of it, in one copy.
///
/// # Example
/// ```
/// use anygpu::data::{DataLoader, mnist_5k};
///
/// let loader = DataLoader::new(mnist_5k()?.train, 256)?.shuffled(7);
/// let mut seen = 0;
/// for batch in &loader {
///     let (images, labels) = batch?;
///     assert_eq!(images.shape(), [labels.elem_count(), 1, 28, 28]);
///     seen += labels.elem_count();
/// }
/// assert_eq!(seen, 4000);
/// # Ok::<(), anygpu::Error>(())
/// ```
#[derive(Debug)]
pub struct DataLoader {
    set: ImageSet,
    batch_size: usize,
    /// Seed of the order; `None` keeps the order of the file.
    seed: Option<u64>,
    /// What each pixel value becomes.
    pixel: Box<[f32; 256]>,
    /// Epochs begun through `&loader`, so that each has an order of its own.
    epochs: AtomicU64,
}

impl DataLoader {
    /// Batches of `batch_size` images in the order of the file, pixels scaled to 0 to 1.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when `batch_size` is 0.
    pub fn new(set: ImageSet, batch_size: usize) -> Result<DataLoader> {
        if batch_size == 0 {
            return Err(Error::argument("DataLoader", "the batch size must be at least 1"));
        }
        let pixel = Box::new([0.0; 256]);
        let loader = DataLoader { set, batch_size, seed: None, pixel, epochs: AtomicU64::new(0) };
        Ok(loader.standardised(0.0, 1.0))
    }

    /// Standardises pixels: (p / 255 − mean) / std. A `std` of 0 (all pixels alike) counts as 1.
    pub fn standardised(mut self, mean: f32, std: f32) -> DataLoader {
        let std = if std > 0.0 { std } else { 1.0 };
        for (value, pixel) in self.pixel.iter_mut().enumerate() {
            *pixel = (value as f32 / 255.0 - mean) / std;
        }
        self
    }

    /// Shuffles each epoch anew. The order depends on `seed` and the number of the epoch alone.
    pub fn shuffled(mut self, seed: u64) -> DataLoader {
        self.seed = Some(seed);
        self
    }

    /// The number of images.
    pub fn len(&self) -> usize {
        self.set.n
    }

    /// Whether there is no image at all.
    pub fn is_empty(&self) -> bool {
        self.set.n == 0
    }

    /// The number of batches in an epoch.
    pub fn batches(&self) -> usize {
        self.set.n.div_ceil(self.batch_size)
    }

    /// The batches of epoch `epoch`; the same each time it is asked for.
    pub fn epoch(&self, epoch: u64) -> Epoch<'_> {
        let mut order: Vec<usize> = (0..self.set.n).collect();
        if let Some(seed) = self.seed {
            shuffle(&mut order, seed, epoch);
        }
        Epoch { loader: self, order, next: 0 }
    }

    fn batch(&self, chosen: &[usize]) -> Result<(Tensor, Tensor)> {
        let size = self.set.h * self.set.w;
        let mut images = Vec::with_capacity(chosen.len() * size);
        for &i in chosen {
            let image = &self.set.images[i * size..][..size];
            images.extend(image.iter().map(|&pixel| self.pixel[usize::from(pixel)]));
        }
        let labels: Vec<u32> = chosen.iter().map(|&i| u32::from(self.set.labels[i])).collect();
        let images = Tensor::from_slice(&images, [chosen.len(), 1, self.set.h, self.set.w], None)?;
        Ok((images, Tensor::from_slice(&labels, [chosen.len()], None)?))
    }
}

/// `for batch in &loader` runs the next epoch.
impl<'a> IntoIterator for &'a DataLoader {
    type Item = Result<(Tensor, Tensor)>;
    type IntoIter = Epoch<'a>;

    fn into_iter(self) -> Epoch<'a> {
        self.epoch(self.epochs.fetch_add(1, Ordering::Relaxed))
    }
}

/// The batches of one epoch: `(images [N, 1, h, w] f32, labels [N] u32)`.
#[derive(Debug)]
pub struct Epoch<'a> {
    loader: &'a DataLoader,
    order: Vec<usize>,
    next: usize,
}

impl Iterator for Epoch<'_> {
    type Item = Result<(Tensor, Tensor)>;

    fn next(&mut self) -> Option<Self::Item> {
        let end = (self.next + self.loader.batch_size).min(self.order.len());
        let chosen = self.order.get(self.next..end).filter(|chosen| !chosen.is_empty())?;
        self.next = end;
        Some(self.loader.batch(chosen))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = (self.order.len() - self.next).div_ceil(self.loader.batch_size);
        (left, Some(left))
    }
}

impl ExactSizeIterator for Epoch<'_> {}

/// Fisher–Yates. Each epoch draws from a stream of its own (stream 0 is the weights'), so that the order of the images
/// does not depend on how many weights were drawn before.
fn shuffle(order: &mut [usize], seed: u64, epoch: u64) {
    let mut next = seed_for(seed, epoch.wrapping_add(1));
    for i in (1..order.len()).rev() {
        // The high half of the product maps 64 bits onto 0..=i without a visible bias.
        let draw = (u128::from(next()) << 32) | u128::from(next());
        order.swap(i, ((draw * (i as u128 + 1)) >> 64) as usize);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seven images of 1 × 2; image i has pixels 10 i and 10 i + 1, and label i.
    fn seven() -> ImageSet {
        let images = (0..7).flat_map(|i| [10 * i, 10 * i + 1]).collect();
        ImageSet { images, labels: (0..7).collect(), n: 7, h: 1, w: 2 }
    }

    fn labels(epoch: Epoch<'_>) -> Vec<Vec<u32>> {
        epoch.map(|batch| batch.unwrap().1.to_vec::<u32>().unwrap()).collect()
    }

    #[test]
    fn batches_keep_every_image_and_the_last_is_short() {
        let loader = DataLoader::new(seven(), 3).unwrap();
        assert_eq!((loader.batches(), loader.epoch(0).len()), (3, 3));
        assert_eq!(labels(loader.epoch(0)), [vec![0, 1, 2], vec![3, 4, 5], vec![6]]);
        assert_eq!(labels(DataLoader::new(seven(), 100).unwrap().epoch(0)), [vec![0, 1, 2, 3, 4, 5, 6]]);
    }

    #[test]
    fn images_follow_their_labels_and_are_standardised() {
        let loader = DataLoader::new(seven(), 4).unwrap().standardised(0.5, 0.25).shuffled(3);
        for batch in &loader {
            let (images, labels) = batch.unwrap();
            assert_eq!(images.shape(), [labels.elem_count(), 1, 1, 2]);
            let expected: Vec<f32> = labels
                .to_vec::<u32>()
                .unwrap()
                .iter()
                .flat_map(|&l| [10 * l, 10 * l + 1])
                .map(|pixel| (pixel as f32 / 255.0 - 0.5) / 0.25)
                .collect();
            assert_eq!(images.to_vec::<f32>().unwrap(), expected);
        }
    }

    #[test]
    fn the_order_depends_on_seed_and_epoch_alone() {
        let loader = DataLoader::new(seven(), 7).unwrap().shuffled(1);
        let [first, second] = [labels((&loader).into_iter()), labels((&loader).into_iter())];
        assert_ne!(first, second);
        assert_eq!(first, labels(loader.epoch(0)));
        assert_eq!(second, labels(loader.epoch(1)));
        assert_ne!(first, labels(DataLoader::new(seven(), 7).unwrap().shuffled(2).epoch(0)));
        let mut sorted = first.concat();
        sorted.sort_unstable();
        assert_eq!(sorted, [0, 1, 2, 3, 4, 5, 6]);
    }

    #[test]
    fn a_batch_size_of_zero_is_an_error() {
        let error = DataLoader::new(seven(), 0).unwrap_err().to_string();
        assert!(error.contains("batch size"), "{error}");
    }
}
