//! Launches of WGSL kernels with arguments by name.

use std::sync::Arc;

use anygpu::kernel::{Output, WgslKernel};
use anygpu::testing::adapters;
use anygpu::{DType, Device, Error, Result, Tensor};

const SAXPY: &str = "
    struct Params { n: u32, a: f32 }
    @group(0) @binding(4) var<uniform> params: Params;
    @group(0) @binding(9) var<storage, read> x: array<f32>;
    @group(0) @binding(2) var<storage, read> w: array<f32>;
    @group(0) @binding(5) var<storage, read_write> y: array<f32>;
    @group(0) @binding(3) var<storage, read_write> z: array<f32>;
    @compute @workgroup_size(64)
    fn saxpy(@builtin(global_invocation_id) id: vec3<u32>) {
        if id.x < params.n { y[id.x] = params.a * x[id.x] + y[id.x]; z[id.x] = w[id.x]; }
    }
";

#[test]
fn names_choose_the_bindings_in_any_order() -> Result<()> {
    let kernel = WgslKernel::new(SAXPY, "saxpy")?;
    for device in adapters() {
        let (x, y) = (Tensor::arange(0.0, 100.0, 1.0, &device)?, Tensor::ones([100], &device)?);
        let w = Tensor::full([100], 7.0, &device)?;
        let launch = kernel.on(&device).set("a", 0.5).output("y", Output::copy_of(&y)).input("x", &x);
        let results = launch.output("z", ([100], DType::F32)).input("w", &w).set("n", 99).dispatch(99)?;
        // In the order of the binding numbers: z, y.
        let (z, y) = (results[0].to_vec::<f32>()?, results[1].to_vec::<f32>()?);
        assert_eq!((z[98], z[99], y[98], y[99]), (7.0, 0.0, 50.0, 1.0), "{device}");
    }
    Ok(())
}

const ALL: &str = "
    struct Inner { k: i32, at: vec2<f32> }
    struct Params {
        one: u32, three: vec3<f32>, matrix: mat3x3<f32>, wide: mat2x4<f32>, list: array<vec4<u32>, 2>, inner: Inner,
        inners: array<array<Inner, 2>, 1>,
    }
    @group(0) @binding(0) var<uniform> p: Params;
    @group(0) @binding(1) var<storage, read_write> out: array<f32>;
    @compute @workgroup_size(1)
    fn all() {
        var at = 0u;
        out[at] = f32(p.one); at++;
        for (var i = 0u; i < 3u; i++) { out[at] = p.three[i]; at++; }
        for (var i = 0u; i < 3u; i++) { for (var j = 0u; j < 3u; j++) { out[at] = p.matrix[i][j]; at++; } }
        for (var i = 0u; i < 2u; i++) { for (var j = 0u; j < 4u; j++) { out[at] = p.wide[i][j]; at++; } }
        for (var i = 0u; i < 2u; i++) { for (var j = 0u; j < 4u; j++) { out[at] = f32(p.list[i][j]); at++; } }
        out[at] = f32(p.inner.k); at++;
        out[at] = p.inner.at.x; at++;
        out[at] = p.inner.at.y; at++;
        out[at] = f32(p.inners[0][1].k); at++;
        out[at] = p.inners[0][1].at.y; at++;
    }
";

#[test]
fn every_kind_of_param_is_written_to_its_place() -> Result<()> {
    let kernel = WgslKernel::new(ALL, "all")?;
    for device in adapters() {
        let launch =
            kernel.on(&device).output("out", ([34], DType::F32)).set("inner.k", -5).set("inner.at", [6.5, 7.5]);
        let launch = launch.set("one", 3u32).set("three", [1.5f32, 2.5, 3.5]).set("list", [[1, 2, 3, 4], [5, 6, 7, 8]]);
        let launch = launch.set("matrix", [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [7.0, 8.0, 9.0]]);
        let wide: Vec<f32> = (10..18).map(|n| n as f32).collect();
        let launch = launch.set("wide", &wide[..]).set("inners[0][0].k", 0).set("inners[0][0].at", [0.0; 2]);
        let results = launch.set("inners[0][1].k", 11).set("inners[0][1].at", [0.25, 0.75]).dispatch(1)?;
        let expected = [
            &[3.0, 1.5, 2.5, 3.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0][..],
            &wide,
            &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, -5.0, 6.5, 7.5, 11.0, 0.75],
        ];
        assert_eq!(results[0].to_vec::<f32>()?, expected.concat(), "{device}");
    }
    Ok(())
}

#[test]
fn a_struct_sets_the_whole_uniform_and_a_name_one_member_of_it() -> Result<()> {
    let kernel = WgslKernel::new(SAXPY, "saxpy")?;
    for device in adapters() {
        let x = Tensor::ones([4], &device)?;
        let launch = kernel.on(&device).input("x", &x).input("w", &x).output("z", ([4], DType::F32));
        let launch = launch.output("y", Output::zeros([4], DType::F32)).params(&[4u32, 2f32.to_bits()]);
        assert_eq!(launch.set("n", 3).workgroups([1, 1, 1])?[1].to_vec::<f32>()?, [2.0, 2.0, 2.0, 0.0], "{device}");
    }
    Ok(())
}

#[test]
fn more_workgroups_than_x_takes_are_folded() -> Result<()> {
    let source = |arguments: &str, place: &str| {
        format!(
            "@group(0) @binding(0) var<storage, read_write> y: array<u32>;
             @compute @workgroup_size(2)
             fn places(@builtin(global_invocation_id) id: vec3<u32>{arguments}) {{
                 let i = {place};
                 if i < arrayLength(&y) {{ y[i] = i + 1u; }}
             }}"
        )
    };
    const N: usize = 300_001;
    let plain = WgslKernel::new(&source("", "id.x"), "places")?;
    let counting = ", @builtin(num_workgroups) count: vec3<u32>";
    let folded = WgslKernel::new(&source(counting, "id.x + id.y * count.x * 2u"), "places")?;
    for device in adapters() {
        let places = folded.on(&device).output("y", ([N], DType::U32)).dispatch_folded(N)?[0].to_vec::<u32>()?;
        let wrong = places.iter().enumerate().find(|(i, place)| **place as usize != i + 1);
        assert_eq!(wrong, None, "{device}");
        let few = folded.on(&device).output("y", ([5], DType::U32)).dispatch_folded(5)?;
        assert_eq!(few[0].to_vec::<u32>()?, [1, 2, 3, 4, 5], "{device}");
        // An adapter may allow more than WebGPU's 65 535 workgroups.
        for kernel in [&plain, &folded] {
            match kernel.on(&device).output("y", ([N], DType::U32)).dispatch(N) {
                Ok(results) => assert_eq!(results[0].to_vec::<u32>()?[N - 1] as usize, N, "{device}"),
                Err(error) => assert!(matches!(error, Error::LimitExceeded { .. }), "{error}"),
            }
        }
        let refused = |kernel: &WgslKernel, n| {
            kernel.on(&device).output("y", ([5], DType::U32)).dispatch_folded(n).map(drop).unwrap_err().to_string()
        };
        assert!(refused(&plain, 5).contains("id.x + id.y * count.x * 2u"), "{device}");
        assert!(refused(&folded, (1 << 32) + 1).contains("do not fit in u32"), "{device}");
        assert!(refused(&folded, usize::MAX).contains("do not fit in u32"), "{device}");
        let most = plain.on(&device).output("y", ([5], DType::U32)).dispatch(usize::MAX);
        assert!(matches!(most, Err(Error::LimitExceeded { .. })), "{device}");
        assert_eq!(plain.on(&device).output("y", ([9], DType::U32)).dispatch([9, 1])?[0].to_vec::<u32>()?[8], 9);
        assert_eq!(plain.on(&device).output("y", ([9], DType::U32)).dispatch(0)?[0].to_vec::<u32>()?, [0; 9]);
    }
    Ok(())
}

#[test]
fn what_does_not_fit_is_named() -> Result<()> {
    let kernel = WgslKernel::new(SAXPY, "saxpy")?;
    let device = Device::cpu();
    let x = Tensor::ones([4], &device)?;
    let whole = || {
        let launch = kernel.on(&device).input("x", &x).input("w", &x).output("y", Output::copy_of(&x));
        launch.output("z", ([4], DType::F32)).set("a", 1.0).set("n", 4)
    };
    let error = |launch: anygpu::kernel::Launch| launch.dispatch(4).map(drop).unwrap_err().to_string();
    for (launch, expected) in [
        (whole().input("y", &x), "it has no input 'y': its inputs are [w, x]"),
        (whole().output("x", ([4], DType::F32)), "it has no output 'x': its outputs are [z, y]"),
        (whole().input("x", &x), "input 'x' is given twice"),
        (whole().set("alpha", 1.0), "it has no param 'alpha': its params are [n, a]"),
        (whole().set("n", 1.0), "param 'n' is of u32: got the float 1.0"),
        (whole().set("n", -1), "param 'n' is of u32: -1 is out of range"),
        (whole().set("a", [1.0, 2.0]), "param 'a' takes 1 number of f32, got 2"),
        (whole().set("a", 1e300), "is too large"),
        (whole().set("a", (1 << 24) + 1), "16777217 is no f32"),
        (whole().params(&[1u32]), "its uniform has 8 bytes, the struct given for it 4"),
        (whole().set("alpha", 1.0).set("beta", 1.0), "'alpha'"),
        (kernel.on(&device).input("x", &x).params(&[0u32; 2]), "input 'w' is not given: use .input(\"w\", …)"),
        (kernel.on(&device).set("a", 1.0), "param 'n' has no value: set it with .set(\"n\", …)"),
        (whole(), "WGSL needs an adapter"),
    ] {
        let error = error(launch);
        assert!(error.starts_with("kernel saxpy: ") && error.contains(expected), "{expected}: {error}");
    }
    assert!(
        whole().set("a", f64::NAN).set("a", f64::INFINITY).dispatch(4).is_err_and(|e| e.to_string().contains("WGSL"))
    );

    let size = "override SIZE = 64u;
        @group(0) @binding(0) var<storage, read_write> y: array<f32>;
        @compute @workgroup_size(SIZE) fn f() { y[0] = 1.0; }";
    let kernel = WgslKernel::new(size, "f")?;
    for device in adapters() {
        let by_workgroups = kernel.on(&device).output("y", ([1], DType::F32)).workgroups([1, 1, 1])?;
        assert_eq!(by_workgroups[0].to_vec::<f32>()?, [1.0], "{device}");
        let by_override = kernel.on(&device).output("y", ([1], DType::F32)).dispatch(1)?;
        assert_eq!(by_override[0].to_vec::<f32>()?, [1.0], "{device}");
    }
    Ok(())
}

/// `y = exp(a · x) + c`, whose gradients are `a · (y − c) · g` and `g`.
#[test]
fn a_kernel_with_a_gradient_is_an_op_like_any_other() -> Result<()> {
    const SOURCE: &str = "
        struct Params { a: f32 }
        @group(0) @binding(0) var<uniform> params: Params;
        @group(0) @binding(1) var<storage, read> x: array<f32>;
        @group(0) @binding(2) var<storage, read> g: array<f32>;
        @group(0) @binding(3) var<storage, read_write> y: array<f32>;
        @compute @workgroup_size(64)
        fn forward(@builtin(global_invocation_id) id: vec3<u32>) {
            if id.x < arrayLength(&y) { y[id.x] = exp(params.a * x[id.x]) + y[id.x]; }
        }
        @compute @workgroup_size(64)
        fn backward(@builtin(global_invocation_id) id: vec3<u32>) {
            if id.x < arrayLength(&y) { y[id.x] = params.a * exp(params.a * x[id.x]) * g[id.x]; }
        }";
    let forward = WgslKernel::new(SOURCE, "forward")?;
    let gradient = Arc::new(WgslKernel::new(SOURCE, "backward")?);
    for device in adapters() {
        let values = [-1.0f32, 0.0, 0.5, 2.0];
        let (x, c) = (Tensor::from_slice(&values, 4, &device)?, Tensor::ones([4], &device)?);
        let run = |x: &Tensor, c: &Tensor, names: &'static [&'static str]| {
            let gradient = gradient.clone();
            let launch = forward.on(&device).input("x", x).output("y", Output::copy_of(c)).set("a", 0.5);
            launch
                .with_backward(move |b| {
                    let (x, g) = (b.input("x")?, b.grad());
                    assert!(b.needs("y")?);
                    let dx = gradient.on(x.device()).input("x", x).input("g", g).set("a", 0.5);
                    let dx = dx.output("y", (x.shape(), DType::F32)).dispatch(x.elem_count())?.remove(0);
                    Ok(names.iter().copied().zip([dx, g.clone()]).collect())
                })
                .dispatch(4)
                .map(|mut outputs| outputs.remove(0))
        };
        let (tracked, start) = (x.requires_grad(), c.requires_grad());
        let y = run(&tracked, &start, &["x", "y"])?;
        y.mul_scalar(3.0)?.sum_all()?.backward()?;
        let close = |got: Vec<f32>, expected: [f32; 4]| {
            assert!(got.iter().zip(expected).all(|(got, e)| (got - e).abs() < 1e-5), "{device}: {got:?}");
        };
        close(y.to_vec()?, values.map(|v| (0.5 * v).exp() + 1.0));
        close(tracked.grad().unwrap().to_vec()?, values.map(|v| 1.5 * (0.5 * v).exp()));
        close(start.grad().unwrap().to_vec()?, [3.0; 4]);
        // Without tracked inputs there is no graph; a wrong name is an error of the backward pass.
        assert!(!run(&x, &c, &["x", "y"])?.is_tracked());
        let wrong = run(&tracked, &start, &["x", "z"])?.sum_all()?.backward().unwrap_err().to_string();
        assert!(wrong.contains("'z'") && wrong.contains("[x, y]"), "{wrong}");
        let twice = run(&tracked, &start, &["x", "x"])?.sum_all()?.backward().unwrap_err().to_string();
        assert!(twice.contains("'x'") && twice.contains("twice"), "{twice}");
    }
    Ok(())
}

/// naga writes no attributes of members in GLSL, so a kernel that has them would read its params at other places.
#[test]
fn members_that_attributes_move_are_right_or_refused() -> Result<()> {
    let source = |gap: &str| {
        format!(
            "struct Params {{ a: f32, {gap} b: f32 }}
            @group(0) @binding(0) var<uniform> p: Params;
            @group(0) @binding(1) var<storage, read_write> y: array<f32>;
            @compute @workgroup_size(1) fn f() {{ y[0] = p.a + 10.0 * p.b; }}"
        )
    };
    let (attribute, members) = (source("@align(16)"), source("c: f32, d: f32, e: f32,"));
    for device in adapters() {
        let run = |source: &str| -> Result<f32> {
            let kernel = WgslKernel::new(source, "f")?;
            let launch = kernel.on(&device).set("a", 1.0).set("b", 2.0).output("y", ([1], DType::F32));
            let others = ["c", "d", "e"].into_iter().filter(|_| source.contains("c: f32"));
            others.fold(launch, |launch, name| launch.set(name, 5.0)).workgroups([1, 1, 1])?[0].item()
        };
        assert_eq!(run(&members)?, 21.0, "{device}");
        match run(&attribute) {
            Ok(value) => assert_eq!(value, 21.0, "{device}"),
            Err(error) => {
                assert!(
                    device.info().api == "GL" && error.to_string().contains("'b' has a place that @align"),
                    "{error}"
                )
            }
        }
    }
    Ok(())
}
