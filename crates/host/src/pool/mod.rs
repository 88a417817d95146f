//! Pooling over sliding windows (maxima and means), and over parts that divide a dimension ([`parts`]), with their gradients.

mod largest;
pub mod parts;
mod quarters;

use self::largest::{Slide, largest};
use crate::memory::{Result, Scratch, scratch};
use crate::sums::{Sum, added};
use crate::tasks::{share, try_share_with};
use crate::vectorised;
use crate::window::Window;

pub use self::largest::NONE;

/// The fewest planes for a thread.
const FEWEST: usize = 16;

/// The operation on a window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Mode {
    /// The largest element. NaN counts as the largest.
    Max,
    /// The mean of its pixels, and of the padding if it counts.
    Avg {
        /// Whether the padding counts, as zeros.
        count_include_pad: bool,
    },
}

/// The ways to pool planes.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    /// Windows of 2 × 2 pixels that are 2 apart (`quarters.rs`).
    Quarters,
    /// Maxima of windows that are one pixel apart: along the lines, then across them; with the size of a plane and its padding.
    Slide([usize; 2]),
    /// Maxima with their positions (`largest.rs`).
    Largest,
    /// Sums over one position of the kernel after the other.
    Sums,
}

/// Returns the way to pool planes.
fn plan(window: &Window, mode: Mode) -> Way {
    let max = mode == Mode::Max;
    match Slide::size(window).filter(|_| max) {
        _ if quarters::fits(window) => Way::Quarters,
        Some(size) => Way::Slide(size),
        None if max => Way::Largest,
        None => Way::Sums,
    }
}

/// Computes planes x `[.., H, W]` → `out [.., OH, OW]`.
///
/// # Errors
/// If there is no memory for intermediate results.
pub fn forward(window: &Window, mode: Mode, x: &[f32], out: &mut [f32]) -> Result<()> {
    let planes = out.chunks_mut(window.pixels()).zip(x.chunks(window.plane()));
    match plan(window, mode) {
        Way::Quarters => share(planes, FEWEST, |(out, x)| vectorised!(quarters::forward(window, mode, x, out))),
        Way::Slide(size) => {
            let slide = || Slide::new(window, size);
            try_share_with(planes, FEWEST, slide, |slide, (out, x)| {
                vectorised!(slide.compute(x, out));
                Ok(())
            })?;
        }
        Way::Largest => {
            let places = || scratch::<u32>(window.pixels());
            try_share_with(planes, FEWEST, places, |at, (out, x)| {
                vectorised!(largest(window, x, out, at));
                Ok(())
            })?;
        }
        Way::Sums => {
            let divisors = means(window, mode)?;
            share(planes, FEWEST, |(out, x)| {
                added(out, window.taps(), |out| add(window, x, out), |out| add(window, x, out));
                out.iter_mut().zip(divisors.iter()).for_each(|(out, divisor)| *out /= divisor);
            });
        }
    }
    Ok(())
}

/// Computes planes x `[.., H, W]` → the position `h · W + w` of each window's first maximum, `at [.., OH, OW]`: [`NONE`] for a window
/// without a pixel.
///
/// # Errors
/// If there is no memory for intermediate results.
pub fn positions(window: &Window, x: &[f32], at: &mut [u32]) -> Result<()> {
    let planes = at.chunks_mut(window.pixels()).zip(x.chunks(window.plane()));
    try_share_with(
        planes,
        FEWEST,
        || scratch::<f32>(window.pixels()),
        |values, (at, x)| {
            vectorised!(largest(window, x, values, at));
            Ok(())
        },
    )
}

/// Computes planes x `[.., H, W]` and the gradient g `[.., OH, OW]` of the results → `dx [.., H, W]`.
///
/// # Errors
/// If there is no memory for intermediate results.
pub fn backward(window: &Window, mode: Mode, [x, g]: [&[f32]; 2], dx: &mut [f32]) -> Result<()> {
    let (plane, pixels) = (window.plane(), window.pixels());
    let all = dx.chunks_mut(plane).zip(x.chunks(plane)).zip(g.chunks(pixels));
    if quarters::fits(window) {
        share(all, FEWEST, |((dx, x), g)| vectorised!(quarters::backward(window, mode, x, g, dx)));
        return Ok(());
    }
    let terms = window.taps(); // the most for one pixel
    if mode == Mode::Max {
        let memory = || Ok((scratch(pixels)?, scratch(pixels)?));
        return try_share_with(all, FEWEST, memory, |(values, at), ((dx, x), g)| {
            vectorised!(largest(window, x, values, at));
            added(dx, terms, |dx| add_at(at, g, dx), |dx| add_at(at, g, dx));
            Ok(())
        });
    }
    let divisors = means(window, mode)?;
    try_share_with(
        all,
        FEWEST,
        || scratch(pixels),
        |parts, ((dx, _), g)| {
            parts.iter_mut().zip(g).zip(divisors.iter()).for_each(|((part, g), divisor)| *part = g / divisor);
            added(dx, terms, |dx| spread(window, parts, dx), |dx| spread(window, parts, dx));
            Ok(())
        },
    )
}

/// Returns the divisors of the means over the windows of a plane.
fn means(window: &Window, mode: Mode) -> Result<Scratch> {
    let mut all = scratch(window.pixels())?;
    divisors(window, mode, &mut all);
    Ok(all)
}

/// Writes the divisors of the means over the windows of a plane, `[OH, OW]`.
pub fn divisors(window: &Window, mode: Mode, to: &mut [f32]) {
    let Window { params, size, .. } = window;
    let counted = |d: usize, o: usize| {
        let (start, padding) = (o * params.stride[d], params.padding[d]);
        let end = (start + params.kernel[d]).min(size[d] + 2 * padding);
        match mode {
            Mode::Avg { count_include_pad: false } => end.min(size[d] + padding) - start.max(padding),
            _ => end - start,
        }
    };
    let width = window.out[1];
    to.iter_mut().enumerate().for_each(|(o, to)| *to = (counted(0, o / width) * counted(1, o % width)) as f32);
}

/// Adds to every window its pixels.
fn add(window: &Window, x: &[f32], sums: &mut [impl Sum]) {
    for tap in 0..window.taps() {
        window.rows(tap, |o, i, len| {
            let pixels = x[i..].iter().step_by(window.params.stride[1]);
            sums[o..o + len].iter_mut().zip(pixels).for_each(|(sum, &x)| sum.take(x));
        });
    }
}

/// Adds to every pixel the parts of the windows that hold it.
fn spread(window: &Window, parts: &[f32], dx: &mut [impl Sum]) {
    for tap in 0..window.taps() {
        window.rows(tap, |o, i, len| {
            let pixels = dx[i..].iter_mut().step_by(window.params.stride[1]);
            pixels.zip(&parts[o..o + len]).for_each(|(dx, &part)| dx.take(part));
        });
    }
}

/// Adds every gradient to the pixel at its position, if it has one.
fn add_at(at: &[u32], g: &[f32], dx: &mut [impl Sum]) {
    let taken = at.iter().zip(g).filter(|(at, _)| **at != NONE);
    taken.for_each(|(&at, &g)| dx[at as usize].take(g));
}
