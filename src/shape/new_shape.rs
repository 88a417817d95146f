//! Shapes with sizes that the tensor decides: the −1 of `reshape` and `expand`.

use super::{Shape, checked_elem_count, for_tuples};
use crate::error::{Error, Result};

/// The shape that [`Tensor::reshape`](crate::Tensor::reshape) and [`Tensor::expand`](crate::Tensor::expand) take: a
/// [`Shape`] in which a size may be −1.
///
/// Each method says what −1 means.
///
/// Converts from numbers, arrays, slices, vectors and tuples (of up to eight) of `usize`, `isize`, `i32` and `i64`,
/// from a [`Shape`], and from `()`, the shape of rank 0. The numbers of a tuple may have several types, as in `(-1, n)`
/// with a `usize` n. The numbers of an array must have one type.
///
/// ```
/// # use anygpu::Tensor;
/// let x = Tensor::zeros([4, 6], None)?;
/// let n: usize = 3;
/// assert_eq!(x.reshape([-1, 8])?.shape(), [3, 8]);
/// assert_eq!(x.reshape((-1, n))?.shape(), [8, 3]);
/// assert_eq!(x.reshape(-1)?.shape(), [24]);
/// # Ok::<(), anygpu::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NewShape(Vec<i128>); // i128 holds every number of every integer type that is an `Extent`

mod sealed {
    pub trait Sealed: Copy {
        fn number(self) -> i128;
    }
}

/// A size in a [`NewShape`]: a number of type `usize`, `isize`, `i32` or `i64`.
///
/// No other types can implement this.
pub trait Extent: sealed::Sealed {}

macro_rules! extents {
    ($($t:ty),*) => {$(
        impl Extent for $t {}
        impl sealed::Sealed for $t {
            fn number(self) -> i128 {
                self as i128
            }
        }
    )*};
}
extents!(usize, isize, i32, i64);

impl NewShape {
    fn of(sizes: &[impl Extent]) -> NewShape {
        NewShape(sizes.iter().map(|size| size.number()).collect())
    }

    /// Returns each size; `None` is −1. Other negative numbers are an error.
    fn sizes(&self, op: &'static str) -> Result<Vec<Option<usize>>> {
        let size = |&size: &i128| match usize::try_from(size) {
            Ok(size) => Ok(Some(size)),
            Err(_) if size == -1 => Ok(None),
            Err(_) => Err(Error::argument(op, format!("invalid size {size} in {:?}", self.0))),
        };
        self.0.iter().map(size).collect()
    }

    /// Returns the shape of the elements of `shape`; −1 is the size that all of them need.
    pub(crate) fn inferred(&self, op: &'static str, shape: &[usize]) -> Result<Vec<usize>> {
        let sizes = self.sizes(op)?;
        let known: Vec<usize> = sizes.iter().copied().flatten().collect();
        if known.len() == sizes.len() {
            return Ok(known);
        }
        if known.len() + 1 < sizes.len() {
            return Err(Error::argument(op, format!("only one size can be inferred, but {:?} has several -1", self.0)));
        }
        let (count, others) = (checked_elem_count(op, shape)?, checked_elem_count(op, &known)?);
        if (count, others) == (0, 0) {
            let detail = format!(
                "cannot reshape tensor of 0 elements into shape {:?} because the unspecified dimension size -1 can be \
                 any value and is ambiguous",
                self.0
            );
            return Err(Error::argument(op, detail));
        }
        if others == 0 || !count.is_multiple_of(others) {
            let detail = format!("shape {:?} is invalid for the {count} elements of shape {shape:?}", self.0);
            return Err(Error::argument(op, detail));
        }
        Ok(sizes.into_iter().map(|size| size.unwrap_or(count / others)).collect())
    }

    /// Returns the shape to which `shape` is repeated; −1 is the tensor's own size.
    pub(crate) fn expanded(&self, op: &'static str, shape: &[usize]) -> Result<Vec<usize>> {
        let sizes = self.sizes(op)?;
        let rank = sizes.len();
        let own = |d: usize| (d + shape.len()).checked_sub(rank).map(|own| shape[own]);
        let size = |(d, size): (usize, Option<usize>)| size.or_else(|| own(d)).ok_or(d);
        sizes.into_iter().enumerate().map(size).collect::<Result<_, _>>().map_err(|d| {
            let detail = format!("-1 in the new dimension {d} of {:?}: shape {shape:?} has no size for it", self.0);
            Error::argument(op, detail)
        })
    }
}

impl<T: Extent> From<T> for NewShape {
    fn from(size: T) -> Self {
        NewShape(vec![size.number()])
    }
}
impl<T: Extent, const N: usize> From<[T; N]> for NewShape {
    fn from(sizes: [T; N]) -> Self {
        NewShape::of(&sizes)
    }
}
impl<T: Extent, const N: usize> From<&[T; N]> for NewShape {
    fn from(sizes: &[T; N]) -> Self {
        NewShape::of(sizes)
    }
}
impl<T: Extent> From<&[T]> for NewShape {
    fn from(sizes: &[T]) -> Self {
        NewShape::of(sizes)
    }
}
impl<T: Extent> From<Vec<T>> for NewShape {
    fn from(sizes: Vec<T>) -> Self {
        NewShape::of(&sizes)
    }
}
impl<T: Extent> From<&Vec<T>> for NewShape {
    fn from(sizes: &Vec<T>) -> Self {
        NewShape::of(sizes)
    }
}
impl From<Shape> for NewShape {
    fn from(shape: Shape) -> Self {
        NewShape::of(shape.dims())
    }
}
impl From<&Shape> for NewShape {
    fn from(shape: &Shape) -> Self {
        NewShape::of(shape.dims())
    }
}
impl From<()> for NewShape {
    fn from((): ()) -> Self {
        NewShape(Vec::new())
    }
}
macro_rules! from_extents {
    ($($name:ident)+) => {
        impl<$($name: Extent),+> From<($($name,)+)> for NewShape {
            #[expect(non_snake_case, reason = "the elements have the names of their types")]
            fn from(($($name,)+): ($($name,)+)) -> Self {
                NewShape(vec![$($name.number()),+])
            }
        }
    };
}
for_tuples! { from_extents }

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(result: Result<Vec<usize>>) -> String {
        result.map_or_else(|error| error.to_string(), |shape| format!("{shape:?}"))
    }

    #[test]
    fn one_size_is_inferred() {
        let of = |new: NewShape, shape: &[usize]| failure(new.inferred("reshape", shape));
        assert_eq!(of([-1, 3].into(), &[2, 6]), "[4, 3]");
        assert_eq!(of((2, -1, 3usize).into(), &[2, 6]), "[2, 2, 3]");
        assert_eq!(of((-1).into(), &[]), "[1]");
        assert_eq!(of([-1, 3].into(), &[0, 5]), "[0, 3]");
        assert_eq!(of([5, 5].into(), &[2, 6]), "[5, 5]"); // the caller compares the numbers of elements
        assert_eq!(of([-1, -1].into(), &[4]), "reshape: only one size can be inferred, but [-1, -1] has several -1");
        assert_eq!(of([-2, 2].into(), &[4]), "reshape: invalid size -2 in [-2, 2]");
        assert_eq!(of([-1, 4].into(), &[2, 3]), "reshape: shape [-1, 4] is invalid for the 6 elements of shape [2, 3]");
        assert_eq!(of([-1, 0].into(), &[2, 3]), "reshape: shape [-1, 0] is invalid for the 6 elements of shape [2, 3]");
        assert_eq!(
            of([-1, 0].into(), &[0, 3]),
            "reshape: cannot reshape tensor of 0 elements into shape [-1, 0] because the unspecified dimension size -1 \
             can be any value and is ambiguous"
        );
        assert!(of((-1, usize::MAX, usize::MAX).into(), &[2, 3]).contains("more elements than can be addressed"));
        assert_eq!(of((-1, isize::MIN).into(), &[2]), format!("reshape: invalid size {} in [-1, {0}]", isize::MIN));
    }

    #[test]
    fn sizes_are_kept_in_an_expansion() {
        let of = |new: NewShape, shape: &[usize]| failure(new.expanded("expand", shape));
        assert_eq!(of([4, -1, -1].into(), &[1, 3]), "[4, 1, 3]");
        assert_eq!(of([-1].into(), &[1, 3]), "[3]"); // too short: the caller compares the shapes
        let error = of([-1, 4, 3].into(), &[1, 3]);
        assert_eq!(error, "expand: -1 in the new dimension 0 of [-1, 4, 3]: shape [1, 3] has no size for it");
        assert_eq!(of([-3, 3].into(), &[1, 3]), "expand: invalid size -3 in [-3, 3]");
    }
}
