//! Per-thread state that ops and layers read, in one struct.
//!
//! [`set`] changes one field until its guard is dropped, including by a panic. A thread that this crate starts takes
//! over the state of the thread that submits work to it, with [`Context::current`] there and [`Context::run`] in the
//! new thread.

use std::cell::RefCell;
use std::fmt;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex};

use crate::device::{current_label, labelled};
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::traced::Tracing;
use crate::process_group::Rank;
use crate::tensor::Tensor;

thread_local! {
    static CONTEXT: RefCell<Context> = const { RefCell::new(Context::new()) };
}

/// The state of one thread.
#[derive(Clone, Debug)]
pub(crate) struct Context {
    /// Whether ops are recorded for the backward pass.
    pub recording: bool,
    /// The type of products under `autocast`, if it is on.
    pub autocast: Option<DType>,
    /// A kernel family and the variant of it to use regardless of selection. The op table uses this to check every
    /// variant.
    pub variant: Option<(&'static str, &'static str)>,
    /// The rank of this thread in a process group, while it takes part in a joint step.
    pub rank: Option<Rank>,
    /// The nets ([`DataParallel`](crate::DataParallel), [`Pipeline`](crate::Pipeline)) in whose calls this thread takes part, by
    /// their addresses. A call holds the lock of its net, so a call of the same net in it would wait for ever.
    pub nets: Vec<usize>,
    /// The method that the user called, while it calls others: the name in their errors.
    pub caller: Option<&'static str>,
    /// The label of memory of the thread that this one works for. Its own is in `device`, which comes before this.
    pub label: Option<Arc<str>>,
    /// Called in a backward pass for each leaf that has its whole gradient of that pass.
    pub gradient_hook: Option<GradientHook>,
    /// Whether layers that are switched to a mode now are kept in evaluation mode from now on, or no longer. `None` leaves that as
    /// it is.
    pub keeps_eval: Option<bool>,
    /// The record of all ops, while a computation is traced.
    pub trace: Option<Tracing>,
    /// Whether readers of files keep numbers of 64 bits, as they do but within `narrow_64_bits`.
    pub keep_longs: bool,
    /// The record of the calls of layers, while a summary is made.
    pub calls: Option<Arc<Mutex<Vec<LayerCall>>>>,
}

/// A function that is given a leaf.
#[derive(Clone)]
pub(crate) struct GradientHook(pub Arc<LeafFunction>);

type LeafFunction = dyn Fn(&Tensor) -> Result<()> + Send + Sync;

impl fmt::Debug for GradientHook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GradientHook")
    }
}

/// The output of one call of a layer.
#[derive(Debug)]
pub(crate) struct LayerCall {
    /// The layer's address and type name. The type is needed because a struct has the same address as its first field.
    pub layer: (usize, &'static str),
    pub shape: Vec<usize>,
    pub bytes: usize,
}

impl Context {
    const fn new() -> Context {
        Context {
            recording: true,
            autocast: None,
            variant: None,
            rank: None,
            nets: Vec::new(),
            caller: None,
            label: None,
            gradient_hook: None,
            keeps_eval: None,
            trace: None,
            keep_longs: true,
            calls: None,
        }
    }

    /// Returns the state for a thread that works for this one. The rank is left out: a rank belongs to one thread,
    /// since the exchanges of a process group are ordered. So is the hook, which belongs to one backward pass.
    pub fn current() -> Context {
        Context { rank: None, gradient_hook: None, label: current_label(), ..read(Context::clone) }
    }

    /// Runs `f` in this state.
    pub fn run<T>(mut self, f: impl FnOnce() -> T) -> T {
        let label = self.label.take();
        let _restore = set(|context| context, self);
        labelled(label, f)
    }
}

/// Restores a field of this thread's state when it is dropped.
#[derive(Debug)]
pub(crate) struct Restore<T: 'static> {
    field: fn(&mut Context) -> &mut T,
    before: Option<T>,
    /// Makes the guard not `Send`: the thread that changed its state must restore it.
    _this_thread: PhantomData<*const ()>,
}

impl<T> Drop for Restore<T> {
    fn drop(&mut self) {
        let Some(before) = self.before.take() else { return };
        // This fails only while the thread's locals are being destroyed, when there is nothing left to restore.
        let _ = CONTEXT.try_with(|context| std::mem::replace((self.field)(&mut context.borrow_mut()), before));
    }
}

/// Sets a field of this thread's state until the guard is dropped.
#[must_use = "the state is restored when the guard is dropped"]
pub(crate) fn set<T>(field: fn(&mut Context) -> &mut T, value: T) -> Restore<T> {
    let before = CONTEXT.with_borrow_mut(|context| std::mem::replace(field(context), value));
    Restore { field, before: Some(before), _this_thread: PhantomData }
}

/// Reads this thread's state. `f` must not change it.
pub(crate) fn read<T>(f: impl FnOnce(&Context) -> T) -> T {
    CONTEXT.with_borrow(f)
}

/// Returns whether the ops of this thread are recorded in a trace.
pub(crate) fn traced() -> bool {
    read(|context| context.trace.is_some())
}

/// Returns the rank of this thread, if it has one.
pub(crate) fn rank() -> Option<Rank> {
    read(|context| context.rank.clone())
}

#[cfg(test)]
mod tests {
    use std::panic::catch_unwind;

    use super::*;
    use crate::philox::Stream;
    use crate::process_group::ProcessGroup;

    fn recording() -> bool {
        read(|context| context.recording)
    }

    fn autocast() -> Option<DType> {
        read(|context| context.autocast)
    }

    #[test]
    fn a_guard_restores_its_own_field_in_any_order_and_after_a_panic() {
        let first = set(|context| &mut context.recording, false);
        let second = set(|context| &mut context.autocast, Some(DType::F16));
        drop(first);
        assert_eq!((recording(), autocast()), (true, Some(DType::F16)));
        drop(second);
        let panics = || {
            let _variant = set(|context| &mut context.variant, Some(("matmul", "plain")));
            Context { recording: false, ..Context::new() }.run(|| panic!("on purpose"))
        };
        assert!(catch_unwind(panics).is_err());
        assert_eq!((recording(), autocast(), read(|context| context.variant)), (true, None, None));
    }

    #[test]
    fn a_thread_takes_over_all_but_the_rank() {
        let rank =
            ProcessGroup::new(vec![1], Stream { seed: 0, first: 0 }, None, None).ranks().next().expect("one rank");
        rank.scope(|| {
            let _recording = set(|context| &mut context.recording, false);
            let _autocast = set(|context| &mut context.autocast, Some(DType::BF16));
            let context = Context::current();
            let there = std::thread::spawn(move || {
                let within = context.run(|| (recording(), autocast(), super::rank().is_some()));
                (within, (recording(), autocast(), super::rank().is_some()))
            });
            let (within, after) = there.join().expect("no panic");
            assert_eq!(within, (false, Some(DType::BF16), false));
            assert_eq!(after, (true, None, false));
            assert!(super::rank().is_some());
        });
        assert!(super::rank().is_none());
    }
}
