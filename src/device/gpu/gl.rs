//! What OpenGL needs from us: one thread at a time, and a question for memory errors.
//!
//! wgpu's GL backend has one context, which a call locks. A driver that computes within the call (llvmpipe) can hold it
//! for long, and wgpu panics in a thread that has waited for 6 s. So threads wait for a lock of this crate instead.
//!
//! wgpu also does not ask whether the driver could allocate a buffer. Reads of one that it could not return the contents
//! of others.

use std::sync::{Mutex, MutexGuard};

use super::Gpu;
use crate::util::sync;

/// The lock of a device on OpenGL; nothing for the other APIs, which threads can call at the same time.
#[derive(Debug, Default)]
pub(super) struct GlLock(Option<Mutex<()>>);

impl GlLock {
    pub(super) fn new(backend: wgpu::Backend) -> GlLock {
        GlLock((backend == wgpu::Backend::Gl).then(Mutex::default))
    }

    /// Waits until no other thread is in a call to the driver. Do not call functions of [`Gpu`] that take the lock while
    /// holding it.
    pub(super) fn enter(&self) -> Option<MutexGuard<'_, ()>> {
        self.0.as_ref().map(sync::lock)
    }
}

impl Gpu {
    /// Returns whether an OpenGL driver ran out of memory since the last call. Call it within [`GlLock::enter`].
    #[cfg(any(target_os = "linux", target_os = "android", target_os = "freebsd", windows))]
    pub(super) fn gl_out_of_memory(&self) -> bool {
        use glow::HasContext;

        if self.gl.0.is_none() {
            return false;
        }
        // SAFETY: nothing of the device is destroyed, and the guard ends before it.
        #[expect(unsafe_code, reason = "wgpu does not report that an OpenGL driver has no memory")]
        let Some(device) = (unsafe { self.device.as_hal::<wgpu::hal::api::Gles>() }) else { return false };
        let context = device.context().lock();
        let mut short = false;
        // A driver keeps one flag for each kind of error. The bound is for a context that is lost, which always has one.
        for _ in 0..16 {
            // SAFETY: the context is current while it is locked.
            #[expect(unsafe_code, reason = "a plain query of the context")]
            match unsafe { context.get_error() } {
                glow::NO_ERROR => break,
                error => short |= error == glow::OUT_OF_MEMORY,
            }
        }
        short
    }

    #[cfg(not(any(target_os = "linux", target_os = "android", target_os = "freebsd", windows)))]
    pub(super) fn gl_out_of_memory(&self) -> bool {
        false
    }
}
