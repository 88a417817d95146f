// out[a, part] ← ⊕ x[a, r] over the `span` elements r of a part of row a, ⊕ chosen by OP; x is [A, R] dense, out is [A, parts]. The header
// sets the type T of the elements and what is read at once, V: R and all places in x are counted in V. `p.lanes` neighbouring invocations
// have a part: they read neighbouring elements, and join what they have in workgroup memory, always in the same order.

struct Params {
    offset: u32,
    lines: u32,   // A · parts
    reduced: u32, // R
    parts: u32,   // of a row
    span: u32,
    lanes: u32,   // that share a row or a part: a power of two, up to WIDE
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x: array<V>;
@group(0) @binding(2) var<storage, read_write> out: array<T>;

override OP: u32;
const SUM = 0u;
const PROD = 1u;
const MAX = 2u;

const WIDE = 256u;

fn join(a: T, v: T) -> T {
    switch OP {
        case SUM: { return a + v; }
        case PROD: { return a * v; }
        case MAX: { return select(a, v, v > a || is_nan(f32(v))); }
        default: { return select(a, v, v < a || is_nan(f32(v))); }
    }
}

var<workgroup> held: array<T, WIDE>;

@compute @workgroup_size(WIDE)
fn rows(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let number = group_number(group) * (WIDE / p.lanes) + local / p.lanes;
    let line = min(number, p.lines - 1u); // barriers are for all: surplus invocations have the last line
    let lane = local % p.lanes;
    let row = p.offset + line / p.parts * p.reduced;
    let begin = line % p.parts * p.span;
    let range = row + vec2(begin, min(begin + p.span, p.reduced));
    var own = x[min(range.x + lane, range.y - 1u)];
    for (var at = range.x + lane + p.lanes; at < range.y; at += p.lanes) {
        own = joined(own, x[at]);
    }
    held[local] = within(own);
    workgroupBarrier();
    // Invocations without an element have a copy of the last one, which must not count.
    let count = min(range.y - range.x, p.lanes);
    for (var half = p.lanes / 2u; half > 0u; half /= 2u) {
        if lane < half && lane + half < count {
            held[local] = join(held[local], held[local + half]);
        }
        workgroupBarrier();
    }
    if lane == 0u && number < p.lines {
        out[line] = held[local];
    }
}
