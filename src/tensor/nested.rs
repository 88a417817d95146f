//! Tensors from numbers and from nested arrays, vectors and slices of numbers.

use half::{bf16, f16};

use crate::device::cpu::with_room;
use crate::device::{Device, IntoDevice};
use crate::error::{Error, Result};
use crate::shape::checked_elem_count;
use crate::tensor::Tensor;
use sealed::Nested;

/// The name in errors: `new` alone would say little.
const OP: &str = "Tensor::new";

/// Data for [`Tensor::new`]: a number, or an array, a vector or a slice of such data, to any depth, or a reference to
/// data.
///
/// No other types can implement this.
///
/// | number | element of the tensor |
/// |---|---|
/// | `f32`, `f16`, `bf16`, `i32`, `u32`, `u8`, `bool` | the same |
/// | `f64` | `f32`, rounded to the nearest |
/// | `i64`, `isize` | `i32` |
/// | `u64`, `usize` | `u32` |
pub trait TensorData: Nested {}

impl<T: Nested + ?Sized> TensorData for T {}

mod sealed {
    use super::Flaw;
    use crate::dtype::Element;

    /// Numbers in the shape of a tensor.
    #[diagnostic::on_unimplemented(
        message = "a tensor cannot be made of `{Self}`",
        label = "not the data of a tensor",
        note = "data is a number, or an array, a vector or a slice of data; `TensorData` lists the types of numbers"
    )]
    pub trait Nested {
        type Element: Element;

        /// Appends the size of each dimension, as the first part of each has it. `this` is `None` within an empty
        /// dimension; the size of a vector there is 0.
        fn sizes(this: Option<&Self>, out: &mut Vec<usize>);

        /// Checks that all parts have these sizes.
        fn check(&self, sizes: &[usize]) -> Result<(), Flaw>;

        /// Appends the elements.
        fn write(&self, out: &mut Vec<Self::Element>) -> Result<(), Flaw>;
    }
}

/// The flaw of some data, and its place: the indices of the outermost dimension come last.
#[derive(Debug)]
pub struct Flaw {
    place: Vec<usize>,
    kind: FlawKind,
}

#[derive(Debug)]
enum FlawKind {
    /// A part has another size than the first one.
    Ragged { size: usize, first: usize },
    /// A number that the type of the elements does not have.
    Outside { number: String, element: &'static str },
}

impl Flaw {
    fn within(mut self, index: usize) -> Flaw {
        self.place.push(index);
        self
    }

    fn into_error(self) -> Error {
        let at = |indices: &mut dyn Iterator<Item = usize>| indices.map(|i| format!("[{i}]")).collect::<String>();
        let place = at(&mut self.place.iter().rev().copied());
        Error::argument(
            OP,
            match self.kind {
                FlawKind::Ragged { size, first } => {
                    let start = at(&mut self.place.iter().map(|_| 0));
                    format!("data{place} has {size} elements, but data{start} has {first}")
                }
                FlawKind::Outside { number, element } => {
                    format!("data{place} is {number}, which does not fit {element}")
                }
            },
        )
    }
}

macro_rules! numbers {
    ($($t:ty => $element:ident, |$number:ident| $fits:expr;)*) => {$(
        impl Nested for $t {
            type Element = $element;

            fn sizes(_this: Option<&Self>, _out: &mut Vec<usize>) {}

            fn check(&self, _sizes: &[usize]) -> Result<(), Flaw> {
                Ok(())
            }

            fn write(&self, out: &mut Vec<$element>) -> Result<(), Flaw> {
                let $number = *self;
                let fits: Option<$element> = $fits;
                let kind = || FlawKind::Outside { number: self.to_string(), element: stringify!($element) };
                out.push(fits.ok_or_else(|| Flaw { place: Vec::new(), kind: kind() })?);
                Ok(())
            }
        }
    )*};
}
numbers! {
    f32 => f32, |v| Some(v);
    f16 => f16, |v| Some(v);
    bf16 => bf16, |v| Some(v);
    i32 => i32, |v| Some(v);
    u32 => u32, |v| Some(v);
    u8 => u8, |v| Some(v);
    bool => bool, |v| Some(v);
    f64 => f32, |v| Some(v as f32);
    i64 => i32, |v| i32::try_from(v).ok();
    isize => i32, |v| i32::try_from(v).ok();
    u64 => u32, |v| u32::try_from(v).ok();
    usize => u32, |v| u32::try_from(v).ok();
}

impl<T: Nested> Nested for [T] {
    type Element = T::Element;

    fn sizes(this: Option<&Self>, out: &mut Vec<usize>) {
        out.push(this.map_or(0, <[T]>::len));
        T::sizes(this.and_then(<[T]>::first), out);
    }

    fn check(&self, sizes: &[usize]) -> Result<(), Flaw> {
        let (first, inner) = sizes.split_first().map_or((0, sizes), |(first, inner)| (*first, inner));
        if self.len() != first {
            return Err(Flaw { place: Vec::new(), kind: FlawKind::Ragged { size: self.len(), first } });
        }
        self.iter().enumerate().try_for_each(|(i, part)| part.check(inner).map_err(|flaw| flaw.within(i)))
    }

    fn write(&self, out: &mut Vec<T::Element>) -> Result<(), Flaw> {
        self.iter().enumerate().try_for_each(|(i, part)| part.write(out).map_err(|flaw| flaw.within(i)))
    }
}

impl<T: Nested, const N: usize> Nested for [T; N] {
    type Element = T::Element;

    fn sizes(this: Option<&Self>, out: &mut Vec<usize>) {
        out.push(N);
        T::sizes(this.and_then(|this| this.first()), out);
    }

    fn check(&self, sizes: &[usize]) -> Result<(), Flaw> {
        self.as_slice().check(sizes)
    }

    fn write(&self, out: &mut Vec<T::Element>) -> Result<(), Flaw> {
        self.as_slice().write(out)
    }
}

impl<T: Nested> Nested for Vec<T> {
    type Element = T::Element;

    fn sizes(this: Option<&Self>, out: &mut Vec<usize>) {
        <[T]>::sizes(this.map(Vec::as_slice), out);
    }

    fn check(&self, sizes: &[usize]) -> Result<(), Flaw> {
        self.as_slice().check(sizes)
    }

    fn write(&self, out: &mut Vec<T::Element>) -> Result<(), Flaw> {
        self.as_slice().write(out)
    }
}

impl<T: Nested + ?Sized> Nested for &T {
    type Element = T::Element;

    fn sizes(this: Option<&Self>, out: &mut Vec<usize>) {
        T::sizes(this.copied(), out);
    }

    fn check(&self, sizes: &[usize]) -> Result<(), Flaw> {
        T::check(self, sizes)
    }

    fn write(&self, out: &mut Vec<T::Element>) -> Result<(), Flaw> {
        T::write(self, out)
    }
}

impl Tensor {
    /// Returns a tensor of the given numbers, on `device`; `None` is the CPU. This is PyTorch's `torch.tensor(data)`.
    ///
    /// `data` is a number, or a nested array, vector or slice of numbers. The depth of the nesting is the rank.
    /// [`TensorData`] lists the types of numbers. Literals like `1.0` become f32, and literals like `1` become i32. For
    /// many elements in row-major order, [`Tensor::from_vec`] is faster.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the vectors of one dimension have different lengths, or if an `i64`, `isize`,
    /// `u64` or `usize` does not fit the element type. The error names the first such place. [`Error::OutOfMemory`] if
    /// there is not enough memory.
    ///
    /// ```
    /// use anygpu::{DType, Tensor, try_gpu};
    ///
    /// let x = Tensor::new([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], &try_gpu(0))?;
    /// assert_eq!((x.shape(), x.dtype()), (&[2, 3][..], DType::F32));
    ///
    /// let rows = vec![vec![1, 2], vec![3, 4]];
    /// assert_eq!(Tensor::new(&rows, None)?.to_vec2::<i32>()?, rows);
    /// assert_eq!(Tensor::new(true, None)?.rank(), 0);
    ///
    /// let error = Tensor::new([vec![1, 2], vec![3]], None).unwrap_err();
    /// assert_eq!(error.to_string(), "Tensor::new: data[1] has 1 elements, but data[0] has 2");
    /// let error = Tensor::new([1, 3_000_000_000i64], None).unwrap_err();
    /// assert_eq!(error.to_string(), "Tensor::new: data[1] is 3000000000, which does not fit i32");
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn new(data: impl TensorData, device: impl IntoDevice) -> Result<Tensor> {
        fn of<D: TensorData>(data: &D, device: Device) -> Result<Tensor> {
            let mut sizes = Vec::new();
            D::sizes(Some(data), &mut sizes);
            data.check(&sizes).map_err(Flaw::into_error)?;
            let mut elements = with_room(checked_elem_count(OP, &sizes)?)?;
            data.write(&mut elements).map_err(Flaw::into_error)?;
            Tensor::from_vec(elements, sizes, device)
        }
        of(&data, device.into_device()?)
    }
}

/// Conversions from nested arrays of numbers to tensors on the CPU. A literal like `1.0` is an `f32` here, since no other
/// type of floats is converted.
macro_rules! from_arrays {
    ($($t:ty),*) => {$(
        impl<const N: usize> TryFrom<[$t; N]> for Tensor {
            type Error = Error;
            fn try_from(values: [$t; N]) -> Result<Tensor> {
                Tensor::new(values, None)
            }
        }
        impl<const M: usize, const N: usize> TryFrom<[[$t; N]; M]> for Tensor {
            type Error = Error;
            fn try_from(values: [[$t; N]; M]) -> Result<Tensor> {
                Tensor::new(values, None)
            }
        }
    )*};
}
from_arrays!(f32, i32, u32, u8, bool);
