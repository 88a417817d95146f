// out[a, part, b] ← ⊕ x[a, r, b] over the r of a part, after join.wgsl; x is [A, R, B], out is [A, parts, B], both dense. For few results
// of many elements. The header and by_one or by_four of reduce.rs set the type T of the elements and what is read at once, V: B and all
// places are counted in V. `lanes` neighbouring invocations of a workgroup have neighbours along B, and the others as many of the next r.
// They join what they have in workgroup memory, always in the same order.

struct Params {
    offset: u32,
    count: u32,   // workgroups: A · parts · across
    reduced: u32, // R
    inner: u32,   // B
    across: u32,  // workgroups along B
    parts: u32,   // of R
    span: u32,    // of a part, the last one of which may have less
    lanes: u32,   // a power of two, up to WIDE
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x: array<V>;
@group(0) @binding(2) var<storage, read_write> out: array<V>;

const WIDE = 256u;
var<workgroup> held: array<V, WIDE>;

@compute @workgroup_size(WIDE)
fn columns(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let number = group_number(group);
    // Surplus workgroups of a folded grid have the last columns, since barriers are for all.
    let at = min(number, p.count - 1u);
    let row = local / p.lanes;
    let rows = WIDE / p.lanes;
    let b = at % p.across * p.lanes + local % p.lanes;
    let line = at / p.across; // of the result
    let first = line % p.parts * p.span;
    let end = min(first + p.span, p.reduced);
    let from_x = p.offset + line / p.parts * p.reduced * p.inner + min(b, p.inner - 1u);
    var own = x[from_x + min(first + row, end - 1u) * p.inner];
    for (var r = first + row + rows; r < end; r += rows) {
        own = joined(own, x[from_x + r * p.inner]);
    }
    held[local] = own;
    workgroupBarrier();
    // Invocations without an element have a copy of the last one, which must not count.
    let count = min(end - first, rows);
    for (var half = rows / 2u; half > 0u; half /= 2u) {
        if row < half && row + half < count {
            held[local] = joined(held[local], held[local + half * p.lanes]);
        }
        workgroupBarrier();
    }
    if row == 0u && b < p.inner && number < p.count {
        out[line * p.inner + b] = held[local];
    }
}
