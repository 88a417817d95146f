// out[i] ← d(g[i], x[i], y[i]): the gradient g of y = f(x), times f'. The header (a row of the table in
// ops/elementwise/unary) has d. All dense, from their offsets; a and b are the function's arguments. One invocation: one
// element. If d does not use x or y, it is not read.

struct Params {
    count: u32,
    x_offset: u32,
    y_offset: u32,
    g_offset: u32,
    a: f32,
    b: f32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read> y: array<f32>;
@group(0) @binding(3) var<storage, read> g: array<f32>;
@group(0) @binding(4) var<storage, read_write> out: array<f32>;

@compute @workgroup_size(WG)
fn unary_grad(id: Id) {
    let i = linear_index(id);
    if i < p.count {
        out[i] = d(g[p.g_offset + i], x[p.x_offset + i], y[p.y_offset + i]);
    }
}
