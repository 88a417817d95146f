//! The state of a layer besides its parameters: its mode and its buffers.

use std::sync::atomic::{AtomicBool, Ordering};

use super::Child;
use crate::context::slot;
use crate::tensor::Tensor;

slot! {
    /// Whether layers that are switched to a mode now are also kept in evaluation mode from now on (`true`) or no
    /// longer (`false`). `None` does not change this.
    pub(super) KEEPS_EVAL: Option<bool> = None
}

/// Whether a layer is in training mode, which is the default.
///
/// Layers that behave differently in training have a field of this type.
///
/// [`Module::train`](super::Module::train) and [`Module::eval`](super::Module::eval) switch the mode of all layers.
///
/// ```
/// use anygpu::nn::{Mode, Module};
/// use anygpu::{Result, Tensor};
///
/// /// Adds noise, in training only.
/// #[derive(Clone)]
/// struct Noise {
///     mode: Mode,
/// }
///
/// impl Module for Noise {
///     anygpu::children!(mode);
///
///     fn forward(&self, x: &Tensor) -> Result<Tensor> {
///         if self.mode.is_training() { x.add(&Tensor::randn(x.shape(), x.device())?) } else { Ok(x.clone()) }
///     }
/// }
///
/// let (noise, x) = (Noise { mode: Mode::default() }, Tensor::ones([3], None)?);
/// assert_ne!(noise.forward(&x)?.to_vec::<f32>()?, [1.0; 3]);
/// noise.eval();
/// assert_eq!(noise.forward(&x)?.to_vec::<f32>()?, [1.0; 3]);
/// # Ok::<(), anygpu::Error>(())
/// ```
#[derive(Debug)]
pub struct Mode {
    training: AtomicBool,
    /// Whether [`Module::keep_eval`](super::Module::keep_eval) keeps the layer in evaluation mode.
    kept: AtomicBool,
}

impl Mode {
    /// Returns whether the layer is in training mode.
    pub fn is_training(&self) -> bool {
        self.training.load(Ordering::Relaxed)
    }
}

impl Default for Mode {
    /// Returns training mode.
    fn default() -> Self {
        Mode { training: AtomicBool::new(true), kept: AtomicBool::new(false) }
    }
}

/// The clone starts in the same mode; later switches of one do not affect the other.
impl Clone for Mode {
    fn clone(&self) -> Self {
        let kept = AtomicBool::new(self.kept.load(Ordering::Relaxed));
        Mode { training: AtomicBool::new(self.is_training()), kept }
    }
}

impl Child for Mode {
    fn visit_as(&self, _: &str, _: &mut dyn FnMut(&str, &Tensor)) {}

    fn visit_as_mut(&mut self, _: &str, _: &mut dyn FnMut(&str, &mut Tensor)) {}

    fn tell_training(&self, training: bool) {
        if let Some(kept) = KEEPS_EVAL.get() {
            self.kept.store(kept, Ordering::Relaxed);
        }
        let kept = self.kept.load(Ordering::Relaxed);
        self.training.store(training && !kept, Ordering::Relaxed);
    }
}

/// A tensor of a layer that is not a parameter, such as a running statistic.
///
/// It moves with the module and is saved with it, and optimisers do not update it.
#[derive(Clone, Debug)]
pub struct Buffer(pub Tensor);

impl Child for Buffer {
    fn visit_as(&self, _: &str, _: &mut dyn FnMut(&str, &Tensor)) {}

    fn visit_as_mut(&mut self, _: &str, _: &mut dyn FnMut(&str, &mut Tensor)) {}

    fn visit_buffers_as(&self, name: &str, f: &mut dyn FnMut(&str, &Tensor)) {
        f(name, &self.0);
    }

    fn visit_buffers_as_mut(&mut self, name: &str, f: &mut dyn FnMut(&str, &mut Tensor)) {
        f(name, &mut self.0);
    }
}
