//! Looks for known faults of a driver when the device is opened, with one kernel for each fault, and for an old compiler.

use super::{Gpu, Kernel, params, shader};
use crate::error::Result;

params! {
    struct Params { tries: [u32; 4] }
}
shader!(SHADER: Params = "probe");

/// Returns the number of iterations after which the driver leaves a loop without an error, if it does so in one loop of
/// 70 000 iterations or in two nested loops of 300 × 300: the larger number, since a driver may also count the iteration in which
/// a loop ends.
pub(super) fn loop_budget(gpu: &Gpu) -> Result<Option<u32>> {
    let tries = [(1, 70_000), (300, 300)];
    let counts = gpu.alloc(tries.len())?;
    let [(outer, inner), (more_outer, more_inner)] = tries;
    let params = Params { tries: [outer, inner, more_outer, more_inner] };
    gpu.run(Kernel::build(SHADER, "count_iterations", params).output(&counts).workgroups(tries.len()))?;
    let counts = gpu.download(&counts, 0, tries.len())?;
    let cut_short = counts.iter().zip(tries).filter(|&(&count, (outer, inner))| count < outer * inner);
    Ok(cut_short.map(|(&count, _)| count).max())
}

/// Returns whether the driver replaces subnormal numbers by 0: a product, a difference, or an operand.
pub(super) fn flushes_subnormals(gpu: &Gpu) -> Result<bool> {
    let (least, subnormal) = (f32::MIN_POSITIVE, f32::MIN_POSITIVE / 2.0);
    let numbers = [least, 0.5, subnormal, 1.5 * least];
    let expected = [least * 0.5, 1.5 * least - least, subnormal * 2.0];
    let results = gpu.alloc(expected.len())?;
    let params = Params { tries: numbers.map(f32::to_bits) };
    gpu.run(Kernel::build(SHADER, "make_subnormals", params).output(&results).workgroups(1))?;
    Ok(gpu.download(&results, 0, expected.len())? != expected.map(f32::to_bits))
}

/// Returns whether wgpu compiles for DirectX 12 with FXC, having found no other compiler. wgpu does not report it,
/// but keeps the library of the other compiler loaded.
pub(super) fn compiles_with_fxc() -> bool {
    #[cfg(windows)]
    {
        use windows::Win32::System::LibraryLoader::GetModuleHandleW;
        // As in wgpu-hal's build script.
        let linked = cfg!(all(feature = "static-dxc", target_env = "msvc", not(target_arch = "aarch64")));
        // SAFETY: the call reads the name, which ends with 0, and returns a handle that is not used.
        #[expect(unsafe_code, reason = "a plain query of the system")]
        let loaded = unsafe { GetModuleHandleW(windows::core::w!("dxcompiler.dll")) }.is_ok();
        !linked && !loaded
    }
    #[cfg(not(windows))]
    false
}
