//! What is measured by an allocator that counts: hostile files in bounded memory, and long runs. Every test holds
//! `common::alone()`, so that nothing else allocates meanwhile.

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/counting.rs"]
mod counting;

mod damaged_checkpoints;
#[cfg(feature = "image")]
mod hostile_data;
mod soak;
