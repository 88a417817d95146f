use std::fmt;
use std::ops::{Index, IndexMut, Range};

use super::{Child, Module, ReLU, summary};
use crate::error::{Error, Result};
use crate::tensor::Tensor;

/// Layers applied one after another: y = fₖ(… f₂(f₁(x))).
///
/// Parameters have the prefix of their layer's name: `fc1.weight`.
///
/// The input is passed to the first layer. Each layer has a unique name, given to [`add`](Sequential::add), or its
/// index with [`push`](Sequential::push), as in PyTorch's `nn.Sequential(a, b)`. `net["fc1"]` and `net[0]` are layers.
/// [`Module::get`] returns a tensor by its dotted name.
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
    /// The error for the first name that [`Sequential::add`] refused.
    refused: Option<Error>,
}

impl Sequential {
    /// Creates a container without layers, which is the identity function.
    #[must_use]
    pub fn new() -> Sequential {
        Sequential::default()
    }

    /// Appends a layer.
    ///
    /// If its name is taken, empty, or contains a dot, the layer is not appended and [`forward`](Module::forward)
    /// returns the error. [`add_module`](Sequential::add_module) returns the error immediately.
    #[must_use]
    pub fn add(mut self, name: impl Into<String>, layer: impl Module) -> Sequential {
        if let Err(error) = self.add_module(name, layer) {
            self.refused.get_or_insert(error);
        }
        self
    }

    /// Appends a layer named after its index: `"0"`, `"1"`, …
    #[must_use]
    pub fn push(self, layer: impl Module) -> Sequential {
        let number = self.len().to_string();
        self.add(number, layer)
    }

    /// Appends a layer.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if another layer has this name, or if the name is empty or contains a dot. On error,
    /// nothing is appended.
    ///
    /// ```
    /// use anygpu::nn::{Linear, ReLU, Sequential};
    ///
    /// let mut net = Sequential::new();
    /// for i in 0..3 {
    ///     net.add_module(format!("fc{i}"), Linear::new(4, 4)?)?;
    /// }
    /// let error = net.add_module("fc1", ReLU).unwrap_err();
    /// assert_eq!(error.to_string(), "Sequential: there already is a layer 'fc1': layer names must be unique");
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn add_module(&mut self, name: impl Into<String>, layer: impl Module) -> Result<()> {
        self.append(&name.into(), Box::new(layer))
    }

    /// Appends a layer, as [`add_module`](Sequential::add_module).
    pub(crate) fn append(&mut self, name: &str, layer: Box<dyn Module>) -> Result<()> {
        if name.is_empty() || name.contains('.') {
            let detail = format!("'{name}' is not a valid layer name: it must not be empty or contain a dot");
            return Err(Error::argument("Sequential", detail));
        }
        if self.position(name).is_some() {
            let detail = format!("there already is a layer '{name}': layer names must be unique");
            return Err(Error::argument("Sequential", detail));
        }
        self.layers.push((name.to_string(), layer));
        Ok(())
    }

    /// Returns the layers with their names, or the error for the first name that was refused.
    pub(crate) fn into_layers(self) -> Result<Vec<(String, Box<dyn Module>)>> {
        self.refused.map_or(Ok(self.layers), Err)
    }

    /// Returns a net of a range of these layers, with their names and tensors.
    pub(crate) fn part(&self, layers: Range<usize>) -> Sequential {
        Sequential { layers: self.layers[layers].to_vec(), refused: None }
    }

    /// Returns the number of layers.
    #[must_use]
    pub fn len(&self) -> usize {
        self.layers.len()
    }

    /// Returns whether there are no layers.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.layers.is_empty()
    }

    /// Returns the layers with their names, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &dyn Module)> {
        self.layers.iter().map(|(name, layer)| (name.as_str(), &**layer))
    }

    fn position(&self, name: &str) -> Option<usize> {
        self.layers.iter().position(|(here, _)| here == name)
    }
}

/// The layer at this index.
///
/// # Panics
/// If the index is out of bounds, like a slice.
impl Index<usize> for Sequential {
    type Output = dyn Module;

    fn index(&self, i: usize) -> &dyn Module {
        &*self.layers[i].1
    }
}

/// Mutable access to the layer: `net[0].requires_grad_(false)`.
impl IndexMut<usize> for Sequential {
    fn index_mut(&mut self, i: usize) -> &mut dyn Module {
        &mut *self.layers[i].1
    }
}

/// The layer with this name.
///
/// # Panics
/// If there is no such layer. [`Module::get_submodule`] returns an `Option` instead.
impl Index<&str> for Sequential {
    type Output = dyn Module;

    fn index(&self, name: &str) -> &dyn Module {
        &self[self.position(name).unwrap_or_else(|| panic!("no layer '{name}' in {self:?}"))]
    }
}

/// Mutable access to the layer: `net["fc1"].requires_grad_(false)`.
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
        let joins = !summary::is_recording();
        let (mut x, mut layers) = (input.clone(), self.layers.iter().peekable());
        while let Some((name, layer)) = layers.next() {
            let relu = layers.next_if(|(_, next)| joins && next.is::<ReLU>());
            let output = if relu.is_some() { layer.forward_relu(&x) } else { layer.forward(&x) };
            x = output.map_err(|error| error.at_layer(name))?;
        }
        Ok(x)
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

/// Formats the layers' names with the shapes of their parameters.
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
