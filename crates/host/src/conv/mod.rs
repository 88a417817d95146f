//! Convolutions over planes and their two gradients. [`plan`] says which way computes one.

mod columns;
mod direct;
mod few_windows;
mod flat;
mod image_lanes;
mod images;
mod lanes;
mod line_grad;
mod patches;
pub mod plan;
mod strips;
#[cfg(test)]
mod tests;
mod window_lanes;
mod winograd;
mod winograd_grad;

use crate::memory::Result;
use crate::sums::Sum;
use crate::tasks::share;
use crate::window::Window;

/// All sizes of one convolution: `channels` of the image in `groups`, each with its own `out_channels / groups` of the
/// result. A transposed convolution is described by the convolution that it transposes.
#[derive(Clone, Debug, PartialEq)]
pub struct Sizes {
    /// N
    pub images: usize,
    /// C
    pub channels: usize,
    /// OC
    pub out_channels: usize,
    /// The groups of channels, which divide `channels` and `out_channels`.
    pub groups: usize,
    /// The planes `[H, W]` and `[OH, OW]`, and the kernel.
    pub window: Window,
}

/// A function of elements that follows a convolution: from the first slice to the second one.
pub type Activation<'a> = &'a (dyn Fn(&[f32], &mut [f32]) + Sync);

impl Sizes {
    /// Returns the number of channels of a group.
    pub fn group_channels(&self) -> usize {
        self.channels / self.groups
    }

    /// Returns the number of output channels of a group.
    pub fn group_out(&self) -> usize {
        self.out_channels / self.groups
    }

    /// Returns the number of rows of a group's column matrix: C / groups · KH · KW.
    pub fn depth(&self) -> usize {
        self.group_channels() * self.window.taps()
    }

    /// Returns the number of weights of a group.
    pub fn group_weights(&self) -> usize {
        self.group_out() * self.depth()
    }

    /// Returns the number of elements of a group's part of one input image.
    pub fn group_image(&self) -> usize {
        self.group_channels() * self.window.plane()
    }

    /// Returns the number of elements of one input image.
    pub fn image(&self) -> usize {
        self.channels * self.window.plane()
    }

    /// Returns the number of elements of one output image.
    pub fn out_image(&self) -> usize {
        self.out_channels * self.window.pixels()
    }

    /// Returns whether groups are so thin (of one channel in a depthwise convolution) that a matrix product would mostly multiply
    /// padding, and the kernel so small that loops over it need not be split.
    pub fn is_thin(&self) -> bool {
        const THIN: usize = 16;
        const TAPS: usize = 1024;
        self.groups > 1 && self.group_channels() * self.group_out() <= THIN && self.window.taps() <= TAPS
    }
}

/// Computes x `[N, C, H, W]`, w `[OC, C / groups, KH, KW]`, optional bias `[OC]` → `out [N, OC, OH, OW]`, and what follows.
///
/// # Errors
/// If there is no memory for intermediate results.
pub fn forward(
    g: &Sizes,
    x: &[f32],
    w: &[f32],
    bias: Option<&[f32]>,
    then: Option<Activation>,
    out: &mut [f32],
) -> Result<()> {
    use plan::Forward;
    match plan::forward(g) {
        Forward::Flat => return flat::forward(g, x, w, bias, then, out),
        Forward::FewWindows => few_windows::forward(g, x, w, bias, out)?,
        Forward::Winograd => winograd::forward(g, x, w, bias, out)?,
        Forward::ImageLanes => image_lanes::convolve(g, false, (x, w, bias), out)?,
        Forward::Columns => columns::forward(g, x, w, bias, out)?,
        Forward::Direct => direct::forward(g, x, w, bias, out),
    }
    if let Some(then) = then {
        replace(out, then);
    }
    Ok(())
}

/// Replaces elements by a function of them.
fn replace(all: &mut [f32], then: Activation) {
    /// The elements of a task, the fewest tasks for a thread, and the elements that are computed at a time.
    const TASK: usize = 16 * 1024;
    const FEW_TASKS: usize = 2;
    const PART: usize = 1024;
    share(all.chunks_mut(TASK), FEW_TASKS, |task| {
        let mut x = [0.0; PART];
        for part in task.chunks_mut(PART) {
            let x = &mut x[..part.len()];
            x.copy_from_slice(part);
            then(x, part);
        }
    });
}

/// Computes dy `[N, OC, OH, OW]`, w `[OC, C / groups, KH, KW]` → `dx [N, C, H, W]`.
///
/// # Errors
/// If there is no memory for intermediate results.
pub fn input_grad(g: &Sizes, dy: &[f32], w: &[f32], dx: &mut [f32]) -> Result<()> {
    use plan::InputGrad;
    match plan::input_grad(g) {
        InputGrad::Winograd => winograd::input_grad(g, dy, w, dx),
        InputGrad::ImageLanes => image_lanes::convolve(g, true, (dy, w, None), dx),
        InputGrad::Columns => columns::input_grad(g, dy, w, dx),
        InputGrad::Direct => {
            direct::input_grad(g, dy, w, dx);
            Ok(())
        }
    }
}

/// Computes dy `[N, OC, OH, OW]`, x `[N, C, H, W]` → `dw [OC, C / groups, KH, KW]`.
///
/// # Errors
/// If there is no memory for intermediate results.
pub fn weight_grad(g: &Sizes, dy: &[f32], x: &[f32], dw: &mut [f32]) -> Result<()> {
    use plan::WeightGrad;
    match plan::weight_grad(g) {
        WeightGrad::Winograd => winograd_grad::weight_grad(g, dy, x, dw),
        WeightGrad::Lines => line_grad::weight_grad(g, dy, x, dw),
        WeightGrad::WindowLanes => window_lanes::weight_grad(g, dy, x, dw),
        WeightGrad::Columns => columns::weight_grad(g, dy, x, dw),
        WeightGrad::Direct => direct::weight_grad(g, dy, x, dw),
    }
}

/// [`forward`], [`input_grad`] and [`weight_grad`] by panels of columns, whatever the sizes: what other ways are compared with.
pub mod by_columns {
    pub use super::columns::{forward, input_grad, weight_grad};
}

/// Computes `to[i · stride] += factor · from[i]`.
fn add(to: &mut [impl Sum], stride: usize, from: &[f32], factor: f32) {
    if stride == 1 {
        to.iter_mut().zip(from).for_each(|(to, v)| to.take(factor * v));
    } else {
        to.iter_mut().step_by(stride).zip(from).for_each(|(to, v)| to.take(factor * v));
    }
}
