//! Opening files that end: a pipe or a device can be endless, and opening a pipe waits for its other end. Also
//! tells the owner of files and folders, for those that this crate removes.

use std::fs::{File, Metadata, metadata, symlink_metadata};
use std::io::{self, Read};
use std::path::Path;

/// Opens a regular file, or a link to one, and returns its length too.
///
/// # Errors
///
/// Errors of the system; for another kind of file, an error that says what it is.
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

/// Returns the text of a regular file of at most `most` bytes.
///
/// # Errors
///
/// Errors of opening the file; an error that says so if the file is longer, or is not text.
pub fn read_text(path: &Path, most: u64) -> io::Result<String> {
    let (file, length) = open(path)?;
    let too_long = || io::Error::other(format!("it is longer than {most} bytes, the limit for such a file"));
    if length > most {
        return Err(too_long());
    }
    let mut bytes = Vec::new();
    file.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        return Err(too_long());
    }
    String::from_utf8(bytes).map_err(|_| io::Error::other("it is not text in UTF-8"))
}

/// Returns whether a file or a folder belongs to the user of this process; always `true` where files do not say whose they are.
pub(crate) fn is_own(about: &Metadata) -> bool {
    #[cfg(unix)]
    return std::os::unix::fs::MetadataExt::uid(about) == user();
    #[cfg(not(unix))]
    {
        let _ = about;
        true
    }
}

/// Returns whether two paths are the same file; always `true` where that is not known.
pub(crate) fn is_same(a: &Metadata, b: &Metadata) -> bool {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        (a.dev(), a.ino()) == (b.dev(), b.ino())
    }
    #[cfg(not(unix))]
    {
        let _ = (a, b);
        true
    }
}

#[cfg(unix)]
fn user() -> u32 {
    #[expect(unsafe_code, reason = "there is no safe call for it")]
    // SAFETY: the call has no conditions, and cannot fail.
    unsafe {
        libc::geteuid()
    }
}

/// Returns an error unless this is a folder, not a link to one, of the user of this process.
pub(crate) fn check_own_folder(path: &Path) -> io::Result<()> {
    let about = symlink_metadata(path)?;
    let wrong = if about.is_symlink() {
        "it is a link, not a folder: remove it"
    } else if !about.is_dir() {
        "it is not a folder: remove it"
    } else if !is_own(&about) {
        "it is a folder of another user: remove it, or set XDG_CACHE_HOME to a folder of your own"
    } else {
        return Ok(());
    };
    Err(io::Error::other(wrong))
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
