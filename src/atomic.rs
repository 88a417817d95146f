//! Files that are either whole or not there: written to a temporary file in the same folder, synchronised, and renamed.
//! Checkpoints, plots and the command's downloads are all written by this one function.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A temporary file that was not modified for so long was left by a process that was killed.
const ABANDONED: Duration = Duration::from_secs(600);

/// Writes a file atomically: what `fill` writes replaces the file only once all of it is on the disk.
///
/// A reader sees the old file or the new one, also after a crash or a power failure. Of a symbolic link, the target is
/// replaced.
///
/// # Errors
/// What `fill` returns, and errors of the file system. The old file is then unchanged, and no temporary file is left.
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
    let path = path.as_ref();
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
    let Some(name) = path.file_name() else {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the path has no file name"));
    };
    let folder = match path.parent() {
        Some(parent) if parent != Path::new("") => parent.to_path_buf(),
        _ => PathBuf::from("."),
    };
    remove_abandoned(&folder, name);
    let temporary = folder.join(temporary_name(name));
    let written = filled(&temporary, fill).and_then(|()| fs::rename(&temporary, &path));
    if written.is_err() {
        let _ = fs::remove_file(&temporary); // the first error is the one to report
    }
    written.and_then(|()| sync_folder(&folder))
}

/// Creates the temporary file.
fn filled(path: &Path, fill: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    let mut file = BufWriter::with_capacity(1 << 20, OpenOptions::new().write(true).create_new(true).open(path)?);
    fill(&mut file)?;
    file.flush()?;
    file.get_ref().sync_all()
}

fn prefix_of(name: &OsStr) -> OsString {
    let mut prefix = OsString::from(".");
    prefix.push(name);
    prefix.push(".");
    prefix
}

/// `.model.safetensors.4711-0.tmp`: unique to this process and this call.
fn temporary_name(name: &OsStr) -> OsString {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let mut temporary = prefix_of(name);
    temporary.push(format!("{}-{}.tmp", process::id(), NEXT.fetch_add(1, Ordering::Relaxed)));
    temporary
}

/// Removes the temporary files of processes that were killed while they wrote this file. A failure to remove one is
/// ignored.
fn remove_abandoned(folder: &Path, name: &OsStr) {
    let prefix = prefix_of(name);
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let file = entry.file_name();
        let ours = file.as_encoded_bytes().starts_with(prefix.as_encoded_bytes())
            && file.as_encoded_bytes().ends_with(b".tmp");
        let age = || entry.metadata().ok()?.modified().ok()?.elapsed().ok();
        if ours && age().is_some_and(|age| age > ABANDONED) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Synchronises the rename itself. Only on Unix can a folder be opened for that.
fn sync_folder(folder: &Path) -> io::Result<()> {
    if cfg!(unix) { File::open(folder)?.sync_all() } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::SystemTime;

    fn names(folder: &Path) -> Vec<OsString> {
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name()).collect()
    }

    #[test]
    fn a_failed_write_leaves_the_old_file_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state");
        write_atomically(&path, |file| file.write_all(b"old")).unwrap();
        let full = |file: &mut dyn Write| {
            file.write_all(b"new, and ")?;
            Err(io::Error::other("the disk is full"))
        };
        assert_eq!(write_atomically(&path, full).unwrap_err().to_string(), "the disk is full");
        assert_eq!((fs::read(&path).unwrap(), names(folder.path())), (b"old".to_vec(), vec![OsString::from("state")]));
        assert!(write_atomically(folder.path().join("nowhere/state"), |_| Ok(())).is_err());
        assert!(write_atomically(folder.path(), |_| Ok(())).is_err(), "a folder is not a file");
        assert_eq!(names(folder.path()), ["state"]);
    }

    #[test]
    fn only_old_temporary_files_of_the_same_name_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let old = SystemTime::now() - 2 * ABANDONED;
        for (name, modified) in [(".a.1-0.tmp", old), (".a.2-0.tmp", SystemTime::now()), (".b.1-0.tmp", old)] {
            File::create(folder.path().join(name)).unwrap().set_modified(modified).unwrap();
        }
        write_atomically(folder.path().join("a"), |_| Ok(())).unwrap();
        let mut left = names(folder.path());
        left.sort();
        assert_eq!(left, [".a.2-0.tmp", ".b.1-0.tmp", "a"]);
    }

    #[cfg(unix)]
    #[test]
    fn a_link_stays_a_link() {
        let folder = tempfile::tempdir().unwrap();
        let (target, link) = (folder.path().join("run-7"), folder.path().join("latest"));
        fs::write(&target, "old").unwrap();
        std::os::unix::fs::symlink(&target, &link).unwrap();
        write_atomically(&link, |file| file.write_all(b"new")).unwrap();
        assert!(link.is_symlink());
        assert_eq!(fs::read(&target).unwrap(), b"new");
    }
}
