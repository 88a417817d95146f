// The kernels with which src/device/gpu/probe.rs looks for faults.
//
// count_iterations: counts the iterations of two nested loops; count[g] = outer · inner if the driver is right.
// make_subnormals: a product, a difference and an operand below 2^-126, from numbers that no compiler knows.
//
// One workgroup of one invocation makes one try. The loops carry a value from one iteration to the next (a linear
// congruential generator) and may end because of it, so no compiler can compute the count without running them.

struct Params {
    // Try g: x = outer iterations, y = inner; try 0 in .xy, try 1 in .zw. For make_subnormals: the bits of 2^-126, ½,
    // 2^-127 and 1½ · 2^-126.
    tries: vec4<u32>,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read_write> counts: array<u32>;

@compute @workgroup_size(1)
fn count_iterations(@builtin(workgroup_id) group: vec3<u32>) {
    let g = group.x;
    let sizes = select(p.tries.xy, p.tries.zw, g == 1u);
    var count = 0u;
    var value = g;
    for (var i = 0u; i < sizes.x; i++) {
        for (var j = 0u; j < sizes.y; j++) {
            value = value * 1664525u + 1013904223u;
            count += select(1u, 0u, value == 0xffffffffu && j > sizes.y);
        }
    }
    counts[g] = count;
}

@compute @workgroup_size(1)
fn make_subnormals() {
    let numbers = bitcast<vec4<f32>>(p.tries);
    counts[0] = bitcast<u32>(numbers.x * numbers.y);
    counts[1] = bitcast<u32>(numbers.w - numbers.x);
    counts[2] = bitcast<u32>(numbers.z + numbers.z);
}
