use std::fmt;

use super::{Child, Module};
use crate::error::Result;
use crate::tensor::Tensor;

/// Layers one after another: y = fₖ(… f₂(f₁(x))). Parameters are named after their layer: `fc1.weight`.
///
/// It takes what its first layer takes. Give each layer a name of its own.
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
/// # Ok::<(), anygpu::Error>(())
/// ```
#[derive(Clone, Default)]
pub struct Sequential {
    layers: Vec<(String, Box<dyn Module>)>,
}

impl Sequential {
    /// No layers: the identity.
    pub fn new() -> Sequential {
        Sequential::default()
    }

    /// Appends a layer.
    pub fn add(mut self, name: &str, layer: impl Module + 'static) -> Sequential {
        self.layers.push((name.to_string(), Box::new(layer)));
        self
    }
}

impl Module for Sequential {
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        self.layers.iter().try_fold(input.clone(), |x, (_, layer)| layer.forward(&x))
    }

    fn visit(&self, f: &mut dyn FnMut(&str, &Tensor)) {
        for (layer_name, layer) in &self.layers {
            layer.visit(&mut |name, parameter| f(&format!("{layer_name}.{name}"), parameter));
        }
    }

    fn visit_mut(&mut self, f: &mut dyn FnMut(&str, &mut Tensor)) {
        for (layer_name, layer) in &mut self.layers {
            layer.visit_mut(&mut |name, parameter| f(&format!("{layer_name}.{name}"), parameter));
        }
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
