//! Normalisations: layer, RMS, group and batch norm are one computation on `[A, C, B]`, with statistics over A and B for each c.

mod loops;
mod moment;

pub use loops::{backward, gradient_sums, normalise, normalise_rows};
pub use moment::Moment;

use crate::tasks::share;
use crate::vectorised;

/// The operation after a normalisation. The gradient is masked by the result.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Then {
    #[default]
    /// Nothing.
    Nothing,
    /// Relu.
    Relu,
    /// A tensor, the last input, is added; then relu.
    AddRelu,
}

/// The sizes and the options of a normalisation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NormShape {
    /// `[A, C, B]`
    pub sizes: [usize; 3],
    /// Element i has feature `(i / span) % features`: the index of its weight and bias.
    pub span: usize,
    /// The number of weights and biases.
    pub features: usize,
    /// The number that is added to the variance.
    pub eps: f32,
    /// Whether the mean is subtracted.
    pub centre: bool,
    /// Whether the statistics are constants, not computed from x.
    pub fixed: bool,
    /// Whether there is a weight.
    pub weight: bool,
    /// Whether there is a bias.
    pub bias: bool,
    /// What follows.
    pub then: Then,
}

impl NormShape {
    /// Returns a normalisation with the mean and without weight and bias.
    pub fn new(sizes: [usize; 3], [span, features]: [usize; 2], eps: f32) -> NormShape {
        let then = Then::Nothing;
        NormShape { sizes, span, features, eps, centre: true, fixed: false, weight: false, bias: false, then }
    }

    /// Returns the number of elements of each statistic.
    pub fn count(&self) -> usize {
        self.sizes[0] * self.sizes[2]
    }

    /// Returns whether each statistic has its own weight and bias, as in batch norm.
    pub fn by_channel(&self) -> bool {
        self.features == self.sizes[1] && self.span == self.sizes[2]
    }

    /// Returns the mean of channel `c`, and 1 / √(variance + eps).
    fn statistics(&self, stats: &[f32], c: usize) -> (f32, f32) {
        (stats[c], self.scale(stats[self.sizes[1] + c]))
    }

    /// Returns 1 / √(variance + eps).
    fn scale(&self, variance: f32) -> f32 {
        1.0 / (variance + self.eps).sqrt()
    }
}

/// Computes the means of each c from x, and the variances; or the mean squares if the mean is not subtracted.
pub fn moments(norm: &NormShape, x: &[f32], [means, variances]: [&mut [f32]; 2]) {
    let [outer, channels, inner] = norm.sizes;
    share(means.iter_mut().zip(variances).enumerate(), 4096 / norm.count().max(1), |(c, (mean, variance))| {
        let rows = (0..outer).map(|a| &x[(a * channels + c) * inner..][..inner]);
        let total = vectorised!(Moment::of_rows(rows, norm.centre));
        (*mean, *variance) = (total.mean as f32, (total.squares / total.count) as f32);
    });
}
