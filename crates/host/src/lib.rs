//! The CPU engine of [anygpu](https://docs.rs/anygpu): loops over slices of `f32`. It knows neither tensors nor adapters.
//!
//! | module | what it computes |
//! |---|---|
//! | [`matmul`] | products of matrices with any strides, and of batches |
//! | [`conv`] | convolutions over planes and their two gradients |
//! | [`pool`] | maxima and means of windows, and their gradients |
//! | [`packed`] | products with a matrix of integers of 4 or 8 bits, from their words |
//! | [`attention`] | attention of one head and its gradients, without the matrix of scores |
//! | [`norm`] | normalisations, their statistics and gradients |
//! | [`sums`] | long sums, whose rounding error does not grow with their length |
//! | [`vectors`] | loops over the widest vectors of the processor: [`vectorised!`] |
//! | [`tasks`] | work that the calling thread shares with others |
//! | [`memory`] | where memory for intermediate results comes from |
//!
//! A family with several ways to compute one thing has a `plan`: an enum of the ways, and one function that chooses by the sizes.
//!
//! Results do not depend on the number of threads. They have the same bits on processors with equal vector instructions.
//!
//! ```
//! use anygpu_host::matmul::{Matrix, Threads, product};
//! let (a, b) = ([1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]);
//! let mut out = [0.0; 4];
//! let [a, b] = [&a, &b].map(|data| Matrix::new(data, 0, [2, 1])); // strides of rows and columns
//! product(&mut out, a, b, [2, 2, 2], None, Threads::All)?;
//! assert_eq!(out, [19.0, 22.0, 43.0, 50.0]);
//! # Ok::<(), anygpu_host::memory::Error>(())
//! ```

pub mod attention;
pub mod conv;
pub mod matmul;
pub mod memory;
pub mod norm;
pub mod packed;
pub mod pool;
pub mod sums;
pub mod tasks;
pub mod vectors;
pub mod window;

use std::sync::{Mutex, MutexGuard};

/// Locks a mutex, also after a thread panicked while it held it: what ours hold is replaced whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
