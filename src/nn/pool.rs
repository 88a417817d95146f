use super::{Module, summary};
use crate::error::Result;
use crate::ops::{Pool, Sizes};
use crate::tensor::Tensor;

/// The mean of each window.
///
/// `x: [N, C, H, W]` → `y: [N, C, OH, OW]` with OH = (H + 2·padding − K) / stride + 1 (rounded down), OW likewise. The
/// zeros of the padding are included in the mean, as in PyTorch.
///
/// # Example
/// ```
/// use anygpu::nn::{AvgPool2d, Module};
/// use anygpu::Tensor;
///
/// let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 6.0], [1, 1, 2, 2], None)?;
/// let y = AvgPool2d::new(2).forward(&x)?;
/// assert_eq!((y.shape(), y.to_vec::<f32>()?), (&[1, 1, 1, 1][..], vec![3.0]));
///
/// assert!(AvgPool2d::new(3).forward(&x).is_err()); // the window is larger than the image
/// # Ok::<(), anygpu::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct AvgPool2d {
    kernel: usize,
    stride: usize,
    padding: usize,
}

impl AvgPool2d {
    /// Creates a layer with a window of `kernel` × `kernel` and a stride of the same size.
    #[must_use]
    pub fn new(kernel: usize) -> AvgPool2d {
        AvgPool2d { kernel, stride: kernel, padding: 0 }
    }

    /// Sets the stride: the step of the window in both directions. A stride of 0 is an error of
    /// [`forward`](Module::forward).
    #[must_use]
    pub fn stride(mut self, stride: usize) -> AvgPool2d {
        self.stride = stride;
        self
    }

    /// Sets the padding: the number of rows and columns added on each side of the image, at most half of the window.
    #[must_use]
    pub fn padding(mut self, padding: usize) -> AvgPool2d {
        self.padding = padding;
        self
    }
}

impl Module for AvgPool2d {
    crate::children!();

    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        summary::seen(self, input.avg_pool2d(Pool::new(self.kernel).stride(self.stride).padding(self.padding)))
    }
}

/// The greatest value of each window.
///
/// `x: [N, C, H, W]` → `y: [N, C, OH, OW]` with OH = (H + 2·padding − K) / stride + 1 (rounded down), OW likewise. The
/// padding never is the maximum.
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
/// # Ok::<(), anygpu::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct MaxPool2d {
    kernel: usize,
    stride: usize,
    padding: usize,
}

impl MaxPool2d {
    /// Creates a layer with a window of `kernel` × `kernel` and a stride of the same size.
    #[must_use]
    pub fn new(kernel: usize) -> MaxPool2d {
        MaxPool2d { kernel, stride: kernel, padding: 0 }
    }

    /// Sets the stride: the step of the window in both directions. A stride of 0 is an error of
    /// [`forward`](Module::forward).
    #[must_use]
    pub fn stride(mut self, stride: usize) -> MaxPool2d {
        self.stride = stride;
        self
    }

    /// Sets the padding: the number of rows and columns added on each side of the image, at most half of the window.
    #[must_use]
    pub fn padding(mut self, padding: usize) -> MaxPool2d {
        self.padding = padding;
        self
    }
}

impl Module for MaxPool2d {
    crate::children!();

    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        summary::seen(self, input.max_pool2d(Pool::new(self.kernel).stride(self.stride).padding(self.padding)))
    }
}

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
#[derive(Clone, Copy, Debug)]
pub struct AdaptiveAvgPool2d {
    size: [usize; 2],
}

impl AdaptiveAvgPool2d {
    /// Creates a layer that splits images into `size` × `size` parts, or `[rows, columns]`.
    pub fn new(size: impl Sizes<2>) -> AdaptiveAvgPool2d {
        AdaptiveAvgPool2d { size: size.sizes() }
    }
}

impl Module for AdaptiveAvgPool2d {
    crate::children!();

    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        summary::seen(self, input.adaptive_avg_pool2d(self.size))
    }
}
