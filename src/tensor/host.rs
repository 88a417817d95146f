//! Reading elements on the host.

use crate::device::Storage;
use crate::device::cpu::with_room;
use crate::dtype::{DType, Element, long_bits};
use crate::error::{Error, Result};
use crate::ops::named;
use crate::ops::traced::note_use;
use crate::tensor::Tensor;

impl Tensor {
    /// Returns the elements in row-major order. Waits until the device has computed them.
    ///
    /// # Errors
    /// [`Error::DTypeMismatch`] if `T` is not the tensor's element type; errors of earlier work on the device.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// assert_eq!(Tensor::new([[1.0, 2.0], [3.0, 4.0]], None)?.to_vec::<f32>()?, [1.0, 2.0, 3.0, 4.0]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        self.elements("to_vec")
    }

    /// Returns the elements as f64, for every element type. The conversion is exact, except for [`DType::I64`] beyond
    /// 2⁵³.
    ///
    /// # Errors
    /// Errors of earlier work on the device.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// assert_eq!(Tensor::new([[1.5, -2.0]], None)?.to_vec_f64()?, [1.5, -2.0]);
    /// assert_eq!(Tensor::new([true, false], None)?.to_vec_f64()?, [1.0, 0.0]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn to_vec_f64(&self) -> Result<Vec<f64>> {
        named("to_vec_f64", || {
            let x = self.detach();
            let x = if self.dtype().is_long() { x } else { x.to_dtype(self.dtype().wide())? };
            let words = x.to_words()?;
            let mut values = with_room(self.elem_count())?;
            match x.dtype() {
                DType::F64 => values.extend(long_bits(&words).map(f64::from_bits)),
                DType::I64 => values.extend(long_bits(&words).map(|bits| bits.cast_signed() as f64)),
                dtype => values.extend(words.iter().map(|&word| dtype.number(word))),
            }
            Ok(values)
        })
    }

    /// Returns the rows of a matrix: `[m, n]` → m vectors of n elements. Otherwise like [`Tensor::to_vec`].
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] unless the rank is 2; also the errors of [`Tensor::to_vec`].
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let x = Tensor::new([[1, 2, 3], [4, 5, 6]], None)?;
    /// assert_eq!(x.t()?.to_vec2::<i32>()?, [[1, 4], [2, 5], [3, 6]]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn to_vec2<T: Element>(&self) -> Result<Vec<Vec<T>>> {
        let &[m, n] = self.shape() else { return Err(self.not_of_rank("to_vec2", 2)) };
        let all = self.elements("to_vec2")?;
        parts(m, |i| row(&all, i, n))
    }

    /// Returns the matrices of a tensor of rank 3 by rows: `[k, m, n]` → k times m vectors of n elements. Otherwise like
    /// [`Tensor::to_vec`].
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] unless the rank is 3; also the errors of [`Tensor::to_vec`].
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let x = Tensor::new([[[1, 2], [3, 4]]], None)?;
    /// assert_eq!(x.to_vec3::<i32>()?, [[[1, 2], [3, 4]]]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn to_vec3<T: Element>(&self) -> Result<Vec<Vec<Vec<T>>>> {
        let &[k, m, n] = self.shape() else { return Err(self.not_of_rank("to_vec3", 3)) };
        let all = self.elements("to_vec3")?;
        parts(k, |i| parts(m, |j| row(&all, i * m + j, n)))
    }

    /// Returns the element of a tensor with exactly one element. Waits until the device has computed it.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if there are several elements or none; also the errors of [`Tensor::to_vec`].
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// assert_eq!(Tensor::new([[1.5]], None)?.item::<f32>()?, 1.5);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn item<T: Element>(&self) -> Result<T> {
        if self.elem_count() != 1 {
            let detail = format!("a tensor of shape {:?} does not have exactly one element", self.shape());
            return Err(Error::argument("item", detail));
        }
        self.elements("item")?.pop().ok_or_else(|| Error::internal("a tensor of one element has none"))
    }

    /// Calls `f` with the elements in row-major order.
    ///
    /// For a contiguous tensor on the CPU, the slice is the tensor's own memory, without a copy. Otherwise it is the
    /// result of [`Tensor::to_vec`].
    ///
    /// The elements are locked against writes while `f` runs: do not write to them in `f`.
    ///
    /// # Errors
    /// [`Error::DTypeMismatch`] if `T` is not the tensor's element type; errors of earlier work on the device.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let x = Tensor::new([1.0, 2.0, 3.5], None)?;
    /// assert_eq!(x.with_slice(|values: &[f32]| values.iter().sum::<f32>())?, 6.5);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn with_slice<T: Element + bytemuck::Pod, R>(&self, f: impl FnOnce(&[T]) -> R) -> Result<R> {
        match self.storage() {
            Storage::Cpu(buffer) if self.layout().is_contiguous() && T::DTYPE == self.dtype() => {
                note_use(self, "are read by the host");
                let words = buffer.read();
                let (start, count) = (self.layout().offset, self.elem_count());
                if self.dtype().is_long() {
                    // Vectors of words may lie where such elements may not, though allocators do not do this.
                    match bytemuck::try_cast_slice(&words[2 * start..][..2 * count]) {
                        Ok(elements) => return Ok(f(elements)),
                        Err(_) => drop(words),
                    }
                    return Ok(f(&self.elements("with_slice")?));
                }
                let elements: &[T] = bytemuck::cast_slice(&words);
                Ok(f(&elements[start..start + count]))
            }
            _ => Ok(f(&self.elements("with_slice")?)),
        }
    }

    /// Returns the elements for the method `op`.
    pub(super) fn elements<T: Element>(&self, op: &'static str) -> Result<Vec<T>> {
        self.typed::<T>(op)?;
        let words = self.to_words().map_err(|error| match op {
            "item" => error.instead("Tensor::item", "Tensor::item_async"),
            _ => error.instead("reading a tensor", "Tensor::to_vec_async"),
        });
        T::unpack(words?, self.elem_count(), with_room)
    }

    /// Returns an error of the method `op` unless `T` is the element type.
    pub(super) fn typed<T: Element>(&self, op: &'static str) -> Result<()> {
        if T::DTYPE == self.dtype() {
            return Ok(());
        }
        Err(Error::DTypeMismatch { op, expected: T::DTYPE.to_string(), got: self.dtype().to_string() })
    }

    fn not_of_rank(&self, op: &'static str, rank: usize) -> Error {
        Error::argument(op, format!("a tensor of shape {:?} does not have {rank} dimensions", self.shape()))
    }
}

/// Returns `count` parts, or an error if memory is short.
fn parts<T>(count: usize, part: impl Fn(usize) -> Result<T>) -> Result<Vec<T>> {
    let mut out = with_room(count)?;
    for i in 0..count {
        out.push(part(i)?);
    }
    Ok(out)
}

/// Returns row `i` of rows of `n` elements.
fn row<T: Element>(all: &[T], i: usize, n: usize) -> Result<Vec<T>> {
    let mut out = with_room(n)?;
    out.extend_from_slice(&all[i * n..][..n]);
    Ok(out)
}
