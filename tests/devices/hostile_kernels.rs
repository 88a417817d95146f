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

/// Drivers take minutes for large variables of invocations, or end the process.
#[test]
fn variables_that_are_too_large_are_errors() -> Result<()> {
    let head = "@group(0) @binding(0) var<storage, read_write> out: array<u32>;\n";
    let kernel = |body: &str| WgslKernel::new(&format!("{head}{body}"), "f");
    let entry = "@compute @workgroup_size(1) fn f()";
    let local = |count: usize| format!("{entry} {{ var a: array<u32, {count}>; a[out[0]] = 1u; out[1] = a[out[2]]; }}");
    let private = |counts: &[usize]| {
        let names = (0..).zip(counts).map(|(i, count)| format!("var<private> t{i}: array<u32, {count}>;\n"));
        let uses = (0..counts.len()).map(|i| format!("t{i}[out[0]] = 1u; out[1] += t{i}[out[2]];"));
        format!("{}{entry} {{ {} }}", names.collect::<String>(), uses.collect::<String>())
    };
    let helper = "fn g(i: u32) -> u32 { var a: array<u32, 2000>; a[i] = i; return a[i / 2u]; }\n";
    let calls = |count: usize| format!("{helper}{entry} {{ out[0] = {}; }}", vec!["g(out[1])"; count].join(" + "));
    let value = |count: usize| format!("{entry} {{ let a = array<u32, {count}>(); out[0] = a[out[1]]; }}");
    let cases = [
        (local(300_000_000), "'f' have"),
        (local(10_000), "'f' have 40000 bytes, and the limit is 8192: put large arrays into a storage buffer"),
        (local(10_000).replace("fn f()", "fn other()") + entry + "{}", "'other' have"),
        (format!("fn g() {{ var a: array<u32, 9000>; out[0] = a[out[1]]; }}\n{entry} {{ g(); }}"), "'g' have"),
        (private(&[300_000_000]), "'t0' in private memory"),
        (private(&[10_000]), "'t0' in private memory"),
        (private(&[1500, 1500]), "in private memory have 12000 bytes"),
        (calls(30), "with all calls expanded"),
        (value(300_000_000), "a value of 'f'"),
        (value(20_000), "a value of 'f'"),
        (local(1 << 31), ""),
    ];
    for (source, expected) in cases {
        let error = kernel(&source).map(drop).unwrap_err().to_string();
        assert!(error.starts_with("kernel f: ") && error.contains(expected), "{expected}: {error:.300}");
    }
    // One that the entry point does not use is no matter.
    kernel(&(private(&[1500]) + "\nvar<private> unused: array<u32, 1500>;"))?;

    // At the limits, some drivers compile for minutes; arrays of a usual size run.
    let within = |count: usize| {
        kernel(&format!(
            "var<private> t: array<u32, {count}>;
            fn filled(x: u32) -> u32 {{
                var a: array<u32, {count}>;
                for (var i = 0u; i < {count}u; i++) {{ a[i] = x + i; }}
                return a[(x * 7u) % {count}u];
            }}
            {entry} {{
                for (var i = 0u; i < {count}u; i++) {{ t[i] = i * 3u; }}
                out[0] = filled(out[1]) + t[out[1]];
            }}"
        ))
    };
    within(2000)?;
    let small = within(32)?;
    for device in adapters() {
        let start = Tensor::from_slice(&[0u32, 30], [2], &device)?;
        let out = small.run_on(&device, &[], &[anygpu::kernel::Output::copy_of(&start)], &[], [1, 1, 1])?;
        assert_eq!(out[0].to_vec::<u32>()?, [30 + 18 + 90, 30], "{device}");
    }
    Ok(())
}

/// Directives are those of WGSL: a kernel runs where the adapter can, and otherwise the error says what it lacks.
#[test]
fn sources_may_enable_what_adapters_have() -> Result<()> {
    let sums = "enable subgroups;
        @group(0) @binding(0) var<storage, read_write> out: array<u32>;
        @compute @workgroup_size(32)
        fn f(@builtin(local_invocation_index) i: u32, @builtin(subgroup_size) size: u32) {
            let sum = subgroupAdd(1u);
            if i == 0u { out[0] = sum; out[1] = size; }
        }";
    let halves = "enable f16;
        @group(0) @binding(0) var<storage, read_write> out: array<u32>;
        @compute @workgroup_size(1) fn f() { out[0] = u32(f16(out[1]) * 2.0h); }";
    let joined = sums.replace("enable subgroups;", "enable f16, subgroups;").replace("= sum;", "= u32(f16(sum));");
    let undeclared = sums.replace("enable subgroups;", "");
    let wrong = WgslKernel::new(&sums.replace("out[0] = sum", "out[0] = 1.5f"), "f").map(drop).unwrap_err().to_string();
    assert!(wrong.contains("line 6"), "{wrong}");
    assert_eq!(WgslKernel::entry_points(sums)?, ["f"]);
    for device in adapters() {
        let has = |feature: &str| device.info().features.iter().any(|name| name == feature);
        let run = |source: &str| -> Result<Vec<u32>> {
            let start = Tensor::from_slice(&[0u32, 21], [2], &device)?;
            let kernel = WgslKernel::new(source, "f")?;
            let out = kernel.run_on(&device, &[], &[anygpu::kernel::Output::copy_of(&start)], &[], [1, 1, 1])?;
            out[0].to_vec()
        };
        let subgroups = |result: Result<Vec<u32>>, needed: &[&str]| match result {
            Ok(out) => assert!(needed.iter().all(|name| has(name)) && out[0] == out[1].min(32), "{device}: {out:?}"),
            Err(error) => {
                let error = error.to_string();
                assert!(!needed.iter().all(|name| has(name)), "{device}: {error}");
                assert!(error.contains(&device.info().adapter) && error.contains(device.name()), "{error}");
            }
        };
        subgroups(run(sums), &["subgroups"]);
        subgroups(run(&undeclared), &["subgroups"]);
        subgroups(run(&joined), &["subgroups", "f16"]);
        match run(halves) {
            Ok(out) => assert!(has("f16") && out == [42, 21], "{device}: {out:?}"),
            Err(error) => {
                assert!(!has("f16") && error.to_string().contains(&device.info().adapter), "{device}: {error}")
            }
        }
    }
    Ok(())
}
