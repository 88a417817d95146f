//! Memory for intermediate results.
//!
//! A program that counts its memory, or recycles it, says once where it comes from ([`provide`]), in the way that a
//! logger is set for the crate `log`. Without that call, the memory is the allocator's.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, OnceLock};

use bytemuck::Pod;

/// Where memory comes from.
pub trait Memory: Send + Sync {
    /// Returns at least `words` words of any contents.
    ///
    /// # Errors
    /// The provider's error for a lack of memory.
    fn take(&self, words: usize) -> Result<Vec<u32>>;

    /// Takes back what [`Memory::take`] returned.
    fn give(&self, words: Vec<u32>);
}

/// There is not enough memory. This holds the error of the [`Memory`], which a program can take out again.
#[derive(Clone)]
pub struct Error(Arc<dyn std::error::Error + Send + Sync>);

/// The result of a function that may lack memory.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Returns an error with a provider's error in it.
    pub fn new(error: impl std::error::Error + Send + Sync + 'static) -> Error {
        Error(Arc::new(error))
    }

    /// Returns the provider's error, if it is of this type.
    pub fn downcast_ref<E: std::error::Error + 'static>(&self) -> Option<&E> {
        self.0.downcast_ref()
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&*self.0)
    }
}

static PROVIDED: OnceLock<&'static dyn Memory> = OnceLock::new();

/// Sets where the memory of this process comes from. Only the first call counts. Returns whether this is the first
/// call.
pub fn provide(memory: &'static dyn Memory) -> bool {
    PROVIDED.set(memory).is_ok()
}

/// Memory of the allocator.
struct Allocator;

impl Memory for Allocator {
    fn take(&self, words: usize) -> Result<Vec<u32>> {
        let mut all = Vec::new();
        all.try_reserve_exact(words).map_err(Error::new)?;
        all.resize(words, 0);
        Ok(all)
    }

    fn give(&self, _words: Vec<u32>) {}
}

/// The elements of a line of a cache. The widest vectors are as long: one that lies in two lines takes two loads.
const LINE: usize = 16;

/// Fewer elements than this are given room to start at the beginning of a line. Pools round what is larger up by as much as a quarter,
/// and most of it has that room already.
const ROOM: usize = 512 << 10;

/// Elements of 32 bits with one owner, which start at the beginning of a line of a cache, except some large ones. Dropping returns
/// their memory.
pub(crate) struct Scratch<T = f32> {
    words: Vec<u32>,
    start: usize,
    len: usize,
    memory: &'static dyn Memory,
    elements: PhantomData<T>,
}

/// Returns `len` elements of any values.
pub(crate) fn scratch<T: Pod>(len: usize) -> Result<Scratch<T>> {
    // A provider may still come: memory that is taken before that goes back to its source.
    let memory = PROVIDED.get().copied().unwrap_or(&Allocator);
    let words = memory.take(if len < ROOM { len + LINE - 1 } else { len })?;
    let start = words.as_ptr().align_offset(LINE * size_of::<u32>());
    let start = if start <= words.len() - len { start } else { 0 };
    Ok(Scratch { words, start, len, memory, elements: PhantomData })
}

impl<T: Pod> Deref for Scratch<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        bytemuck::cast_slice(&self.words[self.start..][..self.len])
    }
}

impl<T: Pod> DerefMut for Scratch<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        bytemuck::cast_slice_mut(&mut self.words[self.start..][..self.len])
    }
}

impl<T> Drop for Scratch<T> {
    fn drop(&mut self) {
        self.memory.give(std::mem::take(&mut self.words));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// The allocator's memory, counted.
    struct Counted;

    static TAKEN: AtomicUsize = AtomicUsize::new(0);

    impl Memory for Counted {
        fn take(&self, words: usize) -> Result<Vec<u32>> {
            TAKEN.fetch_add(1, Ordering::SeqCst);
            Allocator.take(words)
        }

        fn give(&self, _words: Vec<u32>) {}
    }

    /// Loops may run before a program says where memory comes from, such as loops with which kernels of adapters
    /// are compared.
    #[test]
    fn a_provider_that_comes_after_the_first_loop_serves_the_next() -> Result<()> {
        drop(scratch::<f32>(3)?);
        assert!(provide(&Counted), "no other test provides memory");
        let before = TAKEN.load(Ordering::SeqCst);
        let floats = scratch::<f32>(100)?;
        assert!(TAKEN.load(Ordering::SeqCst) > before);
        assert_eq!(floats.len(), 100);
        assert!(!provide(&Counted), "the first one stays");
        Ok(())
    }
}
