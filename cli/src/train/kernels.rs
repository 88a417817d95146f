//! `--kernels`: the kernels of an earlier run, compiled ahead of the first step.

use std::fmt::Display;
use std::path::{Path, PathBuf};

use anygpu::checkpoint::write_atomically;
use anygpu::{CompileAhead, Device, KernelList};

use super::Args;
use crate::failure::Failure;

/// The longest list that is read: a device keeps 512 kernels, of some hundred bytes each.
const MOST_BYTES: u64 = 16 << 20;

/// The list of a run, and the kernels of it that are being compiled.
pub struct Ahead {
    path: Option<PathBuf>,
    list: KernelList,
    compiling: Vec<CompileAhead>,
}

/// Starts to compile the list of `--kernels` on each device. Without the option, or the file, nothing is compiled.
///
/// # Errors
/// [`Failure::Run`] for a file that is not a list, or that cannot be read.
pub fn compile_ahead(args: &Args, devices: &[Device]) -> Result<Ahead, Failure> {
    let path = args.kernels.clone();
    let list = match path.as_deref().filter(|path| path.exists()) {
        Some(path) => {
            let text = anygpu::read_text(path, MOST_BYTES).map_err(|error| failed(path, error))?;
            text.parse().map_err(|error| failed(path, error))?
        }
        None => KernelList::default(),
    };
    let compiling = match list.is_empty() {
        true => Vec::new(),
        false => devices.iter().map(|device| device.compile_ahead(&list)).collect::<anygpu::Result<_>>()?,
    };
    Ok(Ahead { path, list, compiling })
}

fn failed(path: &Path, error: impl Display) -> Failure {
    Failure::Run(format!("--kernels {}: {error}", path.display()))
}

impl Ahead {
    /// Writes the list together with the other kernels that the run has used, if `--kernels` names a file.
    ///
    /// # Errors
    /// [`Failure::Run`] if it cannot be written.
    pub fn save(self, devices: &[Device]) -> Result<(), Failure> {
        let Some(path) = self.path else { return Ok(()) };
        for compiling in self.compiling {
            // The run has ended without the device, or has opened it again.
            if let Err(error) = compiling.wait() {
                log::warn!("--kernels: {error}");
            }
        }
        let mut list = KernelList::default();
        devices.iter().for_each(|device| list.merge(&device.compiled_kernels()));
        log::info!("--kernels: {} kernels, {} of them known before", list.len(), self.list.len());
        write_atomically(&path, |file| file.write_all(list.to_string().as_bytes()))
            .map_err(|error| failed(&path, error))
    }
}
