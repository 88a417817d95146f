//! Whether there are threads: in a browser, this crate has the one that calls it, and runs the work of others there.

/// Whether other threads can be started.
pub(crate) const THREADS: bool = cfg!(not(target_arch = "wasm32"));
