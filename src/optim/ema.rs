//! Moving averages of weights.

use super::state::still_trained;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::nn::{Module, StateDict, moved};
use crate::ops::optim::{UpdateRule, optimiser_step};
use crate::tensor::{Bucket, Tensor};

const NAME: &str = "Ema";

/// The number of updates, in a state.
const UPDATES: &str = "n_averaged";

/// The exponential moving average of a module's parameters, which is often better than the parameters of the last step.
///
/// Call [`update`](Ema::update) after each step of the optimiser. The first update copies the parameters. Each later
/// one changes the average a to `decay · a + (1 − decay) · p`, like PyTorch's `AveragedModel` with
/// `get_ema_multi_avg_fn`. Buffers, such as running statistics, are copied. [`copy_to`](Ema::copy_to) writes the
/// averages into a module. [`swap`](Ema::swap) exchanges them with the parameters, for an evaluation during training.
/// For a checkpoint, save [`state_dict`](Ema::state_dict) as a group of tensors beside the module.
///
/// It holds the module's tensors, like an optimiser: move the module before you create it. Parameters in one flat
/// buffer are averaged by one dispatch per device.
///
/// # Example
/// ```
/// use anygpu::nn::{Linear, Module};
/// use anygpu::optim::{Ema, SGD};
/// use anygpu::{Tensor, no_grad};
///
/// let net = Linear::new(1, 1)?.without_bias();
/// no_grad(|| net.weight().fill_(1.0))?;
/// let mut ema = Ema::new(&net, 0.75)?;
/// ema.update()?; // a = 1
/// no_grad(|| net.weight().fill_(3.0))?;
/// ema.update()?; // a = 0.75 · 1 + 0.25 · 3
/// ema.swap()?;
/// assert_eq!(net.weight().item::<f32>()?, 1.5);
/// ema.swap()?;
/// assert_eq!(net.weight().item::<f32>()?, 3.0);
/// # Ok::<(), anygpu::Error>(())
/// ```
#[derive(Debug)]
pub struct Ema {
    decay: f32,
    updates: u32,
    names: Vec<String>,
    /// The module's parameters.
    all: Vec<Tensor>,
    parameters: Vec<Run>,
    buffers: Vec<(String, Tensor, Tensor)>,
}

/// Neighbouring parameters, and their averages in the same layout.
#[derive(Debug)]
struct Run {
    parameters: Bucket,
    averages: Bucket,
}

impl Ema {
    /// Creates the averages of all parameters of a module, which start with the current parameters.
    ///
    /// `decay` is the share of the earlier average in each update, usually from 0.99 to 0.9999.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] unless the decay is from 0 to 1, if the module has no parameters, or if a parameter
    /// is a view with gaps; [`Error::DTypeMismatch`] for a parameter that is not f32; [`Error::OutOfMemory`].
    pub fn new(module: &(impl Module + ?Sized), decay: f32) -> Result<Ema> {
        if !(0.0..=1.0).contains(&decay) {
            return Err(Error::argument(NAME, format!("the decay is {decay}, and must be from 0 to 1")));
        }
        let (names, all): (Vec<String>, Vec<Tensor>) = module.named_parameters().into_iter().unzip();
        if all.is_empty() {
            return Err(Error::argument(NAME, "the module has no parameters to average"));
        }
        let run = |run: &[Tensor]| {
            for parameter in run {
                if parameter.dtype() != DType::F32 {
                    let (expected, got) = ("f32".into(), parameter.dtype().to_string());
                    return Err(Error::DTypeMismatch { op: NAME, expected, got });
                }
            }
            let gaps = "a parameter is a view with gaps: give the tensor it is a view of";
            let run: Vec<Tensor> = run.iter().map(Tensor::detach).collect();
            let parameters = Bucket::recognise(&run).ok_or_else(|| Error::argument(NAME, gaps))?;
            let averages = parameters.with_flat(parameters.flat().copy()?);
            Ok(Run { parameters, averages })
        };
        let buffer = |(name, buffer): (String, Tensor)| {
            let copy = buffer.detach().copy()?;
            Ok((name, buffer, copy))
        };
        Ok(Ema {
            decay,
            updates: 0,
            names,
            parameters: Bucket::runs(&all).map(run).collect::<Result<_>>()?,
            buffers: module.named_buffers().into_iter().map(buffer).collect::<Result<_>>()?,
            all,
        })
    }

    /// Averages the current parameters, and copies the buffers. Does not wait for the device.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the module was moved, or given to [`DataParallel`](crate::DataParallel), after the
    /// averages were created, because it then has other parameters; errors of the device.
    pub fn update(&mut self) -> Result<()> {
        still_trained(NAME, &self.all, 0, "make the averages from the net")?;
        crate::no_grad(|| {
            for Run { parameters, averages } in &self.parameters {
                match self.updates {
                    0 => averages.copy_from(parameters)?,
                    _ => {
                        // w − rate · (g + decay · w) = w + rate · (p − w) for the gradient p with the signs of these numbers.
                        let rule = UpdateRule::Plain { rate: self.decay - 1.0, decay: -1.0 };
                        optimiser_step(averages.flat(), parameters.flat(), &[], rule)?;
                    }
                }
            }
            self.buffers.iter().try_for_each(|(_, buffer, copy)| copy.copy_(buffer))
        })?;
        self.updates = self.updates.saturating_add(1);
        Ok(())
    }

    /// Returns the number of updates so far.
    #[must_use]
    pub fn num_updates(&self) -> u32 {
        self.updates
    }

    /// Exchanges the averages with the parameters, and the copies of the buffers with the buffers.
    ///
    /// A second call restores both. Do not train or call [`update`](Ema::update) between the two calls.
    ///
    /// # Errors
    /// Errors of the device, such as [`Error::DeviceLost`] and [`Error::OutOfMemory`].
    pub fn swap(&mut self) -> Result<()> {
        let exchange = |a: &Tensor, b: &Tensor| {
            let kept = a.copy()?;
            a.copy_(b)?;
            b.copy_(&kept)
        };
        crate::no_grad(|| {
            for Run { parameters, averages } in &self.parameters {
                exchange(parameters.flat(), averages.flat())?;
            }
            self.buffers.iter().try_for_each(|(_, buffer, copy)| exchange(&buffer.detach(), copy))
        })
    }

    /// Writes the averages and the copies of the buffers into a module with the same names, for example a clone for
    /// inference on any device.
    ///
    /// # Errors
    /// The errors of [`Module::load_state_dict`].
    pub fn copy_to(&self, module: &(impl Module + ?Sized)) -> Result<()> {
        module.load_state_dict(&self.averages()?, true).map(drop)
    }

    /// Returns the averages and the copies of the buffers by the names in the module. They share their elements with
    /// this average.
    ///
    /// # Errors
    /// Errors of creating views.
    pub fn averages(&self) -> Result<StateDict> {
        let mut state = StateDict::new();
        let mut names = self.names.iter();
        for run in &self.parameters {
            for (tensor, name) in run.averages.tensors()?.into_iter().zip(&mut names) {
                state.insert(name.clone(), tensor);
            }
        }
        for (name, _, copy) in &self.buffers {
            state.insert(name.clone(), copy.clone());
        }
        Ok(state)
    }

    /// Returns the state for a checkpoint: the [`averages`](Ema::averages), with the module's names, and the number of
    /// updates as `n_averaged`.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if there is not enough memory for the number.
    ///
    /// ```
    /// use anygpu::nn::{Linear, Module};
    /// use anygpu::optim::Ema;
    ///
    /// let net = Linear::new(2, 2)?;
    /// let mut ema = Ema::new(&net, 0.9)?;
    /// ema.update()?;
    /// let mut other = Ema::new(&net, 0.9)?;
    /// other.load_state_dict(&ema.state_dict()?)?;
    /// assert_eq!(other.num_updates(), 1);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn state_dict(&self) -> Result<StateDict> {
        let mut state = self.averages()?;
        state.insert(UPDATES, Tensor::scalar(self.updates.cast_signed(), None)?);
        Ok(state)
    }

    /// Loads a state that [`state_dict`](Ema::state_dict) returned, from any device.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if a tensor is missing, has another shape or is not known here; errors of the device.
    /// On error, the averages are unchanged.
    pub fn load_state_dict(&mut self, state: &StateDict) -> Result<()> {
        let refused = |detail: String| Error::argument(NAME, format!("{detail}; the averages are unchanged"));
        let own = self.averages()?;
        if let Some(name) = state.names().find(|name| *name != UPDATES && own.get(name).is_none()) {
            return Err(refused(format!("the state has {name}, which the module does not have")));
        }
        let find = |name: &str| state.get(name).ok_or_else(|| refused(format!("the state has no {name}")));
        let updates = find(UPDATES)?.to_vec_f64()?;
        let &[updates] = updates.as_slice() else { return Err(refused(format!("{UPDATES} is not one number"))) };
        let mut pairs = Vec::new();
        for (name, tensor) in own.iter() {
            let saved = find(name)?;
            if saved.shape() != tensor.shape() {
                let (saved, here) = (saved.shape(), tensor.shape());
                return Err(refused(format!("{name} is {saved:?} in the state, but {here:?} in the module")));
            }
            let here = moved(&[saved], tensor.device())?.remove(0).to_dtype(tensor.dtype())?;
            pairs.push((tensor, here));
        }
        crate::no_grad(|| pairs.iter().try_for_each(|(tensor, value)| tensor.copy_(value)))?;
        self.updates = updates.max(0.0) as u32;
        Ok(())
    }
}
