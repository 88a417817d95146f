//! Transforms of images before they become batches: sizes, crops, flips, colours, standardisation. They run on the
//! host, in the threads of the loader.
//!
//! An image is an [`Array`] `[C, H, W]`. The random choices of a transform depend on the sample and the epoch, not on
//! the number of workers. Names and results are the same as in torchvision.

mod colours;
mod crop;
mod pixels;
mod resize;
mod resized_crop;

use super::{Array, Random};
use crate::error::Result;

pub use colours::ColorJitter;
pub use crop::{CenterCrop, RandomCrop};
#[cfg(feature = "image")]
pub(in crate::data) use pixels::unit;
pub(in crate::data) use pixels::unit_scale;
pub use pixels::{Normalize, RandomHorizontalFlip, ToFloat};
pub use resize::Resize;
pub use resized_crop::RandomResizedCrop;

/// A transform of an image.
///
/// Closures `Fn(Array, &mut Random) -> Result<Array>` are also transforms.
///
/// ```
/// use anygpu::data::transforms::Transform;
/// use anygpu::data::{Array, Random};
///
/// let invert = |mut image: Array, _: &mut Random| -> anygpu::Result<Array> {
///     image.as_mut_slice::<f32>()?.iter_mut().for_each(|v| *v = 1.0 - *v);
///     Ok(image)
/// };
/// let black = Array::new(vec![0.0f32; 4], [1, 2, 2])?;
/// assert_eq!(invert.apply(black, &mut Random::of_sample(0, 0, 0))?.as_slice::<f32>()?, [1.0; 4]);
/// # Ok::<(), anygpu::Error>(())
/// ```
pub trait Transform: Send + Sync {
    /// Returns the transformed image.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) and
    /// [`Error::DTypeMismatch`](crate::Error::DTypeMismatch) for an image that the transform does not accept.
    fn apply(&self, image: Array, random: &mut Random) -> Result<Array>;
}

impl<F: Fn(Array, &mut Random) -> Result<Array> + Send + Sync> Transform for F {
    fn apply(&self, image: Array, random: &mut Random) -> Result<Array> {
        self(image, random)
    }
}

/// A sequence of transforms.
///
/// ```
/// use anygpu::data::transforms::{Compose, Normalize, RandomCrop, RandomHorizontalFlip, Resize, Transform};
/// use anygpu::data::{Array, Random};
///
/// let augment = Compose::new()
///     .add(Resize::new([8, 8]))
///     .add(RandomCrop::new([8, 8]).padding(1))
///     .add(RandomHorizontalFlip::new(0.5))
///     .add(Normalize::new([0.5], [0.25]));
/// let image = Array::new(vec![1.0f32; 16], [1, 4, 4])?;
/// let image = augment.apply(image, &mut Random::of_sample(0, 0, 0))?;
/// assert_eq!(image.shape(), [1, 8, 8]);
/// assert_eq!(image.as_slice::<f32>()?[36], 2.0); // (1 - 0.5) / 0.25
/// # Ok::<(), anygpu::Error>(())
/// ```
#[derive(Default)]
pub struct Compose(Vec<Box<dyn Transform>>);

impl Compose {
    /// Creates an empty sequence.
    #[must_use]
    pub fn new() -> Compose {
        Compose::default()
    }

    /// Appends `transform`.
    #[expect(clippy::should_implement_trait, reason = "as Sequential::add: it adds a step, not a number")]
    #[must_use]
    pub fn add(mut self, transform: impl Transform + 'static) -> Compose {
        self.0.push(Box::new(transform));
        self
    }
}

impl Transform for Compose {
    fn apply(&self, image: Array, random: &mut Random) -> Result<Array> {
        self.0.iter().try_fold(image, |image, transform| transform.apply(image, random))
    }
}
