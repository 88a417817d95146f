// out[a, c, b] ← ⊕ x[a, r, b] over r = c, c + C, c + 2C, …, ⊕ chosen by OP; x is [A, R, B], out is [A, C, B], both
// dense. The header sets the type T. One invocation: one element of out. C = 1 finishes a reduction. A larger C leaves
// C partial results, so that no invocation has a long loop. In both cases,
// neighbouring invocations read neighbouring elements.

struct Params {
    offset: u32,
    outer: u32,   // A
    reduced: u32, // R
    inner: u32,   // B
    chunks: u32,  // C
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x: array<T>;
@group(0) @binding(2) var<storage, read_write> out: array<T>;

override OP: u32;
const SUM = 0u;
const PROD = 1u;
const MAX = 2u;
const MIN = 3u;

fn join(a: T, v: T) -> T {
    switch OP {
        case SUM: { return a + v; }
        case PROD: { return a * v; }
        case MAX: { return select(a, v, v > a || is_nan(f32(v))); }
        default: { return select(a, v, v < a || is_nan(f32(v))); }
    }
}

@compute @workgroup_size(WG)
fn reduce(id: Id) {
    let i = linear_index(id);
    if i >= p.outer * p.chunks * p.inner {
        return;
    }
    let b = i % p.inner;
    let c = (i / p.inner) % p.chunks;
    let a = i / (p.inner * p.chunks);
    let row = p.offset + a * p.reduced * p.inner + b;
    var total = x[row + c * p.inner];
    for (var r = c + p.chunks; r < p.reduced; r += p.chunks) {
        total = join(total, x[row + r * p.inner]);
    }
    out[i] = total;
}
