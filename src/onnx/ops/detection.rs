//! Operators of detectors: boxes that suppress others, and features of regions.

use super::super::array::Array;
use super::super::call::{Call, Operator, size, sizes};
use super::super::fault;
use super::super::value::Value;
use crate::device::cpu::with_room;
use crate::error::Result;
use crate::tensor::Tensor;

pub(super) fn find(op: &str) -> Option<Operator> {
    Some(match op {
        "NonMaxSuppression" => Operator::Values(non_max_suppression),
        "RoiAlign" => Operator::One(roi_align),
        "MaxRoiPool" => Operator::One(max_roi_pool),
        _ => return None,
    })
}

/// The corners of a box, the smaller ones first. They are f32, as in ONNX Runtime: an overlap may be just the threshold.
#[derive(Clone, Copy)]
struct Corners {
    low: [f32; 2],
    high: [f32; 2],
}

impl Corners {
    /// From two corners in any order, or from a centre and sizes.
    fn of(values: &[f64], centred: bool) -> Corners {
        let [a, b, c, d] = [0, 1, 2, 3].map(|i| values[i] as f32);
        match centred {
            true => Corners { low: [a - c / 2.0, b - d / 2.0], high: [a + c / 2.0, b + d / 2.0] },
            false => Corners { low: [a.min(c), b.min(d)], high: [a.max(c), b.max(d)] },
        }
    }

    fn area(self) -> f32 {
        (self.high[0] - self.low[0]) * (self.high[1] - self.low[1])
    }

    /// Whether the area of the intersection, divided by the area of the union, is above a threshold; never for a
    /// box without area.
    fn overlaps(self, other: Corners, threshold: f32) -> bool {
        let side = |d: usize| self.high[d].min(other.high[d]) - self.low[d].max(other.low[d]);
        let common = side(0) * side(1);
        let all = self.area() + other.area() - common;
        let are_boxes = side(0) > 0.0 && side(1) > 0.0 && self.area() > 0.0 && other.area() > 0.0 && all > 0.0;
        are_boxes && common / all > threshold
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
    if !(0.0..=1.0).contains(&threshold) {
        return Err(fault(format!("a threshold of overlaps of {threshold}, which is not between 0 and 1")));
    }
    let centred = call.flag("center_point_box");
    let (boxes, scores) = (boxes.to_floats(), scores.to_floats());
    let mut selected = Vec::new();
    for image in 0..images {
        let corners = |i: usize| Corners::of(&boxes[(image * count + i) * 4..][..4], centred);
        for class in 0..classes {
            let score = |i: usize| scores[(image * classes + class) * count + i];
            let mut order: Vec<usize> = (0..count).filter(|&i| least.is_none_or(|least| score(i) > least)).collect();
            // −0 is 0.
            order.sort_by(|&i, &j| (score(j) + 0.0).total_cmp(&(score(i) + 0.0)));
            let mut kept: Vec<Corners> = Vec::new();
            for i in order {
                if kept.len() == most {
                    break;
                }
                let here = corners(i);
                if !kept.iter().any(|other| here.overlaps(*other, threshold as f32)) {
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
    fn new(start: f32, cell: f32, [cells, grid, pixels]: [usize; 3]) -> Result<Samples> {
        let count = cells.saturating_mul(grid).saturating_mul(2);
        let mut samples = Samples { pixels: with_room(count)?, weights: with_room(count)? };
        for i in 0..cells {
            for j in 0..grid {
                let at = start + i as f32 * cell + (j as f32 + 0.5) * cell / grid as f32;
                let place = at.max(0.0).min((pixels - 1) as f32);
                let (low, part) = (place.floor() as usize, place - place.floor());
                let inside = at >= -1.0 && at <= pixels as f32;
                samples.pixels.extend([low as u32, (low + 1).min(pixels - 1) as u32]);
                samples.weights.extend([1.0 - part, part].map(|weight| if inside { weight } else { 0.0 }));
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

/// The most samples along a side of a cell.
const MOST_SAMPLES: usize = 1 << 12;

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
    let scale = call.float("spatial_scale", 1.0);
    let default = if call.opset() < 16 { "output_half_pixel" } else { "half_pixel" };
    let half = call.text("coordinate_transformation_mode", default) == "half_pixel";
    let ratio = size(call.int("sampling_ratio", 0))?;
    let values = regions.to_floats();
    let mut parts = Vec::with_capacity(count);
    for (region, &image) in values.chunks_exact(4).zip(&images) {
        let image = usize::try_from(image).ok().filter(|&image| image < n);
        let image = image.ok_or_else(|| fault(format!("a region of an image that is not one of {n}")))?;
        let offset = if half { 0.5 } else { 0.0 };
        // In f32, as in ONNX Runtime: how many samples there are depends on it.
        let place = |i: usize| region[i] as f32 * scale - offset;
        let (start, end) = ([place(1), place(0)], [place(3), place(2)]);
        // Without the half pixel, a region has at least a pixel.
        let extent = [0, 1].map(|d| if half { end[d] - start[d] } else { (end[d] - start[d]).max(1.0) });
        let cell = [0, 1].map(|d| extent[d] / out[d] as f32);
        let grid = cell.map(|cell| if ratio > 0 { ratio } else { cell.ceil().max(0.0) as usize });
        if grid.contains(&0) {
            // A region without area has no sample.
            parts.push(Tensor::zeros([channels, out[0], out[1]], call.device)?.to_dtype(x.dtype())?);
            continue;
        }
        if grid.iter().any(|&grid| grid > MOST_SAMPLES) {
            return call.refuse(format!("a region of {extent:?} pixels, with {grid:?} samples in each cell,"));
        }
        let along = |d: usize, pixels: usize| Samples::new(start[d], cell[d], [out[d], grid[d], pixels]);
        let (rows, columns) = (along(0, height)?, along(1, width)?);
        // The weight of a pixel is the weight of its row times the weight of its column.
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

/// The largest pixel within each cell of a region, `[regions, C, height, width]`; 0 for a cell without pixels. Regions are read back.
fn max_roi_pool(call: &Call) -> Result<Tensor> {
    let (x, regions) = (call.x(0)?, call.needed(1)?.read()?);
    let (&[n, channels, height, width], &[count, 5]) = (x.shape(), regions.shape.as_slice()) else {
        return Err(fault(format!("an input of shape {:?} and regions of shape {:?}", x.shape(), regions.shape)));
    };
    let pooled = sizes(&call.ints("pooled_shape").unwrap_or_default())?;
    let &[rows, columns] = pooled.as_slice() else { return Err(fault(format!("a pooled shape of {pooled:?}"))) };
    let scale = call.float("spatial_scale", 1.0);
    let values = regions.to_floats();
    let mut parts = Vec::with_capacity(count);
    for region in values.chunks_exact(5) {
        let image = (region[0] >= 0.0 && region[0] < n as f64).then_some(region[0] as usize);
        let image = image.ok_or_else(|| fault(format!("a region of image {}, which is not one of {n}", region[0])))?;
        // Whole pixels, of which the last belongs to the region.
        let place = |i: usize| (region[i] as f32 * scale).round();
        let cells = |d: usize, cells: usize, pixels: usize| Cells::new(place(2 - d), place(4 - d), cells, pixels);
        let (down, across) = (cells(0, rows, height)?, cells(1, columns, width)?);
        let found = across.largest(&down.largest(&x.select(0, image)?, 1)?, 2)?;
        parts.push(found);
    }
    match parts.is_empty() {
        true => Tensor::zeros([0, channels, rows, columns], call.device)?.to_dtype(x.dtype()),
        false => Tensor::stack(&parts, 0),
    }
}

/// The pixels of each cell of a region along one axis: all cells are as long as the longest, and repeat their last pixel.
struct Cells {
    pixels: Vec<u32>,
    longest: usize,
    /// 1 for cells with pixels, else 0.
    filled: Vec<bool>,
}

impl Cells {
    fn new(first: f32, last: f32, cells: usize, pixels: usize) -> Result<Cells> {
        let cell = (last - first + 1.0).max(1.0) / cells as f32;
        let clipped = |at: f32| (at + first).clamp(0.0, pixels as f32) as usize;
        let range = |i: usize| (clipped((i as f32 * cell).floor()), clipped(((i + 1) as f32 * cell).ceil()));
        let longest = (0..cells).map(|i| range(i).1.saturating_sub(range(i).0)).max().unwrap_or(0).max(1);
        let mut all = Cells { pixels: with_room(cells.saturating_mul(longest))?, longest, filled: with_room(cells)? };
        for (start, end) in (0..cells).map(range) {
            all.filled.push(end > start);
            let end = end.max(start + 1);
            all.pixels.extend((0..longest).map(|i| (start + i).min(end - 1).min(pixels.saturating_sub(1)) as u32));
        }
        Ok(all)
    }

    /// The largest pixels of `x` along a dimension, for each cell.
    fn largest(self, x: &Tensor, dim: usize) -> Result<Tensor> {
        let cells = self.filled.len();
        let pixels = Tensor::from_vec(self.pixels, cells * self.longest, x.device())?;
        let mut shape = x.shape().to_vec();
        shape.splice(dim..=dim, [cells, self.longest]);
        let most = x.index_select(dim, &pixels)?.reshape(shape)?.max([dim + 1], false)?;
        let along: Vec<usize> = (0..x.rank()).map(|d| if d == dim { cells } else { 1 }).collect();
        Tensor::from_vec(self.filled, along, x.device())?.where_cond(&most, &most.zeros_like()?)
    }
}
