//! Looks for known faults of a driver, with a kernel each, when the device is opened.

use super::{Gpu, Kernel, params, shader};
use crate::error::Result;

params! {
    struct Params { tries: [u32; 4] }
}
shader!(SHADER: Params = "probe");

/// The number of iterations after which the driver leaves a loop without an error, if it does so in one loop of 70 000
/// iterations or in two nested loops of 300 × 300.
pub(super) fn loop_budget(gpu: &Gpu) -> Result<Option<u32>> {
    let tries = [(1, 70_000), (300, 300)];
    let counts = gpu.alloc(tries.len())?;
    let [(outer, inner), (more_outer, more_inner)] = tries;
    let params = Params { tries: [outer, inner, more_outer, more_inner] };
    gpu.run(Kernel::build(SHADER, "count_iterations", params).output(&counts).workgroups(tries.len()))?;
    let counts = gpu.download(&counts, 0, tries.len())?;
    let cut_short = counts.iter().zip(tries).filter(|&(&count, (outer, inner))| count < outer * inner);
    Ok(cut_short.map(|(&count, _)| count).min())
}
