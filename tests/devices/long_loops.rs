//! Kernels of users with more iterations of loops than a driver runs: an error of the launch, on such drivers only.

use anygpu::device::Quirk;
use anygpu::kernel::{Launch, Output, WgslKernel};
use anygpu::testing::adapters;
use anygpu::{DType, Device, Error, Result, Tensor};

/// Every kernel counts its iterations in y[0].
const SOURCE: &str = "
    struct Params { n: u32, m: u32 }
    override N = 70000u;
    @group(0) @binding(0) var<uniform> p: Params;
    @group(0) @binding(1) var<storage, read> x: array<u32>;
    @group(0) @binding(2) var<storage, read_write> y: array<u32>;

    @compute @workgroup_size(1)
    fn nested() {
        for (var i = 0u; i < p.n; i++) {
            for (var j = 0u; j < p.m; j++) { y[0]++; }
        }
    }
    @compute @workgroup_size(1)
    fn constant() {
        y[1] = p.n;
        for (var i = 0u; i < N; i++) { y[0]++; }
    }
    @compute @workgroup_size(1)
    fn unrolled() {
        for (var i = 0u; i < p.n; i++) {
            for (var j = 0u; j < 3u; j++) { y[0]++; }
        }
    }
    @compute @workgroup_size(1)
    fn elements() {
        y[1] = p.n;
        for (var i = 0u; i < arrayLength(&x); i++) { y[0] += x[i]; }
    }
    @compute @workgroup_size(1)
    fn data() {
        y[1] = p.n;
        for (var i = 0u; i < x[0]; i++) { y[0]++; }
    }
";

fn budget(device: &Device) -> Result<Option<u32>> {
    Ok(device.quirks()?.iter().find_map(|quirk| match quirk {
        Quirk::LoopBudget { iterations } => Some(*iterations),
        _ => None,
    }))
}

/// Runs an entry point on n, m, and so many ones as x.
fn count(device: &Device, entry: &str, [n, m]: [u32; 2], len: usize, allowed: bool) -> Result<u32> {
    let kernel = WgslKernel::new(SOURCE, entry)?;
    let x = Tensor::ones([len], device)?.to_dtype(DType::U32)?;
    let mut launch: Launch = kernel.on(device).params(&[n, m]).output("y", Output::zeros([2], DType::U32));
    if kernel.inputs() == ["x"] {
        launch = launch.input("x", &x);
    }
    let launch = if allowed { launch.allow_long_loops() } else { launch };
    Ok(launch.dispatch(1)?[0].to_vec::<u32>()?[0])
}

/// What the driver would cut short is refused, and the results of all that runs are right.
#[test]
fn more_iterations_than_the_driver_runs_are_an_error() -> Result<()> {
    for device in adapters() {
        let budget = budget(&device)?;
        let checked = |entry: &str, sizes: [u32; 2], len: usize, expected: u32, iterations: u32, line: u32| match (
            count(&device, entry, sizes, len, false),
            budget,
        ) {
            (Ok(counted), budget) => {
                assert_eq!(counted, expected, "{device}: {entry} {sizes:?} {len}");
                assert!(budget.is_none_or(|budget| iterations <= budget), "{device}: {entry} {sizes:?} {len} ran");
            }
            (Err(error @ Error::Kernel { .. }), Some(budget)) if iterations > budget => {
                let (text, at) = (error.to_string(), format!("kernel {entry}: line {line}: "));
                assert!(text.starts_with(&at) && text.contains("allow_long_loops()"), "{text}");
                assert!(text.contains(&device.to_string()) && text.contains(&budget.to_string()), "{text}");
            }
            (Err(error), _) => panic!("{device}: {entry} {sizes:?} {len}: {error}"),
        };
        for (n, m) in [(1, 65_000), (300, 200), (217, 300), (217, 301), (300, 300), (30_000, 1), (20_000, 1)] {
            checked("nested", [n, m], 1, n * m, n * (m + 2) + 1, 10);
        }
        checked("constant", [0, 0], 1, 70_000, 70_001, 17);
        checked("unrolled", [60_000, 0], 1, 180_000, 60_001, 21);
        checked("elements", [0, 0], 60_000, 60_000, 60_001, 28);
        checked("elements", [0, 0], 90_000, 90_000, 90_001, 28);
        // The same through the call without names.
        if budget.is_some() {
            let kernel = WgslKernel::new(SOURCE, "nested")?;
            let run = |n: u32| kernel.run_on(&device, &[], &[Output::zeros([1], DType::U32)], &[n, n], [1, 1, 1]);
            assert!(run(300).is_err_and(|error| error.to_string().contains("iterations")), "{device}");
            assert_eq!(run(200)?[0].to_vec::<u32>()?, [40_000], "{device}");
        }
    }
    Ok(())
}

#[test]
fn what_is_allowed_or_not_known_runs() -> Result<()> {
    for device in adapters() {
        let allowed = count(&device, "nested", [300, 300], 1, true)?;
        let few = count(&device, "data", [0, 0], 1, false)?;
        match budget(&device)? {
            Some(budget) => assert!((budget / 2..=budget).contains(&allowed), "{device}: {allowed} of {budget}"),
            None => assert_eq!(allowed, 90_000, "{device}"),
        }
        assert_eq!(few, 1, "{device}");
    }
    Ok(())
}
