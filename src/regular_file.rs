//! Opening files that end: a pipe or a device can be endless, and opening a pipe waits for its other end.

use std::fs::{File, Metadata, metadata};
use std::io;
use std::path::Path;

/// Opens a regular file, or a link to one, and returns its length too.
///
/// # Errors
///
/// Those of the system; for another kind of file, an error that says what it is.
pub(crate) fn open(path: &Path) -> io::Result<(File, u64)> {
    check(&metadata(path)?)?;
    let file = File::open(path)?;
    // Once more, since the path may have been replaced.
    let about = file.metadata()?;
    check(&about)?;
    Ok((file, about.len()))
}

/// Returns an error unless this is a regular file.
pub(crate) fn check(about: &Metadata) -> io::Result<()> {
    match about.is_file() {
        true => Ok(()),
        false => Err(io::Error::other(format!("it is {}, not a regular file", kind_of(about)))),
    }
}

/// Returns what a path names that is not a regular file, for errors.
pub(crate) fn kind_of(about: &Metadata) -> &'static str {
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt;
        let kind = about.file_type();
        if kind.is_fifo() {
            return "a named pipe";
        } else if kind.is_socket() {
            return "a socket";
        } else if kind.is_char_device() || kind.is_block_device() {
            return "a device";
        }
    }
    if about.is_dir() { "a folder" } else { "of an unknown kind" }
}
