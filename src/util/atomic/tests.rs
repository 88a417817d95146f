use std::sync::Barrier;

use web_time::SystemTime;

use super::faults::{self, Fault};
use super::*;

fn names(folder: &Path) -> Vec<OsString> {
    let mut names: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    names
}

fn write(path: &Path, text: &str) -> io::Result<()> {
    write_atomically(path, |file| file.write_all(text.as_bytes()))
}

#[test]
fn a_failed_write_leaves_the_old_file_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state");
    write(&path, "old").unwrap();
    let full = |file: &mut dyn Write| {
        file.write_all(b"new, and ")?;
        Err(io::Error::other("the disk is full"))
    };
    assert_eq!(write_atomically(&path, full).unwrap_err().to_string(), "the disk is full");
    assert_eq!((fs::read(&path).unwrap(), names(folder.path())), (b"old".to_vec(), vec![OsString::from("state")]));
    assert!(write_atomically(folder.path().join("nowhere/state"), |_| Ok(())).is_err());
    let error = write_atomically(folder.path(), |_| Ok(())).unwrap_err().to_string();
    assert!(error.contains("a folder, not a regular file"), "{error}");
    assert_eq!(names(folder.path()), ["state"]);
}

/// A temporary file as a killed process leaves it.
fn leave(folder: &Path, name: &str) -> PathBuf {
    let path = folder.join(name);
    fs::write(&path, "a part").unwrap();
    path
}

#[test]
fn abandoned_files_are_removed_and_those_of_others_are_kept() {
    let folder = tempfile::tempdir().unwrap();
    leave(folder.path(), ".a.00112233445566ff.tmp");
    let live = leave(folder.path(), ".a.1111111111111111.tmp");
    let live = OpenOptions::new().write(true).open(live).unwrap();
    live.lock().unwrap();
    let others = [".a.b.0011223344556677.tmp", ".a.notes.tmp", ".b.0011223344556677.tmp", "a.0011223344556677.tmp"];
    others.iter().for_each(|name| drop(leave(folder.path(), name)));
    write(&folder.path().join("a"), "whole").unwrap();
    let mut expected = [&others[..], &[".a.1111111111111111.tmp", "a"]].concat();
    expected.sort();
    assert_eq!(names(folder.path()), expected);
    drop(live); // its writer ends
    check_writable(folder.path().join("a")).unwrap();
    expected.retain(|name| *name != ".a.1111111111111111.tmp");
    assert_eq!(names(folder.path()), expected);
}

#[test]
fn without_locks_the_age_decides() {
    let folder = tempfile::tempdir().unwrap();
    let old = leave(folder.path(), ".a.0000000000000000.tmp");
    File::options().write(true).open(old).unwrap().set_modified(SystemTime::now() - 2 * ABANDONED).unwrap();
    leave(folder.path(), ".a.1111111111111111.tmp");
    let (written, _) = faults::with(Fault::Lacks(Call::Lock), 0, || write(&folder.path().join("a"), "whole"));
    written.unwrap();
    assert_eq!(names(folder.path()), [".a.1111111111111111.tmp", "a"]);
}

#[test]
fn names_as_long_as_the_system_takes_are_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("n".repeat(240) + ".safetensors");
    let other = folder.path().join("m".repeat(240) + ".safetensors");
    leave(folder.path(), temporary_name(path.file_name().unwrap()).to_str().unwrap());
    let kept = temporary_name(other.file_name().unwrap());
    leave(folder.path(), kept.to_str().unwrap());
    for text in ["old", "new"] {
        write(&path, text).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), text);
    }
    assert_eq!(names(folder.path()), [kept, path.file_name().unwrap().to_owned()]);
    check_writable(&other).unwrap();
    assert_eq!(names(folder.path()), [path.file_name().unwrap()]);
}

#[cfg(unix)]
#[test]
fn what_is_not_ours_is_not_removed() {
    use std::os::unix::fs::{MetadataExt, chown, symlink};
    let (folder, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let document = leave(elsewhere.path(), ".a.0011223344556677.tmp");
    symlink(&document, folder.path().join(".a.0011223344556677.tmp")).unwrap();
    fs::create_dir(folder.path().join(".a.1111111111111111.tmp")).unwrap();
    let mut expected = vec![".a.0011223344556677.tmp", ".a.1111111111111111.tmp"];
    if fs::metadata(folder.path()).unwrap().uid() == 0 {
        chown(leave(folder.path(), ".a.2222222222222222.tmp"), Some(12_345), None).unwrap();
        expected.push(".a.2222222222222222.tmp");
    } else {
        eprintln!("skipped: only root can make a file of another user");
    }
    write(&folder.path().join("a"), "whole").unwrap();
    expected.push("a");
    assert_eq!(names(folder.path()), expected);
    assert_eq!(fs::read_to_string(document).unwrap(), "a part");
}

/// Names that depend on the process id are equal in two containers.
#[test]
fn names_are_random() {
    let names: std::collections::HashSet<_> = (0..100).map(|_| temporary_name(OsStr::new("a"))).collect();
    assert_eq!(names.len(), 100);
    assert!(names.iter().all(|name| is_temporary_of(name, OsStr::new("a")) && !is_temporary_of(name, OsStr::new(""))));
    assert!(!names.iter().any(|name| name.to_string_lossy().contains(&format!(".{}-", std::process::id()))));
}

#[test]
fn writers_of_one_file_do_not_disturb_each_other() {
    let folder = tempfile::tempdir().unwrap();
    let (path, start) = (folder.path().join("a"), Barrier::new(4));
    std::thread::scope(|scope| {
        for writer in 0..4u8 {
            let (path, start) = (&path, &start);
            scope.spawn(move || {
                start.wait();
                for _ in 0..50 {
                    write_atomically(path, |file| file.write_all(&[writer; 1000])).unwrap();
                    let read = fs::read(path).unwrap();
                    assert!(read.len() == 1000 && read.iter().all(|byte| *byte == read[0]));
                }
            });
        }
    });
    assert_eq!(names(folder.path()), ["a"]);
}

/// `checkpoint/power_loss.rs` lets each of these calls fail.
#[test]
fn the_contents_are_on_the_disk_before_the_name_is() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a");
    let (written, calls) = faults::with(Fault::Fails, usize::MAX, || write(&path, "whole"));
    written.unwrap();
    assert_eq!(calls, [Call::Create, Call::Lock, Call::Write, Call::SyncFile, Call::Rename, Call::SyncFolder]);
    assert_eq!(fs::read_to_string(&path).unwrap(), "whole");
}

#[cfg(unix)]
#[test]
fn a_link_stays_a_link() {
    use std::os::unix::fs::symlink;
    let folder = tempfile::tempdir().unwrap();
    let (target, link) = (folder.path().join("run-7"), folder.path().join("latest"));
    symlink("run-7", &link).unwrap();
    for text in ["the target did not exist", "new"] {
        write(&link, text).unwrap();
        assert!(link.is_symlink() && !target.is_symlink());
        assert_eq!(fs::read_to_string(&target).unwrap(), text);
    }
    assert_eq!(check_writable(&link).unwrap(), check_writable(&target).unwrap());
    symlink("round", folder.path().join("round")).unwrap();
    assert!(write(&folder.path().join("round"), "").is_err());
}

/// Replacing `/dev/null` by a file would break the machine.
#[cfg(unix)]
#[test]
fn a_device_is_not_replaced() {
    let error = check_writable("/dev/null").unwrap_err().to_string();
    assert!(error.contains("a device, not a regular file"), "{error}");
}
