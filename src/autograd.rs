//! The graph of recorded ops, and the backward pass through it.
//!
//! Ops on tracked tensors store a [`Node`] in their result. [`Tensor::backward`] walks the nodes from the result to the
//! leaves, each after all of its users, and sums the gradients. The gradients of ops are computed with tensor ops, so
//! they run on the devices of the forward pass.

mod grad;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};

use crate::context::{Restore, slot};
use crate::device::labelled_by_default;
use crate::error::{Error, Result};
use crate::ops::{self, Differentiable, Gradient};
use crate::tensor::Tensor;
use crate::util::sync::lock;

pub use grad::{GradOptions, grad};

slot! {
    /// Whether ops are recorded for the backward pass.
    pub(crate) RECORDING: bool = true
}

slot! {
    /// Called in a backward pass for each leaf once its gradient of that pass is complete. A hook belongs to one pass.
    pub(crate) GRADIENT_HOOK: Option<GradientHook> = None, for this thread alone
}

/// A function that is given a leaf.
#[derive(Clone)]
pub(crate) struct GradientHook(pub Arc<LeafFunction>);

type LeafFunction = dyn Fn(&Tensor) -> Result<()> + Send + Sync;

/// The op that produced a tensor, with its inputs.
#[derive(Clone)]
pub(crate) struct Node(Arc<NodeInner>);

struct NodeInner {
    op: Box<dyn Differentiable>,
    /// What the gradient needs; `None` after a backward pass has freed it.
    saved: Mutex<Option<Saved>>,
}

#[derive(Clone)]
struct Saved {
    /// The inputs. An input that the op does not save has no elements.
    inputs: Vec<Tensor>,
    /// The output outside the graph, if the op saves it.
    out: Option<Tensor>,
    /// The versions of the storages of inputs and output when the op ran. After a later in-place write, the gradient would
    /// be wrong.
    versions: Vec<u64>,
    out_version: u64,
}

impl Node {
    /// Returns the name of the op.
    pub(crate) fn name(&self) -> &'static str {
        self.0.op.op_name()
    }

    /// Returns what keeps the results of earlier ops alive. Removes it from the graph unless `retain`.
    fn saved(&self, retain: bool) -> Result<Saved> {
        let mut saved = lock(&self.0.saved);
        let found = if retain { saved.clone() } else { saved.take() };
        found.ok_or_else(freed)
    }
}

/// Returns the error for a graph without its inputs.
fn freed() -> Error {
    Error::Autograd("an earlier backward has freed the graph: use backward_retain_graph() for all but the last".into())
}

/// A guard: until it is dropped, ops on this thread are not recorded.
///
/// See [`no_grad`].
#[derive(Debug)]
#[must_use = "recording resumes when the guard is dropped"]
pub struct NoGrad {
    _restore: Restore<bool>,
}

impl NoGrad {
    /// Stops recording on this thread until the guard is dropped.
    #[expect(clippy::new_without_default, reason = "a guard is made for its effect, never by default")]
    pub fn new() -> Self {
        NoGrad { _restore: RECORDING.set(false) }
    }
}

/// Runs `f` without recording its ops.
///
/// Use it for evaluation, where no gradient is needed: intermediate results can then be freed.
///
/// This also applies to the threads that work for the calling thread: the threads of
/// [`DataParallel`](crate::DataParallel), and the threads of a [`DataLoader`](crate::data::DataLoader) whose epoch
/// begins in `f`.
///
/// ```
/// use anygpu::{Tensor, no_grad};
///
/// let x = Tensor::ones([2], None)?.requires_grad();
/// assert!(!no_grad(|| x.mul_scalar(2.0))?.is_tracked());
/// assert!(x.mul_scalar(2.0)?.is_tracked());
/// // With `?` within it, the closure says what it returns.
/// let y = no_grad(|| -> anygpu::Result<_> { x.exp()?.sum_all() })?;
/// # assert!(!y.is_tracked());
/// # Ok::<(), anygpu::Error>(())
/// ```
pub fn no_grad<T>(f: impl FnOnce() -> T) -> T {
    let _guard = NoGrad::new();
    f()
}

/// Returns whether ops on this thread are recorded.
pub(crate) fn is_recording() -> bool {
    RECORDING.get()
}

/// Adds a node to `out` if any input is tracked.
pub(crate) fn record<O: Differentiable>(op: O, inputs: &[&Tensor], out: Tensor) -> Tensor {
    if noted(&op, inputs, &out) { with_node(Box::new(op), inputs, &out) } else { out }
}

/// Notes an op in the trace, if there is one. Returns whether its result gets a node.
pub(crate) fn noted<O: Differentiable + ?Sized>(op: &O, inputs: &[&Tensor], out: &Tensor) -> bool {
    let (recording, trace) = (RECORDING.get(), ops::traced::TRACE.get());
    if let Some(trace) = trace {
        ops::traced::note(&trace, op.op_name(), op.traced(inputs), inputs, out);
    }
    recording && inputs.iter().any(|t| t.is_tracked())
}

/// Returns a result with its node.
pub(crate) fn with_node(op: Box<dyn Differentiable>, inputs: &[&Tensor], out: &Tensor) -> Tensor {
    let saves = op.saves();
    // A leaf collects a gradient, so that the graph needs the tensor itself.
    let kept =
        |(i, t): (usize, &&Tensor)| if saves.input(i) || t.is_leaf() { (*t).clone() } else { t.without_elements() };
    let inputs: Vec<Tensor> = inputs.iter().enumerate().map(kept).collect();
    let versions = inputs.iter().map(|t| t.storage().version()).collect();
    let saved =
        Saved { inputs, versions, out: saves.output().then(|| out.clone()), out_version: out.storage().version() };
    let node = NodeInner { op, saved: Mutex::new(Some(saved)) };
    out.with_graph(Some(Node(Arc::new(node))), false)
}

impl Tensor {
    /// Returns a leaf that shares this tensor's elements. [`Tensor::backward`] accumulates its gradient.
    ///
    /// An in-place write to one of the two tensors changes the other. To give the leaf its own memory, call
    /// [`Tensor::copy`] first: `x.copy()?.requires_grad()`.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let x = Tensor::new([3.0, -1.0], None)?.requires_grad();
    /// (&x * &x)?.sum_all()?.backward()?; // d(x²)/dx = 2x
    /// assert_eq!(x.grad().unwrap().to_vec::<f32>()?, [6.0, -2.0]);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    #[must_use = "this tensor does not change: use the one that is returned"]
    pub fn requires_grad(&self) -> Tensor {
        self.with_graph(None, true)
    }

    /// Returns whether gradients flow through this tensor.
    #[must_use]
    pub fn is_tracked(&self) -> bool {
        self.is_leaf() || self.node().is_some()
    }

    /// Returns the same elements outside the graph.
    #[must_use = "this tensor does not change: use the one that is returned"]
    pub fn detach(&self) -> Tensor {
        if self.is_tracked() { self.with_graph(None, false) } else { self.clone() }
    }

    /// Returns the gradient that [`Tensor::backward`] has accumulated for this leaf, if any.
    ///
    /// It has the leaf's shape. It shares its elements with the gradient that the leaf holds: `grad.zero_()` clears
    /// both.
    #[must_use]
    pub fn grad(&self) -> Option<Tensor> {
        lock(self.grad_slot()).clone()
    }

    /// Replaces the accumulated gradient; `None` clears it.
    pub fn set_grad(&self, grad: Option<Tensor>) {
        *lock(self.grad_slot()) = grad;
    }

    /// Computes the gradients of this tensor with respect to every leaf that it depends on.
    ///
    /// Adds them to the leaves' [`Tensor::grad`]. This tensor must have exactly one element.
    ///
    /// This frees the graph: intermediate results that only the graph needs are dropped as soon as their gradients are
    /// computed. To run several backward passes over one graph, from this tensor or from another one, use
    /// [`Tensor::backward_retain_graph`] for all passes except the last.
    ///
    /// # Errors
    /// [`Error::Autograd`] if this tensor does not have exactly one element, if it depends on no leaf, if the graph was
    /// freed, or if a tensor that the gradient needs was modified in place after the forward pass. Also the errors of
    /// the ops that compute the gradients.
    pub fn backward(&self) -> Result<()> {
        labelled_by_default("gradients", || self.pass_back(false))
    }

    /// Computes the gradients as [`Tensor::backward`] does, and keeps the graph for another backward pass.
    ///
    /// # Errors
    /// Same as [`Tensor::backward`].
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let x = Tensor::new([3.0], None)?.requires_grad();
    /// let y = x.square()?;
    /// let (a, b) = (y.sum_all()?, y.mul_scalar(2.0)?.sum_all()?); // both depend on y
    /// a.backward_retain_graph()?;
    /// b.backward()?;
    /// assert_eq!(x.grad().unwrap().to_vec::<f32>()?, [6.0 + 12.0]);
    /// assert!(a.backward().is_err());
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn backward_retain_graph(&self) -> Result<()> {
        labelled_by_default("gradients", || self.pass_back(true))
    }

    /// Like [`Tensor::backward`], for a tensor of any shape in the graph, starting from its gradient. For the first
    /// part of a graph whose second part is elsewhere.
    pub(crate) fn backward_from(&self, grad: &Tensor, retain: bool) -> Result<()> {
        if grad.shape() != self.shape() {
            return Err(Error::shapes(
                "backward",
                self.shape(),
                grad.shape(),
                "a gradient has the shape of its tensor",
            ));
        }
        labelled_by_default("gradients", || self.walk_back(grad.detach(), retain))
    }

    fn pass_back(&self, retain: bool) -> Result<()> {
        if self.elem_count() != 1 {
            return Err(Error::Autograd(format!("needs one value, not a tensor of shape {:?}: sum it", self.shape())));
        }
        if !self.is_tracked() {
            return Err(Error::Autograd("the tensor depends on no tensor with requires_grad".into()));
        }
        self.walk_back(self.detach().ones_like()?, retain)
    }

    /// Adds gradients to the leaves that this tensor depends on. `grad` is this tensor's own gradient.
    fn walk_back(&self, grad: Tensor, retain: bool) -> Result<()> {
        let _guard = NoGrad::new();
        let _types = ops::products(None); // gradients have the types of the forward pass
        let hook = GRADIENT_HOOK.get();
        let mut grads = Sums::from([(self.id(), (grad, false))]);
        let walk = Walk { retain, create: false, reached: None };
        for tensor in users_first(self)? {
            let Some((grad, own)) = grads.remove(&tensor.id()) else { continue };
            match tensor.node() {
                Some(node) => push_back(node, &tensor, grad, &walk, &mut grads)?,
                None => {
                    accumulate(&tensor, grad, own)?;
                    if let Some(GradientHook(hook)) = &hook {
                        hook(&tensor)?;
                    }
                }
            }
        }
        Ok(())
    }
}

/// How the ops of a graph compute their gradients.
struct Walk {
    /// Whether the graph is kept.
    retain: bool,
    /// Whether the gradients are part of the graph.
    create: bool,
    /// The tensors whose gradients are needed; `None` for all that are tracked.
    reached: Option<HashSet<u64>>,
}

impl Walk {
    fn needs(&self, tensor: &Tensor) -> bool {
        self.reached.as_ref().map_or_else(|| tensor.is_tracked(), |reached| reached.contains(&tensor.id()))
    }
}

/// The gradients so far, by tensor. The flag says that no other tensor has these elements, although others may be parts
/// of the same storage.
type Sums = HashMap<u64, (Tensor, bool)>;

/// Adds one op's gradients to its inputs' gradients.
fn push_back(node: &Node, tensor: &Tensor, mut grad: Tensor, walk: &Walk, grads: &mut Sums) -> Result<()> {
    let op = &node.0.op;
    if !op.takes_halves() {
        grad = of_type(&grad, tensor)?;
    }
    let Saved { inputs, out: saved_out, versions, out_version } = node.saved(walk.retain)?;
    let changed =
        |(i, (t, version)): (usize, (&Tensor, &u64))| op.saves().input(i) && t.storage().version() != *version;
    if let Some(changed) = inputs.iter().zip(&versions).enumerate().position(changed) {
        let what = format!("input {changed} of {} was modified in place after the forward pass", op.op_name());
        return Err(Error::Autograd(what));
    }
    if saved_out.as_ref().is_some_and(|out| out.storage().version() != out_version) {
        return Err(Error::Autograd(format!(
            "the result of {} was modified in place after the forward pass",
            op.op_name()
        )));
    }
    if let ([input], false) = (&inputs[..], walk.create)
        && let Some((sum, _)) = grads.get(&input.id()).filter(|(sum, _)| !sum.is_shared())
        && op.add_gradient(sum, &grad)?
    {
        return Ok(());
    }
    let needs: Vec<bool> = inputs.iter().map(|input| walk.needs(input)).collect();
    let place = |x: &Tensor| if walk.create { x.clone() } else { x.detach() };
    let given: Vec<Tensor> = inputs.iter().map(place).collect();
    let out = match saved_out {
        Some(out) if walk.create => tensor.with_elements(&out),
        Some(out) => out,
        None => place(&tensor.without_elements()),
    };
    let ctx = Gradient { inputs: &given, out: &out, grad: &grad, needs: &needs };
    let gradients = op.gradients(&ctx)?;
    if walk.create {
        grad::all_recorded(&**op, &ctx, &gradients)?;
    }
    if gradients.len() != inputs.len() {
        let what = format!("{} has {} gradients for {} inputs", op.op_name(), gradients.len(), inputs.len());
        return Err(Error::internal(what));
    }
    let parts: Vec<bool> = gradients.iter().map(|gradient| is_part(gradient.as_ref(), &gradients)).collect();
    for (((input, gradient), wanted), part) in inputs.iter().zip(gradients).zip(&needs).zip(parts) {
        let Some(gradient) = gradient.filter(|_| *wanted) else { continue };
        // Halves that are the gradient of an f32 stay as they are, unless they are summed.
        let sums = gradient.shape() != input.shape() && !input.dtype().is_packed();
        let gradient = if sums { of_type(&gradient, input)? } else { gradient };
        let gradient = undo_broadcast(gradient, input.shape())?;
        let gradient = if input.dtype().is_packed() { of_type(&gradient, input)? } else { gradient };
        let total = match grads.remove(&input.id()) {
            Some((sum, _)) => (of_type(&sum, input)?.add(&of_type(&gradient, input)?)?, false),
            None => (gradient, part),
        };
        grads.insert(input.id(), total);
    }
    Ok(())
}

/// Returns whether a gradient is part of a storage that only gradients of the same op have. Each of them is another
/// part of it.
fn is_part(gradient: Option<&Tensor>, all: &[Option<Tensor>]) -> bool {
    let Some(gradient) = gradient else { return false };
    let same = |other: &&Tensor| other.storage().id() == gradient.storage().id();
    Tensor::share_only_storage(&all.iter().flatten().filter(same).collect::<Vec<_>>())
}

/// Returns a gradient in the type of its tensor `of`.
fn of_type(grad: &Tensor, of: &Tensor) -> Result<Tensor> {
    if of.dtype().is_float() { grad.to_dtype(of.dtype()) } else { Ok(grad.clone()) }
}

/// Adds a gradient to a leaf's gradient.
///
/// The lock is held during the sum, so that two simultaneous backward passes over one net both count. The leaf gets its
/// own copy of a shared gradient (an op may return one gradient for both of its inputs), so that a collective can
/// overwrite it in place; unless the elements are its `own`.
fn accumulate(leaf: &Tensor, grad: Tensor, own: bool) -> Result<()> {
    let own = own && grad.dtype() == leaf.dtype();
    let grad = of_type(&grad, leaf)?;
    let mut slot = lock(leaf.grad_slot());
    let total = match &*slot {
        Some(sum) => sum.add(&grad)?,
        None if !own && grad.is_shared() => grad.add_scalar(0.0)?,
        None => grad.contiguous()?,
    };
    *slot = Some(total);
    Ok(())
}

/// Sums a gradient over the dimensions along which the forward pass repeated the input.
fn undo_broadcast(grad: Tensor, shape: &[usize]) -> Result<Tensor> {
    if grad.shape() == shape {
        return Ok(grad);
    }
    let lead = grad.rank() - shape.len();
    let repeated: Vec<usize> =
        (0..grad.rank()).filter(|&d| d < lead || (shape[d - lead] == 1 && grad.shape()[d] != 1)).collect();
    grad.sum(&repeated, true)?.reshape(shape)
}

/// Returns the tracked tensors that `root` depends on, each after all of its users. Fails, before anything was
/// computed, if a part of the graph was freed.
fn users_first(root: &Tensor) -> Result<Vec<Tensor>> {
    let mut finished = Vec::new();
    let mut seen = HashSet::new();
    let mut stack = vec![(root.clone(), false)];
    while let Some((tensor, expanded)) = stack.pop() {
        if expanded {
            finished.push(tensor);
        } else if seen.insert(tensor.id()) {
            stack.push((tensor.clone(), true));
            let Some(node) = tensor.node() else { continue };
            let saved = lock(&node.0.saved);
            let Saved { inputs, .. } = saved.as_ref().ok_or_else(freed)?;
            // Leaves, and views of them, come directly after the last op that uses them, so that their gradients can be sent while
            // others are computed: what was made last, such as the transpose of a weight, has the fewest ops behind it. Any order
            // is right.
            let mut inputs: Vec<&Tensor> = inputs.iter().filter(|input| input.is_tracked()).collect();
            inputs.sort_by_key(|input| (input.node().is_some(), std::cmp::Reverse(input.id())));
            stack.extend(inputs.into_iter().map(|input| (input.clone(), false)));
        }
    }
    finished.reverse();
    Ok(finished)
}

/// Drops a chain of ops with a loop. Recursion would be as deep as the chain.
impl Drop for NodeInner {
    fn drop(&mut self) {
        let take = |inner: &mut NodeInner| lock(&inner.saved).take().map_or_else(Vec::new, |saved| saved.inputs);
        let mut pending = take(self);
        while let Some(tensor) = pending.pop() {
            if let Some(mut inner) = tensor.into_node().and_then(|node| Arc::into_inner(node.0)) {
                pending.append(&mut take(&mut inner));
            }
        }
    }
}
