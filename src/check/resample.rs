//! Resampling in all of ONNX's ways. The oracle follows ONNX's reference pixel by pixel: it sorts all pixels of a padded
//! row by their distance from the position.

use super::prelude::*;
use crate::ops::{
    Interpolation, Resample, ResampleCoordinates as At, ResampleFilter as Filter, ResampleRounding as Round,
};

#[derive(Clone, Copy)]
struct Way {
    size: usize,
    scale: Option<f64>,
    filter: Filter,
    at: At,
    antialias: bool,
    exclude: bool,
}

impl Way {
    fn how(self) -> Resample {
        let how = Resample::new(self.size).filter(self.filter).coordinates(self.at);
        let how = how.antialias(self.antialias).exclude_outside(self.exclude);
        self.scale.map_or(how.clone(), |scale| how.scale(scale))
    }
}

fn position(way: Way, o: usize, len: usize) -> f64 {
    let (o, size, len) = (o as f64, way.size as f64, len as f64);
    let scale = way.scale.unwrap_or(size / len);
    let exact = way.scale.map_or(size, |scale| scale * len);
    match way.at {
        At::AlignCorners => {
            if exact == 1.0 {
                0.0
            } else {
                o * (len - 1.0) / (exact - 1.0)
            }
        }
        At::Asymmetric => o / scale,
        At::CropAndResize { start, end, .. } if exact == 1.0 => (end - start) * (len - 1.0) / 2.0 + start * (len - 1.0),
        At::CropAndResize { start, end, .. } => o * (end - start) * (len - 1.0) / (exact - 1.0) + start * (len - 1.0),
        At::PytorchHalfPixel if exact == 1.0 => -0.5,
        At::PytorchHalfPixel | At::HalfPixel => (o + 0.5) / scale - 0.5,
        At::HalfPixelSymmetric => len / 2.0 * (1.0 - size / exact) + (o + 0.5) / scale - 0.5,
    }
}

/// The weights of the pixels around a position, by its distance from the pixel before it, above 0 and at most 1.
fn coefficients(way: Way, ratio: f64, scale: f64) -> Vec<f64> {
    let scale = if way.antialias { scale.min(1.0) } else { 1.0 };
    let of = |half: f64, f: &dyn Fn(f64) -> f64| {
        let start = (-half / scale).floor() as i64 + 1;
        let all: Vec<f64> = (start..2 - start).map(|i| f((scale * (i as f64 - ratio)).abs())).collect();
        let sum: f64 = if way.antialias { all.iter().sum() } else { 1.0 };
        all.into_iter().map(|v| v / sum).collect()
    };
    match way.filter {
        Filter::Nearest(round) => {
            let second = match round {
                _ if ratio == 1.0 => true,
                Round::Floor => false,
                Round::Ceil => true,
                Round::PreferFloor => ratio > 0.5,
                Round::PreferCeil => ratio >= 0.5,
            };
            vec![f64::from(u8::from(!second)), f64::from(u8::from(second))]
        }
        Filter::Linear => of(1.0, &|d| (1.0 - d).clamp(0.0, 1.0)),
        Filter::Cubic { a } => {
            let a = f64::from(a);
            of(2.0, &|d| match d {
                d if d <= 1.0 => (a + 2.0) * d.powi(3) - (a + 3.0) * d.powi(2) + 1.0,
                d if d < 2.0 => a * d.powi(3) - 5.0 * a * d.powi(2) + 8.0 * a * d - 4.0 * a,
                _ => 0.0,
            })
        }
    }
}

fn pixel(row: &[f64], o: usize, way: Way) -> f64 {
    let len = row.len();
    let at = position(way, o, len);
    if let At::CropAndResize { extrapolation, .. } = way.at
        && (at < 0.0 || at > len as f64 - 1.0)
    {
        return f64::from(extrapolation);
    }
    let ratio = if at.floor() == at { 1.0 } else { at - at.floor() };
    let mut weights = coefficients(way, ratio, way.scale.unwrap_or(way.size as f64 / len as f64));
    // The nearest pixels of the row, padded by its edges; of equally near ones the first.
    let margin = 8 * len as i64 + 8;
    let mut near: Vec<i64> = (-margin..len as i64 + margin).collect();
    near.sort_by(|a, b| (at - *a as f64).abs().total_cmp(&(at - *b as f64).abs()).then(a.cmp(b)));
    near.truncate(weights.len());
    near.sort_unstable();
    let within = |i: i64| i.clamp(0, len as i64 - 1);
    if way.exclude {
        weights.iter_mut().zip(&near).filter(|(_, i)| within(**i) != **i).for_each(|(weight, _)| *weight = 0.0);
        let sum: f64 = weights.iter().sum();
        weights.iter_mut().for_each(|weight| *weight /= sum);
    }
    weights.iter().zip(near).map(|(weight, i)| weight * row[within(i) as usize]).sum()
}

fn resampled(x: &Nd, dim: usize, way: Way) -> Nd {
    let mut shape = x.shape.clone();
    shape[dim] = way.size;
    Nd::from_fn(&shape, |index| {
        let mut from = index.to_vec();
        let row: Vec<f64> = (0..x.shape[dim])
            .map(|i| {
                from[dim] = i;
                x.at(&from)
            })
            .collect();
        pixel(&row, index[dim], way)
    })
}

fn case(name: &str, input: Input, dim: usize, way: Way) -> Case {
    let op = move |t: &[Tensor]| t[0].resample(dim, &way.how());
    Case::new(format!("resample {name}"), [input], op, move |x| resampled(x[0], dim, way))
}

/// Every filter with every placement of pixels.
fn ways() -> Vec<Way> {
    let roundings = [Round::Floor, Round::Ceil, Round::PreferFloor, Round::PreferCeil];
    let filters = roundings.map(Filter::Nearest).into_iter().chain([
        Filter::Linear,
        Filter::Cubic { a: -0.75 },
        Filter::Cubic { a: -0.5 },
    ]);
    let places = [
        At::HalfPixel,
        At::PytorchHalfPixel,
        At::HalfPixelSymmetric,
        At::AlignCorners,
        At::Asymmetric,
        At::CropAndResize { start: 0.25, end: 1.25, extrapolation: 7.5 },
    ];
    let all = filters.flat_map(|filter| places.map(|at| (filter, at)));
    let mut ways = Vec::new();
    for (i, (filter, at)) in all.enumerate() {
        let plain = Way { size: 7, scale: None, filter, at, antialias: false, exclude: false };
        let scaled = Way { size: 8, scale: Some([1.7, 0.6][i % 2]), ..plain };
        ways.extend([plain, Way { size: 3, ..plain }, scaled]);
        if !matches!(filter, Filter::Nearest(_)) {
            ways.extend([
                Way { size: 2, antialias: true, ..plain },
                Way { size: 11, exclude: true, ..plain },
                Way { size: 3, scale: Some(0.55), antialias: true, exclude: true, ..plain },
                Way { size: 1, ..plain },
            ]);
        }
    }
    ways
}

pub(super) fn cases() -> Vec<Case> {
    let x = |shape: &[usize]| signed(shape, 141);
    let mut cases = Vec::new();
    for (i, way) in ways().into_iter().enumerate() {
        cases.push(match i % 3 {
            0 => case("dense", dense(x(&[2, 5, 3])), 1, way),
            1 => case("transposed", transposed(x(&[3, 5]), 0, 1), 1, way),
            _ => case("narrowed", narrowed(x(&[5, 2, 2]), 0), 0, way),
        });
    }
    let cubic = Filter::Cubic { a: -0.75 };
    let way = Way { size: 9, scale: None, filter: cubic, at: At::HalfPixel, antialias: false, exclude: false };
    cases.push(case("broadcast", broadcast(x(&[1, 4, 1]), &[3, 4, 2]), 1, way));
    cases.push(case("one pixel", dense(x(&[3, 1])), 1, way));
    cases.push(case("empty", dense(x(&[0, 4])), 1, way));
    cases.push(case("to nothing", dense(x(&[3, 4])), 1, Way { size: 0, ..way }));
    // Many terms for one pixel, and many in the gradient of one.
    cases.push(case("long", dense(x(&[1, 1000])), 1, Way { size: 2, antialias: true, ..way }));
    cases.push(case("wide", dense(x(&[2, 2])), 1, Way { size: 900, ..way }));
    let halves = case("halves", dense(x(&[2, 5])).of(DType::F16), 1, way).within(2e-3, 2e-3);
    cases.push(halves.result_dtype(DType::F16));
    for dtype in [DType::I32, DType::U8] {
        let way = Way { filter: Filter::Nearest(Round::Floor), ..way };
        let input = dense(whole(&[4, 5], 0, 200, 142)).of(dtype);
        cases.push(case(&format!("{dtype}"), input, 0, way).result_dtype(dtype));
    }
    for align_corners in [false, true] {
        for (image, size) in [([2, 3, 4, 5], [8, 3]), ([1, 2, 5, 1], [1, 6])] {
            let at = if align_corners { At::AlignCorners } else { At::HalfPixel };
            let oracle = move |x: &[&Nd]| {
                (0..2).fold(x[0].clone(), |x, d| resampled(&x, d + 2, Way { size: size[d], at, ..way }))
            };
            let op = move |t: &[Tensor]| t[0].interpolate(size, Interpolation::Cubic { align_corners });
            cases.push(Case::new(format!("interpolate cubic {align_corners}"), [dense(x(&image))], op, oracle));
        }
    }
    cases
}
