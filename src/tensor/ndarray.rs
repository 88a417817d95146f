//! Conversions from and to arrays of the `ndarray` crate (feature `ndarray`).

use ndarray::{ArrayBase, ArrayD, Data, Dimension, IxDyn};

use crate::device::IntoDevice;
use crate::dtype::Element;
use crate::error::{Error, Result};
use crate::tensor::Tensor;

impl Tensor {
    /// Returns a tensor with an array's shape and elements, on `device`; `None` is the CPU.
    ///
    /// # Errors
    /// If the device does not have enough memory.
    ///
    /// ```
    /// use anygpu::Tensor;
    ///
    /// let array = ndarray::array![[1.0f32, 2.0], [3.0, 4.0]];
    /// let x = Tensor::from_ndarray(&array.t(), None)?;
    /// assert_eq!(x.to_vec::<f32>()?, [1.0, 3.0, 2.0, 4.0]);
    /// assert_eq!(x.to_ndarray::<f32>()?, array.t().into_dyn());
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn from_ndarray<T: Element, S: Data<Elem = T>, D: Dimension>(
        array: &ArrayBase<S, D>,
        device: impl IntoDevice,
    ) -> Result<Tensor> {
        match array.as_slice() {
            Some(elements) => Tensor::from_slice(elements, array.shape(), device),
            None => Tensor::from_vec(array.iter().copied().collect(), array.shape(), device),
        }
    }

    /// Returns the elements as an array of this shape. Waits until the device has computed them.
    ///
    /// # Errors
    /// Same as [`Tensor::to_vec`].
    pub fn to_ndarray<T: Element>(&self) -> Result<ArrayD<T>> {
        ArrayD::from_shape_vec(IxDyn(self.shape()), self.elements("to_ndarray")?)
            .map_err(|error| Error::argument("to_ndarray", error.to_string()))
    }
}
