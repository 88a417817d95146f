use super::*;

const BUDGET: u64 = 65_535;

/// Returns the known iterations of a kernel with 2 workgroups of 8, an array of 1000 elements, and n = 40.
fn work_of(body: &str, group: u32) -> (u64, bool) {
    let source = format!(
        "struct P {{ pad: u32, n: u32, size: vec2<i32> }}
        const LONG = 70000u;
        override HALF = 500u;
        @group(0) @binding(3) var<uniform> p: P;
        @group(0) @binding(5) var<storage, read_write> x: array<u32>;
        fn sum(n: u32) -> u32 {{ var s = 0u; for (var i = 0u; i < n; i++) {{ s += i; }} return s; }}
        fn twice(n: ptr<function, u32>) {{ *n *= 2u; }}
        @compute @workgroup_size(8) fn f(
            @builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) count: vec3<u32>,
            @builtin(local_invocation_index) local: u32,
        ) {{ x[0] = p.n + u32(p.size.x); {body} }}"
    );
    let kernel = WgslKernel::new(&source, "f").unwrap_or_else(|error| panic!("{body}: {error}"));
    let words = [0, 40, 50, 60u32];
    let (groups, group) = ([2, 1, 1], [group, 0, 0]);
    let given = Given { words: &words, lengths: vec![(5, 1000)], groups, group, workgroup_size: [8, 1, 1] };
    let work = iterations(kernel.loops.as_ref().unwrap(), "f", &given, BUDGET);
    (work.iterations, work.open)
}

/// Iterations by counting: each of a loop, and one more in which it ends; none of a loop of constant length up to 32.
#[test]
fn iterations_are_those_that_are_certain() {
    let closed = [
        ("for (var i = 0u; i < 100u; i++) { x[i]++; }", 101),
        ("for (var i = 0; i <= 100; i += 3) { x[i]++; }", 35),
        ("for (var i = 100; i > 0; i--) { x[i]++; }", 101),
        ("for (var i = 10u; 500u > i; i = 2u + i) { x[i]++; }", 246),
        ("for (var i = 0u; i != 100u; i++) { x[i]++; }", 101),
        ("for (var i = 0u; i < LONG; i++) { x[i]++; }", BUDGET + 2),
        ("for (var i = 0u; i < HALF * 2u + 1u; i++) { x[i]++; }", 1002),
        ("for (var i = 0u; i < p.n; i++) { x[i]++; }", 41),
        ("let s = p.size; for (var i = 0; i < s.x * s.y; i++) { x[i]++; }", 3001),
        ("for (var i = 0u; i < arrayLength(&x); i++) { x[i]++; }", 1001),
        // A vector of the number of workgroups, as in a stride over the grid.
        ("for (var i = id.x; i < arrayLength(&x); i += count.x * 8u) { x[i]++; }", 64),
        ("for (var i = 0u; i < 32u; i++) { x[i]++; }", 0),
        ("for (var i = 0u; i < min(p.n, 3u); i++) { x[i]++; }", 4),
        ("var n = 3u; n += p.n; for (var i = 0u; i < n; i++) { x[i]++; }", 44),
        ("var n = 3u; twice(&n); for (var i = 0u; i < 100u; i++) { x[i] += n; }", 101),
        ("var i = 0u; while i < 100u { x[i]++; i++; }", 101),
        ("var i = 0u; loop { if i >= 100u { break; } x[i]++; i++; }", 101),
        ("for (var i = 128u; i > 0u; i >>= 1u) { x[i]++; }", 0),
        ("for (var i = 1u; i < p.n; i *= 2u) { x[i]++; }", 7),
        ("for (var i = 0u; i < p.n; i++) { for (var j = 0u; j < 100u; j++) { x[j]++; } }", 40 * 102 + 1),
        ("for (var i = 0u; i < 10u; i++) { for (var j = 0u; j < 100u; j++) { x[j]++; } }", 10 * 101),
        ("for (var i = 0u; i < p.n; i++) { x[i]++; } for (var i = 0u; i < 100u; i++) { x[i]++; }", 41 + 101),
        ("if id.x < arrayLength(&x) { for (var i = 0u; i < 100u; i++) { x[i]++; } }", 101),
        ("if id.x >= arrayLength(&x) { return; } for (var i = 0u; i < 100u; i++) { x[i]++; }", 101),
        ("if local > 0u { for (var i = 0u; i < 100u; i++) { x[i]++; } }", 0),
        ("x[0] = sum(p.n) + sum(50u);", 41 + 51),
        ("for (var i = 0u; i < 100u; i++) { if x[i] == 0u { continue; } x[i]++; }", 101),
        ("loop { x[0]++; }", BUDGET + 2),
        ("for (var i = 0u; i < 3000000000u; i++) { x[i]++; }", BUDGET + 2),
    ];
    for (body, expected) in closed {
        assert_eq!(work_of(body, 0), (expected, false), "{body}");
    }
}

/// What depends on elements may be more, so it is not counted, and known to be unknown.
#[test]
fn what_is_not_known_is_not_counted() {
    let open = [
        ("for (var i = 0u; i < x[3]; i++) { x[i]++; }", 0),
        ("for (var i = x[3]; i < LONG; i++) { x[i]++; }", 0),
        ("for (var i = 0u; i < LONG; i += x[3]) { x[i]++; }", 0),
        ("for (var i = 0u; i < LONG; i++) { if x[i] == 3u { break; } }", 0),
        ("for (var i = 0u; i < LONG; i++) { if x[i] == 3u { return; } }", 0),
        ("for (var i = 0u; i < LONG; i++) { if x[i] == 3u { i += 7u; } }", 0),
        ("for (var i = 0u; i < LONG; i++) { twice(&i); }", 0),
        ("var i = 0u; while i < LONG { if x[i] == 3u { continue; } i++; }", 0),
        ("if x[0] == 0u { for (var i = 0u; i < LONG; i++) { x[i]++; } }", 0),
        ("if x[0] == 0u { return; } for (var i = 0u; i < LONG; i++) { x[i]++; }", 0),
        ("var n = 3u; if x[0] == 0u { n = LONG; } for (var i = 0u; i < n; i++) { x[i]++; }", 0),
        ("var n = LONG; twice(&n); for (var i = 0u; i < n; i++) { x[i]++; }", 0),
        ("for (var i = 0u; i < LONG && x[i] == 0u; i++) { x[i]++; }", 0),
        ("for (var i = 0.0; i < 70000.0; i += 1.0) { x[0]++; }", 0),
        ("loop { x[0]++; if x[0] == 7u { break; } }", 0),
        ("loop { x[0]++; continuing { break if x[0] == 7u; } }", 0),
        ("for (var i = 0u; i < 50u; i++) { for (var j = i; j < LONG; j++) { x[j]++; } }", 51),
        // One of the two, and the first iteration of a loop that may end in it.
        (
            "if x[0] == 0u { for (var i = 0u; i < 50u; i++) { x[i]++; } }
             else { for (var i = 0u; i < 60u; i++) { x[i]++; } }",
            51,
        ),
        ("for (var i = 0u; i < 9u; i++) { x[0] = sum(p.n); if x[i] == 3u { break; } }", 41),
        ("switch x[0] { case 1u: { x[0] = sum(50u); } default: { x[0] = sum(40u); } }", 41),
    ];
    for (body, expected) in open {
        assert_eq!(work_of(body, 0), (expected, true), "{body}");
    }
}

#[test]
fn the_last_workgroup_is_followed_too() {
    let triangle = "for (var j = 0u; j < id.x * 100u; j++) { x[j]++; }";
    assert_eq!([work_of(triangle, 0), work_of(triangle, 1)], [(1, false), (801, false)]);
}

/// The stack that this takes does not grow with the source.
#[test]
fn deep_calls_take_little_stack() {
    let levels: String = (1..2000).map(|i| format!("fn f{i}(n: u32) -> u32 {{ return f{}(n); }}\n", i - 1)).collect();
    let source = format!(
        "@group(0) @binding(0) var<storage, read_write> x: array<u32>;
        fn f0(n: u32) -> u32 {{ var s = 0u; for (var i = 0u; i < n; i++) {{ s += x[i]; }} return s; }}
        {levels}
        @compute @workgroup_size(1) fn f() {{ x[0] = f1999(100u); }}"
    );
    let kernel = WgslKernel::new(&source, "f").unwrap();
    let given = Given { words: &[], lengths: vec![(0, 9)], groups: [1; 3], group: [0; 3], workgroup_size: [1; 3] };
    let thread = std::thread::Builder::new().stack_size(1 << 20);
    let work = std::thread::scope(|scope| {
        let follow = || iterations(kernel.loops.as_ref().unwrap(), "f", &given, BUDGET);
        thread.spawn_scoped(scope, follow).unwrap().join().unwrap()
    });
    assert_eq!((work.iterations, work.open), (0, true));
}
