//! Files in which processes write what they hold and do on their devices, so that other processes can show it.
//!
//! A file has one line for the process and one for each device that it has used, of fields with tabs between them. It is written
//! once in a second; one that is older belongs to a process that has ended.

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, SystemTime};

use crate::cache_dir::cache_dir;
use crate::device::{Device, MemoryStats};

/// The first field of a file.
const FORMAT: &str = "anygpu-status-1";
const EVERY: Duration = Duration::from_secs(1);
/// The age from which a file is that of a process that has ended.
const OLD: Duration = Duration::from_secs(5);
/// The most bytes that are read of a file.
const MOST_BYTES: u64 = 64 << 10;
/// How long the end of a program waits for the end of the thread.
const LAST_WAIT: Duration = Duration::from_millis(500);

/// Publishes what this process does on its devices, until it is dropped: for `anygpu top`, and for [`processes`].
///
/// The commands of `anygpu` do so by themselves. A program of your own does so with one line:
///
/// ```
/// let _status = anygpu::watch::StatusFile::publish("my job");
/// ```
///
/// A thread writes a file in the user's cache folder once in a second. Devices of [`Device::from_wgpu`] are not in it.
#[derive(Debug)]
#[must_use = "nothing is published when it is dropped"]
pub struct StatusFile {
    /// Ends the thread when it is dropped, and what the thread drops when it ends; none if nothing is published.
    thread: Option<(Sender<()>, Receiver<()>)>,
}

impl StatusFile {
    /// Begins to publish under a title, such as the command line. If that is not possible, it is logged, and nothing else
    /// happens.
    pub fn publish(title: &str) -> StatusFile {
        folder().map_or(StatusFile { thread: None }, |folder| StatusFile::publish_in(&folder, title))
    }

    fn publish_in(folder: &Path, title: &str) -> StatusFile {
        let ((sender, end), (ended, receiver)) = (channel(), channel());
        let pid = std::process::id();
        let title = title.replace(|c: char| c.is_control(), " ");
        let publisher = thread::Builder::new().name("anygpu status".into()).spawn({
            let folder = folder.to_owned();
            move || {
                let _ended: Sender<()> = ended;
                if let Err(error) = publish_until(&end, &folder, pid, &title) {
                    log::info!("anygpu top does not show this process: {}: {error}", folder.display());
                }
            }
        });
        match publisher {
            Ok(_) => StatusFile { thread: Some((sender, receiver)) },
            Err(error) => {
                log::info!("anygpu top does not show this process: {error}");
                StatusFile { thread: None }
            }
        }
    }
}

/// Writes the file again and again until `end` has no sender, and removes it.
fn publish_until(end: &Receiver<()>, folder: &Path, pid: u32, title: &str) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    processes_in(folder); // removes what is left of others
    // Containers that share a home may have equal numbers of processes.
    let nanos = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |time| time.subsec_nanos());
    let path = folder.join(format!("{pid}-{nanos}"));
    let new = folder.join(format!("new-{pid}-{nanos}"));
    // A reader sees the old or the new file. It need not survive a loss of power.
    let write = || fs::write(&new, text(pid, title)).and_then(|()| fs::rename(&new, &path));
    let mut written = write();
    while written.is_ok() && end.recv_timeout(EVERY) == Err(RecvTimeoutError::Timeout) {
        written = write();
    }
    let _ = (fs::remove_file(&new), fs::remove_file(&path));
    written
}

impl Drop for StatusFile {
    fn drop(&mut self) {
        let Some((sender, ended)) = self.thread.take() else { return };
        drop(sender);
        // The end of a program does not wait for a file system that hangs.
        let _ = ended.recv_timeout(LAST_WAIT);
    }
}

/// What a process does.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ProcessStatus {
    /// The number of the process.
    pub pid: u32,
    /// Its title, see [`StatusFile::publish`].
    pub title: String,
    /// The devices that it has used.
    pub devices: Vec<DeviceStatus>,
}

/// What a process holds and does on one device.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct DeviceStatus {
    /// The name of the device in that process.
    pub name: String,
    /// The adapter, as [`DeviceInfo::adapter`](crate::DeviceInfo::adapter) and its API, by which other processes know it.
    pub adapter: String,
    /// The PCI bus id of the adapter; empty if it has none.
    pub pci_bus_id: String,
    /// As in [`MemoryStats`](crate::device::MemoryStats), in bytes.
    pub live: u64,
    /// As in [`MemoryStats`](crate::device::MemoryStats), in bytes.
    pub peak: u64,
    /// As in [`MemoryStats`](crate::device::MemoryStats), in bytes.
    pub reserved: u64,
    /// As [`Device::dispatches`].
    pub kernels: u64,
}

impl DeviceStatus {
    fn of(device: &Device, memory: MemoryStats, kernels: u64) -> DeviceStatus {
        let info = device.info();
        DeviceStatus {
            name: device.name().into(),
            adapter: format!("{} through {}", info.adapter, info.api),
            pci_bus_id: info.pci_bus_id.clone().unwrap_or_default(),
            live: memory.live,
            peak: memory.peak,
            reserved: memory.reserved,
            kernels,
        }
    }

    /// Returns whether this is the device of that process which `device` is in this one.
    #[must_use]
    pub fn is_of(&self, device: &Device) -> bool {
        let known = DeviceStatus::of(device, MemoryStats::default(), 0);
        [&self.adapter, &self.pci_bus_id] == [&known.adapter, &known.pci_bus_id]
    }

    fn line(&self) -> String {
        let DeviceStatus { name, adapter, pci_bus_id, live, peak, reserved, kernels } = self;
        format!("{name}\t{adapter}\t{pci_bus_id}\t{live}\t{peak}\t{reserved}\t{kernels}\n")
    }

    fn read(line: &str) -> Option<DeviceStatus> {
        let mut fields = line.split('\t');
        let [name, adapter, pci_bus_id] = [fields.next()?, fields.next()?, fields.next()?].map(str::to_owned);
        let mut number = || fields.next()?.parse().ok();
        let (live, peak, reserved, kernels) = (number()?, number()?, number()?, number()?);
        Some(DeviceStatus { name, adapter, pci_bus_id, live, peak, reserved, kernels })
    }
}

/// Returns what the processes of this user do that publish it, in the order of their numbers.
#[must_use]
pub fn processes() -> Vec<ProcessStatus> {
    folder().map_or(Vec::new(), |folder| processes_in(&folder))
}

/// As [`processes`], from a folder; removes files of processes that have ended. The fuzz target `status` calls it.
#[doc(hidden)]
pub fn processes_in(folder: &Path) -> Vec<ProcessStatus> {
    let Ok(files) = fs::read_dir(folder) else { return Vec::new() };
    let read = |file: fs::DirEntry| {
        let meta = file.metadata().ok().filter(fs::Metadata::is_file)?;
        let age = SystemTime::now().duration_since(meta.modified().ok()?).unwrap_or_default();
        if age > OLD {
            let _ = fs::remove_file(file.path());
            return None;
        }
        let name = file.file_name().into_string().ok()?;
        let pid: u32 = name.split_once('-')?.0.parse().ok()?;
        let mut text = String::new();
        fs::File::open(file.path()).ok()?.take(MOST_BYTES).read_to_string(&mut text).ok()?;
        parse(&text).filter(|process| process.pid == pid)
    };
    let mut all: Vec<ProcessStatus> = files.flatten().filter_map(read).collect();
    all.sort_by_key(|process| process.pid);
    all
}

fn folder() -> Option<PathBuf> {
    cache_dir(|name| std::env::var_os(name)).map(|cache| cache.join("processes"))
}

fn text(pid: u32, title: &str) -> String {
    let used = |status: &DeviceStatus| status.reserved > 0 || status.kernels > 0;
    let all =
        Device::activity().into_iter().map(|(device, memory, kernels)| DeviceStatus::of(&device, memory, kernels));
    let lines: String = all.filter(used).map(|status| status.line()).collect();
    format!("{FORMAT}\t{pid}\t{title}\n{lines}")
}

fn parse(text: &str) -> Option<ProcessStatus> {
    // A terminal would obey control characters.
    if text.contains(|c: char| c.is_control() && c != '\n' && c != '\t') {
        return None;
    }
    let mut lines = text.lines();
    let mut first = lines.next()?.splitn(3, '\t');
    if first.next()? != FORMAT {
        return None;
    }
    let (pid, title) = (first.next()?.parse().ok()?, first.next()?.to_owned());
    let devices = lines.map(DeviceStatus::read).collect::<Option<_>>()?;
    Some(ProcessStatus { pid, title, devices })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Result;
    use crate::tensor::Tensor;

    #[test]
    fn a_process_is_seen_until_it_ends() -> Result<()> {
        let folder = tempfile::tempdir().expect("a folder");
        let inner = folder.path().join("new");
        let x = Tensor::ones([1000], None)?;
        let published = StatusFile::publish_in(&inner, "a\tjob\n");
        let begin = SystemTime::now();
        let process = loop {
            if let Some(process) = processes_in(&inner).pop() {
                break process;
            }
            assert!(begin.elapsed().is_ok_and(|time| time < Duration::from_secs(30)), "no file");
            thread::sleep(Duration::from_millis(10));
        };
        assert_eq!((process.pid, &*process.title), (std::process::id(), "a job "));
        let cpu = process.devices.iter().find(|device| device.name == "cpu").expect("it was used");
        assert!(cpu.live >= 4000 && cpu.peak >= cpu.live && cpu.reserved >= cpu.live && cpu.is_of(x.device()));
        drop(published);
        assert_eq!(processes_in(&inner), []);
        Ok(())
    }

    #[test]
    fn files_of_other_kinds_and_old_ones_are_no_processes() {
        let folder = tempfile::tempdir().expect("a folder");
        let whole = "anygpu-status-1\t7\ta job\ngpu:0\tcard through Vulkan\t0000:01:00.0\t1\t2\t3\t4\n";
        for (name, text) in [
            ("7-1", whole),
            ("new-7-1", whole),
            ("70-1", whole),
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
        assert_eq!(found[0].devices[0].line(), whole.split_once('\n').expect("two lines").1);
        let file = fs::File::options().write(true).open(folder.path().join("7-1")).expect("the file");
        file.set_modified(SystemTime::now() - 2 * OLD).expect("its time");
        assert_eq!(processes_in(folder.path()), []);
        assert!(!folder.path().join("7-1").exists());
        assert_eq!(processes_in(&folder.path().join("none")), []);
    }
}
