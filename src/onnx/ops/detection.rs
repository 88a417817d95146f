//! Operators of detectors: boxes that suppress others, and features of regions.

use super::super::array::Array;
use super::super::call::{Call, Operator, size};
use super::super::fault;
use super::super::value::Value;
use crate::device::cpu::with_room;
use crate::error::Result;
use crate::tensor::Tensor;

pub(super) fn find(op: &str) -> Option<Operator> {
    Some(match op {
        "NonMaxSuppression" => Operator::Values(non_max_suppression),
        "RoiAlign" => Operator::One(roi_align),
        _ => return None,
    })
}

/// The corners of a box, the smaller ones first.
#[derive(Clone, Copy)]
struct Corners {
    low: [f64; 2],
    high: [f64; 2],
}

impl Corners {
    /// From two corners in any order, or from a centre and sizes.
    fn of(values: &[f64], centred: bool) -> Corners {
        let [a, b, c, d] = [values[0], values[1], values[2], values[3]];
        match centred {
            true => Corners { low: [a - c / 2.0, b - d / 2.0], high: [a + c / 2.0, b + d / 2.0] },
            false => Corners { low: [a.min(c), b.min(d)], high: [a.max(c), b.max(d)] },
        }
    }

    fn area(self) -> f64 {
        (self.high[0] - self.low[0]) * (self.high[1] - self.low[1])
    }

    /// The area of the intersection over that of the union.
    fn overlap(self, other: Corners) -> f64 {
        let side = |d: usize| (self.high[d].min(other.high[d]) - self.low[d].max(other.low[d])).max(0.0);
        let common = side(0) * side(1);
        let all = self.area() + other.area() - common;
        if all > 0.0 { common / all } else { 0.0 }
    }
}

/// For each image and class, the boxes of the largest scores that do not overlap with one of a larger score. How many there are
/// is known on the host, so boxes and scores are read back.
fn non_max_suppression(call: &Call) -> Result<Vec<Value>> {
    let (boxes, scores) = (call.needed(0)?.read()?, call.needed(1)?.read()?);
    let (&[images, count, 4], &[_, classes, _]) = (boxes.shape.as_slice(), scores.shape.as_slice()) else {
        return Err(fault(format!("boxes of shape {:?} and scores of shape {:?}", boxes.shape, scores.shape)));
    };
    if scores.shape != [images, classes, count] {
        return Err(fault(format!("boxes of shape {:?} and scores of shape {:?}", boxes.shape, scores.shape)));
    }
    let most = call.number(2)?.map_or(0, |most| most.max(0.0) as usize);
    let (threshold, least) = (call.number(3)?.unwrap_or(0.0), call.number(4)?);
    let centred = call.flag("center_point_box");
    let (boxes, scores) = (boxes.to_floats(), scores.to_floats());
    let mut selected = Vec::new();
    for image in 0..images {
        let corners = |i: usize| Corners::of(&boxes[(image * count + i) * 4..][..4], centred);
        for class in 0..classes {
            let score = |i: usize| scores[(image * classes + class) * count + i];
            let mut order: Vec<usize> = (0..count).filter(|&i| least.is_none_or(|least| score(i) > least)).collect();
            order.sort_by(|&i, &j| score(j).total_cmp(&score(i)));
            let mut kept: Vec<Corners> = Vec::new();
            for i in order {
                if kept.len() == most {
                    break;
                }
                let here = corners(i);
                if kept.iter().all(|other| here.overlap(*other) <= threshold) {
                    kept.push(here);
                    selected.extend([image, class, i].map(|v| v as i64));
                }
            }
        }
    }
    let rows = selected.len() / 3;
    Ok(vec![Array::ints(selected).reshaped(vec![rows, 3]).into()])
}

/// Where a region is sampled along one axis: for each sample the two pixels around it, and their weights.
struct Samples {
    pixels: Vec<u32>,
    weights: Vec<f32>,
}

impl Samples {
    /// `grid` samples in each of `cells` of a size, over an axis of `pixels`. A sample that is outside by more than a pixel has
    /// no weight.
    fn new(start: f64, cell: f64, [cells, grid, pixels]: [usize; 3]) -> Result<Samples> {
        let count = cells.saturating_mul(grid).saturating_mul(2);
        let mut samples = Samples { pixels: with_room(count)?, weights: with_room(count)? };
        for i in 0..cells {
            for j in 0..grid {
                let at = start + cell * (i as f64 + (j as f64 + 0.5) / grid as f64);
                let place = at.max(0.0).min((pixels - 1) as f64);
                let (low, part) = (place.floor() as usize, place - place.floor());
                let inside = at >= -1.0 && at <= pixels as f64;
                samples.pixels.extend([low as u32, (low + 1).min(pixels - 1) as u32]);
                samples.weights.extend([1.0 - part, part].map(|weight| if inside { weight as f32 } else { 0.0 }));
            }
        }
        Ok(samples)
    }

    /// The weighted pixels of `x` along a dimension.
    fn of(self, x: &Tensor, dim: usize) -> Result<Tensor> {
        let count = self.pixels.len();
        let pixels = Tensor::from_vec(self.pixels, count, x.device())?;
        let along: Vec<usize> = (0..x.rank()).map(|d| if d == dim { count } else { 1 }).collect();
        x.index_select(dim, &pixels)?.mul(&Tensor::from_vec(self.weights, along, x.device())?)
    }
}

/// The mean or the largest of samples within each cell of a region, `[regions, C, height, width]`. Regions are read back.
fn roi_align(call: &Call) -> Result<Tensor> {
    let x = call.x(0)?;
    let (regions, images) = (call.needed(1)?.read()?, call.whole(2)?.unwrap_or_default());
    let (&[n, channels, height, width], &[count, 4]) = (x.shape(), regions.shape.as_slice()) else {
        return Err(fault(format!("an input of shape {:?} and regions of shape {:?}", x.shape(), regions.shape)));
    };
    if images.len() != count || height == 0 || width == 0 {
        return Err(fault(format!("{count} regions of {} images of {height} × {width}", images.len())));
    }
    let out = [size(call.int("output_height", 1))?, size(call.int("output_width", 1))?];
    let scale = f64::from(call.float("spatial_scale", 1.0));
    let default = if call.opset() < 16 { "output_half_pixel" } else { "half_pixel" };
    let half = call.text("coordinate_transformation_mode", default) == "half_pixel";
    let ratio = size(call.int("sampling_ratio", 0))?;
    let values = regions.to_floats();
    let mut parts = Vec::with_capacity(count);
    for (region, &image) in values.chunks_exact(4).zip(&images) {
        let image = usize::try_from(image).ok().filter(|&image| image < n);
        let image = image.ok_or_else(|| fault(format!("a region of an image that is not one of {n}")))?;
        let offset = if half { 0.5 } else { 0.0 };
        let start = [region[1] * scale - offset, region[0] * scale - offset];
        let end = [region[3] * scale - offset, region[2] * scale - offset];
        // Without the half pixel, a region has at least a pixel.
        let extent = [0, 1].map(|d| if half { end[d] - start[d] } else { (end[d] - start[d]).max(1.0) });
        let cell = [0, 1].map(|d| extent[d] / out[d] as f64);
        let grid = cell.map(|cell| if ratio > 0 { ratio } else { (cell.ceil().max(1.0) as usize).min(1 << 12) });
        let along = |d: usize, pixels: usize| Samples::new(start[d], cell[d], [out[d], grid[d], pixels]);
        let (rows, columns) = (along(0, height)?, along(1, width)?);
        // A weight of a pixel is that of its row times that of its column.
        let found = columns.of(&rows.of(&x.select(0, image)?, 1)?, 2)?;
        let found = found.reshape([channels, out[0], grid[0] * 2, out[1], grid[1] * 2])?;
        let cells = match call.text("mode", "avg").as_ref() {
            "max" => found.max([2, 4], false)?,
            _ => found.sum([2, 4], false)?.mul_scalar(1.0 / (grid[0] as f32 * grid[1] as f32))?,
        };
        parts.push(cells);
    }
    match parts.is_empty() {
        true => Tensor::zeros([0, channels, out[0], out[1]], call.device),
        false => Tensor::stack(&parts, 0),
    }
}
