//! The traversal of a module's fields.

use super::Module;
use crate::tensor::Tensor;

/// A field of a module: a parameter, a buffer, a layer, or several of them.
///
/// The methods that [`children!`](crate::children) writes visit these.
pub trait Child {
    /// Calls `f` with the dotted name and the value of each parameter in this field. `name` is the name of the field.
    fn visit_as(&self, name: &str, f: &mut dyn FnMut(&str, &Tensor));

    /// Like [`visit_as`](Child::visit_as), with mutable access.
    fn visit_as_mut(&mut self, name: &str, f: &mut dyn FnMut(&str, &mut Tensor));

    /// Like [`visit_as`](Child::visit_as), for the buffers.
    fn visit_buffers_as(&self, _name: &str, _f: &mut dyn FnMut(&str, &Tensor)) {}

    /// Like [`visit_as_mut`](Child::visit_as_mut), for the buffers.
    fn visit_buffers_as_mut(&mut self, _name: &str, _f: &mut dyn FnMut(&str, &mut Tensor)) {}

    /// Sets whether the layers in this field are in training mode.
    fn tell_training(&self, _training: bool) {}

    /// Calls `f` with the dotted name of each layer in this field, and the layer.
    fn visit_children_as<'a>(&'a self, _name: &str, _f: &mut dyn FnMut(&str, &'a dyn Module)) {}

    /// Like [`visit_children_as`](Child::visit_children_as), with mutable access.
    fn visit_children_as_mut<'a>(&'a mut self, _name: &str, _f: &mut dyn FnMut(&str, &'a mut dyn Module)) {}
}

impl Child for Tensor {
    fn visit_as(&self, name: &str, f: &mut dyn FnMut(&str, &Tensor)) {
        f(name, self);
    }

    fn visit_as_mut(&mut self, name: &str, f: &mut dyn FnMut(&str, &mut Tensor)) {
        f(name, self);
    }
}

impl<M: Module> Child for M {
    fn visit_as(&self, name: &str, f: &mut dyn FnMut(&str, &Tensor)) {
        self.visit(&mut |inner, parameter| f(&format!("{name}.{inner}"), parameter));
    }

    fn visit_as_mut(&mut self, name: &str, f: &mut dyn FnMut(&str, &mut Tensor)) {
        self.visit_mut(&mut |inner, parameter| f(&format!("{name}.{inner}"), parameter));
    }

    fn visit_buffers_as(&self, name: &str, f: &mut dyn FnMut(&str, &Tensor)) {
        self.visit_buffers(&mut |inner, buffer| f(&format!("{name}.{inner}"), buffer));
    }

    fn visit_buffers_as_mut(&mut self, name: &str, f: &mut dyn FnMut(&str, &mut Tensor)) {
        self.visit_buffers_mut(&mut |inner, buffer| f(&format!("{name}.{inner}"), buffer));
    }

    fn tell_training(&self, training: bool) {
        self.set_training(training);
    }

    fn visit_children_as<'a>(&'a self, name: &str, f: &mut dyn FnMut(&str, &'a dyn Module)) {
        f(name, self);
    }

    fn visit_children_as_mut<'a>(&'a mut self, name: &str, f: &mut dyn FnMut(&str, &'a mut dyn Module)) {
        f(name, self);
    }
}

/// Implements `Child` for a field of several children. `$called` makes the name of each from the field's name and the
/// child's index.
macro_rules! several {
    ($(#[$doc:meta])* [$($generics:tt)*] $several:ty, $called:expr) => {
        $(#[$doc])*
        impl<C: Child, $($generics)*> Child for $several {
            fn visit_as(&self, name: &str, f: &mut dyn FnMut(&str, &Tensor)) {
                self.iter().enumerate().for_each(|(i, child)| child.visit_as(&$called(name, i), f));
            }

            fn visit_as_mut(&mut self, name: &str, f: &mut dyn FnMut(&str, &mut Tensor)) {
                self.iter_mut().enumerate().for_each(|(i, child)| child.visit_as_mut(&$called(name, i), f));
            }

            fn visit_buffers_as(&self, name: &str, f: &mut dyn FnMut(&str, &Tensor)) {
                self.iter().enumerate().for_each(|(i, child)| child.visit_buffers_as(&$called(name, i), f));
            }

            fn visit_buffers_as_mut(&mut self, name: &str, f: &mut dyn FnMut(&str, &mut Tensor)) {
                self.iter_mut().enumerate().for_each(|(i, child)| child.visit_buffers_as_mut(&$called(name, i), f));
            }

            fn tell_training(&self, training: bool) {
                self.iter().for_each(|child| child.tell_training(training));
            }

            fn visit_children_as<'a>(&'a self, name: &str, f: &mut dyn FnMut(&str, &'a dyn Module)) {
                self.iter().enumerate().for_each(|(i, child)| child.visit_children_as(&$called(name, i), f));
            }

            fn visit_children_as_mut<'a>(&'a mut self, name: &str, f: &mut dyn FnMut(&str, &'a mut dyn Module)) {
                self.iter_mut().enumerate().for_each(|(i, child)| child.visit_children_as_mut(&$called(name, i), f));
            }
        }
    };
}

fn numbered(name: &str, i: usize) -> String {
    format!("{name}.{i}")
}

several! {
    /// The children are numbered from 0, as in PyTorch's `ModuleList`.
    [] Vec<C>, numbered
}
several! {
    /// The children are numbered from 0, as in PyTorch's `ModuleList`.
    [const N: usize] [C; N], numbered
}
several! {
    /// The child, if there is one, has the field's own name.
    [] Option<C>, |name: &str, _| name.to_string()
}

/// Implements [`Child`] for types that hold no parameter.
macro_rules! plain {
    ($($t:ty),*) => {$(
        impl Child for $t {
            fn visit_as(&self, _name: &str, _f: &mut dyn FnMut(&str, &Tensor)) {}
            fn visit_as_mut(&mut self, _name: &str, _f: &mut dyn FnMut(&str, &mut Tensor)) {}
        }
    )*};
}

plain! { bool, i32, i64, u32, u64, usize, f32, f64, String }

/// Implements the visitor methods of a [`Module`](crate::nn::Module) for the listed fields, in order.
///
/// List the fields that hold parameters, buffers or layers. [`module!`](crate::module) writes the struct too.
///
/// A field may be a [`Tensor`](crate::Tensor), which is a parameter, a [`Buffer`](crate::nn::Buffer), a
/// [`Mode`](crate::nn::Mode), a layer, or a `Vec`, an array or an `Option` of these. In a tuple struct, fields are
/// listed by index: `children!(0, 1)`. Do not list fields of other types, such as an enum. Numbers may be listed.
///
/// ```
/// use anygpu::nn::{Linear, Module};
/// use anygpu::{Result, Tensor};
///
/// #[derive(Clone)]
/// struct Gate {
///     inner: Linear,
///     scale: Tensor,
/// }
///
/// impl Module for Gate {
///     anygpu::children!(inner, scale);
///
///     fn forward(&self, x: &Tensor) -> Result<Tensor> {
///         &self.inner.forward(x)? * &self.scale
///     }
/// }
///
/// let gate = Gate { inner: Linear::new(2, 3)?, scale: Tensor::ones([3], None)?.requires_grad() };
/// let names: Vec<String> = gate.named_parameters().into_iter().map(|(name, _)| name).collect();
/// assert_eq!(names, ["inner.weight", "inner.bias", "scale"]);
/// # Ok::<(), anygpu::Error>(())
/// ```
#[macro_export]
macro_rules! children {
    ($($field:tt),* $(,)?) => {
        fn visit(&self, f: &mut dyn FnMut(&str, &$crate::Tensor)) {
            $($crate::nn::Child::visit_as(&self.$field, stringify!($field), f);)*
            let _ = f;
        }

        fn visit_mut(&mut self, f: &mut dyn FnMut(&str, &mut $crate::Tensor)) {
            $($crate::nn::Child::visit_as_mut(&mut self.$field, stringify!($field), f);)*
            let _ = f;
        }

        fn visit_buffers(&self, f: &mut dyn FnMut(&str, &$crate::Tensor)) {
            $($crate::nn::Child::visit_buffers_as(&self.$field, stringify!($field), f);)*
            let _ = f;
        }

        fn visit_buffers_mut(&mut self, f: &mut dyn FnMut(&str, &mut $crate::Tensor)) {
            $($crate::nn::Child::visit_buffers_as_mut(&mut self.$field, stringify!($field), f);)*
            let _ = f;
        }

        fn set_training(&self, training: bool) {
            $($crate::nn::Child::tell_training(&self.$field, training);)*
            let _ = training;
        }

        fn visit_children<'a>(&'a self, f: &mut dyn FnMut(&str, &'a dyn $crate::nn::Module)) {
            $($crate::nn::Child::visit_children_as(&self.$field, stringify!($field), f);)*
            let _ = f;
        }

        fn visit_children_mut<'a>(&'a mut self, f: &mut dyn FnMut(&str, &'a mut dyn $crate::nn::Module)) {
            $($crate::nn::Child::visit_children_as_mut(&mut self.$field, stringify!($field), f);)*
            let _ = f;
        }
    };
}
