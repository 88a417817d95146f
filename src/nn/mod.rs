//! Layers, as in `torch.nn`: a [`Module`] has a forward function and named parameters.
//!
//! Every constructor draws its parameters on `cpu`, from the generator that [`manual_seed`](crate::manual_seed) sets,
//! so that one seed gives one net whatever it runs on; [`Module::to`] then moves the whole net in one copy.
//!
//! Shapes in these pages: N batch, C channels, H W height and width, OC out-channels, K kernel size. Images are NCHW,
//! convolution weights OIHW.

mod activation;
mod attention;
mod children;
mod conv;
mod distance;
mod embedding;
pub mod init;
mod layers;
mod linear;
mod load_state;
mod loss;
mod mode;
pub mod models;
mod norm;
mod pool;
mod relocate;
mod sequential;
mod simple;
mod state_dict;
mod summary;

use std::collections::HashSet;

use crate::device::Device;
use crate::error::Result;
use crate::tensor::Tensor;

pub use activation::*;
pub use attention::MultiheadAttention;
pub use children::Child;
pub use conv::{Conv1d, Conv2d, ConvTranspose2d};
pub use distance::{bce_with_logits, huber_loss, kl_div, l1_loss, mse_loss, smooth_l1_loss};
pub use embedding::Embedding;
pub use layers::ModuleClone;
pub use linear::Linear;
pub use load_state::KeyReport;
pub use loss::{CrossEntropyLoss, Reduction, correct, cross_entropy, nll_loss};
pub use mode::{Buffer, Mode};
pub use norm::{BatchNorm1d, BatchNorm2d, GroupNorm, LayerNorm, RMSNorm};
pub use pool::{AdaptiveAvgPool2d, AvgPool2d, MaxPool2d};
pub(crate) use relocate::{buffers_onto, parameters_onto, replacing};
pub use sequential::Sequential;
pub use simple::{Dropout, Flatten, Identity, Residual, Upsample};
pub use state_dict::StateDict;
pub(crate) use state_dict::moved;
pub use summary::{LayerSummary, Summary};

/// A layer or a net: a differentiable function with named parameters.
///
/// A module of your own is a struct of its layers, `Clone` (so that [`DataParallel`](crate::DataParallel) can make a
/// replica for each device), with [`forward`](Module::forward) and [`children!`](crate::children), which lists the fields;
/// everything else is given.
///
/// # Example
/// ```
/// use anygpu::nn::{Linear, Module};
/// use anygpu::{Result, Tensor};
///
/// /// y = x + f(x)
/// #[derive(Clone)]
/// struct Residual {
///     inner: Linear,
/// }
///
/// impl Module for Residual {
///     anygpu::children!(inner);
///
///     fn forward(&self, x: &Tensor) -> Result<Tensor> {
///         x + &self.inner.forward(x)?
///     }
/// }
///
/// let net = Residual { inner: Linear::new(3, 3)? };
/// assert_eq!(net.forward(&Tensor::ones([2, 3], None)?)?.shape(), [2, 3]);
/// assert_eq!(net.num_parameters(), 3 * 3 + 3);
/// assert_eq!(net.get("inner.bias").map(|bias| bias.shape().to_vec()), Some(vec![3]));
/// # Ok::<(), anygpu::Error>(())
/// ```
pub trait Module: ModuleClone + Send + Sync + 'static {
    /// The layer's function; each layer says which shapes it takes.
    ///
    /// # Errors
    /// Those of the ops it is made of: a shape that does not fit, an input on another device than the parameters.
    fn forward(&self, input: &Tensor) -> Result<Tensor>;

    /// Calls `f` with the name (`"weight"`, in a [`Sequential`] `"conv1.weight"`) and the value of each parameter.
    fn visit(&self, f: &mut dyn FnMut(&str, &Tensor));

    /// As [`visit`](Module::visit), in the same order, so that parameters can be replaced.
    fn visit_mut(&mut self, f: &mut dyn FnMut(&str, &mut Tensor));

    /// Calls `f` with the name and the value of each buffer: what the layers keep besides parameters, as batch norm keeps
    /// its running statistics. They move with the module, and no optimiser touches them. Without buffers, leave this out.
    fn visit_buffers(&self, _f: &mut dyn FnMut(&str, &Tensor)) {}

    /// As [`visit_buffers`](Module::visit_buffers), in the same order, so that buffers can be replaced.
    fn visit_buffers_mut(&mut self, _f: &mut dyn FnMut(&str, &mut Tensor)) {}

    /// Tells every layer whether it is being trained; see [`train`](Module::train). A module of layers of your own passes
    /// it on to them ([`children!`](crate::children) does), or else they stay in training.
    fn set_training(&self, _training: bool) {}

    /// Calls `f` with the name of each layer directly within this one, and the layer.
    fn visit_children<'a>(&'a self, _f: &mut dyn FnMut(&str, &'a dyn Module)) {}

    /// As [`visit_children`](Module::visit_children), in the same order, so that layers can be changed.
    fn visit_children_mut<'a>(&'a mut self, _f: &mut dyn FnMut(&str, &'a mut dyn Module)) {}

    /// From now on, the layers behave as in training, as they do at first: dropout drops, batch norm uses the batch's
    /// statistics and updates its running ones. (`DataParallel` sets this itself.)
    fn train(&self) {
        self.set_training(true);
    }

    /// From now on, the layers behave as in use: dropout does nothing, batch norm uses its running statistics. This says
    /// nothing about gradients: for these there is [`no_grad`](crate::no_grad).
    fn eval(&self) {
        self.set_training(false);
    }

    /// All buffers with their dotted names, in order.
    fn named_buffers(&self) -> Vec<(String, Tensor)> {
        let mut all = Vec::new();
        let mut seen = HashSet::new();
        self.visit_buffers(&mut |name, buffer| {
            if seen.insert(buffer.id()) {
                all.push((name.to_string(), buffer.clone()));
            }
        });
        all
    }

    /// All parameters, in order. They share value and gradient with the module's own: give them to an optimiser.
    /// One that two layers share (a tied weight) is listed once.
    fn parameters(&self) -> Vec<Tensor> {
        self.named_parameters().into_iter().map(|(_, parameter)| parameter).collect()
    }

    /// All parameters with their dotted names, in order; one that two layers share under its first name.
    fn named_parameters(&self) -> Vec<(String, Tensor)> {
        let mut seen = HashSet::new();
        let mut all = Vec::new();
        self.visit(&mut |name, parameter| {
            if seen.insert(parameter.id()) {
                all.push((name.to_string(), parameter.clone()));
            }
        });
        all
    }

    /// The number of values in all parameters, frozen ones too.
    fn num_parameters(&self) -> usize {
        self.parameters().iter().map(Tensor::elem_count).sum()
    }

    /// The values by dotted name: parameters, then buffers, a tied weight under each of its names.
    ///
    /// The tensors share their elements with the module's: later steps change them too ([`StateDict::copied`] keeps them).
    ///
    /// ```
    /// use anygpu::nn::{BatchNorm2d, Module};
    ///
    /// let state = BatchNorm2d::new(3)?.state_dict();
    /// assert_eq!(state.names().collect::<Vec<_>>(), ["weight", "bias", "running_mean", "running_var"]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    fn state_dict(&self) -> StateDict {
        load_state::state_dict(self)
    }

    /// Copies the values of `state` into the tensors of this module, where they are: optimisers, other handles and
    /// `DataParallel` see the new values.
    ///
    /// Values are converted to the module's types and moved to its device, all of them in one staged copy. Where either side has
    /// `module.` before all of its names, as PyTorch's `DataParallel` has, and the other has not, it is dropped or added.
    /// PyTorch's `num_batches_tracked` is passed over. A tied weight needs one of its names only.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) that lists every name with another shape and, if `strict`,
    /// every name that only one side has; what the devices say. The module is unchanged then.
    ///
    /// ```
    /// use anygpu::nn::{Linear, Module};
    ///
    /// let (from, to) = (Linear::new(3, 2)?, Linear::new(3, 2)?);
    /// to.load_state_dict(&from.state_dict(), true)?;
    /// assert_eq!(to.parameters()[0].to_vec::<f32>()?, from.parameters()[0].to_vec::<f32>()?);
    ///
    /// let report = to.load_state_dict(&from.state_dict().add_prefix("fc."), false)?;
    /// assert_eq!((report.missing.len(), report.unexpected.len()), (2, 2));
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    fn load_state_dict(&self, state: &StateDict, strict: bool) -> Result<KeyReport> {
        load_state::load(self, state, strict)
    }

    /// Moves the module to `device`, in one staged copy whatever the number of parameters, and each of its buffers in one.
    ///
    /// There, the parameters are views into one flat buffer, each at a multiple of 256 bytes: the optimiser updates them
    /// with one dispatch. They are *new* leaves without a gradient: move first, then make the optimiser. A module that
    /// is there already stays as it is, and so do its optimisers.
    ///
    /// # Errors
    /// Those of opening `device` and of running out of memory there; the module is unchanged then.
    ///
    /// # Example
    /// ```
    /// use anygpu::nn::{Linear, Module};
    ///
    /// let device = anygpu::try_gpu(0);
    /// let mut layer = Linear::new(4, 2)?;
    /// layer.to(&device)?;
    /// assert_eq!(layer.parameters()[0].device(), &device);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    fn to(&mut self, device: &Device) -> Result<()> {
        let elsewhere = |tensors: Vec<Tensor>| {
            let stay = tensors.iter().all(|tensor| tensor.device() == device);
            if stay { Vec::new() } else { tensors }
        };
        let parameters = elsewhere(self.parameters());
        let buffers = elsewhere(self.named_buffers().into_iter().map(|(_, buffer)| buffer).collect());
        let (moved, moved_buffers) = (parameters_onto(&parameters, device)?, buffers_onto(&buffers, device)?);
        self.visit_mut(&mut replacing(&parameters, &moved));
        self.visit_buffers_mut(&mut replacing(&buffers, &moved_buffers));
        Ok(())
    }

    /// The parameter or buffer with this dotted name.
    ///
    /// ```
    /// use anygpu::nn::{self, Module};
    ///
    /// let net = nn::models::resnet18(3, 10)?;
    /// assert_eq!(net.get("layer1.0.conv1.weight").map(|w| w.shape().to_vec()), Some(vec![64, 64, 3, 3]));
    /// assert!(net.get("layer1.0.conv7.weight").is_none());
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    fn get(&self, name: &str) -> Option<Tensor> {
        let mut found = None;
        let mut look = |here: &str, tensor: &Tensor| {
            if here == name && found.is_none() {
                found = Some(tensor.clone());
            }
        };
        self.visit(&mut look);
        self.visit_buffers(&mut look);
        found
    }

    /// This module under the name `""`, and all layers within under their dotted names, each before those within it.
    /// [`type_name`](ModuleClone::type_name) and `downcast_ref` say what they are.
    ///
    /// ```
    /// use anygpu::nn::{Linear, Module, ReLU, Sequential};
    ///
    /// let net = Sequential::new().add("fc", Linear::new(2, 2)?).add("relu", ReLU);
    /// let all: Vec<_> = net.named_modules().into_iter().map(|(name, module)| (name, module.type_name())).collect();
    /// let expected = [("", "Sequential"), ("fc", "Linear"), ("relu", "ReLU")];
    /// assert_eq!(all, expected.map(|(name, kind)| (name.to_string(), kind)));
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    fn named_modules(&self) -> Vec<(String, &dyn Module)> {
        layers::slots(self.as_module()).into_iter().map(|(name, slot)| (name, layers::inner(slot))).collect()
    }

    /// The layer with this dotted name.
    fn get_submodule(&self, name: &str) -> Option<&dyn Module> {
        self.named_modules().into_iter().find(|(here, _)| here == name).map(|(_, module)| module)
    }

    /// Calls `f` with every layer, those within a layer before it, and with this module last, outside the graph: the way
    /// to start all parameters with a rule of [`init`]. The first error ends it.
    ///
    /// # Errors
    /// Those of `f`.
    ///
    /// ```
    /// use anygpu::nn::{self, Linear, Module, init};
    ///
    /// fn xavier(layer: &dyn Module) -> anygpu::Result<()> {
    ///     if let Some(linear) = layer.downcast_ref::<Linear>() {
    ///         init::xavier_uniform_(linear.weight(), 1.0)?;
    ///     }
    ///     Ok(())
    /// }
    ///
    /// nn::models::lenet()?.apply(xavier)?;
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    fn apply(&self, mut f: impl FnMut(&dyn Module) -> Result<()>) -> Result<()>
    where
        Self: Sized,
    {
        crate::no_grad(|| layers::apply(self.as_module(), &mut f))
    }

    /// Puts another layer in the place of the one with this dotted name: of any type in a [`Sequential`] or a
    /// `Box<dyn Module>`, of the same type in a field. It is where its constructor made it, on `cpu`: call
    /// [`to`](Module::to) afterwards, then make the optimiser.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) where there is no such layer, or the field's type is
    /// another.
    ///
    /// ```
    /// use anygpu::nn::{self, Linear, Module};
    ///
    /// let mut net = nn::models::resnet18(3, 1000)?; // say, with weights from a file
    /// net.requires_grad_(false);
    /// net.set("fc", Linear::new(512, 10)?)?; // trains alone
    /// assert_eq!(net.parameters().iter().filter(|p| p.is_tracked()).count(), 2);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    fn set(&mut self, name: &str, layer: impl Module) -> Result<()>
    where
        Self: Sized,
    {
        layers::replace(self.as_module_mut(), name, layer)
    }

    /// Freezes all parameters (`false`), or has them trained again. A frozen one gets no gradient, and optimisers leave it
    /// alone. As after [`to`](Module::to), these are new tensors over the same elements: make the optimiser afterwards.
    /// Batch norm's running statistics are no parameters: [`eval`](Module::eval) keeps them, in a loop of your own
    /// ([`DataParallel::train_batch`](crate::DataParallel::train_batch) always trains, and moves them).
    fn requires_grad_(&mut self, requires_grad: bool) {
        let old = self.parameters();
        let switched = |parameter: &Tensor| match (parameter.is_tracked(), requires_grad) {
            (true, false) => parameter.detach(),
            (false, true) => parameter.requires_grad(),
            _ => parameter.clone(),
        };
        let new: Vec<Tensor> = old.iter().map(switched).collect();
        self.visit_mut(&mut replacing(&old, &new));
    }

    /// Runs the module once on zeros `[..]` of this shape, in evaluation and outside the graph, and returns a table of
    /// the layers with their output shapes, to be printed. See [`Summary`].
    ///
    /// # Errors
    /// Those of [`forward`](Module::forward).
    fn summary(&self, shape: &[usize]) -> Result<Summary> {
        Summary::new(self.as_module(), shape)
    }
}
