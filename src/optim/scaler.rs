use super::clip::GradientBucket;
use super::scheduler::{named, named_count};
use super::{Optimizer, Parameters};
use crate::autograd::no_grad;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::tensor::Tensor;

/// Scales losses so that small gradients do not underflow in f16, like PyTorch's `GradScaler`.
///
/// The loss is multiplied by the scale before the backward pass, and the gradients are divided by it before the
/// optimiser's step. If a gradient is not finite, the step is skipped and the scale is halved. After 2 000 steps in a
/// row without a skip, the scale is doubled. The initial scale is 65 536.
///
/// One number is read back per step and optimiser. The replicas of a [`DataParallel`](crate::DataParallel) have equal
/// gradients, so only the first replica is checked. With `DataParallel`, multiply the loss by
/// [`get_scale`](GradScaler::get_scale) in the loss function.
///
/// # Example
/// ```
/// use anygpu::nn::{self, Module};
/// use anygpu::optim::{self, GradScaler, Optimizer, SGD};
/// use anygpu::{DType, Tensor, autocast};
///
/// let net = nn::models::mlp(&[4, 8, 2])?;
/// let (x, labels) = (Tensor::rand([6, 4], None)?, Tensor::new([0u32, 1, 0, 1, 1, 0], None)?);
/// let mut sgd = SGD::new(net.parameters(), 0.1);
/// let mut scaler = GradScaler::new();
/// for _ in 0..3 {
///     sgd.zero_grad();
///     let loss = autocast(DType::F16, || nn::cross_entropy(&net.forward(&x)?, &labels))?;
///     scaler.scale(&loss)?.backward()?;
///     scaler.unscale(&sgd)?; // only needed to look at gradients, or to clip them
///     optim::clip_grad_norm(sgd.parameters(), 1.0)?;
///     scaler.step(&mut sgd)?;
///     scaler.update()?;
/// }
/// assert_eq!(scaler.get_scale(), 65536.0);
/// # Ok::<(), anygpu::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct GradScaler {
    scale: f32,
    growth_factor: f32,
    backoff_factor: f32,
    growth_interval: u64,
    /// The number of steps since the last skipped one or the last growth.
    good_steps: u64,
    /// The optimisers whose gradients were divided since the last update.
    unscaled: Vec<Unscaled>,
}

/// An optimiser whose gradients were divided.
#[derive(Clone, Debug)]
struct Unscaled {
    optimizer: u64,
    /// The largest absolute gradients, before they are read back.
    largest: Vec<Tensor>,
    finite: Option<bool>,
    stepped: bool,
}

impl Unscaled {
    /// Reads the largest gradients, once.
    fn is_finite(&mut self) -> Result<bool> {
        if let Some(finite) = self.finite {
            return Ok(finite);
        }
        let mut finite = true;
        for largest in &self.largest {
            finite &= largest.item::<f32>()?.is_finite();
        }
        self.finite = Some(finite);
        Ok(finite)
    }
}

/// Identifies an optimiser by its first parameter.
fn identity(optimizer: &dyn Optimizer) -> u64 {
    optimizer.parameters().first().map_or(0, Tensor::id)
}

/// Returns `scale`, or an error unless gradients can be divided by it.
fn usable(scale: f32) -> Result<f32> {
    if !(scale.is_finite() && scale > 0.0) {
        return Err(Error::argument("GradScaler", format!("the scale must be finite and greater than 0, not {scale}")));
    }
    Ok(scale)
}

impl GradScaler {
    /// Creates a scaler with scale 65 536, growth by 2 every 2 000 steps, and backoff by 0.5.
    #[expect(
        clippy::new_without_default,
        reason = "the settings are PyTorch's defaults, and are named in the docs of new"
    )]
    #[must_use]
    pub fn new() -> GradScaler {
        GradScaler {
            scale: 65536.0,
            growth_factor: 2.0,
            backoff_factor: 0.5,
            growth_interval: 2000,
            good_steps: 0,
            unscaled: Vec::new(),
        }
    }

    /// Sets the initial scale.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] unless it is finite and more than 0.
    pub fn init_scale(mut self, scale: f32) -> Result<GradScaler> {
        self.scale = usable(scale)?;
        Ok(self)
    }

    /// Sets the factor by which the scale grows.
    #[must_use]
    pub fn growth_factor(mut self, factor: f32) -> GradScaler {
        self.growth_factor = factor;
        self
    }

    /// Sets the factor that multiplies the scale after a skipped step.
    #[must_use]
    pub fn backoff_factor(mut self, factor: f32) -> GradScaler {
        self.backoff_factor = factor;
        self
    }

    /// Sets the number of consecutive finite steps after which the scale grows.
    #[must_use]
    pub fn growth_interval(mut self, steps: u64) -> GradScaler {
        self.growth_interval = steps;
        self
    }

    /// Returns the current scale.
    #[must_use]
    pub fn get_scale(&self) -> f32 {
        self.scale
    }

    /// Returns the loss times the scale, as f32: call `backward` on it.
    ///
    /// # Errors
    /// Errors of the device, such as [`Error::DeviceLost`] and [`Error::OutOfMemory`].
    pub fn scale(&self, loss: &Tensor) -> Result<Tensor> {
        loss.to_dtype(DType::F32)?.mul(self.scale)
    }

    /// Divides the gradients of this optimiser's parameters by the scale, and starts the check for finite values on
    /// their device.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if this optimiser was already unscaled since the last [`update`](GradScaler::update);
    /// errors of the device.
    pub fn unscale(&mut self, optimizer: &dyn Optimizer) -> Result<()> {
        let optimizer_id = identity(optimizer);
        if self.unscaled.iter().any(|unscaled| unscaled.optimizer == optimizer_id) {
            let detail = "this optimiser's gradients were divided already: call update() after its step";
            return Err(Error::argument("GradScaler", detail));
        }
        let largest = no_grad(|| self.divided(optimizer.parameters()))?;
        self.unscaled.push(Unscaled { optimizer: optimizer_id, largest, finite: None, stepped: false });
        Ok(())
    }

    /// Divides the gradients. Returns the largest absolute value of each bucket of the first replica.
    fn divided(&self, parameters: &Parameters) -> Result<Vec<Tensor>> {
        let mut largest = Vec::new();
        for (i, replica) in parameters.replicas().enumerate() {
            for group in GradientBucket::all(replica)?.iter().filter(|group| group.flat().elem_count() > 0) {
                let flat = group.flat().mul(1.0 / self.scale)?;
                if i == 0 {
                    largest.push(flat.to_dtype(DType::F32)?.abs()?.max_all()?);
                }
                group.set(flat)?;
            }
        }
        Ok(largest)
    }

    /// Divides the gradients, unless [`unscale`](GradScaler::unscale) already did, and steps the optimiser if they are
    /// all finite. Returns whether it stepped.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a second step before an [`update`](GradScaler::update); the errors of the
    /// optimiser.
    pub fn step(&mut self, optimizer: &mut dyn Optimizer) -> Result<bool> {
        let id = identity(optimizer);
        if !self.unscaled.iter().any(|unscaled| unscaled.optimizer == id) {
            self.unscale(optimizer)?;
        }
        let Some(unscaled) = self.unscaled.iter_mut().find(|unscaled| unscaled.optimizer == id) else {
            return Ok(false);
        };
        if unscaled.stepped {
            return Err(Error::argument("GradScaler", "a second step of one optimiser: call update() after the first"));
        }
        unscaled.stepped = true;
        let finite = unscaled.is_finite()?;
        if finite {
            optimizer.step()?;
        }
        Ok(finite)
    }

    /// Lowers the scale if a step since the last update was skipped, and raises it after enough steps without a skip.
    /// If there was no step, the scale is unchanged.
    ///
    /// # Errors
    /// Errors of the device, such as [`Error::DeviceLost`] and [`Error::OutOfMemory`].
    pub fn update(&mut self) -> Result<()> {
        let mut finite = true;
        for unscaled in &mut self.unscaled {
            finite &= unscaled.is_finite()?;
        }
        let any = !self.unscaled.is_empty();
        self.unscaled.clear();
        if !finite {
            (self.scale, self.good_steps) = (self.scale * self.backoff_factor, 0);
        } else if any {
            self.good_steps += 1;
            if self.good_steps >= self.growth_interval {
                let grown = self.scale * self.growth_factor;
                (self.scale, self.good_steps) = (if grown.is_finite() { grown } else { self.scale }, 0);
            }
        }
        Ok(())
    }

    /// Returns the scale and the number of good steps. [`load_state`](GradScaler::load_state) continues from them.
    #[must_use]
    pub fn state(&self) -> Vec<(String, f64)> {
        vec![("scale".into(), f64::from(self.scale)), ("good_steps".into(), self.good_steps as f64)]
    }

    /// Restores the state of a scaler with the same settings.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if a number is missing or invalid. On error, the scaler is unchanged.
    pub fn load_state(&mut self, state: &[(String, f64)]) -> Result<()> {
        let (scale, good_steps) = (named(state, "scale")?, named_count(state, "good_steps")?);
        (self.scale, self.good_steps) = (usable(scale as f32)?, good_steps);
        Ok(())
    }
}
