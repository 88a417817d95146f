//! What forward functions of users are written with: the macro that defines a module, and calls in a chain.

use super::Module;
use crate::error::Result;
use crate::tensor::Tensor;

impl Tensor {
    /// Returns `layer.forward(self)`, for chains of calls.
    ///
    /// # Errors
    /// Those of the layer.
    ///
    /// ```
    /// use anygpu::prelude::*;
    ///
    /// let (fc1, fc2) = (nn::Linear::new(4, 8)?, nn::Linear::new(8, 2)?);
    /// let y = Tensor::ones((1, 4), None)?.apply(&fc1)?.relu()?.apply(&fc2)?;
    /// assert_eq!(y.shape(), [1, 2]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn apply(&self, layer: &(impl Module + ?Sized)) -> Result<Tensor> {
        layer.forward(self)
    }
}

/// Defines a [`Module`](crate::nn::Module): a struct of layers, a constructor and the forward function.
///
/// The parentheses after the name hold the arguments of `new`. Each field has a type and a value, which may use these
/// arguments and `?`. The methods after the struct are those of the trait: `forward`, and others that are to be
/// replaced. The struct is `Clone`; attributes, such as `#[derive(Debug)]`, and `pub` are kept.
///
/// What it writes for `pub struct Net(n: usize) { a: Linear = …, }` is: the struct with its fields,
/// `pub fn new(n: usize) -> anygpu::Result<Net>`, and `impl Module for Net` with
/// [`children!(a)`](crate::children). A field may be what `children!` accepts. For a struct with type parameters or
/// other fields, write these parts yourself.
///
/// ```
/// use anygpu::prelude::*;
///
/// anygpu::module! {
///     /// y = relu(x + f(x)), with a projection of x where the number of channels changes.
///     pub struct Block(from: usize, to: usize) {
///         conv: nn::Conv2d = nn::Conv2d::new(from, to, 3)?.padding(1),
///         norm: nn::BatchNorm2d = nn::BatchNorm2d::new(to)?,
///         project: Option<nn::Conv2d> = if from == to { None } else { Some(nn::Conv2d::new(from, to, 1)?) },
///     }
///
///     fn forward(&self, x: &Tensor) -> anygpu::Result<Tensor> {
///         let y = x.apply(&self.conv)?.apply(&self.norm)?;
///         match &self.project {
///             Some(project) => (y + project.forward(x))?.relu(),
///             None => (y + x)?.relu(),
///         }
///     }
/// }
///
/// let block = Block::new(1, 4)?;
/// assert_eq!(Tensor::ones((2, 1, 8, 8), None)?.apply(&block)?.shape(), [2, 4, 8, 8]);
/// assert!(block.state_dict().names().any(|name| name == "project.weight"));
/// # Ok::<(), anygpu::Error>(())
/// ```
#[macro_export]
macro_rules! module {
    (
        $(#[$attribute:meta])*
        $visible:vis struct $name:ident($($argument:ident: $argument_type:ty),* $(,)?) {
            $($(#[$field_attribute:meta])* $field_visible:vis $field:ident: $field_type:ty = $value:expr),* $(,)?
        }

        $($methods:tt)*
    ) => {
        $(#[$attribute])*
        #[derive(Clone)]
        $visible struct $name {
            $($(#[$field_attribute])* $field_visible $field: $field_type,)*
        }

        impl $name {
            /// Creates the layers, on the CPU.
            ///
            /// # Errors
            /// Those of the layers.
            #[allow(clippy::too_many_arguments, reason = "the arguments are those of the caller of the macro")]
            $visible fn new($($argument: $argument_type),*) -> $crate::Result<$name> {
                Ok($name { $($field: $value,)* })
            }
        }

        impl $crate::nn::Module for $name {
            $crate::children!($($field),*);

            $($methods)*
        }
    };
}
