//! Files in which processes write what they hold and do on their devices, so that other processes can show it.
//!
//! A file has one line for the process and one for each device that it has used; tabs separate the fields. It is
//! written once a second. An older file belongs to a process that has ended. `folder.rs` says which files are ours.

mod folder;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use crate::device::{Device, MemoryStats};
use crate::util::cache_dir::cache_dir;

/// The first field of a file.
const FORMAT: &str = "anygpu-status-1";
const EVERY: Duration = Duration::from_secs(1);
/// The most characters of a text that are shown, and the most devices of a process.
const MOST_CHARS: usize = 200;
const MOST_DEVICES: usize = 64;
/// How long the end of a program waits for the end of the thread.
const LAST_WAIT: Duration = Duration::from_millis(500);

/// Publishes the work of this process on its devices, until this value is dropped.
///
/// `anygpu top` and [`processes`] read it.
///
/// The commands of `anygpu` publish themselves. Your own program does so with one line:
///
/// ```
/// let _status = anygpu::watch::StatusFile::publish("my job");
/// ```
///
/// A thread writes a file in the user's cache folder once a second. Devices of [`Device::from_wgpu`] are not in it.
#[derive(Debug)]
#[must_use = "nothing is published when it is dropped"]
pub struct StatusFile {
    /// Ends the thread when it is dropped, and what the thread drops when it ends; none if nothing is published.
    thread: Option<(Sender<()>, Receiver<()>)>,
}

impl StatusFile {
    /// Begins to publish under a title, such as the command line. If that is not possible, the reason is logged,
    /// and nothing else happens.
    pub fn publish(title: &str) -> StatusFile {
        folder().map_or(StatusFile { thread: None }, |folder| StatusFile::publish_in(&folder, title))
    }

    fn publish_in(folder: &Path, title: &str) -> StatusFile {
        let ((sender, end), (ended, receiver)) = (channel(), channel());
        let pid = std::process::id();
        let title = shown(title);
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
    let file = folder::OwnFile::claim(folder, pid, &text(pid, title))?;
    processes_in(folder); // removes what is left of others
    while end.recv_timeout(EVERY) == Err(RecvTimeoutError::Timeout) {
        file.replace(&text(pid, title))?;
    }
    Ok(())
}

impl Drop for StatusFile {
    fn drop(&mut self) {
        let Some((sender, ended)) = self.thread.take() else { return };
        drop(sender);
        // The end of a program does not wait for a file system that hangs.
        let _ = ended.recv_timeout(LAST_WAIT);
    }
}

/// The title and the devices of a process.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ProcessStatus {
    /// The number of the process.
    pub pid: u32,
    /// Its title: see [`StatusFile::publish`].
    pub title: String,
    /// The devices that it has used.
    pub devices: Vec<DeviceStatus>,
}

/// The memory and the number of kernels of a process on one device.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct DeviceStatus {
    /// The name of the device in that process.
    pub name: String,
    /// The adapter ([`DeviceInfo::adapter`](crate::DeviceInfo::adapter)) and its API. Other processes recognise the
    /// device by it.
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

    /// Returns whether this is the same device as `device` of this process.
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
        let [name, adapter, pci_bus_id] = [fields.next()?, fields.next()?, fields.next()?].map(shown);
        let mut number = || fields.next()?.parse().ok();
        let (live, peak, reserved, kernels) = (number()?, number()?, number()?, number()?);
        Some(DeviceStatus { name, adapter, pci_bus_id, live, peak, reserved, kernels })
    }
}

/// Returns the status of all processes of this user that publish one, in the order of their process ids.
#[must_use]
pub fn processes() -> Vec<ProcessStatus> {
    folder().map_or(Vec::new(), |folder| processes_in(&folder))
}

/// As [`processes`], from a folder; removes files of processes that have ended. The fuzz target `status` calls it.
#[doc(hidden)]
pub fn processes_in(folder: &Path) -> Vec<ProcessStatus> {
    static LOGGED: Once = Once::new();
    let mut all = match folder::read(folder) {
        Ok(all) => all,
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        Err(error) => {
            LOGGED.call_once(|| log::warn!("no process is shown: {}: {error}", folder.display()));
            Vec::new()
        }
    };
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
    let (pid, title) = (first.next()?.parse().ok()?, shown(first.next()?));
    let devices = lines.take(MOST_DEVICES).map(DeviceStatus::read).collect::<Option<_>>()?;
    Some(ProcessStatus { pid, title, devices })
}

/// Returns a text of another process, as it may be shown: shortened, and with no character that a terminal obeys or that changes the
/// direction of what follows.
fn shown(text: &str) -> String {
    let obeyed = |c: char| {
        c.is_control()
            || matches!(c, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
    };
    let mut all = text.replace(obeyed, " ");
    if let Some((end, _)) = all.char_indices().nth(MOST_CHARS) {
        all.truncate(all.char_indices().nth(MOST_CHARS - 3).map_or(end, |(end, _)| end));
        all.push('…');
    }
    all
}

#[cfg(test)]
mod tests {
    use web_time::SystemTime;

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
    fn texts_of_others_are_shown_without_what_a_terminal_obeys() {
        assert_eq!(shown("a\u{202e}b\u{1b}[2J\u{2066}c\u{61c}\u{200f}\td"), "a b [2J c   d");
        let long = shown(&"ä".repeat(10_000));
        assert_eq!((long.chars().count(), long.chars().last()), (198, Some('…')));
        assert_eq!(shown(&"x".repeat(200)), "x".repeat(200));
        let title = "\u{202e}".to_string() + &"x".repeat(40_000);
        let device = "gpu\u{2067}:0\tcard\t\t1\t2\t3\t4\n";
        let process = parse(&format!("{FORMAT}\t7\t{title}\n{}", device.repeat(1000))).expect("a process");
        assert_eq!((process.devices.len(), &*process.devices[0].name), (64, "gpu :0"));
        assert!(process.title.chars().count() < 200 && !process.title.contains('\u{202e}'));
    }
}
