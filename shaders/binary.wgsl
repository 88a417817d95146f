// out[i] ← f(a[s(i)], b[t(i)]); each input has its own strides (0 where it is broadcast). The header (a row of the
// table in ops/elementwise/binary) has f and the types T of the operands and R of the result. One invocation: one
// element of the dense output. `dense`: both inputs have the output's layout. `strided`: shape and strides in eight
// slots, outermost first. `right`, `left`: the second or first operand is a number; the other one is a, which is dense.

struct Params {
    count: u32,
    rank: u32,
    a_offset: u32,
    b_offset: u32,
    shape: array<vec4<u32>, 2>,
    a_strides: array<vec4<u32>, 2>,
    b_strides: array<vec4<u32>, 2>,
    number: T, // the other operand of `left` and `right`
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> a: array<T>;
@group(0) @binding(2) var<storage, read> b: array<T>;
@group(0) @binding(3) var<storage, read_write> out: array<R>;

@compute @workgroup_size(WG)
fn dense(id: Id) {
    let i = linear_index(id);
    if i < p.count {
        out[i] = f(a[p.a_offset + i], b[p.b_offset + i]);
    }
}

@compute @workgroup_size(WG)
fn right(id: Id) {
    let i = linear_index(id);
    if i < p.count {
        out[i] = f(a[p.a_offset + i], p.number);
    }
}

@compute @workgroup_size(WG)
fn left(id: Id) {
    let i = linear_index(id);
    if i < p.count {
        out[i] = f(p.number, a[p.a_offset + i]);
    }
}

@compute @workgroup_size(WG)
fn strided(id: Id) {
    let i = linear_index(id);
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
