//! A training set with its test set, and loaders over both.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::transforms::{Normalize, Resize};
use super::{DataLoader, ImageSet, Limits, cifar};
use crate::error::{Error, Result};

/// A training set, and a test set with images of the same size.
///
/// Clones share the images.
#[derive(Clone, Debug)]
pub struct Splits {
    /// The samples to train on.
    pub train: Arc<ImageSet>,
    /// The samples to measure accuracy on, which are not used in training.
    pub test: Arc<ImageSet>,
    size: Option<[usize; 2]>,
}

impl Splits {
    pub(super) fn new(name: &str, train: ImageSet, test: ImageSet) -> Result<Splits> {
        let size = |set: &ImageSet| [set.c, set.h, set.w];
        if size(&train) != size(&test) {
            let detail =
                format!("training images of {} × {}, but test images of {} × {}", train.h, train.w, test.h, test.w);
            return Err(Error::Data { path: name.to_string(), detail });
        }
        Ok(Splits { train: Arc::new(train), test: Arc::new(test), size: None })
    }

    /// Makes loaders return images of `side × side` pixels, for example 96 for
    /// [`resnet18`](crate::nn::models::resnet18).
    ///
    /// Each image is resized when it is loaded ([`Resize`]); the sets are not changed.
    #[must_use]
    pub fn resize(mut self, side: usize) -> Splits {
        self.size = Some([side, side]);
        self
    }

    /// Returns the standardisation by the mean and the standard deviation of the training set.
    #[must_use]
    pub fn normalize(&self) -> Normalize {
        let (mean, std) = self.train.mean_std();
        Normalize::new(mean, std)
    }

    /// Returns a loader over the training set, shuffled in each epoch by `seed`, and a loader over the test set, in
    /// order.
    ///
    /// Both are standardised by the *training* set's mean and standard deviation.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if `batch_size` is 0.
    ///
    /// # Example
    /// ```
    /// let (train, test) = anygpu::data::mnist_5k()?.loaders(64, 0)?;
    /// assert_eq!((train.batches(), test.batches()), (63, 16)); // 4 000 and 1 000 images
    /// let (images, labels) = train.epoch(0).next().expect("a first batch")?;
    /// assert_eq!((images.shape(), labels.shape()), (&[64, 1, 28, 28][..], &[64][..]));
    ///
    /// let (large, _) = anygpu::data::mnist_5k()?.resize(96).loaders(2, 0)?;
    /// assert_eq!(large.epoch(0).next().expect("a first batch")?.0.shape(), [2, 1, 96, 96]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn loaders(&self, batch_size: usize, seed: u64) -> Result<(DataLoader, DataLoader)> {
        let normalize = self.normalize();
        let over = |set: &Arc<ImageSet>| {
            let loader = DataLoader::new(set.clone(), batch_size)?;
            let loader = match self.size {
                Some(size) => loader.transform(Resize::new(size)),
                None => loader,
            };
            Ok::<_, Error>(loader.transform(normalize.clone()))
        };
        Ok((over(&self.train)?.shuffle(seed), over(&self.test)?))
    }
}

/// Returns 5 000 real MNIST digits of 28 × 28 that are built into the crate (0.8 MB): 4 000 to train, 1 000 to test.
///
/// MNIST is by Y. LeCun and C. Cortes, CC BY-SA 3.0; see `assets/mnist-5k/PROVENANCE.md`.
///
/// # Errors
/// None in practice: the built-in files pass the checks of [`ImageSet::parse`].
pub fn mnist_5k() -> Result<Splits> {
    macro_rules! part {
        ($part:literal) => {
            ImageSet::parse(
                (
                    concat!("mnist-5k/", $part, "-images"),
                    include_bytes!(concat!("../../assets/mnist-5k/", $part, "-images-idx3-ubyte.gz")),
                ),
                (
                    concat!("mnist-5k/", $part, "-labels"),
                    include_bytes!(concat!("../../assets/mnist-5k/", $part, "-labels-idx1-ubyte.gz")),
                ),
            )
        };
    }
    Splits::new("mnist-5k", part!("train")?, part!("t10k")?)
}

/// Reads a folder with the four files of MNIST or Fashion-MNIST, `train-images-idx3-ubyte`, `train-labels-idx1-ubyte`,
/// `t10k-images-idx3-ubyte` and `t10k-labels-idx1-ubyte`, each plain or with `.gz`.
///
/// Also reads a folder with the files of CIFAR-10 ([`cifar10`](super::cifar10)).
///
/// # Errors
/// [`Error::Data`] that names the file that is missing, damaged or larger than the default [`Limits`], and what is
/// wrong with it.
pub fn from_dir(dir: impl AsRef<Path>) -> Result<Splits> {
    from_dir_within(dir, Limits::new())
}

/// Reads a folder like [`from_dir`], with other limits.
///
/// # Errors
/// The errors of [`from_dir`].
pub fn from_dir_within(dir: impl AsRef<Path>, limits: Limits) -> Result<Splits> {
    let dir = dir.as_ref();
    if cifar::is_cifar10(dir) { cifar::cifar10_within(dir, limits) } else { from_idx(dir, limits) }
}

/// Reads the four files of MNIST or Fashion-MNIST.
pub(super) fn from_idx(dir: &Path, limits: Limits) -> Result<Splits> {
    let part = |part: &str| {
        let images = find(dir, &format!("{part}-images-idx3-ubyte"))?;
        let labels = find(dir, &format!("{part}-labels-idx1-ubyte"))?;
        ImageSet::read_within(&images, &labels, limits)
    };
    Splits::new(&dir.display().to_string(), part("train")?, part("t10k")?)
}

/// Returns `dir/name.gz` or `dir/name`, whichever exists.
fn find(dir: &Path, name: &str) -> Result<PathBuf> {
    let candidates = [dir.join(format!("{name}.gz")), dir.join(name)];
    candidates.into_iter().find(|path| path.is_file()).ok_or_else(|| Error::Data {
        path: dir.display().to_string(),
        detail: format!("there is neither {name}.gz nor {name} in this folder"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::CLASSES;

    #[test]
    fn the_embedded_digits_are_balanced() {
        let Splits { train, test, .. } = mnist_5k().unwrap();
        assert_eq!((train.n, train.h, train.w), (4000, 28, 28));
        assert_eq!((test.n, test.h, test.w), (1000, 28, 28));
        for class in 0..CLASSES as u8 {
            assert_eq!(train.labels.iter().filter(|&&l| l == class).count(), 400);
            assert_eq!(test.labels.iter().filter(|&&l| l == class).count(), 100);
        }
        let (mean, std) = train.mean_std();
        assert!((0.12..0.14).contains(&mean[0]) && (0.30..0.32).contains(&std[0]), "{mean:?} {std:?}");
    }

    #[test]
    fn a_folder_reads_plain_and_gzip_and_names_what_is_missing() {
        let assets = Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/mnist-5k");
        assert_eq!(from_dir(&assets).unwrap().train, mnist_5k().unwrap().train);
        let missing = from_dir(assets.join("nowhere")).unwrap_err().to_string();
        assert!(missing.contains("nowhere") && missing.contains("train-images-idx3-ubyte.gz"), "{missing}");
    }

    #[test]
    fn images_of_two_sizes_are_refused() {
        let set = |h, w| ImageSet { images: vec![0; h * w], labels: vec![0], n: 1, c: 1, h, w };
        let error = Splits::new("odd", set(2, 3), set(3, 2)).unwrap_err().to_string();
        assert_eq!(error, "odd: training images of 2 × 3, but test images of 3 × 2");
    }
}
