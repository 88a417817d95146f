//! Looks for known faults of a driver, with a kernel each, when the device is opened.

use super::{Gpu, Kernel, Shader};
use crate::error::Result;

pub(crate) const SHADER: Shader = Shader { name: "probe", source: include_str!("../../../shaders/probe.wgsl") };

/// The number of iterations after which the driver leaves a loop without an error, if it does so in one loop of 70 000
/// iterations or in two nested loops of 300 × 300.
pub(super) fn loop_budget(gpu: &Gpu) -> Result<Option<u32>> {
    let tries = [(1, 70_000), (300, 300)];
    let counts = gpu.alloc(tries.len())?;
    gpu.run(Kernel {
        shader: SHADER,
        entry: "count_iterations",
        header: "",
        constants: Vec::new(),
        params: tries.iter().flat_map(|&(outer, inner)| [outer, inner]).collect(),
        inputs: Vec::new(),
        outputs: vec![counts.clone()],
        groups: [tries.len() as u32, 1, 1],
    })?;
    let counts = gpu.download(&counts, 0, tries.len())?;
    let cut_short = counts.iter().zip(tries).filter(|&(&count, (outer, inner))| count < outer * inner);
    Ok(cut_short.map(|(&count, _)| count).min())
}
