// bounds:  starts[row, r] ← how many of the row's sorted indices are below r; sorted is [rows, K], starts is [rows, R + 1].
// segment: out[a, r, b] ← base[a, r, b] ⊕ src[a, order[row, j], b] ⊕ … over starts[row, r] ≤ j < starts[row, r + 1], ⊕
//          chosen by OP; with LAST, the last of these src if there is one, otherwise base. row is (a, b), or 0 with
//          SHARED. A dispatch takes j = first … last − 1; every dispatch after the first continues with the values in out.
//          The sum of a dispatch's own sources is added to what was there before.
// segment_shared: the same by workgroups, for few elements of out with many sources each, but for LAST: `lanes` neighbouring
//          invocations of a workgroup have neighbours along b, and the others as many of the next j. They join what they have in
//          workgroup memory, always in the same order.
// All dense. The header sets the type T. One invocation: one element of out, but for segment_shared.

struct Params {
    count: u32, // elements of out
    inner: u32, // B
    size: u32,  // R
    picks: u32, // K
    row: u32,   // the first row r of this part of base and out, where A is 1
    base_offset: u32,
    src_offset: u32,
    first: u32,
    last: u32,
    lanes: u32,  // with segment_shared: a power of two, up to WIDE
    across: u32, // and workgroups along b
}

@group(0) @binding(0) var<uniform> p: Params;

override SHARED: bool = false;
override OP: u32 = 0u;
const SUM = 0u;
const PROD = 1u;
const MAX = 2u;
const MIN = 3u;
const LAST = 4u;

@group(0) @binding(1) var<storage, read> sorted: array<u32>;
@group(0) @binding(2) var<storage, read_write> starts_out: array<u32>;

@compute @workgroup_size(WG)
fn bounds(id: Id) {
    let i = linear_index(id);
    if i >= p.count {
        return;
    }
    let r = i % (p.size + 1u);
    let row = (i / (p.size + 1u)) * p.picks;
    var low = 0u;
    var high = p.picks;
    while low < high {
        let at = (low + high) / 2u;
        if sorted[row + at] < r {
            low = at + 1u;
        } else {
            high = at;
        }
    }
    starts_out[i] = low;
}

@group(0) @binding(1) var<storage, read> base: array<T>;
@group(0) @binding(2) var<storage, read> starts: array<u32>;
@group(0) @binding(3) var<storage, read> order: array<u32>;
@group(0) @binding(4) var<storage, read> src: array<T>;
@group(0) @binding(5) var<storage, read_write> sums: array<T>;

fn join(a: T, v: T) -> T {
    switch OP {
        case SUM: { return a + v; }
        case PROD: { return a * v; }
        case MAX: { return select(a, v, v > a || is_nan(f32(v))); }
        default: { return select(a, v, v < a || is_nan(f32(v))); }
    }
}

@compute @workgroup_size(WG)
fn segment(id: Id) {
    let i = linear_index(id);
    if i >= p.count {
        return;
    }
    let b = i % p.inner;
    let r = p.row + (i / p.inner) % p.size;
    let a = i / (p.inner * p.size);
    let row = select(a * p.inner + b, 0u, SHARED);
    let source = p.src_offset + a * p.picks * p.inner + b;
    var low = starts[row * (p.size + 1u) + r];
    var high = starts[row * (p.size + 1u) + r + 1u];
    if OP == LAST {
        if low < high {
            sums[i] = src[source + order[row * p.picks + high - 1u] * p.inner];
        } else {
            sums[i] = base[p.base_offset + i];
        }
        return;
    }
    low = max(low, p.first);
    high = min(high, p.last);
    var before = sums[i];
    if p.first == 0u {
        before = base[p.base_offset + i];
    }
    if low >= high {
        sums[i] = before;
        return;
    }
    var total = src[source + order[row * p.picks + low] * p.inner];
    for (var j = low + 1u; j < high; j++) {
        total = join(total, src[source + order[row * p.picks + j] * p.inner]);
    }
    sums[i] = join(before, total);
}

const WIDE = 256u;
var<workgroup> held: array<T, WIDE>;

@compute @workgroup_size(WIDE)
fn segment_shared(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let number = group_number(group);
    // Surplus workgroups of a folded grid have the last elements, since barriers are for all.
    let at = min(number, p.count / p.inner * p.across - 1u);
    let lane = local / p.lanes;
    let lanes = WIDE / p.lanes;
    let column = at % p.across * p.lanes + local % p.lanes;
    let b = min(column, p.inner - 1u);
    let line = at / p.across;
    let i = line * p.inner + b;
    let r = p.row + line % p.size;
    let a = line / p.size;
    let row = select(a * p.inner + b, 0u, SHARED);
    let source = p.src_offset + a * p.picks * p.inner + b;
    let low = max(starts[row * (p.size + 1u) + r], p.first);
    let high = min(starts[row * (p.size + 1u) + r + 1u], p.last);
    let count = min(max(high, low) - low, lanes);
    var total: T;
    if lane < count {
        total = src[source + order[row * p.picks + low + lane] * p.inner];
        for (var j = low + lane + lanes; j < high; j += lanes) {
            total = join(total, src[source + order[row * p.picks + j] * p.inner]);
        }
    }
    held[local] = total;
    workgroupBarrier();
    for (var half = lanes / 2u; half > 0u; half /= 2u) {
        if lane < half && lane + half < count {
            held[local] = join(held[local], held[local + half * p.lanes]);
        }
        workgroupBarrier();
    }
    if lane == 0u && column < p.inner && number < p.count / p.inner * p.across {
        var before = sums[i];
        if p.first == 0u {
            before = base[p.base_offset + i];
        }
        if count > 0u {
            before = join(before, held[local]);
        }
        sums[i] = before;
    }
}
