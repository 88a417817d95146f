// out[i] ← d(g[i], x[i], y[i]), after fours.wgsl: the gradient g of y = f(x), times f'. The header (a row of the table in
// ops/elementwise/unary) has d. All dense, from their offsets; a and b are the function's arguments. If d does
// not use x or y, it is not read. One invocation: one element, or, if the offsets are multiples of four, `run` vectors of
// four.

struct Params {
    count: u32,
    x_offset: u32,
    y_offset: u32,
    g_offset: u32,
    run: u32,
    a: f32,
    b: f32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read> y: array<f32>;
@group(0) @binding(3) var<storage, read> g: array<f32>;
@group(0) @binding(4) var<storage, read_write> out: array<f32>;
@group(0) @binding(1) var<storage, read> x4: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> y4: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> g4: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read_write> out4: array<vec4<f32>>;

@compute @workgroup_size(WG)
fn unary_grad(id: Id) {
    let i = linear_index(id);
    if i < p.count {
        out[i] = d(g[p.g_offset + i], x[p.x_offset + i], y[p.y_offset + i]);
    }
}

@compute @workgroup_size(WG)
fn fours(id: Id) {
    let range = vectors(id, p.run, p.count);
    for (var i = range.x; i < range.y; i++) {
        let g = g4[p.g_offset / 4u + i];
        let x = x4[p.x_offset / 4u + i];
        let y = y4[p.y_offset / 4u + i];
        out4[i] = vec4(d(g.x, x.x, y.x), d(g.y, x.y, y.y), d(g.z, x.z, y.z), d(g.w, x.w, y.w));
    }
}
