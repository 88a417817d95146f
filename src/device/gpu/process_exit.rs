//! The end of the process on Linux's software adapters.
//!
//! Their drivers compile kernels with LLVM, in threads of their own, when submitted work first runs. `exit` destroys the
//! objects of LLVM while those threads use them, and a process that has done its work crashes. So `exit` waits for the
//! devices first, and no thread gives them more work from then on. Adapters of other kinds have no such threads.
//!
//! LLVM makes some of its objects when it first compiles, and `exit` destroys first what was made last. The
//! driver's cache may have all kernels of a process except one. If the process ends while that one is compiled,
//! `exit` destroys these objects before it comes to wait, and the process may crash: seen at 3 of 32 such ends on
//! Mesa 22's llvmpipe (GL). With a small kernel that was compiled when the device was opened it was 1 of 22, so
//! this is not done.

use std::sync::{Arc, RwLockReadGuard};

use super::Gpu;

impl Gpu {
    /// Says that this thread is within a software driver, until the guard is dropped. Once the process ends, this does not
    /// return.
    #[cfg(target_os = "linux")]
    pub(super) fn within_driver(&self) -> Option<RwLockReadGuard<'static, ()>> {
        self.caps.software.then(|| crate::util::sync::read(&linux::DRIVERS))
    }

    #[cfg(not(target_os = "linux"))]
    pub(super) fn within_driver(&self) -> Option<RwLockReadGuard<'static, ()>> {
        None
    }

    /// Lets the end of the process wait for what was submitted to the device.
    pub(crate) fn wait_at_exit(self: &Arc<Self>) {
        #[cfg(target_os = "linux")]
        linux::register(self);
    }
}

#[cfg(target_os = "linux")]
mod linux {
    use std::sync::{Arc, Condvar, Mutex, Once, RwLock, Weak};
    use std::thread;
    use web_time::{Duration, Instant};

    use crate::device::gpu::Gpu;
    use crate::util::sync;

    /// How long the end of the process waits, for all devices together. An endless kernel would delay it for ever.
    const LONGEST: Duration = Duration::from_secs(10);

    static OPENED: Mutex<Vec<Weak<Gpu>>> = Mutex::new(Vec::new());
    /// Read while a thread is within a driver; written once, at the end of the process, and then never released.
    pub static DRIVERS: RwLock<()> = RwLock::new(());
    static DONE: (Mutex<bool>, Condvar) = (Mutex::new(false), Condvar::new());

    pub fn register(gpu: &Arc<Gpu>) {
        static REGISTER: Once = Once::new();
        if !gpu.caps.software {
            return;
        }
        let mut opened = sync::lock(&OPENED);
        opened.retain(|gpu| gpu.strong_count() > 0);
        opened.push(Arc::downgrade(gpu));
        // The function that is registered last is called first. The drivers, and LLVM with them, are loaded by now.
        REGISTER.call_once(|| {
            // SAFETY: the function stays loaded as long as the process runs, and does not unwind.
            #[expect(unsafe_code, reason = "the standard library does not tell of the end of the process")]
            let status = unsafe { libc::atexit(at_exit) };
            if status != 0 {
                log::warn!("the end of the process will not wait for software adapters: atexit returned {status}");
            }
        });
    }

    /// Waits for a thread that waits for the devices: this one may hold a lock which that needs, since `exit` can be called
    /// anywhere.
    extern "C" fn at_exit() {
        let end = Instant::now() + LONGEST;
        if thread::Builder::new().name("anygpu-exit".into()).spawn(move || -> () { wait_for_all(end) }).is_ok() {
            drop(DONE.1.wait_timeout_while(sync::lock(&DONE.0), LONGEST, |done| !*done));
        }
    }

    fn wait_for_all(end: Instant) -> ! {
        std::mem::forget(sync::write(&DRIVERS));
        let opened = std::mem::take(&mut *sync::lock(&OPENED));
        for gpu in opened.iter().filter_map(Weak::upgrade) {
            gpu.wait_for_submitted(end);
            std::mem::forget(gpu); // or its drop would wait once more
        }
        *sync::lock(&DONE.0) = true;
        DONE.1.notify_all();
        // The end of this thread would run what drivers do at the end of a thread, while `exit` runs what they do at the end of
        // the process: both may free the same memory.
        loop {
            thread::park();
        }
    }
}
