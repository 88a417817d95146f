//! Looks for known faults of a driver, with a kernel each, when the device is opened.

use super::{Gpu, Kernel, Shader};
use crate::error::Result;

pub(crate) const SHADER: Shader = Shader { name: "probe", source: include_str!("../../../shaders/probe.wgsl") };

/// The iterations after which the driver silently leaves a loop, if it does so within the some ten thousand that are tried: first
/// 70 000 in one loop, then 300 × 300 in two nested ones.
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

/// Whether the driver makes 0 of subnormal numbers: of a product, of a difference, or of an operand.
pub(super) fn flushes_subnormals(gpu: &Gpu) -> Result<bool> {
    let (least, subnormal) = (f32::MIN_POSITIVE, f32::MIN_POSITIVE / 2.0);
    let numbers = [least, 0.5, subnormal, 1.5 * least];
    let expected = [least * 0.5, 1.5 * least - least, subnormal * 2.0];
    let results = gpu.alloc(expected.len())?;
    gpu.run(Kernel {
        shader: SHADER,
        entry: "make_subnormals",
        header: "",
        constants: Vec::new(),
        params: numbers.iter().map(|number| number.to_bits()).collect(),
        inputs: Vec::new(),
        outputs: vec![results.clone()],
        groups: [1, 1, 1],
    })?;
    Ok(gpu.download(&results, 0, expected.len())? != expected.map(f32::to_bits))
}
