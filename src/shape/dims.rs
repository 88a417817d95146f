//! The arguments that name dimensions.

use crate::error::{Error, Result};

/// A dimension of a tensor.
///
/// Dimensions count from 0, outermost first. Negative numbers count from the end: −1 is the last dimension.
///
/// Implemented for `usize`, `isize`, `i32` and `i64`.
///
/// ```
/// # use anygpu::Tensor;
/// let x = Tensor::zeros([2, 3, 4], None)?;
/// assert_eq!(x.softmax(-1)?.shape(), [2, 3, 4]);
/// assert_eq!(x.sum([0, -1], false)?.shape(), [3]);
/// # Ok::<(), anygpu::Error>(())
/// ```
pub trait Dim: Copy + std::fmt::Display {
    /// Returns the dimension counted from 0, or `None` if a tensor of rank `rank` has no such dimension.
    fn resolve(self, rank: usize) -> Option<usize>;
}

/// Several dimensions: a tuple, an array, a slice or a vector of [`Dim`]s, or one [`Dim`].
///
/// ```
/// # use anygpu::Tensor;
/// let x = Tensor::zeros((2, 3, 4), None)?;
/// assert_eq!(x.permute((0, 2, 1))?.shape(), [2, 4, 3]);
/// assert_eq!(x.sum((0, -1), false)?.shape(), [3]);
/// # Ok::<(), anygpu::Error>(())
/// ```
pub trait Dims {
    /// Returns each dimension counted from 0. The error is the first dimension that does not exist, as text.
    fn resolve_all(&self, rank: usize) -> Result<Vec<usize>, String>;
}

impl<D: Dim> Dims for &[D] {
    fn resolve_all(&self, rank: usize) -> Result<Vec<usize>, String> {
        self.iter().map(|dim| dim.resolve(rank).ok_or_else(|| dim.to_string())).collect()
    }
}

impl<D: Dim, const N: usize> Dims for &[D; N] {
    fn resolve_all(&self, rank: usize) -> Result<Vec<usize>, String> {
        self.as_slice().resolve_all(rank)
    }
}

impl<D: Dim> Dims for &Vec<D> {
    fn resolve_all(&self, rank: usize) -> Result<Vec<usize>, String> {
        self.as_slice().resolve_all(rank)
    }
}

impl<D: Dim, const N: usize> Dims for [D; N] {
    fn resolve_all(&self, rank: usize) -> Result<Vec<usize>, String> {
        self.as_slice().resolve_all(rank)
    }
}

impl<D: Dim> Dims for Vec<D> {
    fn resolve_all(&self, rank: usize) -> Result<Vec<usize>, String> {
        self.as_slice().resolve_all(rank)
    }
}

macro_rules! tuples {
    ($(($($name:ident)+);)*) => {$(
        impl<$($name: Dim),+> Dims for ($($name,)+) {
            #[expect(non_snake_case, reason = "the elements have the names of type parameters")]
            fn resolve_all(&self, rank: usize) -> Result<Vec<usize>, String> {
                let ($($name,)+) = *self;
                Ok(vec![$($name.resolve(rank).ok_or_else(|| $name.to_string())?),+])
            }
        }
    )*};
}
tuples! {
    (A);
    (A B);
    (A B C);
    (A B C D);
    (A B C D E);
    (A B C D E F);
}

macro_rules! dims {
    ($($t:ty: |$dim:ident, $rank:ident| $resolved:expr;)*) => {$(
        impl Dim for $t {
            fn resolve(self, $rank: usize) -> Option<usize> {
                let $dim = self;
                $resolved.filter(|&dim| dim < $rank)
            }
        }

        impl Dims for $t {
            fn resolve_all(&self, rank: usize) -> Result<Vec<usize>, String> {
                (&[*self]).resolve_all(rank)
            }
        }
    )*};
}
dims! {
    usize: |dim, _rank| Some(dim);
    i64: |dim, rank| match usize::try_from(dim) {
        Ok(dim) => Some(dim),
        Err(_) => usize::try_from(dim.unsigned_abs()).ok().and_then(|back| rank.checked_sub(back)),
    };
    i32: |dim, rank| i64::from(dim).resolve(rank);
    isize: |dim, rank| (dim as i64).resolve(rank);
}

fn out_of_range(op: &'static str, dim: &str, shape: &[usize]) -> Error {
    Error::argument(op, format!("dimension {dim} is out of range for shape {shape:?} (rank {})", shape.len()))
}

/// The dimension of a shape, counted from 0.
pub(crate) fn dimension(op: &'static str, dim: impl Dim, shape: &[usize]) -> Result<usize> {
    dim.resolve(shape.len()).ok_or_else(|| out_of_range(op, &dim.to_string(), shape))
}

/// The dimensions of a shape, counted from 0, in the order in which they were given, each of them once.
pub(crate) fn dimensions(op: &'static str, dims: impl Dims, shape: &[usize]) -> Result<Vec<usize>> {
    let dims = dims.resolve_all(shape.len()).map_err(|dim| out_of_range(op, &dim, shape))?;
    for (i, dim) in dims.iter().enumerate() {
        if dims[..i].contains(dim) {
            return Err(Error::argument(op, format!("dimension {dim} of shape {shape:?} is named twice")));
        }
    }
    Ok(dims)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn negative_dimensions_count_from_the_end() {
        assert_eq!((dimension("t", -1, &[2, 3]), dimension("t", -2i64, &[2, 3])), (Ok(1), Ok(0)));
        assert_eq!(dimensions("t", [-1, 0], &[2, 3]), Ok(vec![1, 0]));
        for error in [dimension("t", -3, &[2, 3]), dimension("t", 2, &[2, 3]), dimension("t", i64::MIN, &[2, 3])] {
            assert!(error.is_err_and(|e| e.to_string().contains("(rank 2)")));
        }
    }
}
