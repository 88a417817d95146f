//! Labelled images of one size in memory: MNIST, Fashion-MNIST and CIFAR-10.

use super::dataset::within;
use super::transforms::unit_scale;
use super::{Array, Dataset, Sample};
use crate::error::{Error, Result};
use crate::shape::checked_elem_count;

/// The number of classes of MNIST, Fashion-MNIST and CIFAR-10; every label is below it.
pub const CLASSES: usize = 10;

/// Images of one size with their labels, as they are stored: one byte per pixel and channel, and one byte per label.
///
/// As a [`Dataset`], sample i is an image `[c, h, w]` of f32 in 0 to 1 and a label, a u32.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageSet {
    /// The pixels, `[n, c, h, w]`, 0 (background) to 255.
    pub images: Vec<u8>,
    /// The labels, `[n]`, each below [`CLASSES`].
    pub labels: Vec<u8>,
    /// The number of images.
    pub n: usize,
    /// The number of channels: 1 for grey images, 3 for red, green and blue.
    pub c: usize,
    /// The height of an image.
    pub h: usize,
    /// The width of an image.
    pub w: usize,
}

impl ImageSet {
    /// Returns the mean and the standard deviation of each channel, on the scale 0 to 1.
    ///
    /// ```
    /// let (mean, std) = anygpu::data::mnist_5k()?.train.mean_std();
    /// assert_eq!((mean.len(), std.len()), (1, 1));
    /// assert!((mean[0] - 0.13).abs() < 0.01 && (std[0] - 0.31).abs() < 0.01);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    #[must_use]
    pub fn mean_std(&self) -> (Vec<f32>, Vec<f32>) {
        let mut counts = vec![[0u64; 256]; self.c];
        let plane = self.h.saturating_mul(self.w).max(1);
        for pixels in self.images.chunks(plane.saturating_mul(self.c).max(1)) {
            for (count, pixels) in counts.iter_mut().zip(pixels.chunks(plane)) {
                pixels.iter().for_each(|&pixel| count[usize::from(pixel)] += 1);
            }
        }
        let total = (self.n as f64 * plane as f64).max(1.0);
        let of = |count: &[u64; 256]| {
            let moment = |f: &dyn Fn(f64) -> f64| {
                count.iter().enumerate().map(|(v, &c)| c as f64 * f(v as f64 / 255.0)).sum::<f64>() / total
            };
            let mean = moment(&|v| v);
            (mean as f32, moment(&|v| (v - mean).powi(2)).sqrt() as f32)
        };
        counts.iter().map(of).unzip()
    }
}

impl Dataset for ImageSet {
    fn len(&self) -> usize {
        self.n
    }

    fn get(&self, index: usize) -> Result<Sample> {
        within("ImageSet", index, self.n.min(self.labels.len()))?;
        let shape = [self.c, self.h, self.w];
        let size = checked_elem_count("ImageSet", &shape)?;
        let start = index.checked_mul(size).filter(|start| start.checked_add(size).is_some());
        let pixels = start.and_then(|start| self.images.get(start..start + size)).ok_or_else(|| {
            Error::argument("ImageSet", format!("there are no {size} pixels of image {index} in {}", self.images.len()))
        })?;
        let pixels = Array::new(unit_scale(pixels)?, shape)?;
        Ok(vec![pixels, Array::scalar(u32::from(self.labels[index]))])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mean_and_deviation_are_on_the_scale_0_to_1() {
        let set = ImageSet { images: vec![0, 255, 0, 255], labels: vec![0], n: 1, c: 1, h: 2, w: 2 };
        assert_eq!(set.mean_std(), (vec![0.5], vec![0.5]));
        let set = ImageSet { images: vec![0, 0, 255, 255, 0, 0, 0, 255], labels: vec![0, 0], n: 2, c: 2, h: 1, w: 2 };
        assert_eq!(set.mean_std().0, [0.0, 0.75]);
    }

    #[test]
    fn sizes_that_are_not_those_of_the_images_are_an_error() {
        for (c, h, w) in [(1, 2, 3), (usize::MAX, 2, 1), (1, usize::MAX, usize::MAX), (0, 2, 2)] {
            let set = ImageSet { images: vec![0, 1, 2, 3], labels: vec![0, 1], n: 2, c, h, w };
            assert_eq!(set.get(1).is_ok(), c == 0, "{c} {h} {w}");
            if c < 10 {
                assert_eq!(set.mean_std().0.len(), c);
            }
        }
    }
}
