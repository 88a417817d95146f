//! Calls of what takes indices, orders elements, samples images and works on bits, with arguments that are refused.

use anygpu::{DType, Device, GridMode, GridPadding, Interpolation, Resample, Result, ScatterReduce, Tensor, Unfold};

use super::calls::{Call, each};

/// Indices, masks and orders.
pub fn indices(d: &Device) -> Result<Vec<Call>> {
    let x = &Tensor::zeros([2, 3], d)?;
    let (whole, empty) = (&x.to_dtype(DType::I32)?, &Tensor::zeros([2, 0], d)?);
    let (rows, truth, long) = (&Tensor::new([0, 1], d)?, &x.ne(0)?, &Tensor::zeros(7, d)?);
    let mut calls: Vec<Call> = vec![
        ("median", x.median(2, false).map(drop)),
        ("median", empty.median(1, true).map(drop)),
        ("quantile", x.quantile(0.5, 2, false).map(drop)),
        ("quantile", x.quantile(1.5, 1, false).map(drop)),
        ("quantile", whole.quantile(0.5, 1, false).map(drop)),
        ("index", x.index(&[]).map(drop)),
        ("index", x.index(&[rows, rows, rows]).map(drop)),
        ("index", x.index(&[x]).map(drop)),
        ("index", x.index(&[&empty.ne(0)?]).map(drop)),
        ("index_put", x.index_put(&[rows], whole, true).map(drop)),
        ("index_put", x.index_put(&[rows], long, false).map(drop)),
        ("masked_select", x.masked_select(long).map(drop)),
        ("scatter_reduce", truth.scatter_reduce(0, whole, truth, ScatterReduce::Mean, true).map(drop)),
    ];
    each!(calls, x, [scatter_reduce, index_reduce](2, rows, x, ScatterReduce::Amax, false));
    each!(calls, x, [scatter_reduce, index_reduce](0, rows, whole, ScatterReduce::Mean, true));
    each!(calls, x, [index_copy](2, rows, x));
    each!(calls, x, [cummax, cummin](2));
    each!(calls, x, [bitwise_and, bitwise_or, bitwise_xor, bitwise_left_shift, bitwise_right_shift](1));
    let unsigned = &x.to_dtype(DType::U32)?;
    each!(calls, whole, [bitwise_and, bitwise_or, bitwise_xor, bitwise_left_shift, bitwise_right_shift](unsigned));
    each!(calls, truth, [bitwise_left_shift, bitwise_right_shift](truth));
    calls.push(("bitwise_not", x.bitwise_not().map(drop)));
    Ok(calls)
}

/// Counts, places, repeats, grids, distances and draws.
pub fn searches(d: &Device) -> Result<Vec<Call>> {
    let x = &Tensor::zeros([2, 3], d)?;
    let (numbers, negative) = (&Tensor::new([0, 1], d)?, &Tensor::new([0, -1], d)?);
    let (vector, cube) = (&Tensor::zeros(2, d)?, &Tensor::zeros([2, 3, 4], d)?);
    Ok(vec![
        ("bincount", x.bincount(None, 0).map(drop)),
        ("bincount", vector.bincount(None, 0).map(drop)),
        ("bincount", negative.bincount(None, 0).map(drop)),
        ("bincount", numbers.bincount(Some(x), 0).map(drop)),
        ("bincount", numbers.bincount(Some(numbers), 0).map(drop)),
        ("searchsorted", Tensor::scalar(1.0f32, d)?.searchsorted(x, false).map(drop)),
        ("searchsorted", cube.searchsorted(x, false).map(drop)),
        ("repeat_interleave", x.repeat_interleave(2, 2).map(drop)),
        ("repeat_interleave", x.repeat_interleave(usize::MAX, 0).map(drop)),
        ("repeat_interleave_by", x.repeat_interleave_by(numbers, 1).map(drop)),
        ("repeat_interleave_by", x.repeat_interleave_by(negative, 0).map(drop)),
        ("repeat_interleave_by", x.repeat_interleave_by(vector, 0).map(drop)),
        ("repeat_interleave_by", x.repeat_interleave_by(numbers, 2).map(drop)),
        ("meshgrid", Tensor::meshgrid(&[] as &[&Tensor]).map(drop)),
        ("meshgrid", Tensor::meshgrid(&[vector, x]).map(drop)),
        ("meshgrid", Tensor::meshgrid(&[vector, numbers]).map(drop)),
        ("cdist", x.cdist(vector, 2.0).map(drop)),
        ("cdist", x.cdist(&x.t()?, 2.0).map(drop)),
        ("cdist", x.cdist(x, -1.0).map(drop)),
        ("cdist", numbers.unsqueeze(0)?.cdist(&numbers.unsqueeze(0)?, 1.0).map(drop)),
        ("multinomial", numbers.multinomial(1, true).map(drop)),
        ("multinomial", cube.multinomial(1, true).map(drop)),
        ("multinomial", x.multinomial(1, true).map(drop)),
        ("multinomial", Tensor::new([1.0, -1.0], d)?.multinomial(1, true).map(drop)),
        ("multinomial", Tensor::new([1.0, 0.0], d)?.multinomial(2, false).map(drop)),
    ])
}

/// Samples of images.
pub fn samples(d: &Device) -> Result<Vec<Call>> {
    let (x, image) = (&Tensor::zeros([2, 3], d)?, &Tensor::zeros([1, 2, 5, 5], d)?);
    let (whole, pixels) = (&x.to_dtype(DType::I32)?, &image.to_dtype(DType::I32)?);
    let (line, halves) = (&Tensor::zeros([1, 2, 5], d)?, &Tensor::zeros([1, 2, 2, 2], d)?.to_dtype(DType::F16)?);
    let cubic = Interpolation::Cubic { align_corners: true };
    let (mode, padding) = (GridMode::Bilinear, GridPadding::Zeros);
    Ok(vec![
        ("interpolate", pixels.interpolate([2, 2], cubic).map(drop)),
        ("resample", x.resample(2, &Resample::new(3)).map(drop)),
        ("resample", whole.resample(1, &Resample::new(2)).map(drop)),
        ("resample", x.resample(1, &Resample::new(4).scale(-1.0)).map(drop)),
        ("resample", x.resample(1, &Resample::new(1 << 24).antialias(true).scale(1e-9)).map(drop)),
        ("resample", x.narrow(1, 0, 0)?.resample(1, &Resample::new(4)).map(drop)),
        ("unfold", x.unfold(Unfold::new(2)).map(drop)),
        ("unfold", image.unfold(Unfold::new(9)).map(drop)),
        ("fold", line.fold(5, Unfold::new(2)).map(drop)),
        ("fold", pixels.unfold(Unfold::new(2))?.fold(5, Unfold::new(2)).map(drop)),
        ("grid_sample", x.grid_sample(x, mode, padding, false).map(drop)),
        ("grid_sample", image.grid_sample(image, mode, padding, false).map(drop)),
        ("grid_sample", image.grid_sample(halves, GridMode::Nearest, GridPadding::Border, true).map(drop)),
    ])
}

/// Calls with tensors of two devices.
pub fn mixed(d: &Device, other: &Device) -> Result<Vec<Call>> {
    let (x, y) = (&Tensor::zeros([2, 3], d)?, &Tensor::zeros([2, 3], other)?);
    let (near, far) = (&Tensor::new([0, 1], d)?, &Tensor::new([0, 1], other)?);
    let mut calls: Vec<Call> = vec![
        ("scatter_reduce", x.scatter_reduce(0, &near.unsqueeze(0)?, y, ScatterReduce::Prod, false).map(drop)),
        ("index_reduce", x.index_reduce(0, far, x, ScatterReduce::Prod, false).map(drop)),
        ("grid_sample", x.grid_sample(y, GridMode::Bilinear, GridPadding::Zeros, false).map(drop)),
        ("index", x.index(&[far]).map(drop)),
        ("index_put", x.index_put(&[near], y, false).map(drop)),
        ("masked_select", x.masked_select(y).map(drop)),
        ("bincount", near.bincount(Some(far), 0).map(drop)),
        ("searchsorted", near.searchsorted(far, false).map(drop)),
        ("repeat_interleave_by", x.repeat_interleave_by(far, 0).map(drop)),
        ("meshgrid", Tensor::meshgrid(&[near, far]).map(drop)),
        ("cdist", x.cdist(y, 2.0).map(drop)),
    ];
    each!(calls, x, [index_copy](0, far, x));
    each!(calls, x, [index_copy](0, near, y));
    Ok(calls)
}
