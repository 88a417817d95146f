// out[a, c, b] ← ⊕ x[a, r, b] over the part c of r, ⊕ of join.wgsl; x is [A, R, B], out is [A, C, B], both dense. The header
// sets the type T. One invocation: one element of out. C = 1 finishes a reduction. A larger C leaves C partial results, so
// that no invocation has a long loop. A part begins at c · apart and has every `step`th r of the next `span`: neighbouring
// invocations read neighbouring elements if parts interleave (apart = 1), and one of them a range if step = 1.
// `rows4`, for B = 1, reads vectors of four neighbours of r, with R in vectors, from an offset that is a multiple of four.

struct Params {
    offset: u32,
    outer: u32,   // A
    reduced: u32, // R
    inner: u32,   // B
    chunks: u32,  // C
    apart: u32,
    step: u32,
    span: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x: array<T>;
@group(0) @binding(2) var<storage, read_write> out: array<T>;
@group(0) @binding(1) var<storage, read> x4: array<vec4<T>>;

fn join4(a: vec4<T>, v: vec4<T>) -> vec4<T> {
    return vec4(join(a.x, v.x), join(a.y, v.y), join(a.z, v.z), join(a.w, v.w));
}

/// Returns the place of the first element of part i of the output, and the one after its last.
fn part(i: u32) -> vec2<u32> {
    let row = i / p.inner / p.chunks * p.reduced;
    let first = i / p.inner % p.chunks * p.apart;
    return (row + vec2(first, min(first + p.span, p.reduced))) * p.inner + i % p.inner;
}

@compute @workgroup_size(WG)
fn reduce(id: Id) {
    let i = linear_index(id);
    if i < p.outer * p.chunks * p.inner {
        let range = part(i) + p.offset;
        var total = x[range.x];
        for (var at = range.x + p.step * p.inner; at < range.y; at += p.step * p.inner) {
            total = join(total, x[at]);
        }
        out[i] = total;
    }
}

@compute @workgroup_size(WG)
fn rows4(id: Id) {
    let i = linear_index(id);
    if i < p.outer * p.chunks {
        let range = part(i) + p.offset / 4u;
        var total = x4[range.x];
        for (var at = range.x + p.step; at < range.y; at += p.step) {
            total = join4(total, x4[at]);
        }
        out[i] = join(join(total.x, total.y), join(total.z, total.w));
    }
}
