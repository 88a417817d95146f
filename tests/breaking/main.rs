//! Devices and processes that break on purpose: lost devices, no memory, drivers that are gone, processes that end or are killed, and
//! jobs of MPI.
//!
//! Some tests run this program again, with the name of one test. Every test holds `common::alone()`, since times count in some, and
//! the generator's numbers in others.

#[path = "../common/mod.rs"]
mod common;

mod chaos;
mod exhaustion;
mod faults;
#[cfg(unix)]
mod kill_and_resume;
mod lost_devices;
#[cfg(feature = "mpi")]
mod mpi;
#[cfg(unix)]
mod process_exit;
