//! Indexing: `x.i((.., 1..3, -1))`, close to `x[:, 1:3, -1]`; `s!` has `...` and steps too.

use std::ops::{Range, RangeFrom, RangeFull, RangeInclusive, RangeTo, RangeToInclusive};

use crate::error::{Error, Result};
use crate::ops::SliceRange;
use crate::shape::for_tuples;
use crate::tensor::Tensor;

/// The index of one dimension.
///
/// [`s!`](crate::s) makes it from numbers and ranges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Index {
    /// One element; the dimension is removed. Negative numbers count from the end.
    At(i64),
    /// The elements from `start` up to but not including `end`, in steps of `step`. Negative numbers count from the
    /// end.
    Slice {
        /// The first element; `None` is 0.
        start: Option<i64>,
        /// The end, not included; `None` is the dimension's size.
        end: Option<i64>,
        /// The step, at least 1.
        step: usize,
    },
    /// A new dimension of size 1; `None` in PyTorch.
    NewAxis,
    /// All dimensions that the other indices leave, unchanged (`...`). At most once.
    Ellipsis,
}

/// A new dimension of size 1, in [`s!`](crate::s).
#[derive(Clone, Copy, Debug)]
pub struct NewAxis;

/// A list of indices, one for each dimension.
///
/// [`s!`](crate::s) makes one; a single number or range converts to one, and so does a tuple (of up to eight) of
/// numbers, ranges and [`NewAxis`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Indices(Vec<Index>);

impl From<Vec<Index>> for Indices {
    fn from(list: Vec<Index>) -> Self {
        Indices(list)
    }
}

impl<T: Into<Index>> From<T> for Indices {
    fn from(one: T) -> Self {
        Indices(vec![one.into()])
    }
}

macro_rules! from_parts {
    ($($name:ident)+) => {
        impl<$($name: Into<Index>),+> From<($($name,)+)> for Indices {
            #[expect(non_snake_case, reason = "the elements have the names of their types")]
            fn from(($($name,)+): ($($name,)+)) -> Self {
                Indices(vec![$($name.into()),+])
            }
        }
    };
}
for_tuples! { from_parts }

impl Index {
    /// Keeps only every `step`-th element of a range, like `1..9;2` in [`s!`](crate::s).
    #[must_use]
    pub fn step_by(self, step: usize) -> Index {
        match self {
            Index::Slice { start, end, .. } => Index::Slice { start, end, step },
            // A step is not allowed on a single element. Step 0 makes the use of this index an error.
            Index::At(at) => Index::Slice { start: Some(at), end: Some(at), step: 0 },
            other => other,
        }
    }
}

impl From<RangeFull> for Index {
    fn from(_: RangeFull) -> Self {
        Index::Slice { start: None, end: None, step: 1 }
    }
}

impl From<NewAxis> for Index {
    fn from(_: NewAxis) -> Self {
        Index::NewAxis
    }
}

/// Conversions from numbers and ranges of the common integer types.
macro_rules! from_integers {
    ($($t:ty),*) => {$(
        impl From<$t> for Index {
            fn from(at: $t) -> Self {
                Index::At(clamped(at))
            }
        }
        impl From<Range<$t>> for Index {
            fn from(r: Range<$t>) -> Self {
                Index::Slice { start: Some(clamped(r.start)), end: Some(clamped(r.end)), step: 1 }
            }
        }
        impl From<RangeFrom<$t>> for Index {
            fn from(r: RangeFrom<$t>) -> Self {
                Index::Slice { start: Some(clamped(r.start)), end: None, step: 1 }
            }
        }
        impl From<RangeTo<$t>> for Index {
            fn from(r: RangeTo<$t>) -> Self {
                Index::Slice { start: None, end: Some(clamped(r.end)), step: 1 }
            }
        }
        impl From<RangeInclusive<$t>> for Index {
            fn from(r: RangeInclusive<$t>) -> Self {
                Index::Slice { start: Some(clamped(*r.start())), end: after(clamped(*r.end())), step: 1 }
            }
        }
        impl From<RangeToInclusive<$t>> for Index {
            fn from(r: RangeToInclusive<$t>) -> Self {
                Index::Slice { start: None, end: after(clamped(r.end)), step: 1 }
            }
        }
    )*};
}
from_integers!(i32, i64, isize, u32, usize);

/// Converts to i64. Numbers beyond i64 are larger than any dimension, so they may be clamped.
fn clamped(value: impl TryInto<i64>) -> i64 {
    value.try_into().unwrap_or(i64::MAX)
}

/// Returns the exclusive end for an inclusive last index; `None` for −1, the last element.
fn after(last: i64) -> Option<i64> {
    if last == -1 { None } else { Some(last.saturating_add(1)) }
}

/// Makes the indices for [`Tensor::i`]: `s![.., 1..3, -1]` corresponds to Python's `[:, 1:3, -1]`.
///
/// | in `s!` | in Python | |
/// |---|---|---|
/// | `2`, `-1` | `2`, `-1` | one element; the dimension is removed |
/// | `..` | `:` | all |
/// | `1..3`, `1..`, `..3`, `-2..` | `1:3`, `1:`, `:3`, `-2:` | a range |
/// | `1..=3` | `1:4` | a range including its end |
/// | `..;2`, `1..9;2` | `::2`, `1:9:2` | every second element |
/// | `...` | `...` | all dimensions not covered by the other indices |
/// | `NewAxis` | `None` | a new dimension of size 1 |
///
/// Numbers may be variables of type `usize`, `isize`, `i32`, `i64` or `u32`; negative ones count from the end. Trailing
/// dimensions without an index are kept unchanged.
///
/// ```
/// use anygpu::{NewAxis, Tensor, s};
///
/// let x = Tensor::arange(0.0, 24.0, 1.0, None)?.reshape([2, 3, 4])?;
/// assert_eq!(x.i(s![1, 0..2, -1])?.to_vec::<f32>()?, [15.0, 19.0]);
/// assert_eq!(x.i(s![..., ..;2])?.shape(), [2, 3, 2]);
/// assert_eq!(x.i(s![0, NewAxis, .., 1..=2])?.shape(), [1, 3, 2]);
/// # Ok::<(), anygpu::Error>(())
/// ```
#[macro_export]
macro_rules! s {
    (@ [$($done:expr,)*]) => {{
        #[allow(clippy::reversed_empty_ranges)] // 1..-1 ends before the last element
        let list: ::std::vec::Vec<$crate::Index> = ::std::vec![$($done),*];
        $crate::Indices::from(list)
    }};
    (@ [$($done:expr,)*] ... $(, $($rest:tt)*)?) => {
        $crate::s!(@ [$($done,)* $crate::Index::Ellipsis,] $($($rest)*)?)
    };
    (@ [$($done:expr,)*] $part:expr ; $step:expr $(, $($rest:tt)*)?) => {
        $crate::s!(@ [$($done,)* $crate::Index::from($part).step_by($step),] $($($rest)*)?)
    };
    (@ [$($done:expr,)*] $part:expr $(, $($rest:tt)*)?) => {
        $crate::s!(@ [$($done,)* $crate::Index::from($part),] $($($rest)*)?)
    };
    ($($parts:tt)*) => { $crate::s!(@ [] $($parts)*) };
}

impl Tensor {
    /// Returns a view of a part of each dimension. Nothing is copied, and in-place writes to the view change this
    /// tensor.
    ///
    /// Takes a number or a range for the first dimension, or a tuple of them for the first dimensions: `x.i((0, -1))`,
    /// `x.i((.., 1..3))`. For a step, or for `...`, use [`s!`](crate::s). (Clippy rejects a range like `1..-1`, except in
    /// `s!`.)
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if there are more indices than dimensions, a number or a range bound is outside its
    /// dimension (unlike in Python, ranges are not clamped), the start of a range is after its end, or a step is 0.
    ///
    /// ```
    /// use anygpu::{Tensor, s};
    ///
    /// let x = Tensor::new([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], None)?;
    /// assert_eq!(x.i(1)?.to_vec::<f32>()?, [4.0, 5.0, 6.0]);
    /// assert_eq!(x.i((0, -1))?.item::<f32>()?, 3.0);
    /// assert_eq!(x.i((.., 1..))?.to_vec::<f32>()?, [2.0, 3.0, 5.0, 6.0]);
    /// assert_eq!(x.i(s![.., ..;2])?.to_vec::<f32>()?, [1.0, 3.0, 4.0, 6.0]);
    /// x.i((0, ..2))?.fill_(9.0)?;
    /// assert_eq!(x.to_vec::<f32>()?, [9.0, 9.0, 3.0, 4.0, 5.0, 6.0]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn i(&self, index: impl Into<Indices>) -> Result<Tensor> {
        let (parts, shape) = resolve(&index.into().0, self.shape())?;
        let part = self.parts(parts)?;
        if part.shape() == shape { Ok(part) } else { part.reshape(shape) }
    }
}

/// Returns the part of each dimension of `shape`, and the shape of the result.
fn resolve(list: &[Index], shape: &[usize]) -> Result<(Vec<SliceRange>, Vec<usize>)> {
    let named = list.iter().filter(|index| matches!(index, Index::At(_) | Index::Slice { .. })).count();
    let ellipses = list.iter().filter(|index| **index == Index::Ellipsis).count();
    let Some(unnamed) = shape.len().checked_sub(named) else {
        return Err(Error::argument("i", format!("{named} indices for the {} dimensions of {shape:?}", shape.len())));
    };
    if ellipses > 1 {
        return Err(Error::argument("i", format!("{list:?} has more than one ellipsis")));
    }
    let trailing = if ellipses == 0 { &[Index::Ellipsis][..] } else { &[] };
    let (mut parts, mut out) = (Vec::new(), Vec::new());
    for index in list.iter().chain(trailing) {
        let dim = parts.len();
        match *index {
            Index::NewAxis => out.push(1),
            Index::Ellipsis => {
                out.extend(&shape[dim..dim + unnamed]);
                parts.extend(shape[dim..dim + unnamed].iter().map(|&size| SliceRange::whole(size)));
            }
            Index::At(at) => {
                let start = from_end(at, shape[dim]).filter(|&start| start < shape[dim]);
                let start = start.ok_or_else(|| outside(&format!("index {at}"), dim, shape))?;
                parts.push(SliceRange { start, len: 1, step: 1 });
            }
            Index::Slice { start, end, step } => {
                let size = shape[dim];
                let ends =
                    [start.map_or(Some(0), |at| from_end(at, size)), end.map_or(Some(size), |at| from_end(at, size))];
                match ends {
                    [Some(from), Some(to)] if from <= to && step > 0 => {
                        let len = (to - from).div_ceil(step);
                        out.push(len);
                        parts.push(SliceRange { start: from, len, step });
                    }
                    _ => {
                        let text = |at: Option<i64>| at.map_or(String::new(), |at| at.to_string());
                        let range = format!("range {}..{} in steps of {step}", text(start), text(end));
                        return Err(outside(&range, dim, shape));
                    }
                }
            }
        }
    }
    Ok((parts, out))
}

/// Returns the position that a number refers to, if it is at most the size.
fn from_end(at: i64, size: usize) -> Option<usize> {
    let at = if at < 0 { i128::from(at) + size as i128 } else { i128::from(at) };
    usize::try_from(at).ok().filter(|&at| at <= size)
}

fn outside(what: &str, dim: usize, shape: &[usize]) -> Error {
    Error::argument("i", format!("{what} is not within dimension {dim} of {shape:?}"))
}
