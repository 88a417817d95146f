use super::Transform;
use crate::data::{Array, Random};
use crate::device::cpu::with_room;
use crate::error::{Error, Result};
use crate::shape::checked_elem_count;

/// Resizes an f32 image bilinearly, like torchvision's `Resize` on a tensor.
///
/// Borders are aligned (`align_corners=False`). Shrinking averages over all pixels that a new pixel covers, with the
/// weights of a triangle as wide as two new pixels, as torchvision does by default. With
/// [`antialias(false)`](Resize::antialias) it uses only two neighbours, and then equals
/// [`Tensor::interpolate`](crate::Tensor::interpolate) with [`Interpolation::Linear`](crate::Interpolation::Linear).
/// Enlarging is the same with both.
///
/// ```
/// use anygpu::data::transforms::{Resize, Transform};
/// use anygpu::data::{Array, Random};
///
/// let random = &mut Random::of_sample(0, 0, 0);
/// let line = Array::new(vec![1.0f32, 3.0], [1, 1, 2])?;
/// assert_eq!(Resize::new([1, 4]).apply(line, random)?.as_slice::<f32>()?, [1.0, 1.5, 2.5, 3.0]);
///
/// let photo = Array::new(vec![0.5f32; 3 * 30 * 40], [3, 30, 40])?;
/// assert_eq!(Resize::shorter(15).apply(photo, random)?.shape(), [3, 15, 20]);
/// # Ok::<(), anygpu::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resize {
    size: Size,
    antialias: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Size {
    /// A height and a width.
    Exactly([usize; 2]),
    /// A length of the shorter side. The proportions are kept.
    Shorter(usize),
}

impl Resize {
    /// Creates a resize to `[height, width]`.
    #[must_use]
    pub fn new(size: [usize; 2]) -> Resize {
        Resize { size: Size::Exactly(size), antialias: true }
    }

    /// Creates a resize of the shorter side to `side` pixels and of the longer side in proportion (rounded down), like
    /// torchvision's `Resize(side)`.
    #[must_use]
    pub fn shorter(side: usize) -> Resize {
        Resize { size: Size::Shorter(side), antialias: true }
    }

    /// Sets whether shrinking averages over all pixels. The default is true.
    #[must_use]
    pub fn antialias(mut self, antialias: bool) -> Resize {
        self.antialias = antialias;
        self
    }

    fn target(&self, h: usize, w: usize) -> Result<[usize; 2]> {
        let size = match self.size {
            Size::Exactly(size) => size,
            Size::Shorter(side) if h <= w => [side, side.saturating_mul(w) / h],
            Size::Shorter(side) => [side.saturating_mul(h) / w, side],
        };
        if size.contains(&0) {
            return Err(Error::argument("Resize", format!("an image of {} × {} pixels cannot be", size[0], size[1])));
        }
        Ok(size)
    }
}

impl Transform for Resize {
    fn apply(&self, image: Array, _: &mut Random) -> Result<Array> {
        let [c, h, w] = image.image_size("Resize")?;
        let [new_h, new_w] = self.target(h, w)?;
        let pixels = image.as_slice::<f32>().map_err(|_| Error::DTypeMismatch {
            op: "Resize",
            expected: "f32 (put ToFloat before it)".into(),
            got: image.dtype().to_string(),
        })?;
        checked_elem_count("Resize", &[c, new_h.max(h), new_w])?;
        if [new_h, new_w] == [h, w] {
            return Ok(image);
        }
        let across = Taps::new(w, new_w, self.antialias)?;
        let mut lines = with_room(c * h * new_w)?;
        for line in pixels.chunks(w) {
            lines.extend(across.iter().map(|(first, weights)| dot(weights, &line[first..])));
        }
        let down = Taps::new(h, new_h, self.antialias)?;
        let mut out = with_room(c * new_h * new_w)?;
        out.resize(c * new_h * new_w, 0.0f32);
        for (plane, out) in lines.chunks(h * new_w).zip(out.chunks_mut(new_h * new_w)) {
            for ((first, weights), out) in down.iter().zip(out.chunks_mut(new_w)) {
                for (weight, line) in weights.iter().zip(plane[first * new_w..].chunks(new_w)) {
                    out.iter_mut().zip(line).for_each(|(out, pixel)| *out += weight * pixel);
                }
            }
        }
        Array::new(out, [c, new_h, new_w])
    }
}

fn dot(weights: &[f32], pixels: &[f32]) -> f32 {
    weights.iter().zip(pixels).map(|(weight, pixel)| weight * pixel).sum()
}

/// For each new pixel of a line: the pixels whose weighted mean it is, and their weights.
struct Taps {
    /// For each new pixel: the first pixel, and the start and end of its weights.
    spans: Vec<(usize, usize, usize)>,
    weights: Vec<f32>,
}

impl Taps {
    fn new(len: usize, size: usize, antialias: bool) -> Result<Taps> {
        // A new pixel has two neighbours, or all pixels within two new pixels and a part of one more at each end.
        let weights = len.saturating_add(size).saturating_mul(2);
        let mut taps = Taps { spans: with_room(size)?, weights: with_room(weights)? };
        let scale = len as f64 / size as f64;
        for o in 0..size {
            let centre = (o as f64 + 0.5) * scale;
            match antialias && scale > 1.0 {
                true => taps.triangle(centre, scale, len),
                false => taps.neighbours(centre - 0.5, len),
            }
        }
        Ok(taps)
    }

    /// The two pixels around `position`, which is at least 0.
    fn neighbours(&mut self, position: f64, len: usize) {
        let position = position.max(0.0);
        let first = (position as usize).min(len - 1);
        let weight = (position - first as f64) as f32;
        if first + 1 < len { self.push(first, &[1.0 - weight, weight]) } else { self.push(first, &[1.0]) }
    }

    /// Adds all pixels within `scale` of `centre`, weighted by 1 − distance / scale and divided by the sum: PyTorch's
    /// `_compute_weights_aa` (aten/src/ATen/native/cpu/UpSampleKernel.cpp).
    fn triangle(&mut self, centre: f64, scale: f64, len: usize) {
        let first = (centre - scale + 0.5).max(0.0) as usize;
        let end = ((centre + scale + 0.5) as usize).min(len);
        let weight = |pixel: usize| (1.0 - ((pixel as f64 - centre + 0.5) / scale).abs()).max(0.0);
        let total: f64 = (first..end).map(weight).sum();
        let weights: Vec<f32> = (first..end).map(|pixel| (weight(pixel) / total) as f32).collect();
        self.push(first, &weights);
    }

    fn push(&mut self, first: usize, weights: &[f32]) {
        let start = self.weights.len();
        self.weights.extend(weights);
        self.spans.push((first, start, self.weights.len()));
    }

    /// For each new pixel, the first pixel and the weights from there on.
    fn iter(&self) -> impl Iterator<Item = (usize, &[f32])> {
        self.spans.iter().map(|&(first, start, end)| (first, &self.weights[start..end]))
    }
}
