//! Windows as columns, and sampling at the positions of a grid.

use super::prelude::*;
use crate::ops::{GridMode as Mode, GridPadding as Padding, Unfold};

pub(super) fn cases() -> Vec<Case> {
    [columns(), grids()].into_iter().flatten().collect()
}

#[derive(Clone, Copy)]
struct Windows {
    kernel: [usize; 2],
    stride: [usize; 2],
    padding: [usize; 2],
    dilation: [usize; 2],
}

impl Windows {
    fn options(self) -> Unfold<2> {
        Unfold::new(self.kernel).stride(self.stride).padding(self.padding).dilation(self.dilation)
    }

    fn count(self, d: usize, size: usize) -> usize {
        (size + 2 * self.padding[d] - self.dilation[d] * (self.kernel[d] - 1) - 1) / self.stride[d] + 1
    }

    /// Calls `f` with the index among the columns and the pixel of each position of each window that is in the image.
    fn each(self, [n, c, h, w]: [usize; 4], mut f: impl FnMut([usize; 3], [usize; 4])) {
        let [rows, columns] = [self.count(0, h), self.count(1, w)];
        let (k, s, p, d) = (self.kernel, self.stride, self.padding, self.dilation);
        let shape = [n, c, k[0], k[1], rows, columns];
        Nd::from_fn(&shape, |i| {
            let (y, x) =
                ((i[4] * s[0] + i[2] * d[0]).wrapping_sub(p[0]), (i[5] * s[1] + i[3] * d[1]).wrapping_sub(p[1]));
            if y < h && x < w {
                f([i[0], (i[1] * k[0] + i[2]) * k[1] + i[3], i[4] * columns + i[5]], [i[0], i[1], y, x]);
            }
            0.0
        });
    }
}

fn place(shape: &[usize], index: &[usize]) -> usize {
    shape.iter().zip(index).fold(0, |at, (size, i)| at * size + i)
}

fn columns() -> Vec<Case> {
    let plain = |kernel| Windows { kernel, stride: [1, 1], padding: [0, 0], dilation: [1, 1] };
    let x = |shape: &[usize]| signed(shape, 161);
    let mut cases = Vec::new();
    for (shape, windows) in [
        ([2, 3, 5, 4], plain([2, 3])),
        ([1, 2, 7, 6], Windows { stride: [2, 3], padding: [1, 2], ..plain([3, 2]) }),
        ([2, 1, 9, 5], Windows { dilation: [3, 2], padding: [2, 0], ..plain([3, 3]) }),
        ([1, 1, 4, 4], Windows { stride: [5, 5], padding: [3, 3], ..plain([1, 1]) }),
        ([0, 2, 4, 4], plain([2, 2])),
    ] {
        let [n, c, h, w] = shape;
        let taps = windows.kernel[0] * windows.kernel[1];
        let out = [n, c * taps, windows.count(0, h) * windows.count(1, w)];
        let unfolded = move |x: &[&Nd]| {
            let mut all = Nd::from_fn(&out, |_| 0.0);
            windows.each(shape, |column, pixel| all.data[place(&out, &column)] = x[0].at(&pixel));
            all
        };
        let folded = move |x: &[&Nd]| {
            let mut all = Nd::from_fn(&shape, |_| 0.0);
            windows.each(shape, |column, pixel| all.data[place(&shape, &pixel)] += x[0].at(&column));
            all
        };
        for input in [dense(x(&shape)), transposed(x(&shape), 1, 3), narrowed(x(&shape), 2)] {
            let op = move |t: &[Tensor]| t[0].unfold(windows.options());
            cases.push(Case::new("unfold", [input], op, unfolded).within(0.0, 1e-6));
        }
        for input in [dense(x(&out)), transposed(x(&out), 1, 2), narrowed(x(&out), 2)] {
            cases.push(Case::new("fold", [input], move |t| t[0].fold([h, w], windows.options()), folded));
        }
        let bytes = [dense(whole(&shape, 0, 200, 162)).of(DType::U8)];
        let case = Case::new("unfold u8", bytes, move |t| t[0].unfold(windows.options()), unfolded);
        cases.push(case.result_dtype(DType::U8));
        let halves = [dense(x(&out)).of(DType::F16)];
        let case = Case::new("fold f16", halves, move |t| t[0].fold([h, w], windows.options()), folded);
        cases.push(case.within(5e-3, 5e-3).result_dtype(DType::F16));
    }
    cases
}

#[derive(Clone, Copy)]
struct Way {
    mode: Mode,
    padding: Padding,
    corners: bool,
}

impl Way {
    /// Reflects a position between the borders until it is between them.
    fn within(self, mut at: f64, size: usize) -> f64 {
        let (low, high) = if self.corners { (0.0, size as f64 - 1.0) } else { (-0.5, size as f64 - 0.5) };
        if self.padding == Padding::Reflection {
            while high > low && !(low..=high).contains(&at) {
                at = if at < low { 2.0 * low - at } else { 2.0 * high - at };
            }
        }
        if self.padding == Padding::Zeros { at } else { at.clamp(0.0, size as f64 - 1.0) }
    }

    fn cubic(d: f64) -> f64 {
        match d.abs() {
            d if d <= 1.0 => 1.25 * d.powi(3) - 2.25 * d.powi(2) + 1.0,
            d if d < 2.0 => -0.75 * (d.powi(3) - 5.0 * d.powi(2) + 8.0 * d - 4.0),
            _ => 0.0,
        }
    }

    /// The pixels of a dimension that count at a position from −1 to 1, with their weights.
    fn pixels(self, grid: f64, size: usize) -> Vec<(f64, f64)> {
        let len = size as f64;
        let at = if self.corners { (grid + 1.0) / 2.0 * (len - 1.0) } else { ((grid + 1.0) * len - 1.0) / 2.0 };
        let near: Vec<f64> = (-3..=3).map(|d| at.floor() + f64::from(d)).collect();
        let list: Vec<(f64, f64)> = match self.mode {
            Mode::Bicubic => near.iter().map(|&i| (self.within(i, size), Self::cubic(i - at))).collect(),
            Mode::Nearest => vec![(self.within(at, size).round_ties_even(), 1.0)],
            Mode::Bilinear => {
                let at = self.within(at, size);
                (-1..=1)
                    .map(|d| (at.floor() + f64::from(d), 1.0))
                    .map(|(i, _)| (i, (1.0 - (at - i).abs()).max(0.0)))
                    .collect()
            }
        };
        list.into_iter().filter(|(i, weight)| *weight != 0.0 && (0.0..len).contains(i)).collect()
    }
}

fn sampled(x: &Nd, grid: &Nd, way: Way) -> Nd {
    let dims = x.shape.len() - 2;
    let shape = [&x.shape[..2], &grid.shape[1..=dims]].concat();
    Nd::from_fn(&shape, |to| {
        let at = |d: usize| grid.at(&[&to[..1], &to[2..], &[dims - 1 - d][..]].concat());
        let mut all = vec![(to[..2].to_vec(), 1.0)];
        for d in 0..dims {
            let pixels = way.pixels(at(d), x.shape[d + 2]);
            all = all
                .iter()
                .flat_map(|(index, weight)| {
                    pixels.iter().map(move |(i, share)| ([&index[..], &[*i as usize]].concat(), weight * share))
                })
                .collect();
        }
        all.iter().map(|(index, weight)| weight * x.at(index)).sum()
    })
}

fn grids() -> Vec<Case> {
    let x = |shape: &[usize]| signed(shape, 163);
    let grid = |shape: &[usize]| uniform(shape, -1.6, 1.6, 164);
    let mut cases = Vec::new();
    let modes = [Mode::Bilinear, Mode::Nearest, Mode::Bicubic];
    let paddings = [Padding::Zeros, Padding::Border, Padding::Reflection];
    for way in modes
        .into_iter()
        .flat_map(|mode| paddings.map(|padding| (mode, padding)))
        .flat_map(|(mode, padding)| [false, true].map(|corners| Way { mode, padding, corners }))
    {
        let mut inputs = vec![
            [dense(x(&[2, 3, 5, 4])), dense(grid(&[2, 3, 2, 2]))],
            [transposed(x(&[1, 2, 4, 3]), 1, 3), narrowed(grid(&[1, 1, 7, 2]), 2)],
        ];
        if way.mode != Mode::Bicubic {
            inputs.push([narrowed(x(&[1, 2, 3, 4, 2]), 3), transposed(grid(&[1, 2, 3, 2, 3]), 1, 2)]);
        }
        for inputs in inputs {
            let op = move |t: &[Tensor]| t[0].grid_sample(&t[1], way.mode, way.padding, way.corners);
            let name = format!("grid_sample {:?} {:?} {}", way.mode, way.padding, way.corners);
            cases.push(Case::new(name, inputs, op, move |x| sampled(x[0], x[1], way)).within(1e-5, 1e-5));
        }
    }
    let way = Way { mode: Mode::Bilinear, padding: Padding::Zeros, corners: false };
    let op = move |t: &[Tensor]| t[0].grid_sample(&t[1], way.mode, way.padding, way.corners);
    let oracle = move |x: &[&Nd]| sampled(x[0], x[1], way);
    let halves = [dense(x(&[1, 2, 3, 4])).of(DType::F16), dense(grid(&[1, 2, 2, 2])).of(DType::F16)];
    cases.push(
        Case::new("grid_sample f16", halves, op, oracle).within(3e-3, 3e-3).result_dtype(DType::F16).no_gradient(),
    );
    cases.push(Case::new("grid_sample empty", [dense(x(&[0, 2, 3, 3])), dense(grid(&[0, 1, 1, 2]))], op, oracle));
    cases
}
