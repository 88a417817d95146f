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
///
/// # Methods by subject
///
/// - **Creation**: [`new`](Tensor::new), [`from_vec`](Tensor::from_vec), [`from_slice`](Tensor::from_slice),
///   [`from_f64`](Tensor::from_f64), [`scalar`](Tensor::scalar), [`zeros`](Tensor::zeros), [`ones`](Tensor::ones),
///   [`full`](Tensor::full), [`zeros_like`](Tensor::zeros_like), [`ones_like`](Tensor::ones_like),
///   [`arange`](Tensor::arange), [`linspace`](Tensor::linspace), [`iota`](Tensor::iota), [`eye`](Tensor::eye),
///   [`rand`](Tensor::rand), [`randn`](Tensor::randn), [`uniform`](Tensor::uniform), [`normal`](Tensor::normal),
///   [`bernoulli`](Tensor::bernoulli), [`randint`](Tensor::randint), [`randperm`](Tensor::randperm),
///   [`rand_like`](Tensor::rand_like), [`randn_like`](Tensor::randn_like), [`multinomial`](Tensor::multinomial)
/// - **Reading**: [`to_vec`](Tensor::to_vec), [`to_vec2`](Tensor::to_vec2), [`to_vec3`](Tensor::to_vec3),
///   [`to_vec_f64`](Tensor::to_vec_f64), [`item`](Tensor::item), [`with_slice`](Tensor::with_slice),
///   [`to_vec_async`](Tensor::to_vec_async), [`item_async`](Tensor::item_async),
///   [`to_vec_then`](Tensor::to_vec_then), [`shape`](Tensor::shape), [`rank`](Tensor::rank),
///   [`elem_count`](Tensor::elem_count), [`dtype`](Tensor::dtype), [`device`](Tensor::device),
///   [`is_same`](Tensor::is_same), [`equal`](Tensor::equal), [`allclose`](Tensor::allclose)
/// - **Devices, types, files**: [`to`](Tensor::to), [`to_async`](Tensor::to_async), [`cpu`](Tensor::cpu),
///   [`to_dtype`](Tensor::to_dtype), [`copy`](Tensor::copy), [`contiguous`](Tensor::contiguous),
///   [`from_npy`](Tensor::from_npy), [`save_npy`](Tensor::save_npy)
/// - **Shape and views**: [`reshape`](Tensor::reshape), [`flatten`](Tensor::flatten), [`squeeze`](Tensor::squeeze),
///   [`unsqueeze`](Tensor::unsqueeze), [`squeeze_all`](Tensor::squeeze_all), [`permute`](Tensor::permute),
///   [`transpose`](Tensor::transpose), [`t`](Tensor::t), [`movedim`](Tensor::movedim), [`narrow`](Tensor::narrow),
///   [`select`](Tensor::select), [`slice`](Tensor::slice), [`diagonal`](Tensor::diagonal), [`diag`](Tensor::diag),
///   [`broadcast_to`](Tensor::broadcast_to), [`expand`](Tensor::expand), [`cat`](Tensor::cat),
///   [`stack`](Tensor::stack), [`split`](Tensor::split), [`split_sizes`](Tensor::split_sizes),
///   [`chunk`](Tensor::chunk), [`repeat`](Tensor::repeat), [`flip`](Tensor::flip), [`roll`](Tensor::roll),
///   [`pad`](Tensor::pad), [`unfold`](Tensor::unfold), [`fold`](Tensor::fold), [`meshgrid`](Tensor::meshgrid)
/// - **Indexing**: [`i`](Tensor::i), [`index`](Tensor::index), [`index_put`](Tensor::index_put),
///   [`masked_select`](Tensor::masked_select), [`masked_fill`](Tensor::masked_fill), [`nonzero`](Tensor::nonzero),
///   [`where_cond`](Tensor::where_cond), [`gather`](Tensor::gather), [`scatter`](Tensor::scatter),
///   [`scatter_add`](Tensor::scatter_add), [`scatter_reduce`](Tensor::scatter_reduce),
///   [`index_select`](Tensor::index_select), [`index_add`](Tensor::index_add), [`index_copy`](Tensor::index_copy),
///   [`index_reduce`](Tensor::index_reduce), [`embedding`](Tensor::embedding), [`one_hot`](Tensor::one_hot)
/// - **Arithmetic and comparison**: [`add`](Tensor::add), [`sub`](Tensor::sub), [`mul`](Tensor::mul),
///   [`div`](Tensor::div), [`rem`](Tensor::rem), [`pow`](Tensor::pow), [`neg`](Tensor::neg),
///   [`recip`](Tensor::recip), [`fmod`](Tensor::fmod), [`div_floor`](Tensor::div_floor),
///   [`div_trunc`](Tensor::div_trunc), [`maximum`](Tensor::maximum), [`minimum`](Tensor::minimum),
///   [`atan2`](Tensor::atan2), [`eq`](Tensor::eq), [`ne`](Tensor::ne), [`lt`](Tensor::lt), [`le`](Tensor::le),
///   [`gt`](Tensor::gt), [`ge`](Tensor::ge), [`logical_and`](Tensor::logical_and),
///   [`logical_or`](Tensor::logical_or), [`logical_xor`](Tensor::logical_xor), [`logical_not`](Tensor::logical_not),
///   [`bitwise_and`](Tensor::bitwise_and), [`bitwise_or`](Tensor::bitwise_or), [`bitwise_xor`](Tensor::bitwise_xor),
///   [`bitwise_not`](Tensor::bitwise_not), [`bitwise_left_shift`](Tensor::bitwise_left_shift),
///   [`bitwise_right_shift`](Tensor::bitwise_right_shift), [`add_scalar`](Tensor::add_scalar),
///   [`sub_scalar`](Tensor::sub_scalar), [`mul_scalar`](Tensor::mul_scalar), [`div_scalar`](Tensor::div_scalar)
/// - **Functions of one element**: [`abs`](Tensor::abs), [`sign`](Tensor::sign), [`exp`](Tensor::exp),
///   [`exp2`](Tensor::exp2), [`expm1`](Tensor::expm1), [`log`](Tensor::log), [`log2`](Tensor::log2),
///   [`log1p`](Tensor::log1p), [`sqrt`](Tensor::sqrt), [`rsqrt`](Tensor::rsqrt), [`square`](Tensor::square),
///   [`sin`](Tensor::sin), [`cos`](Tensor::cos), [`tan`](Tensor::tan), [`asin`](Tensor::asin),
///   [`acos`](Tensor::acos), [`atan`](Tensor::atan), [`sinh`](Tensor::sinh), [`cosh`](Tensor::cosh),
///   [`tanh`](Tensor::tanh), [`asinh`](Tensor::asinh), [`acosh`](Tensor::acosh), [`atanh`](Tensor::atanh),
///   [`erf`](Tensor::erf), [`floor`](Tensor::floor), [`ceil`](Tensor::ceil), [`round`](Tensor::round),
///   [`trunc`](Tensor::trunc), [`clamp`](Tensor::clamp), [`isnan`](Tensor::isnan), [`isinf`](Tensor::isinf),
///   [`isfinite`](Tensor::isfinite)
/// - **Activations**: [`relu`](Tensor::relu), [`relu6`](Tensor::relu6), [`leaky_relu`](Tensor::leaky_relu),
///   [`elu`](Tensor::elu), [`gelu`](Tensor::gelu), [`gelu_tanh`](Tensor::gelu_tanh), [`silu`](Tensor::silu),
///   [`mish`](Tensor::mish), [`sigmoid`](Tensor::sigmoid), [`hardsigmoid`](Tensor::hardsigmoid),
///   [`hardswish`](Tensor::hardswish), [`hardtanh`](Tensor::hardtanh), [`softplus`](Tensor::softplus),
///   [`softsign`](Tensor::softsign), [`log_sigmoid`](Tensor::log_sigmoid), [`dropout`](Tensor::dropout),
///   [`apply`](Tensor::apply)
/// - **Reductions and scans**: [`sum`](Tensor::sum), [`sum_all`](Tensor::sum_all), [`mean`](Tensor::mean),
///   [`mean_all`](Tensor::mean_all), [`prod`](Tensor::prod), [`prod_all`](Tensor::prod_all), [`max`](Tensor::max),
///   [`max_all`](Tensor::max_all), [`min`](Tensor::min), [`min_all`](Tensor::min_all), [`argmax`](Tensor::argmax),
///   [`argmax_all`](Tensor::argmax_all), [`argmin`](Tensor::argmin), [`argmin_all`](Tensor::argmin_all),
///   [`var`](Tensor::var), [`var_all`](Tensor::var_all), [`std`](Tensor::std), [`std_all`](Tensor::std_all),
///   [`any`](Tensor::any), [`any_all`](Tensor::any_all), [`all`](Tensor::all), [`all_all`](Tensor::all_all),
///   [`norm`](Tensor::norm), [`norm_all`](Tensor::norm_all), [`logsumexp`](Tensor::logsumexp),
///   [`softmax`](Tensor::softmax), [`log_softmax`](Tensor::log_softmax), [`cumsum`](Tensor::cumsum),
///   [`cumprod`](Tensor::cumprod), [`cummax`](Tensor::cummax), [`cummin`](Tensor::cummin)
/// - **Products and linear algebra**: [`matmul`](Tensor::matmul), [`mv`](Tensor::mv), [`dot`](Tensor::dot),
///   [`outer`](Tensor::outer), [`einsum`](Tensor::einsum), [`attention`](Tensor::attention),
///   [`cdist`](Tensor::cdist), [`tril`](Tensor::tril), [`triu`](Tensor::triu), [`solve`](Tensor::solve),
///   [`inv`](Tensor::inv), [`det`](Tensor::det), [`slogdet`](Tensor::slogdet), [`cholesky`](Tensor::cholesky),
///   [`qr`](Tensor::qr), [`svd`](Tensor::svd)
/// - **Convolutions, pooling, images**: [`conv1d`](Tensor::conv1d), [`conv2d`](Tensor::conv2d),
///   [`conv3d`](Tensor::conv3d), [`conv_transpose1d`](Tensor::conv_transpose1d),
///   [`conv_transpose2d`](Tensor::conv_transpose2d), [`conv_transpose3d`](Tensor::conv_transpose3d),
///   [`max_pool1d`](Tensor::max_pool1d), [`max_pool1d_with_indices`](Tensor::max_pool1d_with_indices),
///   [`max_pool2d`](Tensor::max_pool2d), [`max_pool2d_with_indices`](Tensor::max_pool2d_with_indices),
///   [`max_pool3d`](Tensor::max_pool3d), [`avg_pool1d`](Tensor::avg_pool1d), [`avg_pool2d`](Tensor::avg_pool2d),
///   [`avg_pool3d`](Tensor::avg_pool3d), [`adaptive_avg_pool1d`](Tensor::adaptive_avg_pool1d),
///   [`adaptive_avg_pool2d`](Tensor::adaptive_avg_pool2d), [`adaptive_avg_pool3d`](Tensor::adaptive_avg_pool3d),
///   [`adaptive_max_pool1d`](Tensor::adaptive_max_pool1d), [`adaptive_max_pool2d`](Tensor::adaptive_max_pool2d),
///   [`adaptive_max_pool3d`](Tensor::adaptive_max_pool3d), [`interpolate`](Tensor::interpolate),
///   [`resample`](Tensor::resample), [`grid_sample`](Tensor::grid_sample)
/// - **Normalisation and losses**: [`layer_norm`](Tensor::layer_norm), [`rms_norm`](Tensor::rms_norm),
///   [`group_norm`](Tensor::group_norm), [`batch_norm`](Tensor::batch_norm),
///   [`batch_norm_relu`](Tensor::batch_norm_relu), [`batch_norm_add_relu`](Tensor::batch_norm_add_relu),
///   [`cross_entropy`](Tensor::cross_entropy)
/// - **Sorting and searching**: [`sort`](Tensor::sort), [`argsort`](Tensor::argsort), [`topk`](Tensor::topk),
///   [`median`](Tensor::median), [`quantile`](Tensor::quantile), [`unique`](Tensor::unique),
///   [`unique_with_counts`](Tensor::unique_with_counts), [`searchsorted`](Tensor::searchsorted),
///   [`bincount`](Tensor::bincount), [`repeat_interleave`](Tensor::repeat_interleave),
///   [`repeat_interleave_by`](Tensor::repeat_interleave_by)
/// - **Gradients**: [`requires_grad`](Tensor::requires_grad), [`is_tracked`](Tensor::is_tracked),
///   [`detach`](Tensor::detach), [`backward`](Tensor::backward),
///   [`backward_retain_graph`](Tensor::backward_retain_graph), [`grad`](Tensor::grad), [`set_grad`](Tensor::set_grad)
/// - **In place**: [`copy_`](Tensor::copy_), [`fill_`](Tensor::fill_), [`zero_`](Tensor::zero_),
///   [`add_`](Tensor::add_), [`sub_`](Tensor::sub_), [`mul_`](Tensor::mul_), [`div_`](Tensor::div_)
/// - **With Cargo features**: `fft`, `ifft`, `rfft`, `irfft` (feature `fft`); `from_ndarray`, `to_ndarray` (`ndarray`); `from_image`,
///   `to_image` (`image`); `from_texture`, `copy_to_texture`, `as_wgpu_buffer`, `from_wgpu_buffer` (`wgpu`)
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
