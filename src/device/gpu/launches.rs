//! Tells a tool about every kernel before it runs, with its text, its parameters and its buffers. Without an
//! observer, this costs the load of one word for each kernel. It has types of wgpu, so it exists only with the
//! feature `wgpu`.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, RwLock};

use super::queue::{Dispatch, Recorder};
use super::{Gpu, ParamsAt, Pipeline};
use crate::error::Result;

/// What a tool does with the kernels of all devices of the process, except kernels that only try a variant.
pub trait Observer: Send + Sync {
    /// Returns whether [`launched`](Self::launched) is to be called for this kernel. It is called often. The
    /// kernels before this one have not run yet.
    fn wants(&self, launch: &Launch<'_>) -> bool;

    /// Is called before the kernel is recorded. The kernels before it have been submitted.
    fn launched(&self, launch: &Launch<'_>);

    /// Returns whether to skip the kernel. The buffers that it writes then keep their contents.
    fn skips(&self, launch: &Launch<'_>) -> bool;
}

/// A kernel that is about to run.
#[derive(Debug)]
pub struct Launch<'a> {
    /// The op that it computes; empty if none.
    pub op: &'a str,
    /// The name of its pipeline.
    pub name: &'a str,
    /// What was compiled.
    pub source: &'a KernelSource,
    /// The words of the params.
    pub params: &'a [u32],
    /// Where the kernel reads the params.
    pub params_at: ParamsPlace,
    /// Its storage buffers.
    pub buffers: Vec<BoundBuffer<'a>>,
    /// Workgroups in x, y, z.
    pub groups: [u32; 3],
    /// The device.
    pub device: &'a wgpu::Device,
    /// The queue of the device.
    pub queue: &'a wgpu::Queue,
}

/// What a kernel is compiled from.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct KernelSource {
    /// The complete text in WGSL.
    pub text: String,
    /// The entry point.
    pub entry: String,
    /// The values of overrides.
    pub constants: Vec<(String, f64)>,
}

/// Where a kernel reads its params.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParamsPlace {
    /// There are none.
    Nowhere,
    /// In a uniform block at this binding.
    Uniform(u32),
    /// In immediates.
    Immediates,
}

/// A bound part of a buffer.
#[derive(Clone, Copy, Debug)]
pub struct BoundBuffer<'a> {
    /// The binding, in group 0.
    pub binding: u32,
    /// Whether the kernel may write it.
    pub written: bool,
    /// The buffer of wgpu.
    pub raw: &'a wgpu::Buffer,
    /// The first byte that is bound.
    pub offset: u64,
    /// The bytes that are bound.
    pub bytes: u64,
    /// The number of bound bytes that belong to the tensor.
    pub used: u64,
}

static OBSERVER: RwLock<Option<Arc<dyn Observer>>> = RwLock::new(None);
static OBSERVED: AtomicBool = AtomicBool::new(false);
static AS_HARDWARE: AtomicBool = AtomicBool::new(false);

thread_local! {
    static TRIES: Cell<bool> = const { Cell::new(false) };
}

/// While this lives, the kernels of this thread only try a variant.
#[must_use]
pub(super) struct Trial(bool);

impl Trial {
    pub(super) fn begin() -> Trial {
        Trial(TRIES.replace(true))
    }
}

impl Drop for Trial {
    fn drop(&mut self) {
        TRIES.set(self.0);
    }
}

/// Sets the observer. Set it before a device is opened: it is not told about kernels that were compiled before.
pub fn observe_launches(observer: Arc<dyn Observer>) {
    *OBSERVER.write().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(observer);
    OBSERVED.store(true, Ordering::Release);
}

/// Makes software adapters that are opened from now on run the kernels that hardware would run.
pub fn choose_kernels_as_on_hardware() {
    AS_HARDWARE.store(true, Ordering::Release);
}

/// Returns whether software adapters run the kernels of hardware.
pub(super) fn as_on_hardware() -> bool {
    AS_HARDWARE.load(Ordering::Acquire)
}

/// Returns the part of a compiled kernel's source that is kept.
pub(super) fn kept(text: &str, entry: &str, constants: &[(&str, f64)]) -> Option<Box<KernelSource>> {
    OBSERVED.load(Ordering::Acquire).then(|| {
        let constants = constants.iter().map(|&(name, value)| (name.to_owned(), value)).collect();
        Box::new(KernelSource { text: text.to_owned(), entry: entry.to_owned(), constants })
    })
}

impl Gpu {
    /// Tells the observer about a dispatch that is about to be recorded. Returns whether to skip the dispatch.
    pub(super) fn tell_observer(&self, recorder: &mut Recorder, dispatch: &Dispatch<'_>) -> Result<bool> {
        if !OBSERVED.load(Ordering::Acquire) || TRIES.get() {
            return Ok(false);
        }
        let observer = OBSERVER.read().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
        let (Some(observer), Some(source)) = (observer, dispatch.pipeline.source.as_deref()) else { return Ok(false) };
        let launch = self.launch(dispatch, source);
        if observer.wants(&launch) {
            self.submit_for_wait(recorder);
            observer.launched(&launch);
            self.check()?;
        }
        Ok(observer.skips(&launch))
    }

    fn launch<'a>(&'a self, dispatch: &'a Dispatch<'a>, source: &'a KernelSource) -> Launch<'a> {
        let Pipeline { name, signature, .. } = dispatch.pipeline;
        let buffers = signature.buffers.iter().zip(dispatch.buffers).map(|(&(binding, written), buffer)| {
            let used = buffer.len() as u64 * 4;
            let (offset, bytes) = if signature.exact { (0, used) } else { buffer.bound() };
            BoundBuffer { binding, written, raw: &buffer.page().raw, offset, bytes, used: used.min(bytes) }
        });
        let params_at = match signature.params {
            ParamsAt::Nowhere => ParamsPlace::Nowhere,
            ParamsAt::Uniform(binding, _) => ParamsPlace::Uniform(binding),
            ParamsAt::Immediates(_) => ParamsPlace::Immediates,
        };
        Launch {
            op: &dispatch.op,
            name,
            source,
            params: dispatch.params,
            params_at,
            buffers: buffers.collect(),
            groups: dispatch.groups,
            device: &self.device,
            queue: &self.queue,
        }
    }
}
