// out[i] ← f(x[i]); the header (a row of the table in ops/elementwise/unary) has f and the types T of x and R of the
// result. x dense from `offset`; a and b are the function's arguments. One invocation: one element.

struct Params {
    count: u32,
    offset: u32,
    a: T,
    b: T,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x: array<T>;
@group(0) @binding(2) var<storage, read_write> out: array<R>;

@compute @workgroup_size(WG)
fn unary(id: Id) {
    let i = linear_index(id);
    if i < p.count {
        out[i] = f(x[p.offset + i]);
    }
}
