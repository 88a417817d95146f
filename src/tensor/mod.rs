//! The tensor: a storage on a device, a layout, an element type, and its place in the graph.

mod asynchronous;
mod bucket;
mod create;
mod display;
mod host;
#[cfg(feature = "image")]
mod image;
mod index;
mod multinomial;
#[cfg(feature = "ndarray")]
mod ndarray;
mod nested;
mod random;
mod transfer;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

pub use asynchronous::PendingRead;
pub(crate) use bucket::{Bucket, copied_together, slots};
pub(crate) use create::from_words;
pub use index::{Index, Indices, NewAxis};
#[cfg(feature = "ndarray")]
pub use ndarray::ArrayElement;
pub use nested::TensorData;
pub use random::{RandomState, manual_seed, random_state, set_random_state};
pub(crate) use random::{generator, next_words, seed_for, skip_blocks};
pub use transfer::to_together;
pub(crate) use transfer::{move_dense, weighted_sum};

use crate::autograd::Node;
use crate::device::{Device, Storage};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::shape::Layout;

/// An n-dimensional array on a device.
///
/// A tensor is a cheap handle: a clone shares the elements. Elements change only if an optimiser updates a parameter or
/// a method whose name ends in `_` is called.
///
/// Ops return `Result`, because shapes and devices can mismatch and memory can run out. The operators `+ - * / %` and
/// `-x` return `Result` too. They work between tensors (by reference or value), and with an `f32` or `i32` on either
/// side.
///
/// The right operand may be the `Result` of another operator, so that one `?` is enough for `(&a + (&b * 2.0))?`. The
/// left operand may not, since Rust allows operators only on a crate's own types. Write `((&a * 2.0)? + &b)?`, or write
/// the formula without any `?` in [`t!`](crate::t).
///
/// Dimensions count from 0, outermost first; negative ones count from the end, as in PyTorch: `x.softmax(-1)` (see
/// [`Dim`](crate::Dim)).
///
/// A tensor may be larger than a kernel of its adapter can bind ([`max_binding`](crate::device::Limits::max_binding)),
/// up to [`max_buffer`](crate::device::Limits::max_buffer). Elementwise ops, copies, reductions, products, `gather`,
/// `scatter` and optimisers then compute it in parts. Other ops return [`Error::LimitExceeded`].
///
/// ```
/// use anygpu::{Tensor, try_gpu};
///
/// let gpu = try_gpu(0); // gpu:0, or cpu when there is none
/// let x = Tensor::new([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], &gpu)?;
/// let y = Tensor::full([3], 0.5, &gpu)?;
/// let z = (&x + (&y * 2.0))?;
/// assert_eq!(z.shape(), [2, 3]);
/// assert_eq!(z.to_vec2::<f32>()?, [[2.0, 3.0, 4.0], [5.0, 6.0, 7.0]]);
/// assert_eq!(z.cpu()?.i((1, -1))?.item::<f32>()?, 7.0);
/// # Ok::<(), anygpu::Error>(())
/// ```
// Not `must_use` as a type, since functions that are called for their effect return tensors too: `train_batch`,
// `clip_grad_norm`, `forward` of a batch norm. Methods that return a tensor without `Result` have the attribute.
#[derive(Clone)]
pub struct Tensor(Arc<Inner>);

struct Inner {
    id: u64,
    storage: Storage,
    layout: Layout,
    dtype: DType,
    device: Device,
    /// The op that produced this tensor, if it was recorded.
    node: Option<Node>,
    /// Whether this is a leaf that collects a gradient.
    leaf: bool,
    grad: Mutex<Option<Tensor>>,
    /// The leaf that a module has frozen: this tensor is in its place until the module is unfrozen.
    frozen: Option<Tensor>,
    /// Whether a module has another tensor in the place of this one, which is the one that is trained.
    replaced: AtomicBool,
}

/// For functions that take tensors by value or by reference.
impl AsRef<Tensor> for Tensor {
    fn as_ref(&self) -> &Tensor {
        self
    }
}

impl Tensor {
    pub(crate) fn from_parts(storage: Storage, layout: Layout, dtype: DType, device: Device) -> Self {
        Self::build(storage, layout, dtype, device, None, false)
    }

    /// Returns a contiguous tensor that begins at the start of a storage.
    pub(crate) fn from_storage(storage: Storage, shape: &[usize], dtype: DType, device: Device) -> Self {
        Self::from_parts(storage, Layout::contiguous(shape), dtype, device)
    }

    fn build(storage: Storage, layout: Layout, dtype: DType, device: Device, node: Option<Node>, leaf: bool) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        Self::whole(id, storage, layout, dtype, device, node, leaf)
    }

    fn whole(
        id: u64,
        storage: Storage,
        layout: Layout,
        dtype: DType,
        device: Device,
        node: Option<Node>,
        leaf: bool,
    ) -> Self {
        let (grad, frozen, replaced) = (Mutex::new(None), None, AtomicBool::new(false));
        Tensor(Arc::new(Inner { id, storage, layout, dtype, device, node, leaf, grad, frozen, replaced }))
    }

    /// Returns the same elements with another place in the graph.
    pub(crate) fn with_graph(&self, node: Option<Node>, leaf: bool) -> Self {
        let Inner { storage, layout, dtype, device, .. } = &*self.0;
        Self::build(storage.clone(), layout.clone(), *dtype, device.clone(), node, leaf)
    }

    /// Returns the same elements with another layout, outside the graph.
    pub(crate) fn with_layout(&self, layout: Layout) -> Self {
        Self::from_parts(self.0.storage.clone(), layout, self.0.dtype, self.0.device.clone())
    }

    /// Returns a tensor with the shape, the type, the device and the place in the graph of this one, but without its
    /// elements. For the graph this is the same tensor.
    pub(crate) fn without_elements(&self) -> Self {
        self.stored(Storage::Cpu(crate::device::cpu::nothing()), self.layout())
    }

    /// Returns this tensor with the elements of another tensor, which has its shape, its type and its device. For the
    /// graph this is the same tensor.
    pub(crate) fn with_elements(&self, of: &Tensor) -> Self {
        self.stored(of.storage().clone(), of.layout())
    }

    /// Returns a tensor that is this one for the graph, in another storage.
    fn stored(&self, storage: Storage, layout: &Layout) -> Self {
        let Inner { id, dtype, device, node, leaf, .. } = &*self.0;
        Self::whole(*id, storage, layout.clone(), *dtype, device.clone(), node.clone(), *leaf)
    }

    /// Returns the words that hold the elements, contiguous and in row-major order, as a 1-D u32 tensor outside the
    /// graph. Copies only if the elements are not contiguous and aligned to words.
    pub(crate) fn as_words(&self) -> Result<Self> {
        let per_word = self.dtype().per_word();
        let mut dense = self.detach().contiguous()?;
        if dense.layout().offset % per_word != 0 {
            dense = crate::ops::repacked(&dense)?;
        }
        let Inner { storage, layout, dtype, device, .. } = &*dense.0;
        let layout =
            Layout { offset: dtype.word_of(layout.offset), ..Layout::contiguous(&[dtype.words(layout.elem_count())]) };
        Ok(Self::from_parts(storage.clone(), layout, DType::U32, device.clone()))
    }

    /// Returns a tensor whose words begin at word `offset` of this one's storage.
    ///
    /// # Errors
    /// If the device cannot hold the type, or elements of two words would begin at an odd one.
    pub(crate) fn tensor_at_word(&self, offset: usize, shape: &[usize], dtype: DType) -> Result<Self> {
        crate::ops::long::held("to", dtype, self.device())?;
        if dtype.is_long() && !offset.is_multiple_of(2) {
            return Err(Error::internal(format!("{dtype} that begins at word {offset}")));
        }
        let layout = Layout { offset: dtype.element_of(offset), ..Layout::contiguous(shape) };
        Ok(Self::from_parts(self.0.storage.clone(), layout, dtype, self.0.device.clone()))
    }

    /// Returns the size in each dimension, outermost first.
    #[must_use]
    pub fn shape(&self) -> &[usize] {
        &self.0.layout.shape
    }

    /// Returns the number of dimensions.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.shape().len()
    }

    /// Returns the number of elements.
    #[must_use]
    pub fn elem_count(&self) -> usize {
        self.0.layout.elem_count()
    }

    /// Returns the type of the elements.
    #[must_use]
    pub fn dtype(&self) -> DType {
        self.0.dtype
    }

    /// Returns the device that holds the elements.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.0.device
    }

    /// Returns whether two handles are the same tensor: the same elements, layout and place in the graph.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let x = Tensor::zeros([2], None)?;
    /// assert!(x.is_same(&x.to(x.device())?)); // `to` its own device copies nothing
    /// assert!(!x.is_same(&Tensor::zeros([2], None)?));
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    #[must_use]
    pub fn is_same(&self, other: &Tensor) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Returns whether another tensor may share the elements.
    pub(crate) fn is_shared(&self) -> bool {
        Arc::strong_count(&self.0) > 1 || self.0.storage.holders() > 1
    }

    /// Returns whether these tensors are parts of one storage that no other tensor holds, and have no element in common.
    pub(crate) fn share_only_storage(all: &[&Tensor]) -> bool {
        let Some(first) = all.first() else { return true };
        let storage = first.storage();
        let mut ranges: Vec<_> = all.iter().map(|t| (t.layout().offset, t.elem_count())).collect();
        ranges.sort_unstable();
        all.iter()
            .all(|t| Arc::strong_count(&t.0) == 1 && t.layout().is_contiguous() && t.storage().id() == storage.id())
            && storage.holders() == all.len()
            && ranges.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0)
    }

    pub(crate) fn id(&self) -> u64 {
        self.0.id
    }

    pub(crate) fn storage(&self) -> &Storage {
        &self.0.storage
    }

    pub(crate) fn layout(&self) -> &Layout {
        &self.0.layout
    }

    pub(crate) fn node(&self) -> Option<&Node> {
        self.0.node.as_ref()
    }

    pub(crate) fn is_leaf(&self) -> bool {
        self.0.leaf
    }

    /// Returns the same elements outside the graph, in the place of this leaf in a module that is frozen.
    pub(crate) fn freeze(&self) -> Self {
        let mut frozen = self.detach();
        if let Some(inner) = Arc::get_mut(&mut frozen.0) {
            inner.frozen = Some(self.clone());
        }
        frozen
    }

    /// Returns the leaf that was frozen as this tensor, with which optimisers go on; or a new leaf.
    pub(crate) fn unfreeze(&self) -> Self {
        self.0.frozen.clone().unwrap_or_else(|| self.requires_grad())
    }

    /// Notes that a module has `new` in the place of this tensor: an optimiser that has this one does not train the module.
    pub(crate) fn replace_by(&self, new: &Tensor) {
        let moved = self.storage().id() != new.storage().id();
        if let Some(frozen) = self.0.frozen.as_ref().filter(|_| moved) {
            frozen.0.replaced.store(true, Ordering::Relaxed);
        }
        let trained = if moved { self.is_leaf() } else { !self.is_tracked() && new.is_leaf() };
        self.0.replaced.fetch_or(trained, Ordering::Relaxed);
    }

    /// Returns whether a module that had this tensor as a parameter has another one in its place.
    pub(crate) fn is_replaced(&self) -> bool {
        self.0.replaced.load(Ordering::Relaxed)
    }

    /// Returns the number of handles of this tensor.
    pub(crate) fn holders(&self) -> usize {
        Arc::strong_count(&self.0)
    }

    pub(crate) fn grad_slot(&self) -> &Mutex<Option<Tensor>> {
        &self.0.grad
    }

    /// Returns the graph node if this is the last handle to the tensor. It allows a long graph to be dropped without
    /// recursion.
    pub(crate) fn into_node(self) -> Option<Node> {
        Arc::into_inner(self.0).and_then(|inner| inner.node)
    }
}
