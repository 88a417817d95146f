use super::Transform;
use crate::data::{Array, Random};
use crate::error::{Error, Result};
use crate::shape::checked_elem_count;

/// Crops `[height, width]` pixels from the middle, like torchvision's `CenterCrop`.
///
/// A smaller image is padded with zeros.
///
/// ```
/// use anygpu::data::transforms::{CenterCrop, Transform};
/// use anygpu::data::{Array, Random};
///
/// let image = Array::new((0..9u8).collect(), [1, 3, 3])?;
/// let crop = |size| CenterCrop::new(size).apply(image.clone(), &mut Random::of_sample(0, 0, 0));
/// assert_eq!(crop([1, 1])?.as_slice::<u8>()?, [4]);
/// assert_eq!(crop([1, 5])?.as_slice::<u8>()?, [0, 3, 4, 5, 0]);
/// # Ok::<(), anygpu::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CenterCrop {
    size: [usize; 2],
}

impl CenterCrop {
    /// Creates a crop to `[height, width]`.
    #[must_use]
    pub fn new(size: [usize; 2]) -> CenterCrop {
        CenterCrop { size }
    }
}

impl Transform for CenterCrop {
    fn apply(&self, image: Array, _: &mut Random) -> Result<Array> {
        let [_, h, w] = image.image_size("CenterCrop")?;
        let start = |len: usize, size: usize| match size <= len {
            true => ((len - size) as f64 / 2.0).round_ties_even() as isize, // as Python rounds
            false => -(((size - len) / 2) as isize),
        };
        window(image, "CenterCrop", [start(h, self.size[0]), start(w, self.size[1])], self.size)
    }
}

/// Crops `[height, width]` pixels from a random position, uniformly distributed, like torchvision's `RandomCrop`.
///
/// [`padding`](RandomCrop::padding) pads the image with zeros first: the usual augmentation of CIFAR-10 is
/// `RandomCrop::new([32, 32]).padding(4)`.
///
/// ```
/// use anygpu::data::transforms::{RandomCrop, Transform};
/// use anygpu::data::{Array, Random};
///
/// let image = Array::new(vec![1u8; 16], [1, 4, 4])?;
/// let crop = RandomCrop::new([4, 4]).padding(1);
/// let shifted = crop.apply(image.clone(), &mut Random::of_sample(0, 0, 1))?;
/// assert!(shifted.as_slice::<u8>()?.iter().filter(|&&v| v == 1).count() >= 9);
/// assert!(RandomCrop::new([5, 5]).apply(image, &mut Random::of_sample(0, 0, 1)).is_err());
/// # Ok::<(), anygpu::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RandomCrop {
    size: [usize; 2],
    padding: usize,
}

impl RandomCrop {
    /// Creates a crop to `[height, width]`.
    #[must_use]
    pub fn new(size: [usize; 2]) -> RandomCrop {
        RandomCrop { size, padding: 0 }
    }

    /// Pads each side with this many zeros before the crop.
    #[must_use]
    pub fn padding(mut self, padding: usize) -> RandomCrop {
        self.padding = padding;
        self
    }
}

impl Transform for RandomCrop {
    fn apply(&self, image: Array, random: &mut Random) -> Result<Array> {
        let [_, h, w] = image.image_size("RandomCrop")?;
        let mut start = |len: usize, size: usize| {
            let padded = self.padding.checked_mul(2).and_then(|both| both.checked_add(len));
            let padded = padded.filter(|&padded| padded < isize::MAX as usize);
            let room = padded.and_then(|padded| padded.checked_sub(size)).ok_or_else(|| {
                let wrong = if padded.is_some() { "smaller than" } else { "too large to crop to" };
                let detail = format!("{h} × {w} with a padding of {} is {wrong} {:?}", self.padding, self.size);
                Error::argument("RandomCrop", detail)
            })?;
            Ok(random.below(room + 1) as isize - self.padding as isize)
        };
        let top = start(h, self.size[0])?;
        let left = start(w, self.size[1])?;
        window(image, "RandomCrop", [top, left], self.size)
    }
}

/// Returns the window of `size` pixels from `[top, left]` on, with zeros outside the image.
pub(super) fn window(image: Array, what: &'static str, [top, left]: [isize; 2], size: [usize; 2]) -> Result<Array> {
    let [c, h, w] = image.image_size(what)?;
    if size.contains(&0) {
        return Err(Error::argument(what, format!("no image is left of {size:?} pixels")));
    }
    if [top, left] == [0, 0] && size == [h, w] {
        return Ok(image);
    }
    // For one dimension: where the image begins in the result, where the result begins in the image, and the length
    // that they share.
    let overlap = |start: isize, size: usize, len: usize| {
        // Padding can be wider than the result, which then is outside the image.
        let (to, from) = (((-start).max(0) as usize).min(size), (start.max(0) as usize).min(len));
        (to, from, (size - to).min(len - from))
    };
    let (to_row, from_row, rows) = overlap(top, size[0], h);
    let (to_column, from_column, columns) = overlap(left, size[1], w);
    let element = image.dtype().size();
    let bytes = checked_elem_count(what, &[c, size[0], size[1], element])?;
    if bytes > isize::MAX as usize {
        return Err(Error::argument(what, format!("an image of {size:?} pixels does not fit into memory")));
    }
    let pixels = image.bytes();
    Array::from_bytes(vec![c, size[0], size[1]], image.dtype(), |out| {
        for channel in 0..c {
            for row in 0..rows {
                let to = ((channel * size[0] + to_row + row) * size[1] + to_column) * element;
                let from = ((channel * h + from_row + row) * w + from_column) * element;
                out[to..][..columns * element].copy_from_slice(&pixels[from..][..columns * element]);
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_that_no_machine_holds_are_refused() -> Result<()> {
        let image = Array::new(vec![1u8; 4], [1, 2, 2])?;
        let refused = |crop: &dyn Transform| crop.apply(image.clone(), &mut Random::of_sample(0, 0, 0)).is_err();
        for padding in [usize::MAX, usize::MAX / 2, isize::MAX as usize] {
            assert!(refused(&RandomCrop::new([2, 2]).padding(padding)), "{padding}");
        }
        for size in [[1 << 63, 2], [2, usize::MAX], [1 << 32, 1 << 32], [1 << 62, 2]] {
            assert!(refused(&CenterCrop::new(size)), "{size:?}");
        }
        Ok(())
    }
}
