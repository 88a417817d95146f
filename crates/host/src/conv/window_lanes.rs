//! The gradient of a convolution's weight on the host, for images of few channels, in vectors of neighbouring windows: the gradient
//! of the result and the pixels are read where they lie, line by line, and each weight has a vector of sums.

use pulp::{Simd, WithSimd};

use super::Sizes;
use super::columns::add_parts;
use crate::memory::{Result, scratch};
use crate::tasks::try_share;
use crate::vectors::{MOST_LANES, array, with_vectors};

/// The most pixels of a line of the kernel.
pub(super) const LONGEST: usize = 7;

/// The most parts of the batch, each with its own sums, and the approximate number of windows of a part. As constants they keep
/// the order of additions, and so the result, independent of the number of threads.
const MOST_PARTS: usize = 16;
pub(super) const PART: usize = 4096;

/// The most vectors that are added up in registers, so that the rounding error is as small as for a shorter sum.
const TERMS: usize = 256;

pub(super) fn weight_grad(g: &Sizes, dy: &[f32], x: &[f32], dw: &mut [f32]) -> Result<()> {
    let (len, images) = (g.out_channels * g.depth(), g.images);
    let parts = (images * g.window.pixels() / PART).clamp(1, MOST_PARTS.min(images));
    let mut sums = scratch(parts * len)?;
    try_share(sums.chunks_mut(len.max(1)).enumerate(), 1, |(part, sums)| {
        let [first, end] = [part, part + 1].map(|part| part * images / parts);
        let (dy, x) = (&dy[first * g.out_image()..end * g.out_image()], &x[first * g.image()..end * g.image()]);
        add_images(g, dy, x, sums)
    })?;
    add_parts(&sums, dw);
    Ok(())
}

/// Writes the sum over some images.
fn add_images(g: &Sizes, dy: &[f32], x: &[f32], dw: &mut [f32]) -> Result<()> {
    let ([height, width], [_, padding]) = (g.window.size, g.window.params.padding);
    let line = width + 2 * padding;
    let mut lines = scratch(g.channels * height * line)?;
    lines.fill(0.0);
    let mut sums = scratch(g.out_channels * g.depth() * MOST_LANES)?;
    sums.fill(0.0);
    for (dy, x) in dy.chunks_exact(g.out_image()).zip(x.chunks_exact(g.image())) {
        for (to, x) in lines.chunks_exact_mut(line).zip(x.chunks_exact(width)) {
            to[padding..padding + width].copy_from_slice(x);
        }
        with_vectors(Image { g, dy, lines: &lines, line, sums: &mut sums });
    }
    for (dw, sums) in dw.iter_mut().zip(sums.chunks_exact(MOST_LANES)) {
        *dw = sums.iter().sum();
    }
    Ok(())
}

/// Adds one image to the sums, `[output channels, channels, lines of the kernel, pixels of the line, MOST_LANES]`.
struct Image<'a> {
    g: &'a Sizes,
    dy: &'a [f32],
    lines: &'a [f32],
    line: usize,
    sums: &'a mut [f32],
}

impl WithSimd for Image<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        // As many vectors of sums as registers hold beside the factors.
        macro_rules! add {
            ($($pixels:literal: $few:literal $many:literal),*) => {
                match self.g.window.params.kernel[1] {
                    $($pixels if const { S::REGISTER_COUNT < 32 } => self.add::<S, $few, $pixels>(simd),
                    $pixels => self.add::<S, $many, $pixels>(simd),)*
                    _ => {}
                }
            };
        }
        add!(2: 4 8, 3: 4 8, 4: 2 6, 5: 2 4, 6: 1 4, 7: 1 3);
    }
}

impl Image<'_> {
    /// Adds the image, `M` output channels and `T` pixels of the kernel at a time.
    #[inline(always)]
    fn add<S: Simd, const M: usize, const T: usize>(&mut self, simd: S) {
        let (g, window) = (self.g, &self.g.window);
        for first in (0..g.out_channels).step_by(M) {
            let count = M.min(g.out_channels - first);
            // Past the last channel, the last one is read instead, for sums that are not stored.
            let planes: [&[f32]; M] =
                array(&[], |i| &self.dy[(first + i.min(count - 1)) * window.pixels()..][..window.pixels()]);
            for channel in 0..g.channels {
                for at in 0..window.params.kernel[0] {
                    let place = (first * g.channels + channel) * window.params.kernel[0] + at;
                    let (mut sums, mut terms) = ([[simd.splat_f32s(0.0); T]; M], 0);
                    for [y, from] in window.lines(at) {
                        let line = &self.lines[(channel * window.size[0] + from) * self.line..][..self.line];
                        for x in (0..window.out[1]).step_by(TERMS * S::F32_LANES) {
                            let end = window.out[1].min(x + TERMS * S::F32_LANES);
                            let dy = array(&[][..], |i| &planes[i][y * window.out[1] + x..y * window.out[1] + end]);
                            let more = (end - x).div_ceil(S::F32_LANES);
                            if terms + more > TERMS {
                                self.store(simd, &mut sums, (place, count));
                                terms = 0;
                            }
                            add_line(simd, &mut sums, dy, &line[x..], window.params.dilation[1]);
                            terms += more;
                        }
                    }
                    self.store(simd, &mut sums, (place, count));
                }
            }
        }
    }

    /// Adds the sums of `count` output channels to the sums from number `place · T` on, and sets them to 0.
    #[inline(always)]
    fn store<S: Simd, const M: usize, const T: usize>(
        &mut self,
        simd: S,
        sums: &mut [[S::f32s; T]; M],
        (place, count): (usize, usize),
    ) {
        let apart = self.g.depth() * MOST_LANES;
        for (i, sums) in sums.iter_mut().enumerate() {
            if i < count {
                let to = &mut self.sums[place * T * MOST_LANES + i * apart..][..T * MOST_LANES];
                for (to, sum) in to.chunks_exact_mut(MOST_LANES).zip(&*sums) {
                    let to = &mut S::as_mut_simd_f32s(to).0[0];
                    *to = simd.add_f32s(*to, *sum);
                }
            }
            *sums = [simd.splat_f32s(0.0); T];
        }
    }
}

/// Adds the windows of a line to the sums.
#[inline(always)]
fn add_line<S: Simd, const M: usize, const T: usize>(
    simd: S,
    sums: &mut [[S::f32s; T]; M],
    dy: [&[f32]; M],
    line: &[f32],
    dilation: usize,
) {
    let width = dy[0].len();
    for x in (0..width).step_by(S::F32_LANES) {
        // What is past the last window is 0 in both factors: the pixels there may be infinite.
        let count = S::F32_LANES.min(width - x);
        let load = |from: &[f32]| {
            let from = &from[..count];
            if count < S::F32_LANES { simd.partial_load_f32s(from) } else { S::as_simd_f32s(from).0[0] }
        };
        let pixels: [S::f32s; T] = array(simd.splat_f32s(0.0), |t| load(&line[x + t * dilation..]));
        for i in 0..M {
            let factor = load(&dy[i][x..]);
            for t in 0..T {
                sums[i][t] = simd.mul_add_e_f32s(factor, pixels[t], sums[i][t]);
            }
        }
    }
}
