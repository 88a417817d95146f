//! Runs workloads, and collects the figures of their kernels.

use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use anygpu::Device;
use anygpu::interop::launches::{Launch, Observer};

use crate::bench::{self, Workload};
use crate::memory::{Figures, figures};
use crate::trace::Machine;

/// A kernel with certain params and grid.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// The name of its pipeline.
    pub name: String,
    /// The op that it computes.
    pub op: String,
    /// The values of overrides.
    pub constants: Vec<(String, f64)>,
    /// Workgroups in x, y and z.
    pub groups: [u32; 3],
    /// A number for all that it does, except the contents of its buffers.
    pub identity: u64,
    /// Launches in one run of each workload.
    pub launches: BTreeMap<String, u64>,
    /// What it does, or why that is not known.
    pub figures: Result<Figures, String>,
}

/// Notes the kernels that run while it is told to, and traces each of them if it `traces`.
#[derive(Default)]
struct Collector {
    traces: bool,
    watching: AtomicBool,
    machine: Machine,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    workload: String,
    kernels: Vec<Kernel>,
    /// Copies that were compiled, by workload and kernel.
    copies: HashMap<(String, String), usize>,
    /// The places in `kernels` by what they were made of.
    known: HashMap<u64, usize>,
}

impl Collector {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a kernel at its first launch.
    fn note(&self, launch: &Launch<'_>, figures: Result<Figures, String>) {
        let mut state = self.state();
        let (at, identity) = (state.kernels.len(), identity(launch));
        state.known.insert(identity, at);
        let launches = [(state.workload.clone(), 1)].into();
        state.kernels.push(Kernel {
            name: launch.name.to_owned(),
            op: launch.op.to_owned(),
            constants: launch.source.constants.clone(),
            groups: launch.groups,
            identity,
            launches,
            figures,
        });
    }
}

/// Returns a number for all that a kernel does, except the contents of its buffers.
fn identity(launch: &Launch<'_>) -> u64 {
    let mut hasher = DefaultHasher::new();
    (&launch.source.text, &launch.source.entry, launch.groups, launch.params).hash(&mut hasher);
    launch.source.constants.iter().for_each(|(name, value)| (name, value.to_bits()).hash(&mut hasher));
    launch.buffers.iter().for_each(|buffer| (buffer.binding, buffer.written, buffer.used).hash(&mut hasher));
    hasher.finish()
}

impl Observer for Collector {
    fn wants(&self, launch: &Launch<'_>) -> bool {
        if !self.watching.load(Ordering::Relaxed) {
            return false;
        }
        let mut state = self.state();
        let State { workload, kernels, known, .. } = &mut *state;
        match known.get(&identity(launch)).and_then(|at| kernels.get_mut(*at)) {
            Some(kernel) => {
                *kernel.launches.entry(workload.clone()).or_default() += 1;
                false
            }
            None if self.traces => true,
            None => {
                drop(state);
                self.note(launch, Err("it was not to be traced".to_owned()));
                false
            }
        }
    }

    fn skips(&self, launch: &Launch<'_>) -> bool {
        launch.groups.iter().product::<u32>() >= FEW && !RUN.iter().any(|name| launch.name.starts_with(name))
    }

    fn launched(&self, launch: &Launch<'_>) {
        let further = !self.machine.has(launch) && {
            let mut state = self.state();
            let key = (state.workload.clone(), launch.name.to_owned());
            let copies = state.copies.entry(key).or_default();
            *copies += 1;
            *copies > SPECIALISATIONS
        };
        let trace = if further { Err(FURTHER.to_owned()) } else { self.machine.trace(launch) };
        let figures = trace.map(|trace| figures(&trace));
        self.note(launch, figures);
    }
}

/// The specialisations of a kernel that are looked at in a workload: each takes the adapter's compiler seconds, and the layers of a net
/// differ little.
const SPECIALISATIONS: usize = 4;

/// What is said of the others.
const FURTHER: &str =
    "further specialisations of a net's layers are not looked at; their times are taken to be as those of the others";

/// The kernels from whose results others read indices. They run, as they must write valid indices. They are pools
/// and sorts, and kernels with few workgroups. The others are only looked at, which is many times faster: what they
/// write does not change what others access.
const RUN: [&str; 4] = ["pool.", "sort.", "index", "cast."];

/// Kernels with fewer workgroups run.
const FEW: u32 = 16;

/// The runs of a workload before the one that is looked at: in the first, variants are tried and chains of elementwise kernels are
/// noticed, which run as one from the second or third on.
const BEFORE: usize = 2;

/// Returns the kernels of workloads, in the order of their first launches, with their figures if it is to trace them. No device was
/// opened before.
///
/// # Errors
///
/// The errors of the device and of the workloads.
pub fn kernels(device: &str, workloads: &[Workload], traces: bool) -> anygpu::Result<Vec<Kernel>> {
    let collector = Arc::new(Collector { traces, ..Collector::default() });
    anygpu::interop::launches::observe_launches(collector.clone());
    let device = Device::new(device)?;
    for case in workloads.iter().flat_map(|workload| bench::cases(*workload)) {
        let began = Instant::now();
        anygpu::manual_seed(0);
        let mut run = (case.prepare)(&device)?;
        for _ in 0..BEFORE {
            run()?;
        }
        device.synchronize()?;
        let ready = began.elapsed();
        collector.state().workload = format!("{} {}", case.workload, case.shape);
        collector.watching.store(true, Ordering::Relaxed);
        let result = run().and_then(|()| device.synchronize());
        collector.watching.store(false, Ordering::Relaxed);
        result?;
        let (before, all) = (ready.as_secs_f64(), began.elapsed().as_secs_f64());
        eprintln!("{} {}: {before:.1} s to run it, {:.1} s to look at it", case.workload, case.shape, all - before);
    }
    let mut state = collector.state();
    Ok(std::mem::take(&mut state.kernels))
}
