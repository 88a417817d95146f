//! The state of a thread that ops and layers read: slots, each declared by the file that owns it.
//!
//! [`Slot::set`] changes one slot until its guard is dropped, including by a panic. A thread that this crate starts takes over
//! all slots of the thread that submits work to it, with [`Context::current`] there and [`Context::run`] in the new thread.

use std::any::Any;
use std::cell::RefCell;
use std::fmt;
use std::marker::PhantomData;
use std::thread::LocalKey;

/// Declares a slot: its name, its type and its initial value. A thread that works for this one takes over the value of
/// this one. With `for this thread alone`, it has the initial value instead.
macro_rules! slot {
    ($(#[$about:meta])* $vis:vis $name:ident: $type:ty = $initial:expr) => {
        $crate::context::slot!(@ $(#[$about])* $vis $name, $type, $initial, true);
    };
    ($(#[$about:meta])* $vis:vis $name:ident: $type:ty = $initial:expr, for this thread alone) => {
        $crate::context::slot!(@ $(#[$about])* $vis $name, $type, $initial, false);
    };
    (@ $(#[$about:meta])* $vis:vis $name:ident, $type:ty, $initial:expr, $inherited:expr) => {
        $(#[$about])*
        $vis static $name: $crate::context::Slot<$type> = {
            std::thread_local! {
                static VALUE: std::cell::RefCell<$type> = const { std::cell::RefCell::new($initial) };
            }
            $crate::context::Slot::new(&VALUE, || $initial, $inherited)
        };
        inventory::submit! { $crate::context::Registered(&$name) }
    };
}
pub(crate) use slot;

/// A part of the state of each thread.
pub(crate) struct Slot<T: 'static> {
    value: &'static LocalKey<RefCell<T>>,
    initial: fn() -> T,
    inherited: bool,
}

impl<T> Slot<T> {
    pub const fn new(value: &'static LocalKey<RefCell<T>>, initial: fn() -> T, inherited: bool) -> Slot<T> {
        Slot { value, initial, inherited }
    }

    /// Sets this thread's value until the guard is dropped.
    #[must_use = "the value is restored when the guard is dropped"]
    pub fn set(&self, value: T) -> Restore<T> {
        Restore { value: self.value, before: Some(self.value.replace(value)), _this_thread: PhantomData }
    }

    /// Reads this thread's value. `f` must not change it.
    pub fn with<R>(&self, f: impl FnOnce(&T) -> R) -> R {
        self.value.with_borrow(f)
    }
}

impl<T: Clone> Slot<T> {
    /// Returns this thread's value.
    pub fn get(&self) -> T {
        self.with(T::clone)
    }
}

/// Restores the value of a slot when it is dropped.
pub(crate) struct Restore<T: 'static> {
    value: &'static LocalKey<RefCell<T>>,
    before: Option<T>,
    /// Makes the guard not `Send`: the thread that changed its state must restore it.
    _this_thread: PhantomData<*const ()>,
}

impl<T> Drop for Restore<T> {
    fn drop(&mut self) {
        let Some(before) = self.before.take() else { return };
        // This fails only while the thread's locals are being destroyed, when there is nothing left to restore.
        let _ = self.value.try_with(|value| value.replace(before));
    }
}

impl<T> fmt::Debug for Restore<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Restore")
    }
}

/// A slot of any type, as [`slot!`](slot) registers it.
pub(crate) struct Registered(pub &'static dyn AnySlot);

inventory::collect!(Registered);

/// Sets a slot in the thread that calls it, and returns the guard.
type Enter = Box<dyn FnOnce() -> Box<dyn Any> + Send>;

pub(crate) trait AnySlot: Sync {
    /// Returns a function that sets the slot in a thread that works for this one.
    fn handed_on(&'static self) -> Enter;

    /// Gives the slot its initial value, and returns a function that restores the present one.
    #[cfg(all(target_arch = "wasm32", feature = "jspi"))]
    fn set_aside(&'static self) -> Box<dyn FnOnce()>;
}

impl<T: Clone + Send> AnySlot for Slot<T> {
    fn handed_on(&'static self) -> Enter {
        let value = if self.inherited { self.get() } else { (self.initial)() };
        Box::new(move || Box::new(self.set(value)))
    }

    #[cfg(all(target_arch = "wasm32", feature = "jspi"))]
    fn set_aside(&'static self) -> Box<dyn FnOnce()> {
        let present = self.value.replace((self.initial)());
        Box::new(move || drop(self.value.replace(present)))
    }
}

/// The state of this thread, set aside while other code runs on it. That code begins with the initial values. This is
/// for a call that waits in the middle, on a thread that runs other code meanwhile.
#[cfg(all(target_arch = "wasm32", feature = "jspi"))]
pub(crate) struct SetAside(Vec<Box<dyn FnOnce()>>);

#[cfg(all(target_arch = "wasm32", feature = "jspi"))]
impl SetAside {
    pub fn all() -> SetAside {
        SetAside(inventory::iter::<Registered>.into_iter().map(|slot| slot.0.set_aside()).collect())
    }
}

#[cfg(all(target_arch = "wasm32", feature = "jspi"))]
impl Drop for SetAside {
    fn drop(&mut self) {
        self.0.drain(..).for_each(|put_back| put_back());
    }
}

/// The state of a thread, for another that works for it.
pub(crate) struct Context(Vec<Enter>);

impl Context {
    /// Returns the state for a thread that works for this one.
    pub fn current() -> Context {
        Context(inventory::iter::<Registered>.into_iter().map(|slot| slot.0.handed_on()).collect())
    }

    /// Runs `f` in this state.
    pub fn run<T>(self, f: impl FnOnce() -> T) -> T {
        let _restore: Vec<Box<dyn Any>> = self.0.into_iter().map(|enter| enter()).collect();
        f()
    }
}

#[cfg(test)]
mod tests {
    use std::panic::catch_unwind;

    slot! { SWITCH: bool = true }
    slot! { NAMES: Vec<&'static str> = Vec::new() }
    slot! { PLACE: Option<usize> = None, for this thread alone }

    use super::*;

    fn all() -> (bool, Vec<&'static str>, Option<usize>) {
        (SWITCH.get(), NAMES.get(), PLACE.get())
    }

    #[test]
    fn a_guard_restores_its_own_slot_in_any_order_and_after_a_panic() {
        let first = SWITCH.set(false);
        let second = NAMES.set(vec!["a"]);
        drop(first);
        assert_eq!(all(), (true, vec!["a"], None));
        drop(second);
        let panics = || {
            let _names = NAMES.set(vec!["b"]);
            Context::current().run(|| {
                let _switch = SWITCH.set(false);
                panic!("on purpose")
            })
        };
        assert!(catch_unwind(panics).is_err());
        assert_eq!(all(), (true, vec![], None));
    }

    #[test]
    fn a_thread_takes_over_all_slots_but_those_of_one_thread_alone() {
        let (_switch, _names, _place) = (SWITCH.set(false), NAMES.set(vec!["a", "b"]), PLACE.set(Some(7)));
        let context = Context::current();
        let there = std::thread::spawn(move || (context.run(all), all()));
        let (within, after) = there.join().expect("no panic");
        assert_eq!(within, (false, vec!["a", "b"], None));
        assert_eq!(after, (true, vec![], None));
        // So does this thread, if it does the work itself, and then has its own state again.
        let context = Context::current();
        let changed = SWITCH.set(true);
        assert_eq!(context.run(all), (false, vec!["a", "b"], None));
        assert_eq!(all(), (true, vec!["a", "b"], Some(7)));
        drop(changed);
    }
}
