//! Optimisers, which update parameters in place on any device; schedules of the learning rate, gradient clipping and
//! loss scaling.

mod adadelta;
mod adagrad;
mod adam;
mod clip;
mod ema;
#[cfg(test)]
mod fault_tests;
mod lbfgs;
mod lion;
mod muon;
mod param_groups;
mod parameters;
mod plateau;
mod rms_prop;
mod scaler;
mod schedule;
mod scheduler;
mod sgd;
mod state;
mod state_dict;
mod strong_wolfe;

pub use adadelta::Adadelta;
pub use adagrad::Adagrad;
pub use adam::{Adam, AdamW};
pub use clip::{clip_grad_norm, clip_grad_value};
pub use ema::Ema;
pub use lbfgs::LBFGS;
pub use lion::Lion;
pub use muon::{Muon, MuonRate};
pub use param_groups::ParamGroups;
pub use parameters::Parameters;
pub use plateau::ReduceLROnPlateau;
pub use rms_prop::RMSprop;
pub use scaler::GradScaler;
pub use schedule::{
    CosineAnnealingLR, ExponentialLR, LambdaLR, LinearLR, MultiStepLR, OneCycleLR, Schedule, SequentialLR, StepLR,
};
pub use scheduler::{LRScheduler, Scheduler};
pub(crate) use scheduler::{named, named_count};
pub use sgd::SGD;

use crate::error::Result;
use crate::nn::StateDict;

/// The interface of all optimisers, which schedulers, gradient scalers and checkpoints use.
///
/// ```
/// use anygpu::optim::{Adam, Optimizer, SGD};
/// use anygpu::{Result, Tensor};
///
/// fn halve(optimizer: &mut dyn Optimizer) {
///     optimizer.set_lr(optimizer.lr() / 2.0);
/// }
///
/// let p = Tensor::zeros([3], None)?.requires_grad();
/// let (mut sgd, mut adam) = (SGD::new(vec![p.clone()], 0.5), Adam::new(vec![p], 0.25));
/// halve(&mut sgd);
/// halve(&mut adam);
/// assert_eq!((sgd.lr(), adam.lr()), (0.25, 0.125));
/// # Ok::<(), anygpu::Error>(())
/// ```
pub trait Optimizer {
    /// Updates every parameter that has a gradient.
    ///
    /// # Errors
    /// Same as [`SGD::step`].
    fn step(&mut self) -> Result<()>;

    /// Checks the settings and the gradients like [`step`](Optimizer::step), and allocates the state that the step
    /// needs, without an update.
    ///
    /// Use it if several optimisers must all step, or none. It is not an error here if no parameter has a gradient,
    /// because the parameters of another optimiser may have gradients. The default does nothing.
    ///
    /// # Errors
    /// The errors of [`step`](Optimizer::step), except that the device may still be lost later.
    fn check_step(&mut self) -> Result<()> {
        Ok(())
    }

    /// Clears all gradients.
    fn zero_grad(&self);

    /// Returns the parameters in their original order.
    fn parameters(&self) -> &Parameters;

    /// Returns the learning rate.
    fn lr(&self) -> f32;

    /// Changes the learning rate from the next step on.
    fn set_lr(&mut self, lr: f32);

    /// Returns the optimiser's state under PyTorch's names, joined by dots: `state.0.step`, `state.0.exp_avg` and so on
    /// for parameter 0, and settings such as `param_groups.0.lr`.
    ///
    /// The tensors share their elements with the optimiser's tensors. With several replicas, returns the state of the
    /// first one; the others are equal.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`](crate::Error::OutOfMemory) if there is not enough memory for the numbers.
    fn state_dict(&self) -> Result<StateDict>;

    /// Loads a state, including the settings such as the learning rate.
    ///
    /// The state may come from this or another device, or from PyTorch
    /// ([`PickleValue::flatten`](crate::checkpoint::PickleValue::flatten)). Every replica of
    /// [`parameters`](Optimizer::parameters) gets the same state, regardless of the number of replicas that it was
    /// saved from.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) if the state belongs to another kind of optimiser, is
    /// empty or incomplete, has another number of parameter groups ([`ParamGroups`]), or has a different number or
    /// different shapes of parameters; errors of the device. On error, the optimiser is unchanged.
    ///
    /// ```
    /// use anygpu::optim::{Adam, Optimizer};
    /// use anygpu::{Result, Tensor};
    ///
    /// fn step(p: &Tensor, adam: &mut Adam) -> Result<()> {
    ///     adam.zero_grad();
    ///     p.square()?.sum_all()?.backward()?;
    ///     adam.step()
    /// }
    ///
    /// let p = Tensor::ones([2], None)?.requires_grad();
    /// let mut adam = Adam::new(vec![p.clone()], 0.1);
    /// step(&p, &mut adam)?;
    ///
    /// let q = Tensor::from_vec(p.to_vec::<f32>()?, 2, None)?.requires_grad(); // continue with a copy
    /// let mut other = Adam::new(vec![q.clone()], 0.5);
    /// other.load_state_dict(&adam.state_dict()?)?;
    /// step(&p, &mut adam)?;
    /// step(&q, &mut other)?;
    /// assert_eq!(p.to_vec::<f32>()?, q.to_vec::<f32>()?);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    fn load_state_dict(&mut self, state: &StateDict) -> Result<()>;
}

/// Implements the methods that all optimisers share, and the trait in terms of the type's own methods, which can be
/// called without importing the trait.
macro_rules! optimizer {
    ($($name:ident),*) => {$(
        impl $name {
            /// Updates every parameter that has a gradient. Does not read anything back or wait for the device.
            ///
            /// # Errors
            /// [`Error::InvalidArgument`](crate::Error::InvalidArgument):
            ///
            /// - for a setting that PyTorch also refuses, such as a negative or NaN learning rate or Nesterov's
            ///   momentum of 0;
            /// - if there are no parameters, or if a parameter is the result of an op or a view with gaps, which cannot
            ///   be updated in place;
            /// - if no parameter has a gradient;
            /// - if a parameter was replaced in its net, because the net was moved or unfrozen after the optimiser was
            ///   created. The net would not learn.
            ///
            /// [`Error::ShapeMismatch`](crate::Error::ShapeMismatch) or
            /// [`Error::DeviceMismatch`](crate::Error::DeviceMismatch) if a gradient does not fit its parameter; errors
            /// of the device.
            pub fn step(&mut self) -> Result<()> {
                let rule = self.rule()?;
                self.state.step(&rule)
            }
        }

        impl Optimizer for $name {
            fn step(&mut self) -> Result<()> {
                $name::step(self)
            }

            fn check_step(&mut self) -> Result<()> {
                let rule = self.rule()?;
                self.state.check_step(&rule)
            }

            fn zero_grad(&self) {
                $name::zero_grad(self);
            }

            fn parameters(&self) -> &Parameters {
                self.state.parameters()
            }

            fn lr(&self) -> f32 {
                $name::lr(self)
            }

            fn set_lr(&mut self, lr: f32) {
                $name::set_lr(self, lr);
            }

            fn state_dict(&self) -> Result<StateDict> {
                state_dict::save(self, &self.state)
            }

            fn load_state_dict(&mut self, state: &StateDict) -> Result<()> {
                state_dict::load(self, |optimizer| &mut optimizer.state, state)
            }
        }
    )*};
}

optimizer!(SGD, Adam, AdamW, RMSprop, Adagrad, Adadelta, Lion, Muon);

/// Implements the methods for the learning rate and the gradients, for optimisers of every kind.
macro_rules! of_every_kind {
    ($($name:ident),*) => {$(
        impl $name {
            /// Returns the learning rate.
            pub fn lr(&self) -> f32 {
                self.rate
            }

            /// Changes the learning rate from the next step on.
            pub fn set_lr(&mut self, lr: f32) {
                self.rate = lr;
            }

            /// Clears all gradients. [`Tensor::backward`](crate::Tensor::backward) adds to existing ones. (Not needed
            /// with [`DataParallel::train_batch`](crate::DataParallel::train_batch), which clears them itself.)
            pub fn zero_grad(&self) {
                self.state.parameters().zero_grad();
            }
        }
    )*};
}

of_every_kind!(SGD, Adam, AdamW, RMSprop, Adagrad, Adadelta, Lion, Muon, LBFGS);
