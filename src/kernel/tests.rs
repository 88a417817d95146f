//! Tests of kernels as a whole.

use super::*;
use crate::dtype::DType;

const SUM_OF_TWO: &str = "
    struct Params { offset: u32, factor: f32 }
    @group(0) @binding(3) var<storage, read_write> out: array<f32>;
    @group(0) @binding(7) var<storage, read_write> count: array<atomic<u32>>;
    @group(0) @binding(1) var<storage, read> a: array<f32>;
    @group(0) @binding(2) var<storage, read> b: array<i32>;
    @group(0) @binding(5) var<uniform> params: Params;
    @group(0) @binding(1) var<storage, read> unused: array<u32>;
    @compute @workgroup_size(32)
    fn sum(@builtin(global_invocation_id) id: vec3<u32>) {
        if id.x >= arrayLength(&out) { return; }
        out[id.x] = a[id.x] + params.factor * f32(b[id.x + params.offset]);
        atomicAdd(&count[0], arrayLength(&a));
    }
    @compute @workgroup_size(1)
    fn other() { for (var i = 0u; i < unused[0]; i++) { out[i] = 0.0; } }
";

fn adapters() -> impl Iterator<Item = Device> {
    Device::all().into_iter().filter(|device| !device.is_cpu())
}

#[test]
fn bindings_are_reflected_by_entry_point() -> Result<()> {
    let kernel = WgslKernel::new(SUM_OF_TWO, "sum")?;
    let names: Vec<_> = kernel.reflection.bindings.iter().map(|arg| (&*arg.name, arg.binding, arg.written)).collect();
    assert_eq!(names, [("a", 1, false), ("b", 2, false), ("out", 3, true), ("count", 7, true)]);
    assert!(!kernel.reflection.bindings.iter().any(|arg| arg.written && arg.read), "atomics start as zeros");
    assert!(kernel.reflection.params.as_ref().is_some_and(|params| (params.binding, params.words) == (5, 2)));
    assert!(kernel.loops);
    assert_eq!(WgslKernel::new(SUM_OF_TWO, "other")?.reflection.bindings.len(), 2);
    Ok(())
}

#[test]
fn broken_sources_say_where() {
    let compute = "@compute @workgroup_size(1) fn f()";
    let cases = [
        ("fn f( {", "line 1"),
        (&*format!("\n{compute} {{ let x: f32 = 1u; }}"), "line 2"),
        ("fn g() {}", "no such @compute entry point"),
        (
            &format!("@group(1) @binding(0) var<storage, read_write> x: array<f32>;\n{compute} {{ x[0] = 1.0; }}"),
            "@group(1)",
        ),
        (
            &format!("@group(0) @binding(0) var<storage, read_write> x: array<f64>;\n{compute} {{ x[0] = 1.0lf; }}"),
            "'x'",
        ),
        (
            &format!("enable f16;\n@group(0) @binding(0) var<uniform> m: vec2<f16>;\n{compute} {{ let y = m.x; }}"),
            "'m' must be made of",
        ),
    ];
    for (source, expected) in cases {
        let error = WgslKernel::new(source, "f").unwrap_err().to_string();
        assert!(error.starts_with("kernel f: ") && error.contains(expected), "{source}: {error}");
    }
}

#[test]
fn it_runs_on_views_with_exact_lengths() -> Result<()> {
    let kernel = WgslKernel::new(SUM_OF_TWO, "sum")?;
    for device in adapters() {
        let a = Tensor::arange(0.0, 20.0, 1.0, &device)?.narrow(0, 3, 10)?;
        let b = Tensor::from_slice(&(0..20).collect::<Vec<i32>>(), [2, 10], &device)?.t()?;
        let outputs = [([5, 2], DType::F32), ([1, 1], DType::U32)];
        let results = kernel.run(&[&a, &b], &outputs, &[1, 10f32.to_bits()], [1, 1, 1])?;
        assert_eq!(results[0].shape(), [5, 2]);
        // b.t() reads 0, 10, 1, 11, 2, …; the kernel starts at its second element.
        let expected = [103.0, 14.0, 115.0, 26.0, 127.0, 38.0, 139.0, 50.0, 151.0, 62.0f32];
        assert_eq!(results[0].to_vec::<f32>()?, expected, "{device}");
        assert_eq!(results[1].to_vec::<u32>()?, [100], "{device}: ten invocations saw ten elements, from zero");
    }
    Ok(())
}

const SAXPY: &str = "
    @group(0) @binding(0) var<storage, read> x: array<f32>;
    @group(0) @binding(1) var<storage, read_write> y: array<f32>;
    @group(0) @binding(2) var<storage, read_write> z: array<f32>;
    fn add(i: u32) { y[i] = 2.0 * x[i] + y[i]; z[i] = x[i]; }
    @compute @workgroup_size(64)
    fn saxpy(@builtin(global_invocation_id) id: vec3<u32>) { if id.x < arrayLength(&x) { add(id.x); } }
";

#[test]
fn an_output_that_is_read_needs_its_starting_elements() -> Result<()> {
    let kernel = WgslKernel::new(SAXPY, "saxpy")?;
    for device in adapters() {
        let x = Tensor::from_slice(&[1f32, 2.0, 3.0, 4.0], 4, &device)?;
        let pair = |shape: usize| Output::from(([shape], DType::F32));
        let refused = kernel.run(&[&x], &[pair(4), pair(4)], &[], [1, 1, 1]).map(drop).unwrap_err().to_string();
        assert!(refused.contains("'y'") && refused.contains("Output::copy_of"), "{refused}");

        let zeros = kernel.run(&[&x], &[Output::zeros([4], DType::F32), pair(4)], &[], [1, 1, 1])?;
        assert_eq!(zeros[0].to_vec::<f32>()?, [2.0, 4.0, 6.0, 8.0], "{device}");
        // A view: only its elements are copied, and they do not change.
        let y = Tensor::arange(0.0, 8.0, 1.0, &device)?.reshape([4, 2])?.narrow(1, 1, 1)?;
        let sums = kernel.run(&[&x], &[Output::copy_of(&y), pair(4)], &[], [1, 1, 1])?;
        assert_eq!(sums[0].to_vec::<f32>()?, [3.0, 7.0, 11.0, 15.0], "{device}");
        assert_eq!((sums[0].shape(), sums[1].to_vec::<f32>()?), (&[4, 1][..], x.to_vec()?), "{device}");
        assert_eq!(y.to_vec::<f32>()?, [1.0, 3.0, 5.0, 7.0], "{device}");
        let elsewhere = y.to(Device::cpu())?;
        let elsewhere = kernel.run(&[&x], &[Output::copy_of(&elsewhere), pair(4)], &[], [1, 1, 1]);
        assert!(matches!(elsewhere.map(drop), Err(Error::DeviceMismatch { .. })), "{device}");
    }
    Ok(())
}

#[test]
fn arguments_that_do_not_fit_are_named() -> Result<()> {
    let kernel = WgslKernel::new(SUM_OF_TWO, "sum")?;
    let outputs = [([10], DType::F32), ([1], DType::U32)];
    for device in adapters().chain([Device::cpu()]) {
        let (a, b) = (Tensor::zeros([10], &device)?, Tensor::from_slice(&[0i32; 11], [11], &device)?);
        let fails = |inputs: &[&Tensor], outputs: &[([usize; 1], DType)], params: &[u32], expected: &str| {
            let error = kernel.run(inputs, outputs, params, [1, 1, 1]).map(|_| ()).unwrap_err().to_string();
            assert!(error.contains(expected), "{device}: {error}");
        };
        fails(&[&a], &outputs, &[0, 0], "input bindings [a, b], 1 inputs were given");
        fails(&[&a, &a], &outputs, &[0, 0], "input 'b' is of i32, got a tensor of f32");
        fails(&[&a, &b], &outputs[..1], &[0, 0], "output bindings [out, count], 1 outputs");
        fails(&[&a, &b], &outputs, &[0], "uniform has 2 words, 1 params");
        fails(&[&a, &b], &[([0], DType::F32), ([1], DType::U32)], &[0, 0], "output 'out' got an empty tensor");
        fails(&[], &outputs, &[0, 0], "run_on");
        let huge = kernel.run(&[&a, &b], &[([usize::MAX, 3], DType::F32)], &[0, 0], [1, 1, 1]);
        assert!(matches!(huge.map(|_| ()), Err(Error::InvalidArgument { .. })), "{device}");
        if device.is_cpu() {
            fails(&[&a, &b], &outputs, &[0, 0], "WGSL needs an adapter");
        } else {
            fails(&[&a, &b.to(Device::cpu())?], &outputs, &[0, 0], "same device");
        }
    }
    Ok(())
}
