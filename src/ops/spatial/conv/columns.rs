//! A convolution on the host as a matrix product: blocks of images become columns (im2col). A block is large enough for
//! a matrix product and small enough for a cache.

use rayon::prelude::*;

use super::direct;
use super::geometry::Geometry;
use crate::device::cpu::scratch;
use crate::error::Result;
use crate::ops::linalg::gemm::{Matrix, Threads, gemm};

/// The approximate number of columns of a block.
const COLUMNS: usize = 256;

/// `PART`: the approximate number of output pixels that one part of the weight's gradient adds. Then the most parts,
/// and the most elements of all parts together. As constants they keep the order of additions, and so the result,
/// independent of the number of cores.
const PART: usize = 1024;
const MOST_PARTS: usize = 16;
const MOST_PARTIAL: usize = 4 << 20;

impl Geometry {
    /// Returns the images of a block of about `most` columns or tiles, if an image has `each`. Blocks are about equal.
    pub fn block(&self, each: usize, most: usize) -> usize {
        let blocks = (self.images * each / most).max(1);
        self.images.div_ceil(blocks).max(1)
    }

    /// Returns the threads of a block's products: one if there are enough blocks to keep every core busy.
    fn threads(&self, block: usize) -> Threads {
        if self.images.div_ceil(block) < rayon::current_num_threads() { Threads::All } else { Threads::One }
    }

    /// Copies a group's part of the results' gradients of some images to `[OC / groups, images · OH·OW]`.
    fn results(&self, dy: &[f32], group: usize, to: &mut [f32]) {
        let (pixels, wide) = (self.window.pixels(), self.group_out());
        let columns = dy.len() / self.out_image() * pixels;
        to.par_chunks_mut(columns).enumerate().with_min_len(16).for_each(|(o, row)| {
            for (n, row) in row.chunks_exact_mut(pixels).enumerate() {
                row.copy_from_slice(&dy[(n * self.out_channels + group * wide + o) * pixels..][..pixels]);
            }
        });
    }
}

pub(super) fn forward(g: &Geometry, x: &[f32], w: &[f32], bias: Option<&[f32]>, out: &mut [f32]) -> Result<()> {
    let (depth, pixels, wide) = (g.depth(), g.window.pixels(), g.group_out());
    let block = g.block(pixels, COLUMNS);
    let threads = g.threads(block);
    out.par_chunks_mut(block * g.out_image()).enumerate().try_for_each(|(i, out)| {
        let columns = out.len() / g.out_image() * pixels;
        let (mut cols, mut sums) = (scratch(depth * columns)?, scratch(wide * columns)?);
        for group in 0..g.groups {
            g.im2col(&x[i * block * g.image() + group * g.group_image()..], columns / pixels, &mut cols);
            let weights = Matrix::new(w, group * g.group_weights(), [depth, 1]);
            let right = Matrix::new(&cols, 0, [columns, 1]);
            gemm(&mut sums, weights, right, [wide, depth, columns], false, threads);
            for (n, out) in out.chunks_exact_mut(g.out_image()).enumerate() {
                let planes = out[group * wide * pixels..][..wide * pixels].chunks_exact_mut(pixels).enumerate();
                planes.for_each(|(o, y)| {
                    let add = bias.map_or(0.0, |bias| bias[group * wide + o]);
                    y.iter_mut().zip(&sums[o * columns + n * pixels..]).for_each(|(y, sum)| *y = sum + add);
                });
            }
        }
        Ok(())
    })
}

pub(super) fn input_grad(g: &Geometry, dy: &[f32], w: &[f32], dx: &mut [f32]) -> Result<()> {
    let (depth, pixels, wide) = (g.depth(), g.window.pixels(), g.group_out());
    let block = g.block(pixels, COLUMNS);
    let threads = g.threads(block);
    dx.par_chunks_mut(block * g.image()).enumerate().try_for_each(|(i, dx)| {
        let images = dx.len() / g.image();
        let columns = images * pixels;
        let (mut cols, mut grads) = (scratch(depth * columns)?, scratch(wide * columns)?);
        for group in 0..g.groups {
            if wide > 0 {
                g.results(&dy[i * block * g.out_image()..][..images * g.out_image()], group, &mut grads);
            }
            let weights = Matrix::new(w, group * g.group_weights(), [1, depth]);
            let right = Matrix::new(&grads, 0, [columns, 1]);
            gemm(&mut cols, weights, right, [depth, wide, columns], false, threads);
            dx.par_chunks_mut(g.image()).enumerate().for_each(|(n, dx)| {
                g.col2im(&cols[n * pixels..], columns, &mut dx[group * g.group_image()..][..g.group_image()]);
            });
        }
        Ok(())
    })
}

/// Computes the sum over parts of the batch: each in its own buffer, or in `dw` if there is only one.
pub(super) fn weight_grad(g: &Geometry, dy: &[f32], x: &[f32], dw: &mut [f32]) -> Result<()> {
    if g.images == 0 {
        dw.fill(0.0);
        return Ok(());
    }
    let most = (MOST_PARTIAL / dw.len().max(1)).clamp(1, MOST_PARTS).min(g.images);
    let parts = (g.images * g.window.pixels() / PART).clamp(1, most);
    if parts == 1 {
        return add_images(g, dy, x, dw, Threads::All);
    }
    let len = dw.len();
    let mut sums = scratch(parts * len)?;
    sums.par_chunks_mut(len).enumerate().try_for_each(|(part, sums)| {
        let [first, end] = [part, part + 1].map(|part| part * g.images / parts);
        let (dy, x) = (&dy[first * g.out_image()..end * g.out_image()], &x[first * g.image()..end * g.image()]);
        add_images(g, dy, x, sums, Threads::One)
    })?;
    dw.par_chunks_mut(4096).enumerate().for_each(|(i, dw)| {
        dw.copy_from_slice(&sums[i * 4096..][..dw.len()]);
        for part in sums[len..].chunks_exact(len) {
            dw.iter_mut().zip(&part[i * 4096..]).for_each(|(dw, v)| *dw += v);
        }
    });
    Ok(())
}

/// Adds the weight's gradient over some images, at least one.
fn add_images(g: &Geometry, dy: &[f32], x: &[f32], dw: &mut [f32], threads: Threads) -> Result<()> {
    let images = dy.len() / g.out_image();
    if g.direct() {
        let mut sums = vec![0f64; dw.len()];
        for (dy, x) in dy.chunks_exact(g.out_image()).zip(x.chunks_exact(g.image())) {
            direct::cpu_weight_grad(g, dy, x, &mut sums);
        }
        dw.iter_mut().zip(sums).for_each(|(dw, sum)| *dw = sum as f32);
        return Ok(());
    }
    let (depth, pixels, wide) = (g.depth(), g.window.pixels(), g.group_out());
    let block = g.block(pixels, COLUMNS).min(images);
    let (mut cols, mut grads) = (scratch(depth * block * pixels)?, scratch(wide * block * pixels)?);
    for first in (0..images).step_by(block) {
        let columns = block.min(images - first) * pixels;
        let (cols, grads) = (&mut cols[..depth * columns], &mut grads[..wide * columns]);
        let dy = &dy[first * g.out_image()..][..columns / pixels * g.out_image()];
        for (group, dw) in dw.chunks_exact_mut(g.group_weights()).enumerate() {
            g.im2col(&x[first * g.image() + group * g.group_image()..], columns / pixels, cols);
            g.results(dy, group, grads);
            let (left, right) = (Matrix::new(grads, 0, [columns, 1]), Matrix::new(cols, 0, [1, columns]));
            gemm(dw, left, right, [wide, columns, depth], first > 0, threads);
        }
    }
    Ok(())
}
