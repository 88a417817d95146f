//! Users' kernels that are wrong on purpose: each is an error or harmless, and none ends the process.

use anygpu::kernel::WgslKernel;
use anygpu::testing::adapters;
use anygpu::{DType, Error, Result, Tensor};

/// Indices far outside of arrays that are not bound: they read an element of the array, and write within it or nothing.
#[test]
fn indices_stay_within_their_arrays() -> Result<()> {
    let source = "
        @group(0) @binding(0) var<storage, read> at: array<u32>;
        @group(0) @binding(1) var<storage, read_write> out: array<f32>;
        var<workgroup> before: array<f32, 4>;
        var<workgroup> t: array<f32, 4>;
        var<workgroup> after: array<f32, 4>;
        var<private> own: array<f32, 4>;
        @compute @workgroup_size(1)
        fn f() {
            for (var i = 0u; i < 4u; i++) { before[i] = -1.0; t[i] = 2.0; after[i] = -3.0; own[i] = 4.0; }
            var local = array<f32, 4>(5.0, 5.0, 5.0, 5.0);
            let v = vec4<f32>(6.0);
            t[at[0]] = 2.0;
            t[i32(at[1])] = 2.0;
            own[at[2]] = 4.0;
            out[0] = t[at[3]]; out[1] = t[at[4]]; out[2] = own[at[3]]; out[3] = local[at[3]]; out[4] = v[at[3]];
            out[5] = before[0] + before[3] + after[0] + after[3];
            out[at[0]] = 7.0;
        }";
    let kernel = WgslKernel::new(source, "f")?;
    for device in adapters() {
        let at = Tensor::from_slice(&[1 << 20, u32::MAX, 1 << 30, 5, 1 << 24], [5], &device)?;
        let out = kernel.run(&[&at], &[([6], DType::F32)], &[], [1, 1, 1])?[0].to_vec::<f32>()?;
        // WebGPU allows any element of the array, and 0 for a bound one.
        let allowed = [[2.0, 0.0], [2.0, 0.0], [4.0, 0.0], [5.0, 0.0], [6.0, 0.0], [-8.0, 7.0]];
        for (i, (value, allowed)) in out.iter().zip(allowed).enumerate() {
            assert!(allowed.contains(value) || *value == 7.0, "{device}: out[{i}] = {value}, not one of {allowed:?}");
        }
    }
    Ok(())
}

#[test]
fn sources_that_are_too_large_are_errors() -> Result<()> {
    let with = |body: &str| {
        let head = "@group(0) @binding(0) var<storage, read_write> out: array<u32>;";
        WgslKernel::new(&format!("{head}\n{body}"), "f")
    };
    let entry = |value: &str| with(&format!("@compute @workgroup_size(1) fn f() {{ out[0] = {value}; }}"));
    let refused = |kernel: Result<WgslKernel>, expected: &str| {
        let error = kernel.map(drop).unwrap_err().to_string();
        assert!(error.starts_with("kernel f: ") && error.contains(expected), "{expected}: {error:.300}");
    };
    refused(entry(&["out[1]"; 20_000].join("+")), "levels");
    refused(entry(&format!("{}1", " ".repeat(1 << 20))), "bytes");
    refused(entry(&format!("{}out[1]{}", "(".repeat(50_000), ")".repeat(50_000))), "");
    refused(entry(&format!("{}out[1]", "-".repeat(100_000))), "");
    let doubling = |i: usize| format!("fn f{i}(x: u32) -> u32 {{ return f{0}(f{0}(x)); }}\n", i - 1);
    let levels: String = (1..40).map(doubling).collect();
    let calls = "@compute @workgroup_size(1) fn f() { out[0] = f39(1u); }";
    refused(with(&format!("fn f0(x: u32) -> u32 {{ return x + 1u; }}\n{levels}{calls}")), "calls expanded");

    let constant = entry(&["1"; 20_000].join("+"))?;
    let memory =
        with("var<workgroup> t: array<u32, 1000000>;\n@compute @workgroup_size(1) fn f() { out[0] = t[out[1]]; }");
    let memory = memory?;
    for device in adapters() {
        let start = Tensor::from_slice(&[0u32, 0], [2], &device)?;
        let one = [anygpu::kernel::Output::copy_of(&start)];
        let out = constant.run_on(&device, &[], &one, &[], [1, 1, 1])?;
        assert_eq!(out[0].to_vec::<u32>()?, [20_000, 0], "{device}");
        let error = memory.run_on(&device, &[], &one, &[], [1, 1, 1]).map(drop).unwrap_err();
        let storage = "max_compute_workgroup_storage_size";
        assert!(matches!(error, Error::LimitExceeded { limit, .. } if limit == storage), "{device}: {error}");
    }
    Ok(())
}
