use std::fmt;
use std::ops::{Index, IndexMut};

use super::{Child, Module};
use crate::error::{Error, Result};
use crate::tensor::Tensor;

/// Layers one after another: y = fₖ(… f₂(f₁(x))). Parameters are named after their layer: `fc1.weight`.
///
/// It takes what its first layer takes. Each layer has a name of its own, given ([`add`](Sequential::add)) or its number
/// ([`push`](Sequential::push), as in PyTorch's `nn.Sequential(a, b)`); `net["fc1"]` and `net[0]` are layers, and
/// [`Module::get`] finds a tensor by its dotted name.
///
/// # Example
/// ```
/// use anygpu::nn::{Linear, Module, ReLU, Sequential};
/// use anygpu::Tensor;
///
/// let net = Sequential::new().add("fc1", Linear::new(4, 8)?).add("relu", ReLU).add("fc2", Linear::new(8, 2)?);
/// assert_eq!(net.forward(&Tensor::ones([5, 4], None)?)?.shape(), [5, 2]);
///
/// let names: Vec<String> = net.named_parameters().into_iter().map(|(name, _)| name).collect();
/// assert_eq!(names, ["fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"]);
///
/// let features = net["fc1"].forward(&Tensor::ones([5, 4], None)?)?; // the first layer alone
/// assert_eq!(features.shape(), [5, 8]);
/// assert!(net[1].is::<ReLU>() && net.len() == 3);
///
/// let numbered = Sequential::new().push(Linear::new(4, 8)?).push(ReLU).push(Linear::new(8, 2)?);
/// assert!(numbered.get("2.weight").is_some());
/// # Ok::<(), anygpu::Error>(())
/// ```
#[derive(Clone, Default)]
pub struct Sequential {
    layers: Vec<(String, Box<dyn Module>)>,
    /// The first name that [`Sequential::add`] refused.
    refused: Option<Error>,
}

impl Sequential {
    /// No layers: the identity.
    pub fn new() -> Sequential {
        Sequential::default()
    }

    /// Appends a layer. One whose name is taken, empty, or has a dot is not appended, and
    /// [`forward`](Module::forward) then says so: see [`add_module`](Sequential::add_module) for an error at once.
    pub fn add(mut self, name: &str, layer: impl Module) -> Sequential {
        if let Err(error) = self.add_module(name, layer) {
            self.refused.get_or_insert(error);
        }
        self
    }

    /// Appends a layer named after its place: `"0"`, `"1"`, …
    pub fn push(self, layer: impl Module) -> Sequential {
        let number = self.len().to_string();
        self.add(&number, layer)
    }

    /// Appends a layer.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if another layer has this name, or it is empty or has a dot; nothing is appended then.
    ///
    /// ```
    /// use anygpu::nn::{Linear, ReLU, Sequential};
    ///
    /// let mut net = Sequential::new();
    /// for i in 0..3 {
    ///     net.add_module(&format!("fc{i}"), Linear::new(4, 4)?)?;
    /// }
    /// let error = net.add_module("fc1", ReLU).unwrap_err();
    /// assert_eq!(error.to_string(), "Sequential: there is a layer 'fc1' already: give each a name of its own");
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn add_module(&mut self, name: &str, layer: impl Module) -> Result<()> {
        if name.is_empty() || name.contains('.') {
            let detail = format!("'{name}' is no name for a layer: it must not be empty, nor have a dot");
            return Err(Error::argument("Sequential", detail));
        }
        if self.position(name).is_some() {
            let detail = format!("there is a layer '{name}' already: give each a name of its own");
            return Err(Error::argument("Sequential", detail));
        }
        self.layers.push((name.to_string(), Box::new(layer)));
        Ok(())
    }

    /// The number of layers.
    pub fn len(&self) -> usize {
        self.layers.len()
    }

    /// Whether there is no layer.
    pub fn is_empty(&self) -> bool {
        self.layers.is_empty()
    }

    /// The layers with their names, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &dyn Module)> {
        self.layers.iter().map(|(name, layer)| (name.as_str(), &**layer))
    }

    fn position(&self, name: &str) -> Option<usize> {
        self.layers.iter().position(|(here, _)| here == name)
    }
}

/// The layer at this place.
///
/// # Panics
/// Beyond the last layer, as a slice does.
impl Index<usize> for Sequential {
    type Output = dyn Module;

    fn index(&self, i: usize) -> &dyn Module {
        &*self.layers[i].1
    }
}

/// As [`Index`], so that the layer can be changed: `net[0].requires_grad_(false)`.
impl IndexMut<usize> for Sequential {
    fn index_mut(&mut self, i: usize) -> &mut dyn Module {
        &mut *self.layers[i].1
    }
}

/// The layer with this name.
///
/// # Panics
/// If there is none, as a map does; [`Module::get_submodule`] asks first.
impl Index<&str> for Sequential {
    type Output = dyn Module;

    fn index(&self, name: &str) -> &dyn Module {
        &self[self.position(name).unwrap_or_else(|| panic!("no layer '{name}' in {self:?}"))]
    }
}

/// As [`Index`], so that the layer can be changed: `net["fc1"].requires_grad_(false)`.
impl IndexMut<&str> for Sequential {
    fn index_mut(&mut self, name: &str) -> &mut dyn Module {
        let i = self.position(name).unwrap_or_else(|| panic!("no layer '{name}' in {self:?}"));
        &mut self[i]
    }
}

impl Module for Sequential {
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        if let Some(error) = &self.refused {
            return Err(error.clone());
        }
        self.layers.iter().try_fold(input.clone(), |x, (_, layer)| layer.forward(&x))
    }

    fn visit(&self, f: &mut dyn FnMut(&str, &Tensor)) {
        self.layers.iter().for_each(|(name, layer)| layer.visit_as(name, f));
    }

    fn visit_mut(&mut self, f: &mut dyn FnMut(&str, &mut Tensor)) {
        self.layers.iter_mut().for_each(|(name, layer)| layer.visit_as_mut(name, f));
    }

    fn visit_buffers(&self, f: &mut dyn FnMut(&str, &Tensor)) {
        self.layers.iter().for_each(|(name, layer)| layer.visit_buffers_as(name, f));
    }

    fn visit_buffers_mut(&mut self, f: &mut dyn FnMut(&str, &mut Tensor)) {
        self.layers.iter_mut().for_each(|(name, layer)| layer.visit_buffers_as_mut(name, f));
    }

    fn set_training(&self, training: bool) {
        self.layers.iter().for_each(|(_, layer)| layer.set_training(training));
    }

    fn visit_children<'a>(&'a self, f: &mut dyn FnMut(&str, &'a dyn Module)) {
        self.layers.iter().for_each(|(name, layer)| f(name, layer));
    }

    fn visit_children_mut<'a>(&'a mut self, f: &mut dyn FnMut(&str, &'a mut dyn Module)) {
        self.layers.iter_mut().for_each(|(name, layer)| f(name, layer));
    }
}

/// The layers' names with the shapes of their parameters.
impl fmt::Debug for Sequential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut map = f.debug_map();
        for (name, layer) in &self.layers {
            let shapes: Vec<Vec<usize>> = layer.parameters().iter().map(|p| p.shape().to_vec()).collect();
            map.entry(name, &shapes);
        }
        map.finish()
    }
}
