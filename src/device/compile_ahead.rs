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

/// A list of the kernels that a program has used on a device.
///
/// [`Device::compiled_kernels`] returns it, and [`Device::compile_ahead`] takes it.
///
/// [`to_string`](ToString::to_string) writes it as text and [`parse`](str::parse) reads it, one kernel a line. A
/// list can be used on other adapters and with other versions of this crate. Kernels that do not exist there are
/// skipped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelList(Vec<String>);

impl KernelList {
    /// Returns the number of kernels.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Adds the kernels of another list that this one does not have yet, such as those used on another device.
    pub fn merge(&mut self, other: &KernelList) {
        let known: HashSet<&String> = self.0.iter().collect();
        let new: Vec<String> = other.0.iter().filter(|line| !known.contains(line)).cloned().collect();
        self.0.extend(new);
    }

    /// Returns whether the list is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Parses a list for a device that binds at most `most` buffers, and returns how many kernels it would compile. The
/// fuzz target `kernel_list` calls it.
#[doc(hidden)]
#[must_use]
pub fn kernels_to_compile(text: &str, most: usize) -> usize {
    text.parse().map_or(0, |list: KernelList| list.0.iter().map(|line| fuzz_line(line, most)).map(usize::from).sum())
}

/// Parses a file of tuned variants, and returns how many there are. The fuzz target `tuned` calls it.
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
    /// [`Error::InvalidArgument`] if the text does not begin with the title line of a list.
    fn from_str(text: &str) -> Result<KernelList> {
        let mut lines = text.lines();
        if lines.next().is_none_or(|line| line.trim_end() != TITLE) {
            return Err(Error::argument(OP, format!("the text does not begin with the line {TITLE:?}")));
        }
        let kernels = lines.map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        Ok(KernelList(kernels.map(str::to_owned).collect()))
    }
}

/// Kernels that are being compiled, as [`Device::compile_ahead`] returns them.
///
/// Dropping this does not stop the compilation.
#[must_use = "wait() says when the kernels are compiled"]
pub struct CompileAhead {
    threads: Vec<JoinHandle<()>>,
    compiled: Arc<AtomicUsize>,
    /// `None` for the host.
    gpu: Option<Arc<Gpu>>,
}

impl CompileAhead {
    /// Waits until all kernels are compiled. Returns how many kernels of the list the device has now.
    ///
    /// # Errors
    /// Same as [`Device::synchronize`].
    pub fn wait(self) -> Result<usize> {
        let compiled = waiting::wait_for(self.wait_async());
        compiled.map_err(|error| error.instead("CompileAhead::wait", "CompileAhead::wait_async"))
    }

    /// Asynchronous form of [`CompileAhead::wait`]. In a browser, the driver compiles the kernels of
    /// [`Device::compile_ahead`] while the page goes on.
    ///
    /// # Errors
    /// Same as [`Device::synchronize`].
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
    /// Returns the kernels of this crate that the device has compiled and still keeps.
    ///
    /// The list has at most 512 kernels, in the order of their compilation. It is empty for `cpu`, and for a device
    /// that is not open.
    ///
    /// It does not contain a program's own kernels, nor the kernels that the crate generates at run time for chains of
    /// elementwise ops.
    #[must_use]
    pub fn compiled_kernels(&self) -> KernelList {
        match &self.0.backend {
            super::BackendHandle::Cpu(_) => KernelList::default(),
            super::BackendHandle::Gpu { opened, .. } => {
                KernelList(opened.get().map(|gpu| gpu.kernel_lines()).unwrap_or_default())
            }
        }
    }

    /// Starts to compile the kernels of a list before their first use.
    ///
    /// Returns at once: as many threads as there are cores compile the kernels. Opens the device. An op whose kernel is
    /// being compiled waits for it. All other ops go on.
    ///
    /// Without this call, each kernel is compiled by the op that needs it first, one after the other. If the driver
    /// compiles slowly, this takes most of the time of a first training step. The list comes from an earlier run:
    /// keep it in a file, or ship it with the program.
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
    /// [`Error::DeviceUnavailable`] if the driver refuses; [`Error::InvalidArgument`] if no thread can be started.
    /// Kernels that this device or this version of the crate does not have are skipped without an error.
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
