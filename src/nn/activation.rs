//! Activations as layers: element-wise functions, and softmax. The formulas are in the documentation of the methods of
//! `Tensor`.

use super::{Module, summary};
use crate::device::labelled_by_default;
use crate::error::{Error, Result};
use crate::tensor::Tensor;

/// Layers without settings. Each calls one method of `Tensor`.
macro_rules! plain {
    ($($(#[$doc:meta])* $name:ident => $method:ident;)*) => {$(
        $(#[$doc])*
        #[doc = concat!("See [`Tensor::", stringify!($method), "`]. Inputs may have any shape.")]
        ///
        /// # Example
        /// ```
        #[doc = concat!("use anygpu::nn::{Module, ", stringify!($name), "};")]
        /// use anygpu::Tensor;
        ///
        /// let x = Tensor::new([-1.0, 0.0, 2.0], None)?;
        #[doc = concat!("let y = ", stringify!($name), ".forward(&x)?;")]
        #[doc = concat!("assert_eq!(y.to_vec::<f32>()?, x.", stringify!($method), "()?.to_vec::<f32>()?);")]
        /// # Ok::<(), anygpu::Error>(())
        /// ```
        #[derive(Clone, Copy, Debug, Default)]
        pub struct $name;

        impl Module for $name {
            crate::children!();

            fn forward(&self, input: &Tensor) -> Result<Tensor> {
                summary::seen(self, input.$method())
            }
        }
    )*};
}

plain! {
    /// max(x, 0).
    ReLU => relu;
    /// min(max(x, 0), 6).
    ReLU6 => relu6;
    /// 1 / (1 + e⁻ˣ).
    Sigmoid => sigmoid;
    /// The hyperbolic tangent.
    Tanh => tanh;
    /// The Gaussian error linear unit, x Φ(x).
    GELU => gelu;
    /// The sigmoid linear unit or swish, x / (1 + e⁻ˣ).
    SiLU => silu;
    /// x tanh(ln(1 + eˣ)).
    Mish => mish;
    /// x min(max(x + 3, 0), 6) / 6.
    Hardswish => hardswish;
    /// min(max(x + 3, 0), 6) / 6.
    Hardsigmoid => hardsigmoid;
    /// x / (1 + |x|).
    Softsign => softsign;
    /// ln(1 / (1 + e⁻ˣ)).
    LogSigmoid => log_sigmoid;
}

/// Layers with settings. Each calls one method of `Tensor` with them. The literals are the values for the example.
macro_rules! set {
    ($($(#[$doc:meta])* $name:ident($($setting:ident: $kind:ty = $example:literal),+) => $method:ident;)*) => {$(
        $(#[$doc])*
        #[doc = concat!("See [`Tensor::", stringify!($method), "`].")]
        ///
        /// # Example
        /// ```
        #[doc = concat!("use anygpu::nn::{Module, ", stringify!($name), "};")]
        /// use anygpu::Tensor;
        ///
        /// let x = Tensor::new([[-1.0, 0.5], [2.0, 4.0]], None)?;
        #[doc = concat!("let y = ", stringify!($name), "::new(", $(stringify!($example), ", ",)+ ").forward(&x)?;")]
        #[doc = concat!("let expected = x.", stringify!($method), "(", $(stringify!($example), ", ",)+ ")?;")]
        /// assert_eq!(y.to_vec::<f32>()?, expected.to_vec::<f32>()?);
        /// # Ok::<(), anygpu::Error>(())
        /// ```
        #[derive(Clone, Copy, Debug)]
        pub struct $name {
            $($setting: $kind,)+
        }

        impl $name {
            /// Creates a layer with these settings.
            pub fn new($($setting: $kind),+) -> $name {
                $name { $($setting),+ }
            }
        }

        impl Module for $name {
            crate::children!();

            fn forward(&self, input: &Tensor) -> Result<Tensor> {
                summary::seen(self, input.$method($(self.$setting),+))
            }
        }
    )*};
}

set! {
    /// x if x > 0, else x times a slope (PyTorch's default is 0.01).
    LeakyReLU(negative_slope: f32 = 0.01) => leaky_relu;
    /// x if x > 0, else α (eˣ − 1) (PyTorch's default for α is 1).
    ELU(alpha: f32 = 1.0) => elu;
    /// x clamped to two bounds (PyTorch's defaults are −1 and 1).
    Hardtanh(min: f32 = -1.0, max: f32 = 1.0) => hardtanh;
    /// ln(1 + e^(β x)) / β, or x where β x is above a threshold (PyTorch's defaults are 1 and 20).
    Softplus(beta: f32 = 1.0, threshold: f32 = 20.0) => softplus;
    /// eˣ divided by the sum of eˣ along a dimension.
    Softmax(dim: isize = 1) => softmax;
    /// The logarithm of [`Softmax`].
    LogSoftmax(dim: isize = -1) => log_softmax;
}

/// The rectified linear unit with a learned slope: x if x > 0, else a · x.
///
/// `x: [N, C, ..]` → `[N, C, ..]`. `weight` is `[1]` for one slope, or `[C]` for one slope per channel (the second
/// dimension); this is PyTorch's `num_parameters`. The slopes start at 0.25.
///
/// # Example
/// ```
/// use anygpu::nn::{Module, PReLU};
/// use anygpu::Tensor;
///
/// let x = Tensor::new([[-4.0, 2.0], [1.0, -8.0]], None)?;
/// assert_eq!(PReLU::new(1)?.forward(&x)?.to_vec::<f32>()?, [-1.0, 2.0, 1.0, -2.0]);
///
/// let layer = PReLU::new(2)?;
/// anygpu::no_grad(|| layer.weight().copy_(&Tensor::new([0.5, 0.0], None)?))?;
/// assert_eq!(layer.forward(&x)?.to_vec::<f32>()?, [-2.0, 2.0, 1.0, 0.0]);
/// assert!(PReLU::new(3)?.forward(&x).is_err()); // two channels
/// # Ok::<(), anygpu::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct PReLU {
    weight: Tensor,
}

impl PReLU {
    /// Creates a layer with `count` slopes: 1, or one for each channel.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if `count` is 0.
    pub fn new(count: usize) -> Result<PReLU> {
        if count == 0 {
            return Err(Error::argument("PReLU", "there must be at least one slope"));
        }
        let weight = labelled_by_default("parameters", || Tensor::full([count], 0.25f32, None))?;
        Ok(PReLU { weight: weight.requires_grad() })
    }

    /// Returns the slopes, `[count]`.
    #[must_use]
    pub fn weight(&self) -> &Tensor {
        &self.weight
    }

    /// Returns the slopes in a shape that broadcasts to the input.
    fn slopes(&self, input: &Tensor) -> Result<Tensor> {
        let (count, shape) = (self.weight.elem_count(), input.shape());
        match shape {
            _ if count == 1 => Ok(self.weight.clone()),
            [_, channels, rest @ ..] if *channels == count => {
                self.weight.reshape([&[count][..], &vec![1; rest.len()]].concat())
            }
            _ => {
                let detail = "the layer has one slope for each channel, the second dimension of the input";
                Err(Error::shapes("PReLU", shape, self.weight.shape(), detail))
            }
        }
    }
}

impl Module for PReLU {
    crate::children!(weight);

    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        if !input.dtype().is_float() {
            let expected = "a float type (convert integers with x.to_dtype(DType::F32)?)".into();
            return Err(Error::DTypeMismatch { op: "PReLU", expected, got: input.dtype().to_string() });
        }
        // At 0 the slope counts, as in PyTorch.
        let slopes = self.slopes(input)?.to_dtype(input.dtype())?;
        let negative = input.gt(0.0)?.where_cond(0.0, input)?;
        summary::seen(self, input.relu()?.add(&negative.mul(&slopes)?))
    }
}
