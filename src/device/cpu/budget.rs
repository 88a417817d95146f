//! How much memory the host can still give to this process.
//!
//! Linux grants more memory than there is and ends a process that uses it: `try_reserve` succeeds, and the first writes
//! are fatal. So large requests are compared with the memory that is available before they are made.

use std::path::Path;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{host, huge_pages};
use crate::error::{Error, Result};

/// The available memory is read again after this many bytes were requested, since reading it opens several files.
const STEP: u64 = 64 << 20;
/// Memory that is left to the rest of the system, if it is less than a sixteenth of the available memory.
const RESERVE: u64 = 256 << 20;

/// Bytes that were granted and are not yet written, so that the system counts them as available.
static PENDING: AtomicU64 = AtomicU64::new(0);
/// Bytes that were granted since the available memory was last read.
static GRANTED: AtomicU64 = AtomicU64::new(0);

/// Bytes that were granted. Keep it until they are written, since other threads could be granted the same bytes.
#[derive(Debug)]
pub(crate) struct Grant(u64);

impl Drop for Grant {
    fn drop(&mut self) {
        PENDING.fetch_sub(self.0, Ordering::Relaxed);
    }
}

/// Grants `bytes` of host memory, or returns how many bytes there are.
fn grant(bytes: u64) -> Result<Grant, u64> {
    let unchecked = GRANTED.load(Ordering::Relaxed).saturating_add(bytes) < STEP;
    let available = if unchecked { None } else { available(Path::new("/")) };
    let usable = available.map_or(u64::MAX, |available| available - RESERVE.min(available / 16));
    let add = |pending: u64| pending.checked_add(bytes).filter(|&total| total <= usable);
    PENDING.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).map_err(|_| usable)?;
    match unchecked {
        true => GRANTED.fetch_add(bytes, Ordering::Relaxed),
        false => GRANTED.swap(0, Ordering::Relaxed),
    };
    Ok(Grant(bytes))
}

/// Reserves memory for `count` elements, which counts as used from the grant on. Fails with the bytes that the host has;
/// `None` if the allocator refused, for example because of `ulimit -v`.
fn reserve<T>(count: usize) -> Result<(Vec<T>, Grant), Option<u64>> {
    let grant = grant((count as u64).saturating_mul(size_of::<T>() as u64)).map_err(Some)?;
    let mut values = Vec::new();
    values.try_reserve_exact(count).map_err(|_| None)?;
    huge_pages::advise(values.spare_capacity_mut());
    Ok((values, grant))
}

/// Whether the address space of the process is limited (`ulimit -v`): the first of the two limits, the soft one, counts.
static LIMITED: LazyLock<bool> = LazyLock::new(|| {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let soft = limits.lines().find_map(|line| line.strip_prefix("Max address space")?.split_whitespace().next());
    soft.is_some_and(|soft| soft != "unlimited")
});

/// Grants a driver `bytes` of host memory if, in a limited address space, there is also room for `block` more bytes;
/// otherwise returns what there is, if that is known.
pub(crate) fn grant_driver(bytes: u64, block: u64) -> Result<Grant, Option<u64>> {
    if *LIMITED {
        reserve::<u8>(usize::try_from(bytes.saturating_add(block)).unwrap_or(usize::MAX))?;
    }
    grant(bytes).map_err(Some)
}

/// Returns an empty vector with capacity for `count` elements.
///
/// # Errors
///
/// [`Error::OutOfMemory`] if memory is short, where `Vec::with_capacity` would abort or the system end the process.
pub(crate) fn with_room<T>(count: usize) -> Result<Vec<T>> {
    granted(count).map(|(values, _)| values)
}

/// Returns a vector of what an iterator gives.
///
/// # Errors
///
/// Same as [`with_room`].
pub(crate) fn collected<T>(items: impl ExactSizeIterator<Item = T>) -> Result<Vec<T>> {
    let mut values = with_room(items.len())?;
    values.extend(items);
    Ok(values)
}

/// As [`with_room`], with the grant, to be kept until the elements are written.
pub(super) fn granted<T>(count: usize) -> Result<(Vec<T>, Grant)> {
    reserve(count).map_err(|available| Error::OutOfMemory {
        device: "cpu".into(),
        requested: (count as u64).saturating_mul(size_of::<T>() as u64),
        in_use: host().memory().live,
        available,
        held: host().most_memory(),
    })
}

/// Returns the bytes that this process can still use, by the system and by the control groups that the process is in;
/// `None` on systems without `/proc/meminfo`. `root` is `/`, except in tests.
pub(crate) fn available(root: &Path) -> Option<u64> {
    let meminfo = std::fs::read_to_string(root.join("proc/meminfo")).ok()?;
    let field = |key| value(&meminfo, key).map(|kibibytes| kibibytes.saturating_mul(1024));
    let system = field("MemAvailable:")?.saturating_add(field("SwapFree:").unwrap_or(0));
    let groups = std::fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    groups.lines().filter_map(|line| in_group(root, line)).chain([system]).min()
}

/// Returns what a line of `/proc/self/cgroup` allows: the least of the group and the groups around it. Version 2 has one
/// line, `0::/path`; version 1 has one for each controller, as `4:memory:/path`.
fn in_group(root: &Path, line: &str) -> Option<u64> {
    let (controller, path) = line.split_once(':')?.1.split_once(':')?;
    let (mount, limit, usage, cache) = match controller {
        "" => ("sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
        _ if controller.split(',').any(|name| name == "memory") => {
            ("sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        }
        _ => return None,
    };
    let mount = root.join(mount);
    let group = mount.join(path.trim_start_matches('/'));
    let left = |group: &Path| {
        let number = |file| std::fs::read_to_string(group.join(file)).ok()?.trim().parse::<u64>().ok();
        // "max" is not a number: there is no limit.
        let (limit, usage) = (number(limit)?, number(usage)?);
        let stat = std::fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
        Some(limit.saturating_sub(usage.saturating_sub(value(&stat, cache).unwrap_or(0))))
    };
    group.ancestors().take_while(|group| group.starts_with(&mount)).filter_map(left).min()
}

/// Returns the number after `key` in a text of lines `key number …`.
fn value(text: &str, key: &str) -> Option<u64> {
    let mut words = text.lines().map(str::split_whitespace);
    words.find_map(|mut line| (line.next()? == key).then(|| line.next()?.parse().ok())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_files(files: &[(&str, &str)]) -> Option<u64> {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        available(root.path())
    }

    const MEMINFO: (&str, &str) = ("proc/meminfo", "MemTotal: 9000 kB\nMemAvailable:   1000 kB\nSwapFree: 24 kB\n");

    #[test]
    fn the_least_of_system_and_groups_is_available() {
        assert_eq!(with_files(&[]), None);
        assert_eq!(with_files(&[MEMINFO]), Some(1024 << 10));
        let version_2 = [
            MEMINFO,
            ("proc/self/cgroup", "0::/pod/box\n"),
            ("sys/fs/cgroup/pod/box/memory.max", "max\n"),
            ("sys/fs/cgroup/pod/box/memory.current", "100\n"),
            ("sys/fs/cgroup/pod/memory.max", "5000\n"),
            ("sys/fs/cgroup/pod/memory.current", "3000\n"),
            ("sys/fs/cgroup/pod/memory.stat", "anon 7\ninactive_file 500\n"),
        ];
        assert_eq!(with_files(&version_2), Some(2500));
        let version_1 = [
            MEMINFO,
            ("proc/self/cgroup", "5:cpu:/\n4:memory:/elsewhere\n0::/\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "8000\n"),
            ("sys/fs/cgroup/memory/memory.usage_in_bytes", "9000\n"),
            ("sys/fs/cgroup/memory/memory.stat", "total_inactive_file 1500\n"),
        ];
        assert_eq!(with_files(&version_1), Some(500));
    }

    #[test]
    fn more_than_there_is_is_not_granted() {
        let Some(available) = available(Path::new("/")) else { return };
        assert!(grant(available).is_err_and(|usable| usable < available + (1 << 30)));
        assert!(grant(STEP).is_ok());
        let error = with_room::<u64>(available as usize).unwrap_err();
        assert!(error.is_out_of_memory() && error.to_string().contains("available"), "{error}");
        assert!(with_room::<u64>(usize::MAX).unwrap_err().is_out_of_memory());
    }
}
