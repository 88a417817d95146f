//! The limits of an adapter, measured with kernels of the crate's public interface.

use anygpu::{DType, Device, Error, Result, Tensor, WgslKernel};

use super::{Probe, best, rates};

/// Invocations in a workgroup of the copy, and of the chains.
const WORKGROUP: usize = 64;

/// Multiply-adds of a chain in one iteration of the loop.
const UNROLLED: usize = 8;

/// Iterations of the loop: few, since some drivers end longer loops too early.
const ITERATIONS: u32 = 512;

/// Invocations with different numbers: drivers could compute equal ones once.
const LANES: usize = 64;

/// Workgroups of a round of multiply-adds. A round is 0.13 to 0.54 GFLOP: 2 to 9 µs at 60 TFLOP/s.
const GROUPS: u32 = 32;

/// The most rounds: workgroups in one dimension.
const MOST_ROUNDS: u32 = 65_535 / GROUPS;

/// The most passes over the buffers in one dispatch. The output starts as zeros, which is a further write.
const MOST_PASSES: u32 = 512;

/// Chains of multiply-adds in registers that do not depend on each other.
pub fn flops(device: &Device) -> Result<Probe> {
    // Many chains need more registers than software adapters have.
    let probes = [2, 4, 8].map(|vectors| flops_of(device, vectors)).into_iter().collect::<Result<Vec<_>>>()?;
    best(probes).ok_or_else(|| wrong(device, "no shape was measured"))
}

fn flops_of(device: &Device, vectors: usize) -> Result<Probe> {
    let kernel = WgslKernel::new(&chains(vectors), "chains")?;
    // x · 1 + 1 counts the multiply-adds. Drivers that know a factor of 1, as of params, leave out the multiplications.
    let factor = Tensor::ones([1], device)?;
    let run = |rounds: u32| {
        let groups = rounds * GROUPS;
        let outputs = [([groups as usize * WORKGROUP], DType::F32)];
        Ok::<_, Error>(kernel.run(&[&factor], &outputs, &[ITERATIONS], [groups, 1, 1])?.remove(0))
    };
    let links = UNROLLED as f64 * f64::from(ITERATIONS);
    let chains = 4 * vectors;
    let work = |rounds: u32| 2.0 * links * chains as f64 * f64::from(rounds * GROUPS) * WORKGROUP as f64;
    let (rates, rounds) = rates(MOST_ROUNDS, work, |rounds| {
        let _sums = run(rounds)?;
        device.synchronize()
    })?;
    let expected = |id: usize| (0..chains).map(|chain| (chain + id % LANES) as f64 + links).sum::<f64>() as f32;
    for (id, sum) in run(rounds)?.to_vec::<f32>()?.into_iter().enumerate() {
        if sum != expected(id) {
            return Err(wrong(device, &format!("the chains of invocation {id} sum to {sum}, not {}", expected(id))));
        }
    }
    Ok(Probe { shape: format!("multiply-adds in {chains} chains"), rates })
}

/// The kernel with this many chains of vectors.
fn chains(vectors: usize) -> String {
    let each = |text: &dyn Fn(usize) -> String, between: &str| (0..vectors).map(text).collect::<Vec<_>>().join(between);
    let start = each(&|i| format!("var x{i} = first + {}.0;", 4 * i), "\n");
    let links = vec![each(&|i| format!("x{i} = fma(x{i}, a, a);"), " "); UNROLLED].join("\n");
    let sum = each(&|i| format!("x{i}"), " + ");
    format!(
        "struct Params {{ iterations: u32 }}
        @group(0) @binding(0) var<uniform> params: Params;
        @group(0) @binding(1) var<storage, read> factor: array<f32>;
        @group(0) @binding(2) var<storage, read_write> sums: array<f32>;
        @compute @workgroup_size({WORKGROUP})
        fn chains(@builtin(global_invocation_id) id: vec3<u32>) {{
            let a = vec4<f32>(factor[0]);
            let first = vec4<f32>(0.0, 1.0, 2.0, 3.0) + f32(id.x % {LANES}u);
            {start}
            for (var i = 0u; i < params.iterations; i++) {{
            {links}
            }}
            let sum = {sum};
            if id.x < arrayLength(&sums) {{ sums[id.x] = sum.x + sum.y + sum.z + sum.w; }}
        }}"
    )
}

/// A copy of a large buffer in vectors of four floats.
pub fn bytes(device: &Device) -> Result<Probe> {
    let mut result = Err(wrong(device, "no buffer was copied"));
    for floats in [32 << 20, 16 << 20, 4 << 20] {
        // An invocation copies one vector on hardware; software adapters are faster with several neighbours.
        result = [1, 8, 16].map(|run| bytes_of(device, floats, run)).into_iter().collect::<Result<Vec<_>>>();
        match &result {
            Err(error) if error.is_out_of_memory() || matches!(error, Error::LimitExceeded { .. }) => continue,
            _ => break,
        }
    }
    best(result?).ok_or_else(|| wrong(device, "no shape was measured"))
}

/// Each invocation copies `run` neighbouring vectors.
fn bytes_of(device: &Device, floats: usize, run: usize) -> Result<Probe> {
    let kernel =
        WgslKernel::new(&COPY.replace("RUN", &format!("{run}u")).replace("SIZE", &WORKGROUP.to_string()), "copy")?;
    let x = Tensor::full([floats], 1.5f32, device)?;
    let groups = (floats / 4).div_ceil(run * WORKGROUP);
    let wide = groups.min(1 << 15);
    let copy = |passes: u32| {
        let grid = [wide as u32, groups.div_ceil(wide) as u32, passes];
        Ok::<_, Error>(kernel.run(&[&x], &[([floats], DType::F32)], &[], grid)?.remove(0))
    };
    let last = copy(1)?.narrow(0, floats - 1, 1)?.to_vec::<f32>()?;
    if last != [1.5] {
        return Err(wrong(device, &format!("the copy of 1.5 is {last:?}")));
    }
    let work = |passes: u32| 4.0 * floats as f64 * (2.0 * f64::from(passes) + 1.0);
    let (rates, _) = rates(MOST_PASSES, work, |passes| {
        let _copy = copy(passes)?;
        device.synchronize()
    })?;
    Ok(Probe { shape: format!("copy of {} MiB", floats >> 18), rates })
}

/// All passes (z) write the same.
const COPY: &str = "
@group(0) @binding(0) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read_write> y: array<vec4<f32>>;
@compute @workgroup_size(SIZE)
fn copy(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let first = (id.y * groups.x * SIZEu + id.x) * RUN;
    for (var i = first; i < min(first + RUN, arrayLength(&y)); i++) { y[i] = x[i]; }
}";

fn wrong(device: &Device, what: &str) -> Error {
    Error::Gpu { device: device.to_string(), message: format!("a probe of its limits failed: {what}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limits_of_each_adapter_are_found() -> Result<()> {
        // Measuring takes long on software adapters: two stand for all.
        for device in Device::all().into_iter().filter(|device| !device.is_cpu()).take(2) {
            let (flops, bytes) = (flops(&device)?, bytes(&device)?);
            assert!(flops.best() > 1e8 && bytes.best() > 1e7, "{device}: {} {}", flops.best(), bytes.best());
        }
        Ok(())
    }
}
