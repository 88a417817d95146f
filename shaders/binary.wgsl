// out[i] ← f(a[s(i)], b[t(i)]), f chosen by OP, with strides of its own for each input (0 where it is broadcast).
// The header says what T is. One invocation: one element of the dense output.
// `dense`: both inputs have the output's layout. `strided`: shape and strides in eight slots, outermost first.

struct Params {
    count: u32,
    rank: u32,
    a_offset: u32,
    b_offset: u32,
    shape: array<vec4<u32>, 2>,
    a_strides: array<vec4<u32>, 2>,
    b_strides: array<vec4<u32>, 2>,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> a: array<T>;
@group(0) @binding(2) var<storage, read> b: array<T>;
@group(0) @binding(3) var<storage, read_write> out: array<T>;

const WG = 64u;

override OP: u32;
const ADD = 0u;
const SUB = 1u;
const MUL = 2u;
const DIV = 3u;
const WHERE_POSITIVE = 4u; // a where b > 0, else 0
const EQ = 5u; // 1 where equal, else 0

fn f(x: T, y: T) -> T {
    switch OP {
        case ADD: { return x + y; }
        case SUB: { return x - y; }
        case MUL: { return x * y; }
        case DIV: { return x / y; }
        case WHERE_POSITIVE: { return select(T(0), x, y > T(0)); }
        case EQ: { return select(T(0), T(1), x == y); }
        default: { return x; }
    }
}

@compute @workgroup_size(WG)
fn dense(
    @builtin(workgroup_id) wid: vec3<u32>,
    @builtin(num_workgroups) nwg: vec3<u32>,
    @builtin(local_invocation_index) lid: u32,
) {
    let i = (wid.y * nwg.x + wid.x) * WG + lid;
    if i < p.count {
        out[i] = f(a[p.a_offset + i], b[p.b_offset + i]);
    }
}

@compute @workgroup_size(WG)
fn strided(
    @builtin(workgroup_id) wid: vec3<u32>,
    @builtin(num_workgroups) nwg: vec3<u32>,
    @builtin(local_invocation_index) lid: u32,
) {
    let i = (wid.y * nwg.x + wid.x) * WG + lid;
    if i >= p.count {
        return;
    }
    var rest = i;
    var at_a = p.a_offset;
    var at_b = p.b_offset;
    for (var d = p.rank; d > 0u; d--) {
        let slot = d - 1u;
        let size = p.shape[slot / 4u][slot % 4u];
        let at = rest % size;
        rest /= size;
        at_a += at * p.a_strides[slot / 4u][slot % 4u];
        at_b += at * p.b_strides[slot / 4u][slot % 4u];
    }
    out[i] = f(a[at_a], b[at_b]);
}
