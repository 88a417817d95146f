//! The folder of the files. Only files that this crate wrote are read and removed. They are recognised by their
//! names, `PID-NANOS` and `new-PID-NANOS`, by how they begin, and by their owner. No link is followed, and a folder
//! that is a link or another user's is refused.

use std::ffi::OsStr;
use std::fs::{self, DirEntry, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
// The clock of files, which a browser does not have.
use std::time::{Duration, SystemTime};

use super::{FORMAT, ProcessStatus, parse};
use crate::util::regular_file::{check_own_folder, is_own, is_same};

/// The age from which a file belongs to a process that has ended.
const OLD: Duration = Duration::from_secs(5);
/// The most bytes that are read of a file.
const MOST_BYTES: u64 = 64 << 10;
/// The most files that are read.
const MOST_FILES: usize = 1000;
/// The most names that are tried for a new file.
const MOST_NAMES: u32 = 16;
/// What the name of a file begins with while it is written.
const NEW: &str = "new-";

/// The file of this process, which is removed when this is dropped.
pub(super) struct OwnFile {
    path: PathBuf,
    new: PathBuf,
}

impl OwnFile {
    /// Creates the folder, if it does not exist, and a file in it under a name that nothing has.
    pub fn claim(folder: &Path, pid: u32, text: &str) -> io::Result<OwnFile> {
        fs::create_dir_all(folder)?;
        check_own_folder(folder)?;
        // Containers that share a home may have equal numbers of processes.
        let nanos = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |time| time.subsec_nanos());
        for nanos in nanos..nanos + MOST_NAMES {
            let path = folder.join(format!("{pid}-{nanos}"));
            match File::create_new(&path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                file => {
                    let mut file = file?;
                    let own = OwnFile { path, new: folder.join(format!("{NEW}{pid}-{nanos}")) };
                    file.write_all(text.as_bytes())?;
                    return Ok(own);
                }
            }
        }
        Err(io::Error::new(io::ErrorKind::AlreadyExists, "no name for a file is free"))
    }

    /// Writes the file anew: a reader sees the old or the new one. It need not survive a loss of power.
    pub fn replace(&self, text: &str) -> io::Result<()> {
        // Between two calls, nothing has this name.
        let mut file = File::create_new(&self.new)?;
        let written = file.write_all(text.as_bytes());
        drop(file);
        let replaced = written.and_then(|()| fs::rename(&self.new, &self.path));
        if replaced.is_err() {
            let _ = fs::remove_file(&self.new); // the first error is the one to report
        }
        replaced
    }
}

impl Drop for OwnFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Reads the files of a folder, and removes the files of processes that have ended.
pub(super) fn read(folder: &Path) -> io::Result<Vec<ProcessStatus>> {
    check_own_folder(folder)?;
    let named = |entry: &DirEntry| pid_of(&entry.file_name()).is_some();
    let ours = fs::read_dir(folder)?.flatten().filter(named).take(MOST_FILES);
    Ok(ours.filter_map(|entry| process_of(&entry)).collect())
}

fn process_of(entry: &DirEntry) -> Option<ProcessStatus> {
    let (pid, whole) = pid_of(&entry.file_name())?;
    let path = entry.path();
    let about = fs::symlink_metadata(&path).ok()?;
    if !about.is_file() || !is_own(&about) {
        return None;
    }
    let file = File::open(&path).ok()?;
    // Once more, since another file may have taken its place.
    if !is_same(&file.metadata().ok()?, &about) {
        return None;
    }
    let mut bytes = Vec::new();
    file.take(MOST_BYTES).read_to_end(&mut bytes).ok()?;
    if !bytes.strip_prefix(FORMAT.as_bytes())?.starts_with(b"\t") {
        return None;
    }
    let age = SystemTime::now().duration_since(about.modified().ok()?).unwrap_or_default();
    if age > OLD {
        let _ = fs::remove_file(path);
        return None;
    }
    let text = std::str::from_utf8(&bytes).ok().filter(|_| whole)?;
    parse(text).filter(|process| process.pid == pid)
}

/// Returns the number of the process in the name of a file, and whether the file is whole.
fn pid_of(name: &OsStr) -> Option<(u32, bool)> {
    let name = name.to_str()?;
    let (rest, whole) = name.strip_prefix(NEW).map_or((name, true), |rest| (rest, false));
    let (pid, nanos) = rest.split_once('-')?;
    let number = |text: &str| text.parse::<u32>().ok().filter(|number| number.to_string() == text);
    number(nanos)?;
    Some((number(pid)?, whole))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::watch::processes_in;

    const WHOLE: &str = "anygpu-status-1\t7\ta job\ngpu:0\tcard through Vulkan\t0000:01:00.0\t1\t2\t3\t4\n";

    /// Writes a file that is old.
    fn old(path: &Path, text: &str) {
        fs::write(path, text).expect("a file");
        let file = File::options().write(true).open(path).expect("the file");
        file.set_modified(SystemTime::now() - 2 * OLD).expect("its time");
    }

    #[test]
    fn files_of_other_kinds_and_old_ones_are_no_processes() {
        let folder = tempfile::tempdir().expect("a folder");
        for (name, text) in [
            ("7-1", WHOLE),
            ("new-7-1", WHOLE),
            ("70-1", WHOLE),
            ("8-1", "anygpu-status-2\t8\tof a later version\n"),
            ("9-1", "anygpu-status-1\t9\ttorn\ngpu:0\tcard"),
            ("10-1", ""),
            ("11-1", "anygpu-status-1\t11\t\x1b[2J\n"),
        ] {
            fs::write(folder.path().join(name), text).expect("a file");
        }
        fs::create_dir(folder.path().join("12-1")).expect("a folder");
        let found = processes_in(folder.path());
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!((found[0].pid, &*found[0].title, found[0].devices.len()), (7, "a job", 1));
        assert_eq!(found[0].devices[0].line(), WHOLE.split_once('\n').expect("two lines").1);
        old(&folder.path().join("7-1"), WHOLE);
        assert_eq!(processes_in(folder.path()), []);
        assert!(!folder.path().join("7-1").exists());
        assert_eq!(processes_in(&folder.path().join("none")), []);
    }

    #[test]
    fn only_files_of_ours_are_removed() {
        let folder = tempfile::tempdir().expect("a folder");
        let kept = [
            ("letter.txt", "Dear"),
            ("7", WHOLE),
            ("7-1.txt", WHOLE),
            ("7-1-1", WHOLE),
            ("07-1", WHOLE),
            ("7-+1", WHOLE),
            ("old-7-1", WHOLE),
            ("new-new-7-1", WHOLE),
            ("2024-11", "notes of November"),
            ("8-1", "anygpu-status-2\t8\tof another version\n"),
            ("9-1", "anygpu-status-10\t9\tof another version\n"),
            ("10-1", ""),
        ];
        let gone = [("7-1", WHOLE), ("new-7-2", WHOLE), ("8-3", "anygpu-status-1\t")];
        kept.iter().chain(&gone).for_each(|(name, text)| old(&folder.path().join(name), text));
        assert_eq!(processes_in(folder.path()), []);
        for (name, text) in kept {
            assert_eq!(fs::read_to_string(folder.path().join(name)).ok().as_deref(), Some(text), "{name}");
        }
        gone.iter().for_each(|(name, _)| assert!(!folder.path().join(name).exists(), "{name}"));
    }

    #[test]
    fn a_file_of_this_process_takes_no_name_that_is_there() {
        let folder = tempfile::tempdir().expect("a folder");
        let own = OwnFile::claim(folder.path(), 7, WHOLE).expect("a file");
        assert_eq!(processes_in(folder.path()).len(), 1);
        own.replace(&WHOLE.replace("a job", "the job")).expect("it is ours");
        assert_eq!(processes_in(folder.path())[0].title, "the job");
        fs::write(&own.new, "foreign").expect("a file");
        assert!(own.replace(WHOLE).is_err());
        let (path, new) = (own.path.clone(), own.new.clone());
        drop(own);
        assert_eq!((path.exists(), fs::read_to_string(new).ok().as_deref()), (false, Some("foreign")));
    }

    #[cfg(unix)]
    #[test]
    fn links_and_folders_of_others_are_refused() {
        use std::os::unix::fs::{MetadataExt, chown, symlink};
        let root = tempfile::tempdir().expect("a folder");
        let (documents, link) = (root.path().join("documents"), root.path().join("processes"));
        fs::create_dir(&documents).expect("a folder");
        old(&documents.join("7-1"), WHOLE);
        symlink(&documents, &link).expect("a link");
        assert_eq!(processes_in(&link), []);
        assert!(documents.join("7-1").exists());
        let error = OwnFile::claim(&link, 7, WHOLE).err().expect("a link").to_string();
        assert!(error.contains("a link"), "{error}");
        // A link within the folder.
        let own = root.path().join("own");
        fs::create_dir(&own).expect("a folder");
        symlink(documents.join("7-1"), own.join("7-1")).expect("a link");
        assert_eq!(processes_in(&own), []);
        assert!(documents.join("7-1").exists() && own.join("7-1").is_symlink());
        if fs::metadata(root.path()).expect("a folder").uid() != 0 {
            eprintln!("skipped: only root can make a folder of another user");
            return;
        }
        old(&own.join("8-1"), WHOLE);
        chown(own.join("8-1"), Some(12_345), None).expect("root may");
        assert_eq!(processes_in(&own), []);
        assert!(own.join("8-1").exists());
        chown(&documents, Some(12_345), None).expect("root may");
        assert_eq!(processes_in(&documents), []);
        assert!(documents.join("7-1").exists());
        let error = OwnFile::claim(&documents, 7, WHOLE).err().expect("of another").to_string();
        assert!(error.contains("another user"), "{error}");
    }
}
