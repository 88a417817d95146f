//! Files that are either whole or not there: written beside their place, synchronised, and renamed into it.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A temporary file that nobody wrote to for so long was left by a process that was killed.
const ABANDONED: Duration = Duration::from_secs(600);

/// Writes a file by `fill`. A reader sees the old file or the new one, also after the machine lost power; on an error the old
/// one stays and nothing else is left.
pub(super) fn write(path: &Path, fill: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>) -> io::Result<()> {
    // A link stays a link: its target is replaced.
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
    let Some(name) = path.file_name() else {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "this is no name of a file"));
    };
    let folder = match path.parent() {
        Some(parent) if parent != Path::new("") => parent.to_path_buf(),
        _ => PathBuf::from("."),
    };
    remove_abandoned(&folder, name);
    let temporary = folder.join(temporary_name(name));
    let written = filled(&temporary, fill).and_then(|()| fs::rename(&temporary, &path));
    if written.is_err() {
        let _ = fs::remove_file(&temporary); // the first error is the one to tell
    }
    written.and_then(|()| sync_folder(&folder))
}

fn filled(path: &Path, fill: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>) -> io::Result<()> {
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

/// `.model.safetensors.4711-0.tmp`: of this process and this call alone.
fn temporary_name(name: &OsStr) -> OsString {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let mut temporary = prefix_of(name);
    temporary.push(format!("{}-{}.tmp", process::id(), NEXT.fetch_add(1, Ordering::Relaxed)));
    temporary
}

/// Removes what killed processes left when they wrote this very file. What cannot be removed is no reason not to write.
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

/// Makes the rename last; elsewhere than on Unix a folder cannot be opened for that.
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
        write(&path, |file| file.write_all(b"old")).unwrap();
        let full = |file: &mut BufWriter<File>| {
            file.write_all(b"new, and ")?;
            Err(io::Error::other("the disk is full"))
        };
        assert_eq!(write(&path, full).unwrap_err().to_string(), "the disk is full");
        assert_eq!((fs::read(&path).unwrap(), names(folder.path())), (b"old".to_vec(), vec![OsString::from("state")]));
        assert!(write(&folder.path().join("nowhere/state"), |_| Ok(())).is_err());
        assert!(write(folder.path(), |_| Ok(())).is_err(), "a folder is no file");
        assert_eq!(names(folder.path()), ["state"]);
    }

    #[test]
    fn only_old_temporary_files_of_the_same_name_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let old = SystemTime::now() - 2 * ABANDONED;
        for (name, modified) in [(".a.1-0.tmp", old), (".a.2-0.tmp", SystemTime::now()), (".b.1-0.tmp", old)] {
            File::create(folder.path().join(name)).unwrap().set_modified(modified).unwrap();
        }
        write(&folder.path().join("a"), |_| Ok(())).unwrap();
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
        write(&link, |file| file.write_all(b"new")).unwrap();
        assert!(link.is_symlink());
        assert_eq!(fs::read(&target).unwrap(), b"new");
    }
}
