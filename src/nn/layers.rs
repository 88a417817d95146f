//! Access to layers within modules by name, and modules of a type unknown at compile time.

use std::any::Any;

use super::{Module, summary};
use crate::error::{Error, Result};
use crate::tensor::Tensor;

/// Type information and cloning behind `dyn Module`.
///
/// Blanket-implemented for `Module + Clone`.
pub trait ModuleClone {
    /// Returns a boxed clone.
    ///
    /// Both share their parameters and buffers until one of them is moved. Call [`Module::deep_copy`] on it for an
    /// independent copy.
    fn clone_box(&self) -> Box<dyn Module>;

    /// Returns the type's name without its path, as in summaries: `"Conv2d"`.
    fn type_name(&self) -> &'static str;

    /// Returns the module as a trait object.
    fn as_module(&self) -> &dyn Module;

    /// Returns the module as a trait object.
    fn as_module_mut(&mut self) -> &mut dyn Module;

    /// Returns the module as `dyn Any`, for downcasts.
    fn as_any(&self) -> &dyn Any;

    /// Returns the module as `dyn Any`, for downcasts.
    fn as_any_mut(&mut self) -> &mut dyn Any;
}

impl<T: Module + Clone + 'static> ModuleClone for T {
    fn clone_box(&self) -> Box<dyn Module> {
        Box::new(self.clone())
    }

    fn type_name(&self) -> &'static str {
        if let Some(boxed) = self.as_any().downcast_ref::<Box<dyn Module>>() {
            return (**boxed).type_name();
        }
        let path = std::any::type_name::<T>();
        let path = path.split_once('<').map_or(path, |(path, _)| path);
        path.rsplit("::").next().unwrap_or(path)
    }

    fn as_module(&self) -> &dyn Module {
        self
    }

    fn as_module_mut(&mut self) -> &mut dyn Module {
        self
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}

impl dyn Module + '_ {
    /// Returns this module as an `M`, if it is one.
    ///
    /// ```
    /// use anygpu::nn::{Linear, ReLU, Sequential};
    ///
    /// let net = Sequential::new().add("fc", Linear::new(2, 3)?);
    /// assert_eq!(net["fc"].downcast_ref::<Linear>().map(|fc| fc.weight().shape().to_vec()), Some(vec![3, 2]));
    /// assert!(net["fc"].downcast_ref::<ReLU>().is_none());
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn downcast_ref<M: Module>(&self) -> Option<&M> {
        match self.as_any().downcast_ref::<M>() {
            Some(module) => Some(module),
            None => self.as_any().downcast_ref::<Box<dyn Module>>().and_then(|boxed| (**boxed).downcast_ref()),
        }
    }

    /// Returns whether this module is an `M`.
    pub fn is<M: Module>(&self) -> bool {
        self.downcast_ref::<M>().is_some()
    }
}

/// Returns the module without the boxes around it.
pub(super) fn inner(module: &dyn Module) -> &dyn Module {
    match module.as_any().downcast_ref::<Box<dyn Module>>() {
        Some(boxed) => inner(&**boxed),
        None => module,
    }
}

/// Returns the module under the name `""` and all layers within it, each before those within it. Boxes are not removed.
pub(super) fn slots(module: &dyn Module) -> Vec<(String, &dyn Module)> {
    let mut all = vec![(String::new(), module)];
    descend("", module, &mut all);
    all
}

fn descend<'a>(prefix: &str, module: &'a dyn Module, all: &mut Vec<(String, &'a dyn Module)>) {
    module.visit_children(&mut |name, child| {
        let name = if prefix.is_empty() { name.to_string() } else { format!("{prefix}.{name}") };
        all.push((name.clone(), child));
        descend(&name, child, all);
    });
}

/// Calls `f` with every layer, then with the module.
pub(super) fn apply(module: &dyn Module, f: &mut dyn FnMut(&dyn Module) -> Result<()>) -> Result<()> {
    let mut done = Ok(());
    module.visit_children(&mut |_, child| {
        if done.is_ok() {
            done = apply(child, f);
        }
    });
    done.and_then(|()| f(inner(module)))
}

/// Replaces the layer called `name` by `layer`.
pub(super) fn replace<M: Module>(module: &mut dyn Module, name: &str, layer: M) -> Result<()> {
    let names: Vec<String> = slots(module).into_iter().skip(1).map(|(name, _)| name).collect();
    let Some(slot) = find_mut(module, name) else {
        let detail = format!("there is no layer '{name}'; the layers are {}", names.join(", "));
        return Err(Error::argument("set", detail));
    };
    let is = slot.type_name();
    if let Some(boxed) = slot.as_any_mut().downcast_mut::<Box<dyn Module>>() {
        *boxed = Box::new(layer);
        return Ok(());
    }
    match slot.as_any_mut().downcast_mut::<M>() {
        Some(field) => *field = layer,
        None => {
            let detail = format!("'{name}' is a field of type {is}, which cannot hold a {}", layer.type_name());
            return Err(Error::argument("set", detail));
        }
    }
    Ok(())
}

/// Returns the layer with this dotted name. Boxes are not removed. Names of children may contain dots themselves.
pub(super) fn find_mut<'a>(module: &'a mut dyn Module, name: &str) -> Option<&'a mut dyn Module> {
    let mut found = None;
    module.visit_children_mut(&mut |here, child| {
        if found.is_some() {
            return;
        }
        if here == name {
            found = Some(child);
        } else if let Some(rest) = name.strip_prefix(here).and_then(|rest| rest.strip_prefix('.')) {
            found = find_mut(child, rest);
        }
    });
    found
}

impl Clone for Box<dyn Module> {
    fn clone(&self) -> Self {
        (**self).clone_box()
    }
}

impl Module for Box<dyn Module> {
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        summary::recorded(self, (**self).forward(input))
    }

    fn forward_relu(&self, input: &Tensor) -> Result<Tensor> {
        summary::recorded(self, (**self).forward_relu(input))
    }

    fn visit(&self, f: &mut dyn FnMut(&str, &Tensor)) {
        (**self).visit(f)
    }

    fn visit_mut(&mut self, f: &mut dyn FnMut(&str, &mut Tensor)) {
        (**self).visit_mut(f)
    }

    fn visit_buffers(&self, f: &mut dyn FnMut(&str, &Tensor)) {
        (**self).visit_buffers(f)
    }

    fn visit_buffers_mut(&mut self, f: &mut dyn FnMut(&str, &mut Tensor)) {
        (**self).visit_buffers_mut(f)
    }

    fn set_training(&self, training: bool) {
        (**self).set_training(training)
    }

    fn visit_children<'a>(&'a self, f: &mut dyn FnMut(&str, &'a dyn Module)) {
        (**self).visit_children(f)
    }

    fn visit_children_mut<'a>(&'a mut self, f: &mut dyn FnMut(&str, &'a mut dyn Module)) {
        (**self).visit_children_mut(f)
    }
}
