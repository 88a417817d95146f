//! The expected results of ops, computed by plain loops. This file uses nothing of the crate outside this folder.

use super::nd::Nd;

/// Returns the shape that two shapes broadcast to.
fn joint(a: &[usize], b: &[usize]) -> Vec<usize> {
    let rank = a.len().max(b.len());
    let size = |s: &[usize], d: usize| if d + s.len() < rank { 1 } else { s[d + s.len() - rank] };
    (0..rank).map(|d| if size(a, d) == 1 { size(b, d) } else { size(a, d) }).collect()
}

/// Returns the element of `x` at `index` of a shape that `x` is broadcast to.
fn stretched(x: &Nd, index: &[usize]) -> f64 {
    let lead = index.len() - x.shape.len();
    let along = x.shape.iter().zip(&index[lead..]);
    x.data[along.fold(0, |position, (&s, &i)| position * s + if s == 1 { 0 } else { i })]
}

pub fn broadcast(x: &Nd, shape: &[usize]) -> Nd {
    Nd::from_fn(shape, |index| stretched(x, index))
}

pub fn binary(a: &Nd, b: &Nd, f: impl Fn(f64, f64) -> f64) -> Nd {
    Nd::from_fn(&joint(&a.shape, &b.shape), |index| f(stretched(a, index), stretched(b, index)))
}

pub fn permute(x: &Nd, dims: &[usize]) -> Nd {
    let shape: Vec<usize> = dims.iter().map(|&d| x.shape[d]).collect();
    let mut from = vec![0; dims.len()];
    Nd::from_fn(&shape, |index| {
        for (i, &d) in dims.iter().enumerate() {
            from[d] = index[i];
        }
        x.at(&from)
    })
}

pub fn transpose(x: &Nd, a: usize, b: usize) -> Nd {
    let mut dims: Vec<usize> = (0..x.shape.len()).collect();
    dims.swap(a, b);
    permute(x, &dims)
}

pub fn narrow(x: &Nd, dim: usize, start: usize, len: usize) -> Nd {
    let mut shape = x.shape.clone();
    shape[dim] = len;
    Nd::from_fn(&shape, |index| {
        let mut from = index.to_vec();
        from[dim] += start;
        x.at(&from)
    })
}

/// Computes `[.., m, k] · [.., k, n]`.
pub fn matmul(a: &Nd, b: &Nd) -> Nd {
    let (ra, rb) = (a.shape.len(), b.shape.len());
    let (m, k, n) = (a.shape[ra - 2], a.shape[ra - 1], b.shape[rb - 1]);
    let batch = joint(&a.shape[..ra - 2], &b.shape[..rb - 2]);
    let a = broadcast(a, &[&batch[..], &[m, k]].concat());
    let b = broadcast(b, &[&batch[..], &[k, n]].concat());
    let mut out = Vec::new();
    for z in 0..batch.iter().product::<usize>() {
        for i in 0..m {
            for j in 0..n {
                out.push((0..k).map(|l| a.data[(z * m + i) * k + l] * b.data[(z * k + l) * n + j]).sum());
            }
        }
    }
    Nd::new(&[&batch[..], &[m, n]].concat(), out)
}

/// Folds the elements along `dims` in order, starting at `start`.
pub fn reduce(x: &Nd, dims: &[usize], keepdim: bool, start: f64, f: impl Fn(f64, f64) -> f64) -> Nd {
    let mut shape = x.shape.clone();
    dims.iter().for_each(|&d| shape[d] = 1);
    let mut out = Nd::from_fn(&shape, |_| start);
    let mut index = vec![0; shape.len()];
    for &v in &x.data {
        let mut position = 0;
        for d in 0..shape.len() {
            position = position * shape[d] + if dims.contains(&d) { 0 } else { index[d] };
        }
        out.data[position] = f(out.data[position], v);
        for d in (0..shape.len()).rev() {
            index[d] += 1;
            if index[d] < x.shape[d] {
                break;
            }
            index[d] = 0;
        }
    }
    if !keepdim {
        out.shape = (0..shape.len()).filter(|d| !dims.contains(d)).map(|d| shape[d]).collect();
    }
    out
}

pub fn sum(x: &Nd, dims: &[usize], keepdim: bool) -> Nd {
    reduce(x, dims, keepdim, 0.0, |a, b| a + b)
}

pub fn max(x: &Nd, dims: &[usize], keepdim: bool) -> Nd {
    reduce(x, dims, keepdim, f64::NEG_INFINITY, f64::max)
}

pub fn mean(x: &Nd, dims: &[usize], keepdim: bool) -> Nd {
    let mut unique = dims.to_vec();
    unique.sort_unstable();
    unique.dedup();
    let count: usize = unique.iter().map(|&d| x.shape[d]).product();
    sum(x, dims, keepdim).map(|v| v / count as f64)
}

/// Returns the position of the first largest element along `dim`.
pub fn argmax(x: &Nd, dim: usize) -> Nd {
    let mut shape = x.shape.clone();
    shape.remove(dim);
    Nd::from_fn(&shape, |index| {
        let mut at = index.to_vec();
        at.insert(dim, 0);
        let mut best = (0, x.at(&at));
        for r in 1..x.shape[dim] {
            at[dim] = r;
            if x.at(&at) > best.1 {
                best = (r, x.at(&at));
            }
        }
        best.0 as f64
    })
}

/// Computes exp(x − m) / Σ exp(x − m) along `dim`, with the largest element m, or its logarithm if `log`.
pub fn softmax(x: &Nd, dim: usize, log: bool) -> Nd {
    let m = max(x, &[dim], true);
    let shifted = binary(x, &m, |x, m| x - m);
    let total = sum(&shifted.map(f64::exp), &[dim], true);
    match log {
        true => binary(&shifted, &total, |s, t| s - t.ln()),
        false => binary(&shifted, &total, |s, t| s.exp() / t),
    }
}

/// Computes −mean over n of log softmax(x[n])[labels[n]].
pub fn cross_entropy(x: &Nd, labels: &Nd) -> Nd {
    let log = softmax(x, 1, true);
    let classes = x.shape[1];
    let losses = labels.data.iter().enumerate().map(|(n, &label)| -log.data[n * classes + label as usize]);
    Nd::new(&[], vec![losses.sum::<f64>() / labels.data.len() as f64])
}
