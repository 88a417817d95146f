//! Files that are either whole or not there: written to a temporary file in the same folder, synchronised, and renamed.
//! Checkpoints, plots and the command's downloads are all written by this one function.
//!
//! The name of a temporary file has a random part, since writers in several containers may share a folder and have
//! equal process ids. Its writer holds a lock on it. The system releases that lock when the writer ends in any way, so
//! a temporary file without a lock is abandoned, and the next writer of the same file removes it.

#[cfg(test)]
pub(crate) mod faults;
#[cfg(test)]
mod tests;

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions, TryLockError};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::util::regular_file::is_own;
#[cfg(test)]
use faults::before;

/// On a file system without locks, a temporary file that was not modified for so long is abandoned.
const ABANDONED: Duration = Duration::from_secs(600);
/// The most symbolic links that are followed, as in Linux.
const MOST_LINKS: usize = 40;
/// The most names that are tried for a temporary file. A second one is needed only if another writer removes the first
/// in the moment between its creation and its lock.
const MOST_NAMES: usize = 16;
/// The digits of the random part of a temporary file's name.
const DIGITS: usize = 16;
/// The longest part of a name that goes into the name of a temporary file: systems have limits from 143 to 255
/// bytes.
const LONGEST_NAME: usize = 120;

/// Writes a file atomically: the data that `fill` writes replaces the file only once all of it is on the disk.
///
/// A reader sees the old file or the new one, even after a crash or a power failure. If the path is a symbolic
/// link, its target is replaced, even if it does not exist yet. Several processes and containers may write the same
/// file at once: each writes the whole file, and the last one stays.
///
/// If a killed process left a temporary file, the next write of the same file removes it. This needs a file system
/// with locks. On a file system without locks, the file is removed ten minutes after its last change.
///
/// # Errors
/// The error that `fill` returns; errors of the file system; an error if the path names a folder, a pipe or a
/// device. The old file is then unchanged, and no temporary file is left.
///
/// ```
/// use anygpu::checkpoint::write_atomically;
///
/// # let folder = tempfile::tempdir().expect("a folder");
/// let path = folder.path().join("notes.txt");
/// write_atomically(&path, |file| file.write_all(b"epoch 1"))?;
/// let failed = write_atomically(&path, |file| {
///     file.write_all(b"epo")?;
///     Err(std::io::Error::other("no more"))
/// });
/// assert!(failed.is_err());
/// assert_eq!(std::fs::read(&path)?, b"epoch 1");
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn write_atomically(path: impl AsRef<Path>, fill: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    let target = Target::of(path.as_ref())?;
    target.remove_abandoned();
    let mut temporary = target.create_temporary()?;
    let mut file = BufWriter::with_capacity(1 << 20, &mut temporary);
    fill(&mut file)?;
    file.flush()?;
    drop(file);
    temporary.replace(&target)
}

/// Checks that [`write_atomically`] can write a file, without changing it: the folder exists, and a temporary file can
/// be created in it.
///
/// Use it before long work whose result goes to that file.
///
/// Returns the absolute path of the file that would be replaced. Symbolic links are followed, so two spellings of one
/// file give the same path.
///
/// # Errors
/// Errors of the file system; an error if the path names a folder, a pipe or a device.
///
/// ```
/// use anygpu::checkpoint::check_writable;
///
/// # let folder = tempfile::tempdir().expect("a folder");
/// # let folder = folder.path();
/// std::fs::create_dir(folder.join("runs"))?;
/// let path = check_writable(folder.join("net.safetensors"))?;
/// assert_eq!(check_writable(folder.join("runs/../net.safetensors"))?, path);
/// assert!(!path.exists());
/// assert!(check_writable(folder.join("nowhere/net.safetensors")).is_err());
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn check_writable(path: impl AsRef<Path>) -> io::Result<PathBuf> {
    let target = Target::of(path.as_ref())?;
    target.remove_abandoned();
    target.create_temporary()?;
    Ok(target.path)
}

/// A system call of a writer. Tests let single ones fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    Create,
    Lock,
    Write,
    SyncFile,
    Rename,
    SyncFolder,
    Remove,
}

/// Is called before each system call of a writer. Only in tests does it return an error.
#[cfg(not(test))]
fn before(_: Call) -> io::Result<()> {
    Ok(())
}

/// The file that is to be replaced.
struct Target {
    /// The absolute path, without symbolic links.
    path: PathBuf,
    folder: PathBuf,
    name: OsString,
}

impl Target {
    /// Follows symbolic links, also to a file that does not exist yet.
    fn of(path: &Path) -> io::Result<Target> {
        let mut path = path.to_path_buf();
        for _ in 0..MOST_LINKS {
            if let Ok(target) = fs::read_link(&path) {
                path = folder_of(&path).join(target);
                continue;
            }
            let Some(name) = path.file_name().map(OsStr::to_os_string) else {
                return Err(io::Error::new(io::ErrorKind::InvalidInput, "the path has no file name"));
            };
            let folder = fs::canonicalize(folder_of(&path))?;
            let path = folder.join(&name);
            if let Ok(about) = fs::metadata(&path)
                && !about.is_file()
            {
                let what = format!("it is {}, not a regular file", crate::util::regular_file::kind_of(&about));
                return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
            }
            return Ok(Target { path, folder, name });
        }
        Err(io::Error::new(io::ErrorKind::InvalidInput, "too many symbolic links"))
    }

    /// Creates and locks a temporary file.
    fn create_temporary(&self) -> io::Result<Temporary> {
        for _ in 0..MOST_NAMES {
            let path = self.folder.join(temporary_name(&self.name));
            before(Call::Create)?;
            let file = match OpenOptions::new().write(true).create_new(true).open(&path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                file => file?,
            };
            let temporary = Temporary { file, path, renamed: false };
            match try_lock(&temporary.file) {
                // Another writer has locked the file to remove it, or has removed it already.
                Err(TryLockError::WouldBlock) => continue,
                Ok(()) if !temporary.path.exists() => continue,
                // Without locks, the age decides whether a file is abandoned.
                Ok(()) | Err(TryLockError::Error(_)) => return Ok(temporary),
            }
        }
        Err(io::Error::new(io::ErrorKind::AlreadyExists, "no temporary file could be kept: other programs remove them"))
    }

    /// Removes the temporary files of writers of this file that were killed. A failure to remove one is ignored.
    fn remove_abandoned(&self) {
        for entry in fs::read_dir(&self.folder).into_iter().flatten().flatten() {
            // Opening a pipe would wait for its other end. What a link leads to, and what another user has written, is not ours.
            let ours = |about: fs::Metadata| about.is_file() && is_own(&about);
            if !is_temporary_of(&entry.file_name(), &self.name) || !entry.metadata().is_ok_and(ours) {
                continue;
            }
            // The lock is held until the file is removed, so that its writer cannot take it in between.
            if let Some(_locked) = abandoned(&entry.path())
                && before(Call::Remove).is_ok()
            {
                let _ = fs::remove_file(entry.path());
            }
        }
    }
}

/// A temporary file that this process created and locked. Unless it was renamed, it is removed when it is dropped.
struct Temporary {
    file: File,
    path: PathBuf,
    renamed: bool,
}

impl Temporary {
    /// Puts the file in the place of another one, after its contents are on the disk.
    fn replace(mut self, target: &Target) -> io::Result<()> {
        before(Call::SyncFile)?;
        self.file.sync_all()?;
        before(Call::Rename)?;
        fs::rename(&self.path, &target.path)?;
        self.renamed = true;
        before(Call::SyncFolder)?;
        sync_folder(&target.folder)
    }
}

impl Write for Temporary {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        before(Call::Write)?;
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if !self.renamed && before(Call::Remove).is_ok() {
            let _ = fs::remove_file(&self.path); // the first error is the one to report
        }
    }
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn try_lock(file: &File) -> Result<(), TryLockError> {
    before(Call::Lock).map_err(TryLockError::Error)?;
    file.try_lock()
}

/// Returns a temporary file, locked, if its writer has ended.
fn abandoned(path: &Path) -> Option<File> {
    let file = OpenOptions::new().write(true).open(path).ok()?;
    match try_lock(&file) {
        Ok(()) => Some(file),
        Err(TryLockError::WouldBlock) => None,
        Err(TryLockError::Error(_)) => {
            let age = file.metadata().ok()?.modified().ok()?.elapsed().ok()?;
            (age > ABANDONED).then_some(file)
        }
    }
}

/// Returns `.model.safetensors.0f2d5c1be94a7783.tmp`, with random digits.
fn temporary_name(name: &OsStr) -> OsString {
    // The keys of a `RandomState` come from the random generator of the system.
    let random = RandomState::new().build_hasher().finish();
    let mut temporary = beginning(name);
    temporary.push(format!(".{random:0DIGITS$x}.tmp"));
    temporary
}

/// Returns the beginning of the names of temporary files for a file: a dot and its name, or a number for a long
/// name.
fn beginning(name: &OsStr) -> OsString {
    let mut start = OsString::from(".");
    match name.len() {
        0..=LONGEST_NAME => start.push(name),
        long => start.push(format!("anygpu-{:08x}-{long}", crc32fast::hash(name.as_encoded_bytes()))),
    }
    start
}

/// Returns whether `file` is the name of a temporary file for the file `name`, and not of one for `name.x`.
fn is_temporary_of(file: &OsStr, name: &OsStr) -> bool {
    let random = |file: &[u8]| -> Option<bool> {
        let rest = file.strip_prefix(beginning(name).as_encoded_bytes())?.strip_prefix(b".")?;
        let digits = rest.strip_suffix(b".tmp")?;
        Some(digits.len() == DIGITS && digits.iter().all(u8::is_ascii_hexdigit))
    };
    random(file.as_encoded_bytes()).unwrap_or(false)
}

/// Synchronises the rename itself. Only on Unix can a folder be opened for that.
fn sync_folder(folder: &Path) -> io::Result<()> {
    if cfg!(unix) { File::open(folder)?.sync_all() } else { Ok(()) }
}
