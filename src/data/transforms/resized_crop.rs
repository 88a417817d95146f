use super::crop::window;
use super::{Resize, Transform};
use crate::data::{Array, Random};
use crate::error::{Error, Result};

/// The number of draws before the middle is taken.
const TRIES: usize = 10;

/// Crops a part of random size, proportions and position from an f32 image, and resizes it to `[height, width]`, like
/// torchvision's `RandomResizedCrop`.
///
/// This is the usual augmentation of ImageNet.
///
/// The part has from 0.08 to all of the area, and a width of 3/4 to 4/3 of its height. If ten draws find no such part,
/// the largest part in the middle with the nearest proportions is taken. The part is resized like with [`Resize`].
///
/// ```
/// use anygpu::data::transforms::{RandomResizedCrop, Transform};
/// use anygpu::data::{Array, Random};
///
/// let photo = Array::new(vec![0.5f32; 3 * 30 * 40], [3, 30, 40])?;
/// let crop = RandomResizedCrop::new([16, 16]).scale(0.25, 1.0);
/// let part = crop.apply(photo, &mut Random::of_sample(0, 0, 1))?;
/// assert_eq!(part.shape(), [3, 16, 16]);
/// # Ok::<(), anygpu::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RandomResizedCrop {
    size: [usize; 2],
    scale: [f32; 2],
    ratio: [f32; 2],
    antialias: bool,
}

impl RandomResizedCrop {
    /// Creates a crop that is resized to `[height, width]`.
    #[must_use]
    pub fn new(size: [usize; 2]) -> RandomResizedCrop {
        RandomResizedCrop { size, scale: [0.08, 1.0], ratio: [3.0 / 4.0, 4.0 / 3.0], antialias: true }
    }

    /// Sets the minimum and the maximum area of the part, as fractions of the image. The defaults are 0.08 and 1.
    #[must_use]
    pub fn scale(mut self, least: f32, most: f32) -> RandomResizedCrop {
        self.scale = [least, most];
        self
    }

    /// Sets the minimum and the maximum ratio of the part's width to its height. The defaults are 3/4 and 4/3.
    #[must_use]
    pub fn ratio(mut self, least: f32, most: f32) -> RandomResizedCrop {
        self.ratio = [least, most];
        self
    }

    /// Sets whether shrinking averages over all pixels, like [`Resize::antialias`]. The default is true.
    #[must_use]
    pub fn antialias(mut self, antialias: bool) -> RandomResizedCrop {
        self.antialias = antialias;
        self
    }

    /// Returns the top, the left, the height and the width of a part of an image of this size.
    fn part(&self, [h, w]: [usize; 2], random: &mut Random) -> [usize; 4] {
        let area = (h * w) as f64;
        let [low, high] = self.ratio.map(|ratio| f64::from(ratio).ln());
        for _ in 0..TRIES {
            let [least, most] = self.scale.map(f64::from);
            let part = area * (least + (most - least) * f64::from(random.uniform()));
            let ratio = (low + (high - low) * f64::from(random.uniform())).exp();
            let width = (part * ratio).sqrt().round_ties_even() as usize;
            let height = (part / ratio).sqrt().round_ties_even() as usize;
            if (1..=h).contains(&height) && (1..=w).contains(&width) {
                return [random.below(h - height + 1), random.below(w - width + 1), height, width];
            }
        }
        let [least, most] = self.ratio.map(f64::from);
        let ratio = w as f64 / h as f64;
        let side = |side: f64, len: usize| (side.round_ties_even() as usize).clamp(1, len);
        let [height, width] = match ratio {
            narrow if narrow < least => [side(w as f64 / least, h), w],
            wide if wide > most => [h, side(h as f64 * most, w)],
            _ => [h, w],
        };
        [(h - height) / 2, (w - width) / 2, height, width]
    }
}

impl Transform for RandomResizedCrop {
    fn apply(&self, image: Array, random: &mut Random) -> Result<Array> {
        let fits = |[least, most]: [f32; 2]| least > 0.0 && most >= least && most.is_finite();
        if !fits(self.scale) || !fits(self.ratio) {
            let detail =
                format!("the scale {:?} and the ratio {:?} must be above 0 and ascend", self.scale, self.ratio);
            return Err(Error::argument("RandomResizedCrop", detail));
        }
        let [_, h, w] = image.image_size("RandomResizedCrop")?;
        let [top, left, height, width] = self.part([h, w], random);
        let part = window(image, "RandomResizedCrop", [top as isize, left as isize], [height, width])?;
        Resize::new(self.size).antialias(self.antialias).apply(part, random)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_have_the_areas_and_proportions_that_were_asked_for() {
        let crop = RandomResizedCrop::new([4, 4]).scale(0.2, 0.6).ratio(0.5, 2.0);
        let mut areas = Vec::new();
        for sample in 0..2000 {
            let [top, left, height, width] = crop.part([60, 80], &mut Random::of_sample(3, 1, sample));
            assert!(top + height <= 60 && left + width <= 80 && height > 0 && width > 0);
            let ratio = width as f64 / height as f64;
            assert!((0.45..2.2).contains(&ratio), "{ratio}");
            areas.push((height * width) as f64 / 4800.0);
        }
        let mean = areas.iter().sum::<f64>() / areas.len() as f64;
        assert!(areas.iter().all(|area| (0.18..0.63).contains(area)) && (0.35..0.45).contains(&mean), "{mean}");
    }

    /// A long image has no part of so large an area: the middle is taken, as in torchvision.
    #[test]
    fn the_middle_is_taken_if_nothing_fits() {
        let crop = RandomResizedCrop::new([4, 4]).scale(1.0, 1.0);
        assert_eq!(crop.part([10, 100], &mut Random::of_sample(0, 0, 0)), [0, 43, 10, 13]);
        assert_eq!(crop.part([100, 10], &mut Random::of_sample(0, 0, 0)), [43, 0, 13, 10]);
        assert_eq!(
            RandomResizedCrop::new([1, 1]).scale(9.0, 9.0).part([7, 7], &mut Random::of_sample(0, 0, 0)),
            [0, 0, 7, 7]
        );
    }

    #[test]
    fn the_part_is_resized() -> Result<()> {
        let line: Vec<f32> = (0..16).map(|i| i as f32).collect();
        let image = Array::new(line, [1, 4, 4])?;
        let whole = RandomResizedCrop::new([2, 2]).scale(1.0, 1.0).ratio(1.0, 1.0);
        let random = &mut Random::of_sample(0, 0, 0);
        let resized = Resize::new([2, 2]).apply(image.clone(), random)?;
        assert_eq!(whole.apply(image.clone(), random)?.as_slice::<f32>()?, resized.as_slice::<f32>()?);
        let wrong = RandomResizedCrop::new([2, 2]).scale(0.5, 0.1).apply(image, random).unwrap_err().to_string();
        assert!(wrong.contains("RandomResizedCrop") && wrong.contains("ascend"), "{wrong}");
        Ok(())
    }
}
