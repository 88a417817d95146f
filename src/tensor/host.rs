//! Reading elements where they are.

use crate::device::Storage;
use crate::dtype::Element;
use crate::error::{Error, Result};
use crate::tensor::Tensor;

impl Tensor {
    /// Calls `f` with the elements in row-major order: on the CPU, where they lie so without gaps, with the tensor's own
    /// memory and without a copy; else with what [`Tensor::to_vec`] reads.
    ///
    /// Nobody can write to the elements while `f` runs: do not do so in `f` itself.
    ///
    /// # Errors
    /// [`Error::DTypeMismatch`] if `T` is not the tensor's element type; whatever went wrong on the device before.
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
