//! Training data: datasets, transforms of images, and batches of tensors.
//!
//! A [`Dataset`] has numbered [`Sample`]s. A [`DataLoader`] divides it into batches, optionally in threads. 5 000
//! digits are built in ([`mnist_5k`]). These formats are read from disk: MNIST ([`from_dir`]), Fashion-MNIST
//! ([`fashion_mnist`]; `download_fashion_mnist` downloads it, feature `download`), CIFAR-10 ([`cifar10`]), and folders
//! of images (`ImageFolder`, feature `image`). [`Limits`] bound the size of decoded files.

mod array;
mod cifar;
mod collate;
mod dataset;
#[cfg(feature = "download")]
mod download;
mod epoch;
mod fashion;
#[cfg(feature = "image")]
mod folder;
pub mod idx;
mod image_set;
mod limits;
mod loader;
mod random;
mod shard;
mod splits;
mod tensors;
pub mod transforms;

pub use array::{Array, Sample};
pub use cifar::{CIFAR10_CLASSES, cifar10};
pub use collate::Batch;
pub use dataset::{Dataset, Subset, random_split};
#[cfg(feature = "download")]
pub use download::{download_fashion_mnist, download_fashion_mnist_with};
pub use epoch::Epoch;
pub use fashion::{FASHION_MNIST_CLASSES, fashion_mnist};
#[cfg(feature = "image")]
pub use folder::{ImageFolder, read_image, read_image_within};
pub use image_set::{CLASSES, ImageSet};
pub use limits::Limits;
pub use loader::{DataLoader, LoaderState};
pub use random::Random;
pub use shard::Shard;
pub use splits::{Splits, from_dir, from_dir_within, mnist_5k};
pub use tensors::TensorDataset;
