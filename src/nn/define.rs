//! Helpers for users' forward functions: the macro that defines a module, what it may return, and calls in a chain.

use super::Module;
use crate::error::Result;
use crate::tensor::Tensor;

impl Tensor {
    /// Returns `layer.forward(self)`, for chains of calls.
    ///
    /// # Errors
    /// The errors of the layer.
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

/// What the `forward` function of a net from [`module!`](crate::module) may return: a tensor, or a tuple that begins
/// with a tensor.
pub trait Outputs {
    /// Returns the first tensor, which is the result of such a net as a [`Module`].
    fn into_first(self) -> Tensor;
}

impl Outputs for Tensor {
    fn into_first(self) -> Tensor {
        self
    }
}

impl<A> Outputs for (Tensor, A) {
    fn into_first(self) -> Tensor {
        self.0
    }
}

impl<A, B> Outputs for (Tensor, A, B) {
    fn into_first(self) -> Tensor {
        self.0
    }
}

impl<A, B, C> Outputs for (Tensor, A, B, C) {
    fn into_first(self) -> Tensor {
        self.0
    }
}

/// Defines a [`Module`](crate::nn::Module): a struct of layers, a constructor and the forward function.
///
/// The parentheses after the name hold the arguments of `new`. Each field has a type and a value, which may use these
/// arguments and `?`. The methods after the struct are methods of the trait: `forward`, and others to override. The
/// struct is `Clone`, and a clone has the same parameters ([`deep_copy`](crate::nn::Module::deep_copy) copies them).
/// Attributes, such as `#[derive(Debug)]`, and `pub` are kept.
///
/// A net with several results, such as several heads, returns a tuple of up to four elements from `forward`, which
/// begins with a tensor. `net.forward(&x)?` is the tuple. As a [`Module`](crate::nn::Module), for example in a
/// `Sequential`, the net returns the first tensor.
///
/// `forward` may have several inputs, of any types: `net.forward(&x, &mask)?`. A [`Module`](crate::nn::Module) has one
/// input, so such a net returns an error as a `Module`. A net may also have no `forward`, for example an encoder and a
/// decoder that are called separately. It is then only the struct, and its own methods are in an `impl` block beside
/// it.
///
/// For `pub struct Net(n: usize) { a: Linear = …, }` the macro writes the struct with its fields,
/// `pub fn new(n: usize) -> anygpu::Result<Net>`, `forward`, and `impl Module for Net` with
/// [`children!(a)`](crate::children). A field may have any type that `children!` accepts. For a struct with type
/// parameters or other fields, write these parts yourself.
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
///
/// anygpu::module! {
///     struct Heads(width: usize) {
///         class: nn::Linear = nn::Linear::new(width, 10)?,
///         place: nn::Linear = nn::Linear::new(width, 2)?,
///     }
///
///     fn forward(&self, x: &Tensor) -> anygpu::Result<(Tensor, Tensor)> {
///         Ok((x.apply(&self.class)?, x.apply(&self.place)?))
///     }
/// }
///
/// anygpu::module! {
///     struct Attend(width: usize) {
///         attention: nn::MultiheadAttention = nn::MultiheadAttention::new(width, 2)?,
///     }
///
///     fn forward(&self, x: &Tensor, memory: &Tensor) -> anygpu::Result<Tensor> {
///         self.attention.attend(x, memory, memory, &Default::default())
///     }
/// }
///
/// let (x, memory) = (Tensor::ones((1, 3, 8), None)?, Tensor::ones((1, 5, 8), None)?);
/// assert_eq!(Attend::new(8)?.forward(&x, &memory)?.shape(), [1, 3, 8]);
///
/// anygpu::module! {
///     struct Pair(width: usize) {
///         encoder: nn::Linear = nn::Linear::new(width, 2)?,
///         decoder: nn::Linear = nn::Linear::new(2, width)?,
///     }
/// }
///
/// let pair = Pair::new(8)?;
/// assert_eq!(pair.decoder.forward(&pair.encoder.forward(&x)?)?.shape(), [1, 3, 8]);
/// assert_eq!(pair.num_parameters(), 8 * 2 + 2 + 2 * 8 + 8);
///
/// let (class, place) = Heads::new(8)?.forward(&Tensor::ones((3, 8), None)?)?;
/// assert_eq!((class.shape(), place.shape()), (&[3, 10][..], &[3, 2][..]));
/// # Ok::<(), anygpu::Error>(())
/// ```
#[macro_export]
macro_rules! module {
    (
        $(#[$attribute:meta])*
        $visible:vis struct $name:ident $arguments:tt $fields:tt

        $(#[$forward_attribute:meta])*
        fn forward(&$self:ident, $input:ident: &$input_type:ty) -> $result:ty $body:block

        $($methods:tt)*
    ) => {
        $crate::module! {
            $(#[$attribute])*
            $visible struct $name $arguments $fields

            // The empty `where` distinguishes this function from a user's. It calls the one below, which comes before
            // the trait's.
            fn forward(&self, input: &$crate::Tensor) -> $crate::Result<$crate::Tensor> where {
                $name::forward(self, input).map($crate::nn::Outputs::into_first)
            }

            $($methods)*
        }

        impl $name {
            /// Applies the net to its input.
            ///
            /// # Errors
            /// Errors of its layers and ops.
            $(#[$forward_attribute])*
            $visible fn forward(&$self, $input: &$input_type) -> $result {
                // As in the trait's own functions, `forward` of layers can be called without an import.
                #[allow(unused_imports, reason = "the caller of the macro may have imported it")]
                use $crate::nn::Module as _;
                $body
            }
        }
    };

    // Several inputs.
    (
        $(#[$attribute:meta])*
        $visible:vis struct $name:ident $arguments:tt $fields:tt

        $(#[$forward_attribute:meta])*
        fn forward(&$self:ident, $($input:ident: $input_type:ty),* $(,)?) -> $result:ty $body:block

        $($methods:tt)*
    ) => {
        $crate::module! {
            $(#[$attribute])*
            $visible struct $name $arguments $fields

            fn forward(&self, _input: &$crate::Tensor) -> $crate::Result<$crate::Tensor> where {
                let detail = "does not take one tensor: call its own forward, not the trait Module's";
                Err($crate::Error::InvalidArgument { op: stringify!($name), detail: detail.to_owned() })
            }

            $($methods)*
        }

        impl $name {
            /// Applies the net to its inputs.
            ///
            /// # Errors
            /// Errors of its layers and ops.
            $(#[$forward_attribute])*
            $visible fn forward(&$self, $($input: $input_type),*) -> $result {
                #[allow(unused_imports, reason = "the caller of the macro may have imported it")]
                use $crate::nn::Module as _;
                $body
            }
        }
    };

    // No forward function.
    (
        $(#[$attribute:meta])*
        $visible:vis struct $name:ident $arguments:tt $fields:tt
    ) => {
        $crate::module! {
            $(#[$attribute])*
            $visible struct $name $arguments $fields

            fn forward(&self, _input: &$crate::Tensor) -> $crate::Result<$crate::Tensor> where {
                let detail = "has no forward function: call its own methods";
                Err($crate::Error::InvalidArgument { op: stringify!($name), detail: detail.to_owned() })
            }
        }
    };

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
            /// Errors of the layers.
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
