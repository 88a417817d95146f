use super::Transform;
use crate::data::{Array, Random};
use crate::device::cpu::with_room;
use crate::dtype::DType;
use crate::error::{Error, Result};

/// Converts bytes 0 to 255 to floats 0 to 1.
///
/// Floats are not changed.
///
/// ```
/// use anygpu::data::transforms::{ToFloat, Transform};
/// use anygpu::data::{Array, Random};
///
/// let image = Array::new(vec![0u8, 51, 255], [1, 1, 3])?;
/// let image = ToFloat.apply(image, &mut Random::of_sample(0, 0, 0))?;
/// assert_eq!(image.as_slice::<f32>()?, [0.0, 0.2, 1.0]);
/// # Ok::<(), anygpu::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ToFloat;

impl Transform for ToFloat {
    fn apply(&self, image: Array, _: &mut Random) -> Result<Array> {
        if image.as_slice::<f32>().is_ok() {
            return Ok(image);
        }
        let bytes = image.as_slice::<u8>().map_err(|_| Error::DTypeMismatch {
            op: "ToFloat",
            expected: "u8 or f32".into(),
            got: image.dtype().to_string(),
        })?;
        Array::new(unit_scale(bytes)?, image.shape())
    }
}

/// Divides, because a multiplication by 1/255 would not round 51 to the f32 nearest to 0.2.
pub(in crate::data) fn unit(byte: u8) -> f32 {
    f32::from(byte) / 255.0
}

/// Bytes on the scale 0 to 1.
pub(in crate::data) fn unit_scale(bytes: &[u8]) -> Result<Vec<f32>> {
    let mut scaled = with_room(bytes.len())?;
    scaled.extend(bytes.iter().map(|&byte| unit(byte)));
    Ok(scaled)
}

/// Standardises each channel of an f32 image: `(x − mean[c]) / std[c]`.
///
/// A single value applies to all channels. A standard deviation of 0 (all pixels equal) is replaced by 1.
///
/// ```
/// use anygpu::data::transforms::{Normalize, Transform};
/// use anygpu::data::{Array, Random};
///
/// let image = Array::new(vec![0.5f32, 1.0], [2, 1, 1])?;
/// let image = Normalize::new([0.5, 0.0], [0.25, 0.5]).apply(image, &mut Random::of_sample(0, 0, 0))?;
/// assert_eq!(image.as_slice::<f32>()?, [0.0, 2.0]);
/// # Ok::<(), anygpu::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Normalize {
    mean: Vec<f32>,
    std: Vec<f32>,
}

impl Normalize {
    /// Creates a standardisation by the mean and the standard deviation of each channel.
    pub fn new(mean: impl Into<Vec<f32>>, std: impl Into<Vec<f32>>) -> Normalize {
        let std = std.into().into_iter().map(|std| if std == 0.0 { 1.0 } else { std }).collect();
        Normalize { mean: mean.into(), std }
    }

    /// Returns the means.
    #[must_use]
    pub fn mean(&self) -> &[f32] {
        &self.mean
    }

    /// Returns the standard deviations.
    #[must_use]
    pub fn std(&self) -> &[f32] {
        &self.std
    }
}

impl Transform for Normalize {
    fn apply(&self, mut image: Array, _: &mut Random) -> Result<Array> {
        let [c, h, w] = image.image_size("Normalize")?;
        let fits = |values: &[f32]| values.len() == c || values.len() == 1;
        if !fits(&self.mean) || !fits(&self.std) {
            let detail = format!("{} means and {} deviations for {c} channels", self.mean.len(), self.std.len());
            return Err(Error::argument("Normalize", detail));
        }
        if let Some(std) = self.std.iter().find(|std| std.is_nan() || **std <= 0.0) {
            return Err(Error::argument("Normalize", format!("a deviation must be above 0, not {std}")));
        }
        if image.dtype() != DType::F32 {
            let detail = format!("it takes an image of f32, not of {}: put ToFloat before it", image.dtype());
            return Err(Error::argument("Normalize", detail));
        }
        let of = |values: &[f32], channel: usize| values[channel.min(values.len() - 1)];
        for (channel, plane) in image.as_mut_slice::<f32>()?.chunks_mut(h * w).enumerate() {
            let (mean, std) = (of(&self.mean, channel), of(&self.std, channel));
            plane.iter_mut().for_each(|x| *x = (*x - mean) / std);
        }
        Ok(image)
    }
}

/// Mirrors an image left to right with probability `p`.
///
/// ```
/// use anygpu::data::transforms::{RandomHorizontalFlip, Transform};
/// use anygpu::data::{Array, Random};
///
/// let image = Array::new(vec![1u8, 2, 3, 4], [1, 2, 2])?;
/// let always = RandomHorizontalFlip::new(1.0).apply(image, &mut Random::of_sample(0, 0, 0))?;
/// assert_eq!(always.as_slice::<u8>()?, [2, 1, 4, 3]);
/// # Ok::<(), anygpu::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RandomHorizontalFlip {
    p: f32,
}

impl RandomHorizontalFlip {
    /// Creates a flip with probability `p`: 0 for never, 1 for always.
    #[must_use]
    pub fn new(p: f32) -> RandomHorizontalFlip {
        RandomHorizontalFlip { p }
    }
}

impl Transform for RandomHorizontalFlip {
    fn apply(&self, image: Array, random: &mut Random) -> Result<Array> {
        let [_, _, w] = image.image_size("RandomHorizontalFlip")?;
        if !random.chance(self.p) {
            return Ok(image);
        }
        let element = image.dtype().size();
        let pixels = image.bytes();
        Array::from_bytes(image.shape().to_vec(), image.dtype(), |out| {
            for (line, out) in pixels.chunks(w * element).zip(out.chunks_mut(w * element)) {
                for (pixel, out) in line.chunks(element).rev().zip(out.chunks_mut(element)) {
                    out.copy_from_slice(pixel);
                }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_standardised_is_said() -> Result<()> {
        let apply = |image: Array, std: f32| Normalize::new([0.5], [std]).apply(image, &mut Random::of_sample(0, 0, 0));
        let floats = Array::new(vec![0.5f32, 1.5], [1, 1, 2])?;
        assert_eq!(apply(floats.clone(), 0.0)?.as_slice::<f32>()?, [0.0, 1.0], "all pixels alike");
        for std in [-1.0, f32::NAN] {
            let error = apply(floats.clone(), std).unwrap_err().to_string();
            assert!(error.contains("above 0"), "{error}");
        }
        let error = apply(Array::new(vec![1u8, 2], [1, 1, 2])?, 1.0).unwrap_err().to_string();
        assert!(error.contains("u8") && error.contains("ToFloat"), "{error}");
        Ok(())
    }
}
