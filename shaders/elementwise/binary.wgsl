// out[i] ← f(a[s(i)], b[t(i)]), after strided.wgsl and fours.wgsl: a and b are strided.wgsl's first two operands. The
// header (a row of the table in ops/elementwise/binary) has f and the types T of the operands and R of the result. The
// output is dense. `right`, `left`: the second or first operand is the number, as the bits of a T; the other one is a,
// which is dense. One invocation: one element, or in the entry points with a 4 `run` vectors of four elements. These need
// operands that are read from a multiple of four on. Those of `strided4` may also repeat one element along the last
// dimension, which is a multiple of four long unless it is the only one.

@group(0) @binding(1) var<storage, read> a: array<T>;
@group(0) @binding(2) var<storage, read> b: array<T>;
@group(0) @binding(3) var<storage, read_write> out: array<R>;
@group(0) @binding(1) var<storage, read> a4: array<vec4<T>>;
@group(0) @binding(2) var<storage, read> b4: array<vec4<T>>;
@group(0) @binding(3) var<storage, read_write> out4: array<vec4<R>>;

fn f4(x: vec4<T>, y: vec4<T>) -> vec4<R> {
    return vec4(f(x.x, y.x), f(x.y, y.y), f(x.z, y.z), f(x.w, y.w));
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

@compute @workgroup_size(WG)
fn right4(id: Id) {
    let range = vectors(id, p.run, p.count);
    for (var i = range.x; i < range.y; i++) {
        out4[i] = f4(a4[p.offsets.x / 4u + i], vec4(bitcast<T>(p.number)));
    }
}

@compute @workgroup_size(WG)
fn left4(id: Id) {
    let range = vectors(id, p.run, p.count);
    for (var i = range.x; i < range.y; i++) {
        out4[i] = f4(vec4(bitcast<T>(p.number)), a4[p.offsets.x / 4u + i]);
    }
}

@compute @workgroup_size(WG)
fn strided4(id: Id) {
    let range = vectors(id, p.run, p.count);
    let repeats = p.dims[p.rank - 1u].xy == vec2(0u);
    for (var i = range.x; i < range.y; i++) {
        let at = places(4u * i);
        let x = a4[at.x / 4u];
        let y = b4[at.y / 4u];
        out4[i] = f4(select(x, vec4(x[at.x % 4u]), repeats.x), select(y, vec4(y[at.y % 4u]), repeats.y));
    }
}
