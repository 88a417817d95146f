//! Reading files whole, within the memory that the host has.

use std::io::{self, Read};
use std::path::Path;

use super::with_room;
use crate::error::Error;
use crate::util::regular_file;

/// Returns the bytes of a regular file, at most as many as it had when it was opened.
///
/// # Errors
///
/// The error that `failed` makes of an error of the system; [`Error::OutOfMemory`].
pub(crate) fn read_whole<E: From<Error>>(path: &Path, failed: impl Fn(io::Error) -> E) -> Result<Vec<u8>, E> {
    let (file, length) = regular_file::open(path).map_err(&failed)?;
    let size =
        usize::try_from(length).map_err(|_| failed(io::Error::other("larger than the memory of this machine")))?;
    let mut bytes = with_room(size)?;
    file.take(length).read_to_end(&mut bytes).map_err(failed)?;
    Ok(bytes)
}
