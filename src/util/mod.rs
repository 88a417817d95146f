//! What any part of the crate may use, and what depends on none of them: files, locks, texts, numbers for people.

pub(crate) mod atomic;
pub(crate) mod cache_dir;
pub(crate) mod chrome_trace;
pub(crate) mod crc32c;
pub(crate) mod json;
pub(crate) mod notice;
pub(crate) mod regular_file;
pub(crate) mod stored_zip;
pub(crate) mod sync;
pub(crate) mod threads;
pub(crate) mod units;
pub(crate) mod waiting;
