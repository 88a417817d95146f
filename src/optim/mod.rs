//! Optimisers: they move parameters along their gradients, in place, on whatever devices the parameters are.

mod adam;
mod group;
mod plateau;
mod rms_prop;
mod schedule;
mod scheduler;
mod sgd;

pub use adam::Adam;
pub use plateau::ReduceLrOnPlateau;
pub use rms_prop::RmsProp;
pub use schedule::{
    CosineAnnealingLr, ExponentialLr, LambdaLr, LinearLr, MultiStepLr, OneCycleLr, Schedule, SequentialLr, StepLr,
};
pub use scheduler::{LrScheduler, Scheduler};
pub use sgd::Sgd;

use crate::error::Result;
use crate::tensor::Tensor;

/// What all optimisers have in common: schedulers, gradient scalers and checkpoints take any of them.
///
/// ```
/// use anygpu::optim::{Adam, Optimizer, Sgd};
/// use anygpu::{Result, Tensor};
///
/// fn halve(optimizer: &mut dyn Optimizer) {
///     optimizer.set_lr(optimizer.lr() / 2.0);
/// }
///
/// let p = Tensor::zeros([3], None)?.requires_grad();
/// let (mut sgd, mut adam) = (Sgd::new(vec![p.clone()], 0.5), Adam::new(vec![p], 0.25));
/// halve(&mut sgd);
/// halve(&mut adam);
/// assert_eq!((sgd.lr(), adam.lr()), (0.25, 0.125));
/// # Ok::<(), anygpu::Error>(())
/// ```
pub trait Optimizer {
    /// Moves every parameter that has a gradient.
    ///
    /// # Errors
    /// As [`Sgd::step`].
    fn step(&mut self) -> Result<()>;

    /// Forgets all gradients.
    fn zero_grad(&self);

    /// The parameters, in the order in which they were given.
    fn parameters(&self) -> &[Tensor];

    /// The learning rate.
    fn lr(&self) -> f32;

    /// Changes the learning rate from the next step on.
    fn set_lr(&mut self, lr: f32);
}

/// The trait by the type's own functions, so that both ways to call them are one.
macro_rules! optimizer {
    ($($name:ident),*) => {$(
        impl Optimizer for $name {
            fn step(&mut self) -> Result<()> {
                $name::step(self)
            }

            fn zero_grad(&self) {
                $name::zero_grad(self);
            }

            fn parameters(&self) -> &[Tensor] {
                self.parameters.all()
            }

            fn lr(&self) -> f32 {
                $name::lr(self)
            }

            fn set_lr(&mut self, lr: f32) {
                $name::set_lr(self, lr);
            }
        }
    )*};
}

optimizer!(Sgd, Adam, RmsProp);
