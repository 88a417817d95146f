//! Oracles of sliding windows: convolution and pooling.

use super::nd::Nd;

/// Returns the position that a window reads, `o · stride + k · dilation − padding`, if it is inside of `size`.
fn source(o: usize, k: usize, d: usize, m: &WindowParams, size: usize) -> Option<usize> {
    (o * m.stride[d] + k * m.dilation[d]).checked_sub(m.padding[d]).filter(|&at| at < size)
}

/// The parameters by which windows move over images; all `[vertical, horizontal]`.
#[derive(Clone, Copy, Debug)]
pub struct WindowParams {
    pub stride: [usize; 2],
    pub padding: [usize; 2],
    pub dilation: [usize; 2],
    pub groups: usize,
}

impl WindowParams {
    pub fn new(stride: [usize; 2], padding: [usize; 2]) -> WindowParams {
        WindowParams { stride, padding, dilation: [1, 1], groups: 1 }
    }

    /// Returns the number of windows along dimension `d` of an image.
    pub fn windows(&self, d: usize, size: usize, kernel: usize) -> usize {
        (size + 2 * self.padding[d] - self.dilation[d] * (kernel - 1) - 1) / self.stride[d] + 1
    }
}

/// Computes the convolution of `x: [N, C, H, W]`, `w: [OC, C / groups, KH, KW]`, `bias: [OC]`.
pub fn conv2d(x: &Nd, w: &Nd, bias: Option<&Nd>, m: WindowParams) -> Nd {
    let [n, c, h, wd] = [0, 1, 2, 3].map(|d| x.shape[d]);
    let [oc, deep, kh, kw] = [0, 1, 2, 3].map(|d| w.shape[d]);
    let wide = oc / m.groups;
    Nd::from_fn(&[n, oc, m.windows(0, h, kh), m.windows(1, wd, kw)], |index| {
        let [i, o, oy, ox] = [0, 1, 2, 3].map(|d| index[d]);
        let mut sum = bias.map_or(0.0, |b| b.data[o]);
        for ch in 0..deep {
            for ky in 0..kh {
                let Some(y) = source(oy, ky, 0, &m, h) else { continue };
                let row = &x.data[((i * c + o / wide * deep + ch) * h + y) * wd..][..wd];
                let taps = &w.data[((o * deep + ch) * kh + ky) * kw..][..kw];
                for (kx, tap) in taps.iter().enumerate() {
                    if let Some(x_) = source(ox, kx, 1, &m, wd) {
                        sum += row[x_] * tap;
                    }
                }
            }
        }
        sum
    })
}

/// Computes the gradient of a weight of the given shape: the sum of `dy · x` over all windows.
pub fn conv2d_weight_grad(x: &Nd, dy: &Nd, weight: &[usize], m: WindowParams) -> Nd {
    let [n, c, h, wd] = [0, 1, 2, 3].map(|d| x.shape[d]);
    let [oc, oh, ow] = [1, 2, 3].map(|d| dy.shape[d]);
    let wide = oc / m.groups;
    Nd::from_fn(weight, |index| {
        let [o, ch, ky, kx] = [0, 1, 2, 3].map(|d| index[d]);
        let mut sum = 0.0;
        for (i, oy, ox) in (0..n).flat_map(|i| (0..oh).flat_map(move |oy| (0..ow).map(move |ox| (i, oy, ox)))) {
            if let (Some(y), Some(x_)) = (source(oy, ky, 0, &m, h), source(ox, kx, 1, &m, wd)) {
                let pixel = x.data[((i * c + o / wide * weight[1] + ch) * h + y) * wd + x_];
                sum += pixel * dy.data[((i * oc + o) * oh + oy) * ow + ox];
            }
        }
        sum
    })
}

/// Computes `x: [N, C, H, W]`, `w: [C, OC / groups, KH, KW]`, `bias: [OC]`: adds each pixel's product with the kernel
/// to the result.
pub fn conv_transpose2d(x: &Nd, w: &Nd, bias: Option<&Nd>, m: WindowParams, extra: [usize; 2]) -> Nd {
    let [n, c, h, wd] = [0, 1, 2, 3].map(|d| x.shape[d]);
    let [_, wide, kh, kw] = [0, 1, 2, 3].map(|d| w.shape[d]);
    let size = |d: usize, size: usize, k: usize| {
        (size - 1) * m.stride[d] + m.dilation[d] * (k - 1) + extra[d] + 1 - 2 * m.padding[d]
    };
    let (oc, oh, ow) = (wide * m.groups, size(0, h, kh), size(1, wd, kw));
    let mut out = Nd::from_fn(&[n, oc, oh, ow], |index| bias.map_or(0.0, |b| b.data[index[1]]));
    Nd::from_fn(&[n, c, wide, h, wd, kh, kw], |index| {
        let [i, ch, o, y, x_, ky, kx] = [0, 1, 2, 3, 4, 5, 6].map(|d| index[d]);
        let (ty, tx) = (source(y, ky, 0, &m, oh), source(x_, kx, 1, &m, ow));
        if let (Some(ty), Some(tx)) = (ty, tx) {
            let channel = ch / (c / m.groups) * wide + o;
            out.data[((i * oc + channel) * oh + ty) * ow + tx] += x.at(&[i, ch, y, x_]) * w.at(&[ch, o, ky, kx]);
        }
        0.0
    });
    out
}

/// The elements that a mean counts outside of the image. `None` is the maximum, which ignores padding.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Mean {
    IncludePad,
    ExcludePad,
}

/// Pools with windows of one size; with `ceil` a last window may extend past the padding, if it starts before it.
pub fn pool2d(x: &Nd, mean: Option<Mean>, kernel: [usize; 2], m: WindowParams, ceil: bool) -> Nd {
    let [n, c, h, w] = [0, 1, 2, 3].map(|d| x.shape[d]);
    let count = |d: usize, size: usize| {
        let span = m.dilation[d] * (kernel[d] - 1) + 1;
        let end = size + 2 * m.padding[d] + if ceil { m.stride[d] } else { 1 };
        (0..size + m.padding[d]).step_by(m.stride[d]).filter(|start| start + span < end).count()
    };
    Nd::from_fn(&[n, c, count(0, h), count(1, w)], |index| {
        let (mut inside, mut padded) = (Vec::new(), 0);
        for ky in 0..kernel[0] {
            for kx in 0..kernel[1] {
                let (sy, sx) = (index[2] * m.stride[0] + ky, index[3] * m.stride[1] + kx);
                padded += usize::from(sy < h + 2 * m.padding[0] && sx < w + 2 * m.padding[1]);
                if let (Some(y), Some(x_)) = (source(index[2], ky, 0, &m, h), source(index[3], kx, 1, &m, w)) {
                    inside.push(x.at(&[index[0], index[1], y, x_]));
                }
            }
        }
        match mean {
            Some(Mean::IncludePad) => inside.iter().sum::<f64>() / padded as f64,
            Some(Mean::ExcludePad) => inside.iter().sum::<f64>() / inside.len() as f64,
            None => inside.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        }
    })
}

/// Pools to `size` parts. Part o has the elements i with o/O ≤ (i + 1)/L and i/L ≤ (o + 1)/O, borders excluded.
pub fn adaptive_pool2d(x: &Nd, average: bool, size: [usize; 2]) -> Nd {
    let [n, c, h, w] = [0, 1, 2, 3].map(|d| x.shape[d]);
    let holds = |o: usize, i: usize, parts: usize, len: usize| o * len < (i + 1) * parts && i * parts < (o + 1) * len;
    Nd::from_fn(&[n, c, size[0], size[1]], |index| {
        let mut inside = Vec::new();
        for y in (0..h).filter(|&y| holds(index[2], y, size[0], h)) {
            for x_ in (0..w).filter(|&x_| holds(index[3], x_, size[1], w)) {
                inside.push(x.at(&[index[0], index[1], y, x_]));
            }
        }
        match average {
            true => inside.iter().sum::<f64>() / inside.len() as f64,
            false => inside.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        }
    })
}

/// How windows move along one of three dimensions.
#[derive(Clone, Copy, Debug)]
pub struct Along {
    pub stride: usize,
    pub padding: [usize; 2],
    pub dilation: usize,
}

impl Along {
    fn windows(&self, size: usize, kernel: usize) -> usize {
        (size + self.padding[0] + self.padding[1] - self.dilation * (kernel - 1) - 1) / self.stride + 1
    }

    fn source(&self, o: usize, k: usize, size: usize) -> Option<usize> {
        (o * self.stride + k * self.dilation).checked_sub(self.padding[0]).filter(|&at| at < size)
    }
}

/// Computes the convolution of `x: [N, C, D, H, W]`, `w: [OC, C / groups, KD, KH, KW]`, `bias: [OC]`.
pub fn conv3d(x: &Nd, w: &Nd, bias: Option<&Nd>, m: [Along; 3], groups: usize) -> Nd {
    let (deep, wide) = (w.shape[1], w.shape[0] / groups);
    let out = [0, 1, 2].map(|d| m[d].windows(x.shape[2 + d], w.shape[2 + d]));
    Nd::from_fn(&[x.shape[0], w.shape[0], out[0], out[1], out[2]], |index| {
        let mut sum = bias.map_or(0.0, |b| b.data[index[1]]);
        Nd::from_fn(&w.shape[1..], |tap| {
            let at = [0, 1, 2].map(|d| m[d].source(index[2 + d], tap[1 + d], x.shape[2 + d]));
            if let [Some(z), Some(y), Some(x_)] = at {
                let pixel = x.at(&[index[0], index[1] / wide * deep + tap[0], z, y, x_]);
                sum += pixel * w.at(&[index[1], tap[0], tap[1], tap[2], tap[3]]);
            }
            0.0
        });
        sum
    })
}

/// Computes `x: [N, C, D, H, W]`, `w: [C, OC / groups, KD, KH, KW]`, `bias: [OC]`: adds each voxel's product with the kernel
/// to the result.
pub fn conv_transpose3d(x: &Nd, w: &Nd, bias: Option<&Nd>, m: [Along; 3], groups: usize, extra: [usize; 3]) -> Nd {
    let (from, wide) = (x.shape[1] / groups, w.shape[1]);
    let size = [0, 1, 2].map(|d| {
        let Along { stride, padding: [before, after], dilation } = m[d];
        (x.shape[2 + d] - 1) * stride + dilation * (w.shape[2 + d] - 1) + extra[d] + 1 - before - after
    });
    let oc = wide * groups;
    let mut out = Nd::from_fn(&[x.shape[0], oc, size[0], size[1], size[2]], |i| bias.map_or(0.0, |b| b.data[i[1]]));
    Nd::from_fn(&x.shape, |at| {
        Nd::from_fn(&w.shape[1..], |tap| {
            let to = [0, 1, 2].map(|d| m[d].source(at[2 + d], tap[1 + d], size[d]));
            if let [Some(z), Some(y), Some(x_)] = to {
                let channel = at[1] / from * wide + tap[0];
                let place = (((at[0] * oc + channel) * size[0] + z) * size[1] + y) * size[2] + x_;
                out.data[place] += x.at(at) * w.at(&[at[1], tap[0], tap[1], tap[2], tap[3]]);
            }
            0.0
        });
        0.0
    });
    out
}

/// Pools `[N, C, D, H, W]` with windows of one size: the kernel, stride, padding and dilation of each dimension. With `ceil` a
/// last window may extend past the padding, if it starts before it.
pub fn pool3d(x: &Nd, mean: Option<Mean>, m: [[usize; 4]; 3], ceil: bool) -> Nd {
    let count = |d: usize| {
        let ([kernel, stride, padding, dilation], size) = (m[d], x.shape[2 + d]);
        let end = size + 2 * padding + if ceil { stride } else { 1 };
        (0..size + padding).step_by(stride).filter(|start| start + dilation * (kernel - 1) + 1 < end).count()
    };
    Nd::from_fn(&[x.shape[0], x.shape[1], count(0), count(1), count(2)], |index| {
        let (mut inside, mut padded) = (Vec::new(), 0u32);
        Nd::from_fn(&m.map(|[kernel, ..]| kernel), |tap| {
            let places = [0, 1, 2].map(|d| index[2 + d] * m[d][1] + tap[d] * m[d][3]);
            padded += u32::from((0..3).all(|d| places[d] < x.shape[2 + d] + 2 * m[d][2]));
            let inner = [0, 1, 2].map(|d| places[d].checked_sub(m[d][2]).filter(|&at| at < x.shape[2 + d]));
            if let [Some(z), Some(y), Some(x_)] = inner {
                inside.push(x.at(&[index[0], index[1], z, y, x_]));
            }
            0.0
        });
        match mean {
            Some(Mean::IncludePad) => inside.iter().sum::<f64>() / f64::from(padded),
            Some(Mean::ExcludePad) => inside.iter().sum::<f64>() / inside.len() as f64,
            None => inside.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        }
    })
}
