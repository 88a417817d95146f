// out[i] ← f(x[i]), after fours.wgsl; the header (a row of the table in ops/elementwise/unary) has f and the types T of x and R of the
// result. x dense from `offset`; a and b are the function's arguments. One invocation: one element, or, if the offset is a
// multiple of four, `run` vectors of four.

struct Params {
    count: u32,
    offset: u32,
    run: u32,
    a: T,
    b: T,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x: array<T>;
@group(0) @binding(2) var<storage, read_write> out: array<R>;
@group(0) @binding(1) var<storage, read> x4: array<vec4<T>>;
@group(0) @binding(2) var<storage, read_write> out4: array<vec4<R>>;

@compute @workgroup_size(WG)
fn unary(id: Id) {
    let i = linear_index(id);
    if i < p.count {
        out[i] = f(x[p.offset + i]);
    }
}

@compute @workgroup_size(WG)
fn fours(id: Id) {
    let range = vectors(id, p.run, p.count);
    for (var i = range.x; i < range.y; i++) {
        let v = x4[p.offset / 4u + i];
        out4[i] = vec4(f(v.x), f(v.y), f(v.z), f(v.w));
    }
}
