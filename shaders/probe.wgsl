// Counts the iterations of two nested loops, for src/device/gpu/probe.rs: count[g] = outer · inner, where the driver is right.
//
// One workgroup of one invocation makes one try. The loops carry a value from one iteration to the next (a linear
// congruential generator) and may end on it, so that no compiler can count without running them.

struct Params {
    // Try g: x = outer iterations, y = inner; try 0 in .xy, try 1 in .zw.
    tries: vec4<u32>,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> counts: array<u32>;

@compute @workgroup_size(1)
fn count_iterations(@builtin(workgroup_id) group: vec3<u32>) {
    let g = group.x;
    let sizes = select(params.tries.xy, params.tries.zw, g == 1u);
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
