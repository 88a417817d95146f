//! The position of each new pixel among the old ones, and the weights of the pixels around it.

use super::matrix::Matrix;
use super::{Resample, ResampleCoordinates, ResampleFilter, ResampleRounding};
use crate::device::cpu::with_room;
use crate::error::{Error, Result};

/// No position is this far away: all pixels beyond an edge are the edge's.
const FAR: f64 = (1u64 << 40) as f64;

/// The most weights that are computed, as a multiple of the sizes or as a number.
const WORK: (usize, usize) = (64, 1 << 22);

/// The matrix along the dimension, and for each new pixel whether it is outside of the image.
pub(super) struct Weights {
    pub matrix: Matrix,
    pub outside: Vec<bool>,
}

impl Resample {
    /// Computes the weights for a dimension of `len` pixels.
    pub(super) fn weights(&self, len: usize) -> Result<Weights> {
        let reach = self.reach(len)?;
        // The whole numbers of a range of 2 · reach.
        let each = (2.0 * reach) as usize + 1;
        let mut out = Weights { matrix: Matrix::with_room(len, self.size, each)?, outside: with_room(self.size)? };
        let last = len as f64 - 1.0;
        for o in 0..self.size {
            let at = self.position(o, len);
            let outside =
                matches!(self.coordinates, ResampleCoordinates::CropAndResize { .. }) && !(0.0..=last).contains(&at);
            let row = if outside { Vec::new() } else { self.row(at.clamp(-FAR, FAR), len, reach) };
            out.matrix.push(row);
            out.outside.push(outside);
        }
        Ok(out)
    }

    /// Returns the ratio of the new size to the old one that positions are computed by.
    fn ratio(&self, len: usize) -> f64 {
        self.scale.unwrap_or(self.size as f64 / len as f64)
    }

    /// Returns the distance up to which pixels have a weight, or an error if there are too many of them.
    fn reach(&self, len: usize) -> Result<f64> {
        let half = match self.filter {
            ResampleFilter::Nearest(_) => return Ok(0.0),
            ResampleFilter::Linear => 1.0,
            ResampleFilter::Cubic { .. } => 2.0,
        };
        let reach = if self.antialias { half / self.ratio(len).min(1.0) } else { half };
        let weights = (2.0 * reach + 1.0) * self.size as f64;
        if weights > (WORK.0 * (len + self.size)).max(WORK.1) as f64 {
            let detail = format!("{} pixels from {len} at a scale of {}", self.size, self.ratio(len));
            return Err(Error::argument("resample", format!("{detail} have too many weights: use a larger scale")));
        }
        Ok(reach)
    }

    /// Returns the position of pixel `o`, where pixel i of the old ones is at i.
    fn position(&self, o: usize, len: usize) -> f64 {
        let scale = self.ratio(len);
        let (o, size, len) = (o as f64, self.size as f64, len as f64);
        // The new size by the scale, which need not be a whole number.
        let exact = self.scale.map_or(size, |scale| scale * len);
        let half_pixel = (o + 0.5) / scale - 0.5;
        match self.coordinates {
            ResampleCoordinates::HalfPixel => half_pixel,
            ResampleCoordinates::PytorchHalfPixel if exact == 1.0 => -0.5,
            ResampleCoordinates::PytorchHalfPixel => half_pixel,
            ResampleCoordinates::HalfPixelSymmetric => len / 2.0 * (1.0 - size / exact) + half_pixel,
            ResampleCoordinates::AlignCorners if exact == 1.0 => 0.0,
            ResampleCoordinates::AlignCorners => o * (len - 1.0) / (exact - 1.0),
            ResampleCoordinates::Asymmetric => o / scale,
            ResampleCoordinates::CropAndResize { start, end, .. } => {
                let part = if exact == 1.0 { 0.5 } else { o / (exact - 1.0) };
                part * (end - start) * (len - 1.0) + start * (len - 1.0)
            }
        }
    }

    /// Returns the pixels around a position with their weights.
    fn row(&self, at: f64, len: usize, reach: f64) -> Vec<(u32, f64)> {
        let within = |i: f64| i.clamp(0.0, len as f64 - 1.0) as u32;
        if let ResampleFilter::Nearest(rounding) = self.filter {
            let nearest = match rounding {
                ResampleRounding::Floor => at.floor(),
                ResampleRounding::Ceil => at.ceil(),
                ResampleRounding::PreferFloor => (at - 0.5).ceil(),
                ResampleRounding::PreferCeil => (at + 0.5).floor(),
            };
            return vec![(within(nearest), 1.0)];
        }
        let scale = if self.antialias { self.ratio(len).min(1.0) } else { 1.0 };
        let (first, last) = ((at - reach).ceil(), (at + reach).floor());
        let mut row: Vec<(u32, f64)> = Vec::new();
        let mut total = 0.0;
        for i in (0..=(last - first) as usize).map(|i| first + i as f64) {
            if self.exclude_outside && !(0.0..len as f64).contains(&i) {
                continue;
            }
            let weight = self.filter.weight((i - at).abs() * scale);
            total += weight;
            // Pixels beyond an edge are the edge's.
            match row.last_mut() {
                Some((place, sum)) if *place == within(i) => *sum += weight,
                _ => row.push((within(i), weight)),
            }
        }
        if (self.antialias || self.exclude_outside) && total != 0.0 {
            row.iter_mut().for_each(|(_, weight)| *weight /= total);
        }
        row
    }
}

impl ResampleFilter {
    /// Returns the weight of a pixel at a distance.
    fn weight(self, d: f64) -> f64 {
        match self {
            ResampleFilter::Nearest(_) => 1.0,
            ResampleFilter::Linear => (1.0 - d).max(0.0),
            ResampleFilter::Cubic { a } if d <= 1.0 => ((f64::from(a) + 2.0) * d - (f64::from(a) + 3.0)) * d * d + 1.0,
            ResampleFilter::Cubic { a } if d < 2.0 => f64::from(a) * (((d - 5.0) * d + 8.0) * d - 4.0),
            ResampleFilter::Cubic { .. } => 0.0,
        }
    }
}
