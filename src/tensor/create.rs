//! Creation of tensors from values, and the words of a tensor.

use crate::device::cpu::{copied, copy, with_room};
use crate::device::{Backend, Device, IntoDevice, Storage};
use crate::dtype::{DType, Element, long_words};
use crate::error::{Error, Result};
use crate::ops::named;
use crate::ops::traced::note_use;
use crate::shape::{Layout, Shape, checked_elem_count};
use crate::tensor::Tensor;

impl Tensor {
    /// Returns a tensor of the given elements in row-major order, on `device`; `None` is the CPU.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the shape does not have as many elements as `data`; [`Error::OutOfMemory`] if
    /// there is not enough memory.
    ///
    /// ```
    /// use anygpu::{DType, Device, Tensor};
    ///
    /// let x = Tensor::from_slice(&[1, 2, 3, 4, 5, 6u32], [2, 3], &Device::cpu())?;
    /// assert_eq!((x.shape(), x.dtype()), (&[2, 3][..], DType::U32));
    /// assert!(Tensor::from_slice(&[1.0, 2.0], [3], None).is_err());
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn from_slice<T: Element>(data: &[T], shape: impl Into<Shape>, device: impl IntoDevice) -> Result<Tensor> {
        let shape = shape.into();
        if checked_elem_count("from_slice", shape.dims())? != data.len() {
            let detail = format!("{} elements do not fill shape {:?}", data.len(), shape.dims());
            return Err(Error::argument("from_slice", detail));
        }
        let device = device.into_device()?;
        match T::words(data) {
            Some(words) => copy_of_words(words, shape.dims(), T::DTYPE, device),
            None => from_words(T::pack(data, with_room)?, shape.dims(), T::DTYPE, device),
        }
    }

    /// Returns a tensor of the elements of a vector in row-major order, on `device`; `None` is the CPU.
    ///
    /// For elements of four bytes on the CPU, the tensor takes over the vector's memory without a copy.
    ///
    /// # Errors
    /// Same as [`Tensor::from_slice`].
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let x = Tensor::from_vec(vec![1.0, 2.0, 3.0, 4.0f32], [2, 2], None)?;
    /// assert_eq!(x.to_vec2::<f32>()?, [[1.0, 2.0], [3.0, 4.0]]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn from_vec<T: Element>(data: Vec<T>, shape: impl Into<Shape>, device: impl IntoDevice) -> Result<Tensor> {
        let shape = shape.into();
        if checked_elem_count("from_vec", shape.dims())? != data.len() {
            let detail = format!("{} elements do not fill shape {:?}", data.len(), shape.dims());
            return Err(Error::argument("from_vec", detail));
        }
        from_words(T::pack_vec(data, with_room)?, shape.dims(), T::DTYPE, device.into_device()?)
    }

    /// Returns a tensor of [`DType::F64`], which only `cpu` supports.
    ///
    /// [`Tensor::from_slice`] and [`Tensor::new`] never make such tensors. Otherwise the f64 numbers in a Rust program
    /// would turn into f64 tensors unintentionally.
    ///
    /// # Errors
    /// Same as [`Tensor::from_slice`]; [`Error::DTypeMismatch`] for a device other than `cpu`.
    ///
    /// ```
    /// # use anygpu::{DType, Tensor};
    /// let x = Tensor::from_f64(&[0.1, 2.0_f64.powi(53)], [2], None)?;
    /// assert_eq!(x.dtype(), DType::F64);
    /// assert_eq!(x.to_vec_f64()?, [0.1, 9007199254740992.0]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn from_f64(data: &[f64], shape: impl Into<Shape>, device: impl IntoDevice) -> Result<Tensor> {
        let (shape, device) = (shape.into(), device.into_device()?);
        if checked_elem_count("from_f64", shape.dims())? != data.len() {
            let detail = format!("{} elements do not fill shape {:?}", data.len(), shape.dims());
            return Err(Error::argument("from_f64", detail));
        }
        crate::ops::long::held("from_f64", DType::F64, &device)?;
        let words = long_words(data.iter().map(|value| value.to_bits()), with_room)?;
        from_words(words, shape.dims(), DType::F64, device)
    }

    /// Returns a tensor of f32 zeros. For other types, see [`Tensor::full`].
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if the device does not have enough memory.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let x = Tensor::zeros([2, 3], None)?;
    /// assert_eq!(x.to_vec2::<f32>()?, [[0.0; 3]; 2]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn zeros(shape: impl Into<Shape>, device: impl IntoDevice) -> Result<Tensor> {
        named("zeros", || Self::full(shape, 0.0, device))
    }

    /// Returns a tensor of f32 ones. For other types, see [`Tensor::full`].
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if the device does not have enough memory.
    pub fn ones(shape: impl Into<Shape>, device: impl IntoDevice) -> Result<Tensor> {
        named("ones", || Self::full(shape, 1.0, device))
    }

    /// Returns a tensor filled with `value`, of the value's type.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if the device does not have enough memory.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// assert_eq!(Tensor::full([2, 2], 7.5, None)?.to_vec::<f32>()?, [7.5; 4]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn full<T: Element>(shape: impl Into<Shape>, value: T, device: impl IntoDevice) -> Result<Tensor> {
        let device = device.into_device()?;
        named("full", || crate::ops::inplace::filled(shape.into().dims(), value, &device))
    }

    /// Returns a tensor of zeros with this tensor's shape, type and device, outside the graph.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if the device does not have enough memory.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// assert_eq!(Tensor::new([3u8, 9], None)?.zeros_like()?.to_vec::<u8>()?, [0, 0]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn zeros_like(&self) -> Result<Tensor> {
        // Zero is the word 0 in every type.
        named("zeros_like", || crate::ops::inplace::filled_words(self.shape(), 0, self.dtype(), self.device()))
    }

    /// Returns a tensor of ones with this tensor's shape, type and device.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if the device does not have enough memory.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let mask = Tensor::new([3u32, 0], None)?.ones_like()?;
    /// assert_eq!(mask.to_vec::<u32>()?, [1, 1]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn ones_like(&self) -> Result<Tensor> {
        named("ones_like", || Tensor::full(self.shape(), 1f32, self.device())?.to_dtype(self.dtype()))
    }

    /// Returns a tensor of rank 0 with this value.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if the device does not have enough memory.
    pub fn scalar<T: Element>(value: T, device: impl IntoDevice) -> Result<Tensor> {
        Self::from_slice(&[value], (), device)
    }

    /// Returns `start, start + step, …` up to but not including `end`.
    ///
    /// The type is always f32, also for whole numbers, where PyTorch returns i64. For indices, use [`Tensor::iota`].
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] unless `step` leads from `start` towards `end`.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// assert_eq!(Tensor::arange(1.0, 2.0, 0.25, None)?.to_vec::<f32>()?, [1.0, 1.25, 1.5, 1.75]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn arange(start: f32, end: f32, step: f32, device: impl IntoDevice) -> Result<Tensor> {
        let count = ((f64::from(end) - f64::from(start)) / f64::from(step)).ceil();
        if !count.is_finite() || count < 0.0 || step == 0.0 {
            let detail = format!("{end} cannot be reached from {start} in steps of {step}");
            return Err(Error::argument("arange", detail));
        }
        let count = checked_elem_count("arange", &[count as usize])?;
        let mut values = with_room(count)?;
        values.extend((0..count).map(|i| (f64::from(start) + i as f64 * f64::from(step)) as f32));
        Self::from_vec(values, count, device)
    }

    /// Returns `count` numbers at equal distances from `start` to `end`, both included, as f32. A single number is
    /// `start`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] unless `start` and `end` are finite; [`Error::OutOfMemory`] if there is not enough
    /// memory.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// assert_eq!(Tensor::linspace(-1.0, 1.0, 5, None)?.to_vec::<f32>()?, [-1.0, -0.5, 0.0, 0.5, 1.0]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn linspace(start: f32, end: f32, count: usize, device: impl IntoDevice) -> Result<Tensor> {
        if !start.is_finite() || !end.is_finite() {
            return Err(Error::argument("linspace", format!("{start} and {end} are not both finite")));
        }
        let (first, last) = (f64::from(start), f64::from(end));
        let step = (last - first) / count.saturating_sub(1).max(1) as f64;
        let count = checked_elem_count("linspace", &[count])?;
        let mut values = with_room(count)?;
        // Each half is counted from its own end, so that both ends are exact.
        values.extend((0..count).map(|i| match count - 1 - i {
            left if i <= left => (first + i as f64 * step) as f32,
            left => (last - left as f64 * step) as f32,
        }));
        Self::from_vec(values, count, device)
    }

    /// Returns `0, 1, …, count − 1` as u32, for ops that take indices.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for more than 2³² − 1 elements; [`Error::OutOfMemory`] if there is not enough memory.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// assert_eq!(Tensor::iota(3, None)?.to_vec::<u32>()?, [0, 1, 2]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn iota(count: usize, device: impl IntoDevice) -> Result<Tensor> {
        let count = u32::try_from(count).map_err(|_| Error::argument("iota", format!("{count} does not fit u32")))?;
        let device = device.into_device()?;
        named("iota", || crate::ops::inplace::iota(count, &device))
    }

    /// Returns the identity matrix `[n, n]`.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if the device does not have enough memory.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// assert_eq!(Tensor::eye(2, None)?.to_vec2::<f32>()?, [[1.0, 0.0], [0.0, 1.0]]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn eye(n: usize, device: impl IntoDevice) -> Result<Tensor> {
        checked_elem_count("eye", &[n, n])?;
        let matrix = Self::zeros((n, n), device)?;
        let diagonal = Layout { shape: vec![n], strides: vec![n + 1], offset: 0 };
        matrix.with_layout(diagonal).fill_(1.0)?;
        Ok(matrix)
    }

    /// Returns the bits of the elements in row-major order, packed into words as the type requires.
    pub(crate) fn to_words(&self) -> Result<Vec<u32>> {
        note_use(self, "are read by the host");
        let dense = self.as_words()?;
        let (start, len) = (dense.layout().offset, dense.elem_count());
        if len == 0 {
            return Ok(Vec::new());
        }
        match (dense.storage(), dense.device().backend()?) {
            (Storage::Gpu(buffer), Backend::Gpu(gpu)) => gpu.download(buffer, start, len),
            (Storage::Cpu(buffer), _) => copied(&buffer.read()[start..start + len]),
            (Storage::Gpu(_), Backend::Cpu(_)) => Err(self.misplaced()),
        }
    }

    /// Returns the error for a tensor whose storage is not on its device.
    pub(crate) fn misplaced(&self) -> Error {
        Error::internal(format!("the storage of a tensor is not on its device, {}", self.device()))
    }
}

/// Returns a tensor with a copy of the bits of its elements.
fn copy_of_words(words: &[u32], shape: &[usize], dtype: DType, device: Device) -> Result<Tensor> {
    crate::ops::long::held("from_slice", dtype, &device)?;
    let storage = match device.backend()? {
        Backend::Cpu(cpu) => {
            let buffer = cpu.alloc(words.len())?;
            copy(words, &mut buffer.write()[..words.len()]);
            Storage::Cpu(buffer)
        }
        Backend::Gpu(gpu) if words.is_empty() => Storage::Gpu(gpu.alloc(1)?),
        Backend::Gpu(gpu) => Storage::Gpu(gpu.upload(words)?),
    };
    Ok(Tensor::from_storage(storage, shape, dtype, device))
}

/// Returns a tensor from the bits of its elements.
pub(crate) fn from_words(words: Vec<u32>, shape: &[usize], dtype: DType, device: Device) -> Result<Tensor> {
    crate::ops::long::held("from_vec", dtype, &device)?;
    let storage = match device.backend()? {
        Backend::Cpu(cpu) => Storage::Cpu(cpu.from_words(words)),
        Backend::Gpu(gpu) if words.is_empty() => Storage::Gpu(gpu.alloc(1)?),
        Backend::Gpu(gpu) => Storage::Gpu(gpu.upload(&words)?),
    };
    Ok(Tensor::from_storage(storage, shape, dtype, device))
}
