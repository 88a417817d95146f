//! Kernels that are compiled ahead of their first use, on all cores.

use std::collections::HashSet;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};

use super::gpu::{Gpu, MOST_LISTED, fuzz_line, fuzz_tuned};
use super::{Backend, Device};
use crate::error::{Error, Result};
use crate::util::threads::THREADS;
use crate::util::waiting;

/// The kernels that a program has used on a device: what [`Device::compiled_kernels`] returns and [`Device::compile_ahead`] takes.
///
/// [`to_string`](ToString::to_string) and [`parse`](str::parse) write and read it, one kernel a line. A list may be used on other
/// adapters and with other versions of this crate: kernels that these do not have are left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelList(Vec<String>);

impl KernelList {
    /// Returns the number of kernels.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Adds the kernels of another list that are not in this one, such as those of another device.
    pub fn merge(&mut self, other: &KernelList) {
        let known: HashSet<&String> = self.0.iter().collect();
        let new: Vec<String> = other.0.iter().filter(|line| !known.contains(line)).cloned().collect();
        self.0.extend(new);
    }

    /// Returns whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Reads a list as a device that binds `most` buffers does, and returns how many kernels it would compile. The fuzz target
/// `kernel_list` calls it.
#[doc(hidden)]
#[must_use]
pub fn kernels_to_compile(text: &str, most: usize) -> usize {
    text.parse().map_or(0, |list: KernelList| list.0.iter().map(|line| fuzz_line(line, most)).map(usize::from).sum())
}

/// Reads a file of tuned variants, and returns how many there are. The fuzz target `tuned` calls it.
#[doc(hidden)]
#[must_use]
pub fn tuned_variants(text: &str, with_checksum: bool) -> usize {
    fuzz_tuned(text, with_checksum)
}

/// What errors name.
const OP: &str = "compile_ahead";
/// The first line of a list.
const TITLE: &str = "# kernels of anygpu";

impl fmt::Display for KernelList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{TITLE}")?;
        self.0.iter().try_for_each(|line| writeln!(f, "{line}"))
    }
}

impl FromStr for KernelList {
    type Err = Error;

    /// # Errors
    /// [`Error::InvalidArgument`] if the text does not begin as a list does.
    fn from_str(text: &str) -> Result<KernelList> {
        let mut lines = text.lines();
        if lines.next().is_none_or(|line| line.trim_end() != TITLE) {
            return Err(Error::argument(OP, format!("the text does not begin with the line {TITLE:?}")));
        }
        let kernels = lines.map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        Ok(KernelList(kernels.map(str::to_owned).collect()))
    }
}

/// Kernels that are being compiled, of [`Device::compile_ahead`]. If it is dropped, they are compiled nevertheless.
#[must_use = "wait() says when the kernels are compiled"]
pub struct CompileAhead {
    threads: Vec<JoinHandle<()>>,
    compiled: Arc<AtomicUsize>,
    /// `None` for the host.
    gpu: Option<Arc<Gpu>>,
}

impl CompileAhead {
    /// Waits for all kernels. Returns how many of the list the device has now.
    ///
    /// # Errors
    /// As [`Device::synchronize`].
    pub fn wait(self) -> Result<usize> {
        let compiled = waiting::wait_for(self.wait_async());
        compiled.map_err(|error| error.instead("CompileAhead::wait", "CompileAhead::wait_async"))
    }

    /// As [`CompileAhead::wait`], for an executor. In a browser, the driver compiles what [`Device::compile_ahead`] has given to it while
    /// the page goes on.
    ///
    /// # Errors
    /// As [`Device::synchronize`].
    pub async fn wait_async(self) -> Result<usize> {
        for thread in self.threads {
            let _ = thread.join(); // a panic is logged, and ends that thread only
        }
        if let Some(gpu) = self.gpu {
            gpu.synchronized().await?;
        }
        Ok(self.compiled.load(Ordering::Acquire))
    }
}

impl Device {
    /// Returns the kernels of this crate that the device has compiled so far and keeps, 512 at most, in their order. Empty for `cpu`,
    /// and for a device that is not open.
    ///
    /// Kernels that the crate makes at run time for chains of elementwise ops are not in it, and a program's own are not.
    #[must_use]
    pub fn compiled_kernels(&self) -> KernelList {
        match &self.0.backend {
            super::BackendHandle::Cpu(_) => KernelList::default(),
            super::BackendHandle::Gpu { opened, .. } => {
                KernelList(opened.get().map(|gpu| gpu.kernel_lines()).unwrap_or_default())
            }
        }
    }

    /// Starts to compile kernels ahead of their first use, on as many threads as there are cores, and returns at once. Opens the
    /// device. An op whose kernel is being compiled waits for it; all others go on.
    ///
    /// Without it, each kernel is compiled by the op that needs it first, one after the other: on a driver that takes long, this is most
    /// of the time of a first training step. The list is that of an earlier run, which a program keeps in a file or brings
    /// with it.
    ///
    /// ```
    /// use anygpu::{Device, KernelList, Tensor};
    ///
    /// # let Some(device) = Device::all().into_iter().find(|device| !device.is_cpu()) else { return Ok(()) };
    /// let x = Tensor::rand([8, 8], &device)?;
    /// x.matmul(&x)?.softmax(-1)?;
    /// let text = device.compiled_kernels().to_string();
    ///
    /// // In the next run:
    /// let list: KernelList = text.parse()?;
    /// let compiling = device.compile_ahead(&list)?;
    /// // … data are loaded, a net is built …
    /// assert_eq!(compiling.wait()?, list.len());
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::DeviceUnavailable`] if the driver refuses; [`Error::InvalidArgument`] if no thread can be started. A kernel that this
    /// device or this version of the crate does not have is no error.
    pub fn compile_ahead(&self, list: &KernelList) -> Result<CompileAhead> {
        let compiled = Arc::new(AtomicUsize::new(0));
        let Backend::Gpu(gpu) = self.backend()? else {
            return Ok(CompileAhead { threads: Vec::new(), compiled, gpu: None });
        };
        let lines: Arc<[String]> = list.0.iter().take(MOST_LISTED).cloned().collect();
        let next = Arc::new(AtomicUsize::new(0));
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let mut threads = Vec::new();
        for i in 0..cores.min(lines.len()) {
            let (gpu, lines, next, compiled) = (gpu.clone(), lines.clone(), next.clone(), compiled.clone());
            let work = move || {
                while let Some(line) = lines.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if gpu.compile_line(line) {
                        compiled.fetch_add(1, Ordering::Release);
                    }
                }
            };
            if !THREADS {
                work();
                break;
            }
            match thread::Builder::new().name(format!("kernels of {}, {i}", self.name())).spawn(work) {
                Ok(thread) => threads.push(thread),
                Err(_) if i > 0 => break, // those that have started do all of it
                Err(error) => return Err(Error::argument(OP, format!("a thread could not be started: {error}"))),
            }
        }
        Ok(CompileAhead { threads, compiled, gpu: Some(gpu.clone()) })
    }
}
