//! Locks that outlive a panic of another thread: the data behind ours is replaced whole, never left half-written.
//! Also returns the message of such a panic.

use std::any::Any;
use std::sync::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Locks a mutex, also after a thread panicked while it held it.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    #[cfg(all(target_arch = "wasm32", feature = "jspi"))]
    return super::waiting::until_free(mutex);
    #[cfg(not(all(target_arch = "wasm32", feature = "jspi")))]
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Takes a read lock, also after a writer panicked.
pub(crate) fn read<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Takes the write lock, also after a writer panicked.
pub(crate) fn write<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// The message of a panic that `catch_unwind` caught.
pub(crate) fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|s| s.to_string());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".into())
}
