//! The interface of layers and nets.

use std::collections::HashSet;

use super::mode::KEEPS_EVAL;
use super::{KeyReport, ModuleClone, ReLU, StateDict, Summary, layers, load_state, relocate};
use crate::device::{Device, IntoDevice, rerun};
use crate::error::Result;
use crate::tensor::Tensor;

/// A layer or a net: a differentiable function with named parameters.
///
/// To define a module, write its layers and [`forward`](Module::forward) with [`module!`](crate::module). Or write a
/// struct of the layers, derive `Clone` ([`DataParallel`](crate::DataParallel) clones it for each device), implement
/// `forward` and list the fields with [`children!`](crate::children). All other methods are provided.
///
/// A clone of a module has the same parameters and buffers, just as a clone of a tensor has the same elements: an
/// optimiser step changes both. [`deep_copy`](Module::deep_copy) returns an independent copy.
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
    /// Applies the layer to `input`. Each layer documents the shapes that it accepts.
    ///
    /// # Errors
    /// Errors of the ops that it calls, for example if a shape does not fit, or if the input is on another device than
    /// the parameters.
    fn forward(&self, input: &Tensor) -> Result<Tensor>;

    /// Applies the layer to `input`, and then [`Tensor::relu`].
    ///
    /// A layer that computes both in one pass overrides this. [`Sequential`](super::Sequential) calls it for a layer
    /// that is followed by [`ReLU`]. A summary records the output as the layer's output.
    ///
    /// # Errors
    /// The errors of [`forward`](Module::forward).
    fn forward_relu(&self, input: &Tensor) -> Result<Tensor> {
        ReLU.forward(&self.forward(input)?)
    }

    /// Calls `f` with the name and the value of each parameter. A name is, for example, `"weight"`, or `"conv1.weight"`
    /// within a [`Sequential`](super::Sequential).
    fn visit(&self, f: &mut dyn FnMut(&str, &Tensor));

    /// Does the same as [`visit`](Module::visit), in the same order, with mutable access.
    fn visit_mut(&mut self, f: &mut dyn FnMut(&str, &mut Tensor));

    /// Calls `f` with the name and the value of each buffer.
    ///
    /// Buffers are the tensors that a layer keeps besides its parameters, such as the running statistics of batch norm.
    /// They move with the module, and optimisers do not update them. The default is for modules without buffers.
    fn visit_buffers(&self, _f: &mut dyn FnMut(&str, &Tensor)) {}

    /// Does the same as [`visit_buffers`](Module::visit_buffers), in the same order, with mutable access.
    fn visit_buffers_mut(&mut self, _f: &mut dyn FnMut(&str, &mut Tensor)) {}

    /// Sets whether the layers are in training mode; see [`train`](Module::train).
    ///
    /// A module must pass the call on to its layers, as [`children!`](crate::children) does; otherwise they stay in
    /// training mode.
    fn set_training(&self, _training: bool) {}

    /// Calls `f` with the name of each layer directly within this one, and the layer.
    fn visit_children<'a>(&'a self, _f: &mut dyn FnMut(&str, &'a dyn Module)) {}

    /// Does the same as [`visit_children`](Module::visit_children), in the same order, with mutable access.
    fn visit_children_mut<'a>(&'a mut self, _f: &mut dyn FnMut(&str, &'a mut dyn Module)) {}

    /// Switches the layers to training mode, which is the initial mode: dropout drops elements; batch norm uses the
    /// batch's statistics and updates its running statistics.
    ///
    /// `DataParallel` calls this itself.
    fn train(&self) {
        self.set_training(true);
    }

    /// Switches the layers to evaluation mode: dropout does nothing, batch norm uses its running statistics.
    ///
    /// Gradients are still recorded; [`no_grad`](crate::no_grad) turns them off.
    fn eval(&self) {
        self.set_training(false);
    }

    /// Keeps this module and its layers in evaluation mode (`true`), even if a net around them is switched to training
    /// mode, for example by [`DataParallel::train_batch`](crate::DataParallel::train_batch).
    ///
    /// `false` ends this, and switches them to training mode. A batch norm that is kept in evaluation mode has fixed
    /// statistics, as is usual when a small part of a net is fine-tuned. Clones of the module are also kept.
    ///
    /// ```
    /// use anygpu::nn::{BatchNorm1d, Linear, Module, Sequential};
    ///
    /// let net = Sequential::new().add("fc", Linear::new(3, 3)?).add("norm", BatchNorm1d::new(3)?);
    /// net["norm"].keep_eval(true);
    /// net.train();
    /// net.forward(&anygpu::Tensor::rand([4, 3], None)?)?;
    /// assert_eq!(net.get("norm.running_mean").map(|mean| mean.to_vec::<f32>()), Some(Ok(vec![0.0; 3])));
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    fn keep_eval(&self, keep: bool) {
        let _kept = KEEPS_EVAL.set(Some(keep));
        self.set_training(!keep);
    }

    /// Returns all buffers with their dotted names, in order.
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

    /// Returns all parameters, in order, for an optimiser.
    ///
    /// They share value and gradient with the module's own parameters. A parameter that two layers share (a tied
    /// weight) is listed once.
    fn parameters(&self) -> Vec<Tensor> {
        self.named_parameters().into_iter().map(|(_, parameter)| parameter).collect()
    }

    /// Returns all parameters with their dotted names, in order. A parameter that two layers share is listed once,
    /// under its first name.
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

    /// Returns the number of elements in all parameters, including frozen ones.
    fn num_parameters(&self) -> usize {
        self.parameters().iter().map(Tensor::elem_count).sum()
    }

    /// Returns the values by dotted name: first the parameters, then the buffers. A tied weight is listed under each of
    /// its names.
    ///
    /// The tensors share their elements with the module's, so later optimiser steps change them too.
    /// [`StateDict::copied`] makes independent copies.
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

    /// Copies the values of `state` into the existing tensors of this module. Optimisers, other handles and
    /// `DataParallel` see the new values.
    ///
    /// Values are converted to the module's types and moved to its device, all in one staged copy. If all names on one
    /// side start with `module.`, as with PyTorch's `DataParallel`, and none on the other side do, the prefix is
    /// removed or added. The part `_orig_mod.`, which `torch.compile` adds, is removed. The names of PyTorch's
    /// `parametrizations.weight_norm` are translated to the names of [`WeightNorm`](super::WeightNorm). PyTorch's
    /// `num_batches_tracked` is ignored. For a tied weight, one of its names is enough.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) that lists every name whose shape differs and, if
    /// `strict`, every name that only one side has. The same error, even if not `strict`, if none of the state's names
    /// is in the module. If another prefix would make the names fit, the error says so. Also errors of the device. On
    /// error, the module is unchanged.
    ///
    /// ```
    /// use anygpu::nn::{Linear, Module};
    ///
    /// let (from, to) = (Linear::new(3, 2)?, Linear::new(3, 2)?);
    /// to.load_state_dict(&from.state_dict(), true)?;
    /// assert_eq!(to.parameters()[0].to_vec::<f32>()?, from.parameters()[0].to_vec::<f32>()?);
    ///
    /// let mut part = from.state_dict();
    /// part.remove("bias");
    /// let report = to.load_state_dict(&part, false)?;
    /// assert_eq!(report.missing, ["bias"]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    fn load_state_dict(&self, state: &StateDict, strict: bool) -> Result<KeyReport> {
        load_state::load(self, state, strict)
    }

    /// Returns the module moved to `device`, which may be given by value or by reference. [`to_`](Module::to_) moves a
    /// module in place.
    ///
    /// All parameters are moved in one staged copy, each buffer in a copy of its own.
    ///
    /// The moved parameters are views into one flat buffer, each at a multiple of 256 bytes, so an optimiser updates
    /// them with one dispatch. They are *new* leaves without gradients: move the module before you create the
    /// optimiser. The step of an earlier optimiser returns an error. A module that is already on `device` is unchanged,
    /// and so are its optimisers.
    ///
    /// # Errors
    /// Errors of opening `device`; [`Error::OutOfMemory`](crate::Error::OutOfMemory).
    ///
    /// # Example
    /// ```
    /// use anygpu::nn::{Linear, Module};
    ///
    /// let device = anygpu::try_gpu(0);
    /// let layer = Linear::new(4, 2)?.to(&device)?;
    /// assert_eq!(layer.parameters()[0].device(), &device);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    fn to(mut self, device: impl IntoDevice) -> Result<Self>
    where
        Self: Sized,
    {
        let moved = self.to_(&device.into_device()?);
        moved.map_err(|error| error.instead("Module::to", "Module::to_async"))?;
        Ok(self)
    }

    /// Asynchronous form of [`to`](Module::to). Use it in a browser, where moving a module from an adapter would have
    /// to wait.
    ///
    /// # Errors
    /// The errors of [`to`](Module::to).
    ///
    /// ```
    /// use anygpu::Device;
    /// use anygpu::nn::{Linear, Module};
    ///
    /// # pollster::block_on(async {
    /// let layer = Linear::new(4, 2)?.to(&anygpu::try_gpu(0))?;
    /// let layer = layer.to_async(&Device::cpu()).await?;
    /// assert!(layer.parameters()[0].device().is_cpu());
    /// # Ok::<(), anygpu::Error>(())
    /// # })?;
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    fn to_async(mut self, device: impl IntoDevice) -> impl Future<Output = Result<Self>>
    where
        Self: Sized,
    {
        async move {
            let device = device.into_device()?;
            let tensors = self.named_parameters().into_iter().chain(self.named_buffers());
            let devices: Vec<Device> = tensors.map(|(_, tensor)| tensor.device().clone()).collect();
            rerun(&devices, || self.to_(&device)).await?;
            Ok(self)
        }
    }

    /// Moves the module to `device` in place, like [`to`](Module::to). This also works behind `&mut dyn Module`.
    ///
    /// # Errors
    /// The errors of [`to`](Module::to). On error, the module is unchanged.
    ///
    /// ```
    /// use anygpu::nn::{Linear, Module};
    ///
    /// let device = anygpu::try_gpu(0);
    /// let mut layer = Linear::new(4, 2)?;
    /// layer.to_(&device)?;
    /// assert_eq!(layer.parameters()[0].device(), &device);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    fn to_(&mut self, device: &Device) -> Result<()> {
        relocate::to_(self, device)
    }

    /// Returns an independent copy of the module, like PyTorch's `copy.deepcopy(net)`.
    ///
    /// Use it for target networks, for averages of parameters, and for the best net so far. In contrast, a `clone` has
    /// the same parameters and buffers.
    ///
    /// The copy has its own parameters and buffers, on the same devices and of the same types. Frozen parameters stay
    /// frozen, and shared parameters stay shared between the same layers of the copy. The copy has no gradients, and
    /// begins in the same modes ([`train`](Module::train), [`keep_eval`](Module::keep_eval)). Tensors that the module
    /// does not visit, and data that fields hold by `Arc`, are shared with the copy. For a `&dyn Module`, call this on
    /// its [`clone_box`](ModuleClone::clone_box).
    ///
    /// # Errors
    /// [`Error::OutOfMemory`](crate::Error::OutOfMemory) or [`Error::DeviceLost`](crate::Error::DeviceLost).
    ///
    /// ```
    /// use anygpu::nn::{Linear, Module};
    ///
    /// let net = Linear::new(4, 2)?;
    /// let target = net.deep_copy()?;
    /// anygpu::no_grad(|| net.weight().fill_(0.0))?; // as training would change it
    /// assert!(net.clone().weight().is_same(net.weight()) && !target.weight().is_same(net.weight()));
    /// assert_ne!(target.weight().to_vec::<f32>()?, net.weight().to_vec::<f32>()?);
    /// // Later, the target takes the parameters of the net.
    /// target.load_state_dict(&net.state_dict(), true)?;
    /// assert_eq!(target.weight().to_vec::<f32>()?, net.weight().to_vec::<f32>()?);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    fn deep_copy(&self) -> Result<Self>
    where
        Self: Clone + Sized,
    {
        let mut copy = self.clone();
        relocate::own(&mut copy)?;
        Ok(copy)
    }

    /// Returns the parameter or buffer with this dotted name, if there is one.
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

    /// Returns this module under the name `""`, and all layers within it under their dotted names.
    ///
    /// A layer comes before the layers within it. [`type_name`](ModuleClone::type_name) and `downcast_ref` return their
    /// types.
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

    /// Returns the layer with this dotted name, if there is one.
    fn get_submodule(&self, name: &str) -> Option<&dyn Module> {
        self.named_modules().into_iter().find(|(here, _)| here == name).map(|(_, module)| module)
    }

    /// Calls `f` with every layer and finally with this module, outside the graph.
    ///
    /// The layers within a layer come before it. Use it to initialise parameters with the functions of
    /// [`init`](super::init). The first error ends the traversal.
    ///
    /// # Errors
    /// Errors of `f`.
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

    /// Replaces the layer with this dotted name.
    ///
    /// In a [`Sequential`](super::Sequential) or a `Box<dyn Module>`, the new layer may have any type; in a field, it
    /// must have the same type. The new layer stays on the device where it was created, normally `cpu`. Call
    /// [`to`](Module::to) afterwards, and then create the optimiser.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) if there is no such layer, or if the field has another
    /// type.
    ///
    /// ```
    /// use anygpu::nn::{self, Linear, Module};
    ///
    /// let mut net = nn::models::resnet18(3, 1000)?; // say, with weights from a file
    /// net.requires_grad_(false);
    /// net.set("fc", Linear::new(512, 10)?)?; // the only layer that is trained
    /// assert_eq!(net.parameters().iter().filter(|p| p.is_tracked()).count(), 2);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    fn set(&mut self, name: &str, layer: impl Module) -> Result<()>
    where
        Self: Sized,
    {
        layers::replace(self.as_module_mut(), name, layer)
    }

    /// Freezes (`false`) or unfreezes (`true`) all parameters.
    ///
    /// A frozen parameter gets no gradient, and optimisers do not update it. The parameters become other tensors over
    /// the same elements. Parameters that this method froze become the same tensors as before when it unfreezes them,
    /// so their optimiser continues to work. For other parameters, create the optimiser afterwards. To keep batch
    /// norm's running statistics, which are not parameters, use [`keep_eval`](Module::keep_eval).
    fn requires_grad_(&mut self, requires_grad: bool) {
        relocate::requires_grad_(self, requires_grad);
    }

    /// Runs the module once on zeros of this shape, in evaluation mode and outside the graph.
    ///
    /// Returns a printable table of the layers with their output shapes. See [`Summary`].
    ///
    /// # Errors
    /// The errors of [`forward`](Module::forward).
    fn summary(&self, shape: &[usize]) -> Result<Summary> {
        Summary::new(self.as_module(), shape)
    }
}
