//! Reading elements without a copy.

use crate::device::Storage;
use crate::dtype::Element;
use crate::error::{Error, Result};
use crate::tensor::Tensor;

impl Tensor {
    /// Calls `f` with the elements in row-major order. For contiguous tensors on the CPU, this is the tensor's own
    /// memory, without a copy; otherwise it is the result of [`Tensor::to_vec`].
    ///
    /// The elements are locked against writes while `f` runs: do not write to them in `f`.
    ///
    /// # Errors
    /// [`Error::DTypeMismatch`] if `T` is not the tensor's element type; errors of earlier work on the device.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let x = Tensor::try_from([1.0, 2.0, 3.5])?;
    /// assert_eq!(x.with_slice(|values: &[f32]| values.iter().sum::<f32>())?, 6.5);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn with_slice<T: Element + bytemuck::Pod, R>(&self, f: impl FnOnce(&[T]) -> R) -> Result<R> {
        if T::DTYPE != self.dtype() {
            let (expected, got) = (T::DTYPE.to_string(), self.dtype().to_string());
            return Err(Error::DTypeMismatch { op: "with_slice", expected, got });
        }
        match self.storage() {
            Storage::Cpu(buffer) if self.layout().is_contiguous() => {
                let words = buffer.read();
                let elements: &[T] = bytemuck::cast_slice(&words);
                let start = self.layout().offset;
                Ok(f(&elements[start..start + self.elem_count()]))
            }
            _ => Ok(f(&self.to_vec()?)),
        }
    }
}
