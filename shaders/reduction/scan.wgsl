// Running sums, products or extremes (join.wgsl) along a dimension, in chunks: x and out are [A, R, B] dense.
// scan:   scans each chunk of `length` of R alone; totals[a, c, b] ← the result of chunk c.
// scan_rows: the same by a workgroup for each chunk, of LENGTH elements, for B = 1.
// shift:  joins each element with the total of all chunks before its own: the result of `scan` on the totals.
// The header sets the type T. One invocation: one chunk in `scan`, one element in `shift`.

struct Params {
    count: u32, // chunks, or elements
    reduced: u32, // R
    inner: u32,   // B
    chunks: u32,  // C
    length: u32,
    offset: u32, // of x
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x: array<T>;
@group(0) @binding(2) var<storage, read_write> out: array<T>;
@group(0) @binding(3) var<storage, read_write> totals: array<T>;

@compute @workgroup_size(WG)
fn scan(id: Id) {
    let i = linear_index(id);
    if i >= p.count {
        return;
    }
    let b = i % p.inner;
    let first = ((i / p.inner) % p.chunks) * p.length;
    let row = (i / (p.inner * p.chunks)) * p.reduced * p.inner + b;
    var total = x[p.offset + row + first * p.inner];
    out[row + first * p.inner] = total;
    for (var r = first + 1u; r < min(first + p.length, p.reduced); r++) {
        total = join(total, x[p.offset + row + r * p.inner]);
        out[row + r * p.inner] = total;
    }
    totals[i] = total;
}

const WIDE = 256u;
const LENGTH = 2048u;
const EACH = LENGTH / WIDE;
// A word after each 32, so that invocations with EACH neighbours use all banks.
var<workgroup> held: array<T, LENGTH + LENGTH / 32u>;
var<workgroup> sums: array<T, WIDE>;

fn place(i: u32) -> u32 {
    return i + i / 32u;
}

@compute @workgroup_size(WIDE)
fn scan_rows(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let number = group_number(group);
    // Surplus workgroups of a folded grid have the last chunk, since barriers are for all.
    let chunk = min(number, p.count - 1u);
    let first = chunk % p.chunks * LENGTH;
    let row = chunk / p.chunks * p.reduced + first;
    let count = min(LENGTH, p.reduced - first);
    for (var i = local; i < count; i += WIDE) {
        held[place(i)] = x[p.offset + row + i];
    }
    workgroupBarrier();
    let from_here = local * EACH;
    let end = min(from_here + EACH, count);
    if from_here < end {
        var total = held[place(from_here)];
        for (var i = from_here + 1u; i < end; i++) {
            total = join(total, held[place(i)]);
            held[place(i)] = total;
        }
        sums[local] = total;
    }
    workgroupBarrier();
    for (var distance = 1u; distance < WIDE; distance *= 2u) {
        let joins = local >= distance && from_here < end;
        var total: T;
        if joins {
            total = join(sums[local - distance], sums[local]);
        }
        workgroupBarrier();
        if joins {
            sums[local] = total;
        }
        workgroupBarrier();
    }
    if local > 0u {
        for (var i = from_here; i < end; i++) {
            held[place(i)] = join(sums[local - 1u], held[place(i)]);
        }
    }
    workgroupBarrier();
    if number < p.count {
        for (var i = local; i < count; i += WIDE) {
            out[row + i] = held[place(i)];
        }
        if local == 0u {
            totals[chunk] = held[place(count - 1u)];
        }
    }
}

@group(0) @binding(1) var<storage, read> before: array<T>;

@compute @workgroup_size(WG)
fn shift(id: Id) {
    let i = linear_index(id);
    if i >= p.count {
        return;
    }
    let b = i % p.inner;
    let c = ((i / p.inner) % p.reduced) / p.length;
    let a = i / (p.inner * p.reduced);
    if c > 0u {
        out[i] = join(before[(a * p.chunks + c - 1u) * p.inner + b], out[i]);
    }
}
