//! Conversions from and to arrays of the `ndarray` crate (feature `ndarray`).

use ndarray::{ArrayBase, ArrayD, Data, Dimension, IxDyn};

use crate::device::{Device, IntoDevice};
use crate::dtype::{DType, Element};
use crate::error::{Error, Result};
use crate::tensor::Tensor;

mod sealed {
    use crate::device::Device;
    use crate::error::Result;
    use crate::tensor::Tensor;

    pub trait Sealed: Copy {
        fn tensor(elements: &[Self], shape: &[usize], device: Device) -> Result<Tensor>;
        fn elements(tensor: &Tensor) -> Result<Vec<Self>>;
    }
}

/// An element type of both `ndarray` arrays and tensors: every [`Element`], and `f64`.
pub trait ArrayElement: sealed::Sealed {}

impl<T: sealed::Sealed> ArrayElement for T {}

impl<T: Element> sealed::Sealed for T {
    fn tensor(elements: &[T], shape: &[usize], device: Device) -> Result<Tensor> {
        Tensor::from_slice(elements, shape, device)
    }

    fn elements(tensor: &Tensor) -> Result<Vec<T>> {
        tensor.elements("to_ndarray")
    }
}

impl sealed::Sealed for f64 {
    fn tensor(elements: &[f64], shape: &[usize], device: Device) -> Result<Tensor> {
        Tensor::from_f64(elements, shape, device)
    }

    fn elements(tensor: &Tensor) -> Result<Vec<f64>> {
        match tensor.dtype() {
            DType::F64 => tensor.to_vec_f64(),
            other => {
                let (expected, got) = (DType::F64.to_string(), other.to_string());
                Err(Error::DTypeMismatch { op: "to_ndarray", expected, got })
            }
        }
    }
}

impl Tensor {
    /// Returns a tensor with an array's shape and elements, on `device`; `None` is the CPU.
    ///
    /// Elements keep their type. An array of `f64` becomes a tensor of [`DType::F64`], which only `cpu` holds. To get
    /// f32 instead, convert the array first: `array.mapv(|x| x as f32)`.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if the device does not have enough memory;
    /// [`Error::DTypeMismatch`] if it does not hold this element type.
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
    pub fn from_ndarray<T: ArrayElement, S: Data<Elem = T>, D: Dimension>(
        array: &ArrayBase<S, D>,
        device: impl IntoDevice,
    ) -> Result<Tensor> {
        match array.as_slice() {
            Some(elements) => T::tensor(elements, array.shape(), device.into_device()?),
            None => T::tensor(&array.iter().copied().collect::<Vec<T>>(), array.shape(), device.into_device()?),
        }
    }

    /// Returns the elements as an array of this shape. Waits until the device has computed them.
    ///
    /// # Errors
    /// Same as [`Tensor::to_vec`].
    pub fn to_ndarray<T: ArrayElement>(&self) -> Result<ArrayD<T>> {
        ArrayD::from_shape_vec(IxDyn(self.shape()), T::elements(self)?)
            .map_err(|error| Error::argument("to_ndarray", error.to_string()))
    }
}
