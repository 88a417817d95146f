// out[i] ← f(a[s(i)], b[t(i)]), after strided.wgsl: a and b are its first two operands. The header (a row of the table in
// ops/elementwise/binary) has f and the types T of the operands and R of the result. One invocation: one element of the
// dense output. `dense`: both inputs have the output's layout. `right`, `left`: the second or first operand is the
// number, as the bits of a T; the other one is a, which is dense.

@group(0) @binding(1) var<storage, read> a: array<T>;
@group(0) @binding(2) var<storage, read> b: array<T>;
@group(0) @binding(3) var<storage, read_write> out: array<R>;

@compute @workgroup_size(WG)
fn dense(id: Id) {
    let i = linear_index(id);
    if i < p.count {
        out[i] = f(a[p.offsets.x + i], b[p.offsets.y + i]);
    }
}

@compute @workgroup_size(WG)
fn right(id: Id) {
    let i = linear_index(id);
    if i < p.count {
        out[i] = f(a[p.offsets.x + i], bitcast<T>(p.number));
    }
}

@compute @workgroup_size(WG)
fn left(id: Id) {
    let i = linear_index(id);
    if i < p.count {
        out[i] = f(bitcast<T>(p.number), a[p.offsets.x + i]);
    }
}

@compute @workgroup_size(WG)
fn strided(id: Id) {
    let i = linear_index(id);
    if i < p.count {
        let at = places(i);
        out[i] = f(a[at.x], b[at.y]);
    }
}
