//! Pooling as layers, over one, two or three dimensions. A size is one number for all dimensions, or an array with one for
//! each: `[vertical, horizontal]` for two, `[depth, vertical, horizontal]` for three.

use super::{Module, summary};
use crate::error::Result;
use crate::ops::{Pool, Sizes};
use crate::tensor::Tensor;

/// Defines a pooling layer over `$d` dimensions from its docs, its type and the method of `Tensor`, with the settings
/// that only maxima or only means have.
macro_rules! pooling {
    ($(#[$doc:meta])* $name:ident, $d:literal, $method:ident, $($own:tt)*) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub struct $name {
            pool: Pool<$d>,
        }

        impl $name {
            /// Creates a layer with windows of this size and a stride of the same size.
            #[must_use]
            pub fn new(kernel: impl Sizes<$d>) -> $name {
                $name { pool: Pool::new(kernel) }
            }

            /// Sets the stride: the step from one window to the next. A stride of 0 is an error of
            /// [`forward`](Module::forward).
            #[must_use]
            pub fn stride(mut self, stride: impl Sizes<$d>) -> $name {
                self.pool = self.pool.stride(stride);
                self
            }

            /// Sets the padding: the number of elements added on each side of the input, at most half of the window.
            #[must_use]
            pub fn padding(mut self, padding: impl Sizes<$d>) -> $name {
                self.pool = self.pool.padding(padding);
                self
            }

            /// Sets whether a last window that extends past the padded input counts. If it does, the output's size is
            /// rounded up. This is PyTorch's `ceil_mode`; the default is false.
            #[must_use]
            pub fn ceil_mode(mut self, ceil_mode: bool) -> $name {
                self.pool = self.pool.ceil_mode(ceil_mode);
                self
            }

            pooling!(@ $name, $d, $($own)*);
        }

        impl Module for $name {
            crate::children!();

            fn forward(&self, input: &Tensor) -> Result<Tensor> {
                summary::seen(self, input.$method(self.pool))
            }
        }
    };
    (@ $name:ident, $d:literal, max) => {
        /// Sets the dilation: the distance between neighbouring elements of a window. A dilation of 0 is an error of
        /// [`forward`](Module::forward).
        #[must_use]
        pub fn dilation(mut self, dilation: impl Sizes<$d>) -> $name {
            self.pool = self.pool.dilation(dilation);
            self
        }
    };
    (@ $name:ident, $d:literal, avg) => {
        /// Sets whether a mean counts the padding, as zeros: PyTorch's `count_include_pad`. The default is true.
        #[must_use]
        pub fn count_include_pad(mut self, count_include_pad: bool) -> $name {
            self.pool = self.pool.count_include_pad(count_include_pad);
            self
        }
    };
}

pooling! {
    /// The mean of each window.
    ///
    /// `x: [N, C, H, W]` → `y: [N, C, OH, OW]` with OH = (H + 2·padding − K) / stride + 1 (rounded down, or up with
    /// [`ceil_mode`](AvgPool2d::ceil_mode)), OW likewise. The zeros of the padding are included in the mean, as in PyTorch,
    /// unless [`count_include_pad`](AvgPool2d::count_include_pad) is false.
    ///
    /// # Example
    /// ```
    /// use anygpu::nn::{AvgPool2d, Module};
    /// use anygpu::Tensor;
    ///
    /// let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 6.0], [1, 1, 2, 2], None)?;
    /// let y = AvgPool2d::new(2).forward(&x)?;
    /// assert_eq!((y.shape(), y.to_vec::<f32>()?), (&[1, 1, 1, 1][..], vec![3.0]));
    /// assert_eq!(AvgPool2d::new([1, 2]).forward(&x)?.to_vec::<f32>()?, [1.5, 4.5]);
    ///
    /// assert!(AvgPool2d::new(3).forward(&x).is_err()); // the window is larger than the image
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    AvgPool2d, 2, avg_pool2d, avg
}

pooling! {
    /// The mean of each window of a line: `[N, C, L]` → `[N, C, OL]`, as [`AvgPool2d`].
    ///
    /// # Example
    /// ```
    /// use anygpu::nn::{AvgPool1d, Module};
    /// use anygpu::Tensor;
    ///
    /// let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 6.0], [1, 1, 4], None)?;
    /// assert_eq!(AvgPool1d::new(2).forward(&x)?.to_vec::<f32>()?, [1.5, 4.5]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    AvgPool1d, 1, avg_pool1d, avg
}

pooling! {
    /// The mean of each window of a volume: `[N, C, D, H, W]` → `[N, C, OD, OH, OW]`, as [`AvgPool2d`].
    ///
    /// # Example
    /// ```
    /// use anygpu::nn::{AvgPool3d, Module};
    /// use anygpu::Tensor;
    ///
    /// let x = Tensor::ones([1, 2, 4, 6, 6], None)?;
    /// assert_eq!(AvgPool3d::new([1, 2, 2]).forward(&x)?.shape(), [1, 2, 4, 3, 3]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    AvgPool3d, 3, avg_pool3d, avg
}

pooling! {
    /// The greatest value of each window.
    ///
    /// `x: [N, C, H, W]` → `y: [N, C, OH, OW]` with OH = (H + 2·padding − dilation·(K − 1) − 1) / stride + 1 (rounded down, or
    /// up with [`ceil_mode`](MaxPool2d::ceil_mode)), OW likewise. The padding never is the maximum.
    /// [`Tensor::max_pool2d_with_indices`] also returns the positions (PyTorch's `return_indices`).
    ///
    /// # Example
    /// ```
    /// use anygpu::nn::{MaxPool2d, Module};
    /// use anygpu::Tensor;
    ///
    /// let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 6.0], [1, 1, 2, 2], None)?;
    /// let y = MaxPool2d::new(2).forward(&x)?;
    /// assert_eq!((y.shape(), y.to_vec::<f32>()?), (&[1, 1, 1, 1][..], vec![6.0]));
    ///
    /// assert!(MaxPool2d::new(3).forward(&x).is_err()); // the window is larger than the image
    /// let x = Tensor::zeros([8, 3, 7, 9], None)?;
    /// assert_eq!(MaxPool2d::new([3, 2]).stride(2).padding([1, 0]).ceil_mode(true).forward(&x)?.shape(), [8, 3, 4, 5]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    MaxPool2d, 2, max_pool2d, max
}

pooling! {
    /// The greatest value of each window of a line: `[N, C, L]` → `[N, C, OL]`, as [`MaxPool2d`].
    ///
    /// # Example
    /// ```
    /// use anygpu::nn::{MaxPool1d, Module};
    /// use anygpu::Tensor;
    ///
    /// let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 6.0], [1, 1, 4], None)?;
    /// assert_eq!(MaxPool1d::new(2).forward(&x)?.to_vec::<f32>()?, [2.0, 6.0]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    MaxPool1d, 1, max_pool1d, max
}

pooling! {
    /// The greatest value of each window of a volume: `[N, C, D, H, W]` → `[N, C, OD, OH, OW]`, as [`MaxPool2d`].
    ///
    /// # Example
    /// ```
    /// use anygpu::nn::{MaxPool3d, Module};
    /// use anygpu::Tensor;
    ///
    /// let x = Tensor::ones([1, 2, 4, 6, 6], None)?;
    /// assert_eq!(MaxPool3d::new(3).stride(2).padding(1).forward(&x)?.shape(), [1, 2, 2, 3, 3]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    MaxPool3d, 3, max_pool3d, max
}

/// Defines a layer that pools to a given number of parts.
macro_rules! adaptive {
    ($(#[$doc:meta])* $name:ident, $d:literal, $method:ident, |$size:ident| $argument:expr) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub struct $name {
            size: [usize; $d],
        }

        impl $name {
            /// Creates a layer that splits each dimension into `size` parts, or into as many as the array says.
            #[must_use]
            pub fn new(size: impl Sizes<$d>) -> $name {
                $name { size: size.sizes() }
            }
        }

        impl Module for $name {
            crate::children!();

            fn forward(&self, input: &Tensor) -> Result<Tensor> {
                let $size = self.size;
                summary::seen(self, input.$method($argument))
            }
        }
    };
}

adaptive! {
    /// Splits an image of any size into a given number of parts and returns the mean of each.
    ///
    /// `x: [N, C, H, W]` → `y: [N, C, OH, OW]`: see [`Tensor::adaptive_avg_pool2d`].
    ///
    /// # Example
    /// ```
    /// use anygpu::nn::{AdaptiveAvgPool2d, Module};
    /// use anygpu::Tensor;
    ///
    /// let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 6.0], [1, 1, 2, 2], None)?;
    /// assert_eq!(AdaptiveAvgPool2d::new(1).forward(&x)?.to_vec::<f32>()?, [3.0]);
    /// assert_eq!(AdaptiveAvgPool2d::new([2, 1]).forward(&x)?.to_vec::<f32>()?, [1.5, 4.5]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    AdaptiveAvgPool2d, 2, adaptive_avg_pool2d, |size| size
}

adaptive! {
    /// The mean of each of a given number of parts of a line: `[N, C, L]` → `[N, C, size]`.
    ///
    /// # Example
    /// ```
    /// use anygpu::nn::{AdaptiveAvgPool1d, Module};
    /// use anygpu::Tensor;
    ///
    /// let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 6.0], [1, 1, 4], None)?;
    /// assert_eq!(AdaptiveAvgPool1d::new(2).forward(&x)?.to_vec::<f32>()?, [1.5, 4.5]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    AdaptiveAvgPool1d, 1, adaptive_avg_pool1d, |size| size[0]
}

adaptive! {
    /// The mean of each of a given number of parts of a volume: `[N, C, D, H, W]` → `[N, C, OD, OH, OW]`.
    ///
    /// # Example
    /// ```
    /// use anygpu::nn::{AdaptiveAvgPool3d, Module};
    /// use anygpu::Tensor;
    ///
    /// let x = Tensor::ones([2, 5, 4, 7, 7], None)?;
    /// assert_eq!(AdaptiveAvgPool3d::new([2, 1, 1]).forward(&x)?.shape(), [2, 5, 2, 1, 1]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    AdaptiveAvgPool3d, 3, adaptive_avg_pool3d, |size| size
}

adaptive! {
    /// The greatest value of each of a given number of parts: `[N, C, H, W]` → `[N, C, OH, OW]`.
    ///
    /// # Example
    /// ```
    /// use anygpu::nn::{AdaptiveMaxPool2d, Module};
    /// use anygpu::Tensor;
    ///
    /// let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 6.0], [1, 1, 2, 2], None)?;
    /// assert_eq!(AdaptiveMaxPool2d::new([2, 1]).forward(&x)?.to_vec::<f32>()?, [2.0, 6.0]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    AdaptiveMaxPool2d, 2, adaptive_max_pool2d, |size| size
}

adaptive! {
    /// The greatest value of each of a given number of parts of a line: `[N, C, L]` → `[N, C, size]`.
    ///
    /// # Example
    /// ```
    /// use anygpu::nn::{AdaptiveMaxPool1d, Module};
    /// use anygpu::Tensor;
    ///
    /// let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 6.0], [1, 1, 4], None)?;
    /// assert_eq!(AdaptiveMaxPool1d::new(2).forward(&x)?.to_vec::<f32>()?, [2.0, 6.0]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    AdaptiveMaxPool1d, 1, adaptive_max_pool1d, |size| size[0]
}

adaptive! {
    /// The greatest value of each of a given number of parts of a volume: `[N, C, D, H, W]` → `[N, C, OD, OH, OW]`.
    ///
    /// # Example
    /// ```
    /// use anygpu::nn::{AdaptiveMaxPool3d, Module};
    /// use anygpu::Tensor;
    ///
    /// let x = Tensor::ones([2, 5, 4, 7, 7], None)?;
    /// assert_eq!(AdaptiveMaxPool3d::new(2).forward(&x)?.shape(), [2, 5, 2, 2, 2]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    AdaptiveMaxPool3d, 3, adaptive_max_pool3d, |size| size
}
