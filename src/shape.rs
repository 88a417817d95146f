//! Shapes, strides and the arithmetic of views, independent of devices and gradients.

mod dims;
mod new_shape;
mod split;

pub use dims::{Dim, Dims};
pub(crate) use dims::{dimension, dimensions};
pub use new_shape::{Extent, NewShape};
pub use split::split_sizes;

use crate::error::{Error, Result};

/// Calls a macro with the names of the elements of tuples, for each length from 1 to 8.
macro_rules! for_tuples {
    ($tuple:ident) => {
        $tuple! { A }
        $tuple! { A B }
        $tuple! { A B C }
        $tuple! { A B C D }
        $tuple! { A B C D E }
        $tuple! { A B C D E F }
        $tuple! { A B C D E F G }
        $tuple! { A B C D E F G H }
    };
}
pub(crate) use for_tuples;

/// The size of a tensor in each dimension, outermost first.
///
/// Converts from arrays, slices, vectors and tuples (of up to eight) of `usize`, from one `usize`, and from `()`, the
/// shape of rank 0.
///
/// ```
/// # use anygpu::Tensor;
/// assert_eq!(Tensor::zeros((2, 3), None)?.shape(), [2, 3]);
/// assert_eq!(Tensor::zeros([2, 3], None)?.shape(), [2, 3]);
/// # Ok::<(), anygpu::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(transparent))]
pub struct Shape(Vec<usize>);

impl Shape {
    /// Returns the sizes.
    #[must_use]
    pub fn dims(&self) -> &[usize] {
        &self.0
    }
}

impl<const N: usize> From<[usize; N]> for Shape {
    fn from(dims: [usize; N]) -> Self {
        Shape(dims.to_vec())
    }
}
impl<const N: usize> From<&[usize; N]> for Shape {
    fn from(dims: &[usize; N]) -> Self {
        Shape(dims.to_vec())
    }
}
impl From<&[usize]> for Shape {
    fn from(dims: &[usize]) -> Self {
        Shape(dims.to_vec())
    }
}
impl From<Vec<usize>> for Shape {
    fn from(dims: Vec<usize>) -> Self {
        Shape(dims)
    }
}
impl From<&Vec<usize>> for Shape {
    fn from(dims: &Vec<usize>) -> Self {
        Shape(dims.clone())
    }
}
impl From<usize> for Shape {
    fn from(dim: usize) -> Self {
        Shape(vec![dim])
    }
}
impl From<()> for Shape {
    fn from((): ()) -> Self {
        Shape(Vec::new())
    }
}
macro_rules! from_sizes {
    ($($name:ident)+) => {
        impl From<($(from_sizes!(@ $name),)+)> for Shape {
            #[expect(non_snake_case, reason = "the elements have the names of type parameters")]
            fn from(($($name,)+): ($(from_sizes!(@ $name),)+)) -> Self {
                Shape(vec![$($name),+])
            }
        }
    };
    (@ $name:ident) => { usize };
}
for_tuples! { from_sizes }

/// The mapping of a tensor's elements to its storage: element `(i, j, …)` is at
/// `offset + i·strides[0] + j·strides[1] + …`.
///
/// All numbers count elements, not bytes. A broadcast dimension has stride 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub shape: Vec<usize>,
    pub strides: Vec<usize>,
    pub offset: usize,
}

impl Layout {
    /// Returns a row-major layout from the start of the storage.
    pub fn contiguous(shape: &[usize]) -> Self {
        Layout::contiguous_owned(shape.to_vec())
    }

    /// As [`Layout::contiguous`], from a shape that is not needed any more.
    pub fn contiguous_owned(shape: Vec<usize>) -> Self {
        Layout { strides: row_major(&shape), shape, offset: 0 }
    }

    pub fn elem_count(&self) -> usize {
        if self.shape.contains(&0) {
            return 0; // even if the product of the other sizes overflows
        }
        self.shape.iter().product()
    }

    /// Returns whether the elements are in row-major order without gaps, at any offset.
    pub fn is_contiguous(&self) -> bool {
        let mut expected = 1;
        for (&size, &stride) in self.shape.iter().zip(&self.strides).rev() {
            if size != 1 && stride != expected {
                return false;
            }
            expected = expected.saturating_mul(size.max(1)); // saturating, because the other sizes are unbounded if one is 0
        }
        true
    }

    pub fn permute(&self, dims: &[usize]) -> Self {
        Layout {
            shape: dims.iter().map(|&d| self.shape[d]).collect(),
            strides: dims.iter().map(|&d| self.strides[d]).collect(),
            offset: self.offset,
        }
    }

    pub fn narrow(&self, dim: usize, start: usize, len: usize) -> Self {
        let mut out = self.clone();
        out.shape[dim] = len;
        out.offset += start * self.strides[dim];
        out.within()
    }

    /// Sets the offset of an empty layout to 0, since it may be past the end of the storage.
    fn within(mut self) -> Self {
        if self.elem_count() == 0 {
            self.offset = 0;
        }
        self
    }

    /// Returns the layout of a part of every dimension, each given as its first element, length and step. The parts
    /// must be within the dimensions.
    pub fn slice(&self, parts: impl Iterator<Item = (usize, usize, usize)>) -> Self {
        let mut out = self.clone();
        for (d, (start, len, step)) in parts.enumerate() {
            out.shape[d] = len;
            if len > 1 {
                out.strides[d] *= step; // the stride of a single element is unused, and its step could overflow
            }
            out.offset += start * self.strides[d];
        }
        out.within()
    }

    /// Returns the layout with two dimensions replaced by their diagonal, as the last dimension: its element `i` is
    /// `(i, i + offset)` of them.
    pub fn diagonal(&self, [a, b]: [usize; 2], offset: i64) -> Self {
        let skip = usize::try_from(offset.unsigned_abs()).unwrap_or(usize::MAX);
        let (down, right) = if offset < 0 { (skip, 0) } else { (0, skip) };
        let len = self.shape[a].saturating_sub(down).min(self.shape[b].saturating_sub(right));
        let kept = |list: &[usize], last| {
            (0..list.len()).filter(|d| *d != a && *d != b).map(|d| list[d]).chain([last]).collect()
        };
        Layout {
            shape: kept(&self.shape, len),
            strides: kept(&self.strides, self.strides[a] + self.strides[b]),
            offset: if len > 0 { self.offset + down * self.strides[a] + right * self.strides[b] } else { self.offset },
        }
        .within()
    }

    /// Repeats dimensions of size 1 and adds leading ones. The shapes must be compatible (see [`broadcast_shapes`]).
    pub fn broadcast_to(&self, shape: &[usize]) -> Self {
        let lead = shape.len() - self.shape.len();
        let strides = (0..shape.len())
            .map(|d| match d.checked_sub(lead) {
                Some(own) if self.shape[own] == shape[d] => self.strides[own],
                _ => 0,
            })
            .collect();
        Layout { shape: shape.to_vec(), strides, offset: self.offset }
    }

    /// Returns a layout of the same elements with another shape, if the strides allow it without a copy.
    pub fn reshape(&self, shape: &[usize]) -> Option<Self> {
        if self.is_contiguous() || self.elem_count() == 0 {
            return Some(Layout { offset: self.offset, ..Layout::contiguous(shape) });
        }
        // From the last dimension on: old dimensions that follow one another without a gap are divided among new ones. Sizes
        // of 1 belong to any of them.
        let mut strides = vec![0; shape.len()];
        let mut new = shape.len();
        let mut old = self.shape.iter().zip(&self.strides).rev().filter(|(size, _)| **size != 1).peekable();
        while let Some((&size, &step)) = old.next() {
            let mut count = size;
            while let Some((size, _)) = old.next_if(|(_, stride)| **stride == step.wrapping_mul(count)) {
                count = count.checked_mul(*size)?;
            }
            let mut filled = 1usize;
            while filled < count {
                new = new.checked_sub(1)?;
                strides[new] = step.wrapping_mul(filled);
                filled = filled.checked_mul(shape[new])?;
            }
            if filled != count {
                return None;
            }
        }
        shape[..new].iter().all(|&size| size == 1).then(|| Layout {
            shape: shape.to_vec(),
            strides,
            offset: self.offset,
        })
    }

    /// Returns the storage positions of all elements, in row-major order.
    pub fn positions(&self) -> Positions<'_> {
        Positions { layout: self, index: vec![0; self.shape.len()], next: self.offset, left: self.elem_count() }
    }
}

/// An iterator over storage positions; see [`Layout::positions`].
#[derive(Clone)]
pub(crate) struct Positions<'a> {
    layout: &'a Layout,
    index: Vec<usize>,
    next: usize,
    left: usize,
}

impl Iterator for Positions<'_> {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        self.left = self.left.checked_sub(1)?;
        let current = self.next;
        for d in (0..self.index.len()).rev() {
            self.index[d] += 1;
            // Wrapping arithmetic, because negative strides are stored as wrapped values.
            self.next = self.next.wrapping_add(self.layout.strides[d]);
            if self.index[d] < self.layout.shape[d] {
                break;
            }
            self.next = self.next.wrapping_sub(self.layout.shape[d].wrapping_mul(self.layout.strides[d]));
            self.index[d] = 0;
        }
        Some(current)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for Positions<'_> {}

/// Returns the strides of a row-major tensor without gaps.
pub(crate) fn row_major(shape: &[usize]) -> Vec<usize> {
    let mut strides = vec![1usize; shape.len()];
    for d in (1..shape.len()).rev() {
        strides[d - 1] = strides[d].saturating_mul(shape[d].max(1));
    }
    strides
}

/// Returns the number of elements of a shape, or an error if they exceed the address range.
///
/// The check ignores sizes of 0, so that the product of any subset of sizes does not overflow. PyTorch rejects such
/// shapes too, since their strides overflow.
pub(crate) fn checked_elem_count(op: &'static str, shape: &[usize]) -> Result<usize> {
    let product = shape.iter().filter(|&&d| d > 0).try_fold(1usize, |n, &d| n.checked_mul(d));
    let fits = product.filter(|&n| n <= isize::MAX as usize / 8);
    let count = fits.map(|n| if shape.contains(&0) { 0 } else { n });
    count.ok_or_else(|| Error::argument(op, format!("shape {shape:?} has more elements than can be addressed")))
}

/// Returns the shape that two operands broadcast to, by NumPy's rule: the shapes are aligned at the last dimension, and
/// two sizes are equal or one of them is 1.
pub(crate) fn broadcast_shapes(op: &'static str, a: &[usize], b: &[usize]) -> Result<Vec<usize>> {
    if a == b {
        return Ok(a.to_vec());
    }
    let rank = a.len().max(b.len());
    let at = |s: &[usize], d: usize| (d + s.len()).checked_sub(rank).map_or(1, |i| s[i]);
    (0..rank)
        .map(|d| match (at(a, d), at(b, d)) {
            (x, y) if x == y => Ok(x),
            (1, y) => Ok(y),
            (x, 1) => Ok(x),
            (x, y) => {
                let detail = format!("sizes {x} and {y} in dimension {d} must be equal, or one of them 1");
                Err(Error::shapes(op, a, b, detail))
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contiguity_ignores_unit_dimensions() {
        let mut l = Layout::contiguous(&[2, 1, 3]);
        assert!(l.is_contiguous());
        l.strides[1] = 77;
        assert!(l.is_contiguous());
        assert!(!Layout::contiguous(&[2, 3]).permute(&[1, 0]).is_contiguous());
    }

    #[test]
    fn positions_follow_the_strides() {
        let t = Layout::contiguous(&[2, 3]).permute(&[1, 0]);
        assert_eq!(t.positions().collect::<Vec<_>>(), [0, 3, 1, 4, 2, 5]);
        let n = Layout::contiguous(&[4, 3]).narrow(0, 1, 2).narrow(1, 1, 1);
        assert_eq!(n.positions().collect::<Vec<_>>(), [4, 7]);
        let b = Layout::contiguous(&[2, 1]).broadcast_to(&[2, 2, 2]);
        assert_eq!(b.positions().collect::<Vec<_>>(), [0, 0, 1, 1, 0, 0, 1, 1]);
        assert_eq!(Layout::contiguous(&[]).positions().collect::<Vec<_>>(), [0]);
        assert_eq!(Layout::contiguous(&[3, 0]).positions().count(), 0);
    }

    #[test]
    fn reshape_keeps_views_where_it_can() {
        let t = Layout::contiguous(&[2, 3]).permute(&[1, 0]);
        assert_eq!(t.reshape(&[6]), None);
        assert_eq!(t.reshape(&[3, 1, 2]).map(|l| l.positions().collect::<Vec<_>>()), Some(vec![0, 3, 1, 4, 2, 5]));
        // Heads of a part of the last dimension, and back; rows that follow one another; what repeats.
        let part = Layout::contiguous(&[2, 3, 24]).narrow(2, 8, 8);
        let heads = part.reshape(&[2, 3, 4, 2]).map(|heads| heads.permute(&[0, 2, 1, 3]));
        assert_eq!(heads.as_ref().map(|l| &l.strides[..]), Some(&[72, 2, 24, 1][..]));
        assert_eq!(heads.and_then(|heads| heads.permute(&[0, 2, 1, 3]).reshape(&[6, 8])), part.reshape(&[6, 8]));
        assert_eq!(part.reshape(&[6, 8]).map(|l| l.strides), Some(vec![24, 1]));
        assert_eq!(Layout::contiguous(&[]).broadcast_to(&[2, 3]).reshape(&[3, 2]).map(|l| l.strides), Some(vec![0, 0]));
    }

    /// Every reshape of some layouts: the elements keep their order.
    #[test]
    fn reshaped_views_have_the_same_order() {
        let whole = Layout::contiguous(&[4, 1, 6, 2]);
        let layouts = [
            whole.permute(&[2, 1, 0, 3]),
            whole.permute(&[3, 0, 1, 2]),
            whole.narrow(2, 1, 3),
            whole.narrow(0, 1, 2).permute(&[0, 3, 2, 1]),
            whole.slice([(0, 4, 1), (0, 1, 1), (0, 3, 2), (0, 2, 1)].into_iter()),
            Layout { strides: vec![12usize.wrapping_neg(), 12, 2, 1], offset: 36, ..whole.clone() },
            Layout::contiguous(&[1, 6, 1]).broadcast_to(&[4, 1, 6, 2]),
            whole.narrow(1, 0, 0),
        ];
        let mut views = 0;
        for layout in layouts {
            let count = layout.elem_count();
            for sizes in (0..5usize.pow(4)).map(|i| [0, 1, 2, 3].map(|d| [1, 2, 3, 4, 6][i / 5usize.pow(d) % 5])) {
                if sizes.iter().product::<usize>() != count {
                    continue;
                }
                if let Some(view) = layout.reshape(&sizes) {
                    assert_eq!(view.shape, sizes);
                    assert!(view.positions().eq(layout.positions()), "{layout:?} as {sizes:?}");
                    views += 1;
                }
            }
        }
        assert!(views > 50, "{views}");
    }

    #[test]
    fn broadcasting_follows_numpy() {
        assert_eq!(broadcast_shapes("add", &[4, 1, 3], &[2, 1]), Ok(vec![4, 2, 3]));
        assert_eq!(broadcast_shapes("add", &[], &[2]), Ok(vec![2]));
        assert_eq!(broadcast_shapes("add", &[0], &[1]), Ok(vec![0]));
        let error = broadcast_shapes("add", &[2, 3], &[4]).map(|_| String::new()).unwrap_or_else(|e| e.to_string());
        assert!(error.contains("[2, 3] and [4]") && error.contains("dimension 1"), "{error}");
    }
}
