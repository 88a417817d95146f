// softmax and log_softmax of softmax.wgsl for rows of neighbouring elements (B = 1), after exponentials.wgsl, by workgroups that share
// rows. R and all places are counted in V.
//   kept:     rows of up to KEPT · lanes elements, read once.
//   streamed: longer rows, read twice.
//   parts, from_parts: rows of which several workgroups have `span` elements each: what the parts found, then the results.

struct Params {
    offset: u32,
    outer: u32,   // A
    reduced: u32, // R
    inner: u32,   // 1
    parts: u32,   // of a row
    span: u32,
    lanes: u32,   // that share a row or a part: a power of two, up to WIDE
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(2) var<storage, read_write> out: array<V>;

override LOG: bool;

/// Returns the result of elements of a row.
fn result(v: V, row: Exponentials, log_total: f32) -> V {
    let d = v - row.most;
    let y = select(exp(d) / row.total, d - log_total, LOG);
    return nan_if(y, is_odd(row));
}

@compute @workgroup_size(WIDE)
fn kept(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let line = line_of(group, local, p.outer);
    let first = p.offset + line.number * p.reduced;
    let end = first + p.reduced;
    var own: Kept;
    let row = of_kept(local, line.lane, first, end, &own);
    let log_total = log(row.total);
    for (var k = 0u; k < KEPT; k++) {
        let at = first + line.lane + k * p.lanes;
        if line.exists && at < end {
            out[at - p.offset] = result(own[k], row, log_total);
        }
    }
}

@compute @workgroup_size(WIDE)
fn streamed(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let line = line_of(group, local, p.outer);
    let first = p.offset + line.number * p.reduced;
    let end = first + p.reduced;
    let row = of_range(local, line.lane, first, end);
    let log_total = log(row.total);
    for (var at = first + line.lane; line.exists && at < end; at += p.lanes) {
        out[at - p.offset] = result(x[at], row, log_total);
    }
}

@group(0) @binding(2) var<storage, read_write> found: array<vec4<f32>>; // [A, parts]: most, total, nan

/// Returns the first place of a part of a row, and the one after its last.
fn part_of(number: u32) -> vec2<u32> {
    let row = p.offset + number / p.parts * p.reduced;
    let first = number % p.parts * p.span;
    return row + vec2(first, min(first + p.span, p.reduced));
}

@compute @workgroup_size(WIDE)
fn parts(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let line = line_of(group, local, p.outer * p.parts);
    let range = part_of(line.number);
    let part = of_range(local, line.lane, range.x, range.y);
    if line.exists && line.lane == 0u {
        found[line.number] = vec4(part.most, part.total, part.nan, 0.0);
    }
}

@group(0) @binding(2) var<storage, read> of_parts: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read_write> results: array<V>;

@compute @workgroup_size(WIDE)
fn from_parts(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let line = line_of(group, local, p.outer * p.parts);
    let list = line.number / p.parts * p.parts;
    var own = Exponentials(LOWEST, 0.0, 0.0);
    for (var k = line.lane; k < p.parts; k += p.lanes) {
        let other = of_parts[list + k];
        let most = max(own.most, other.x);
        let total = own.total * exp(own.most - most) + other.y * exp(other.x - most);
        own = Exponentials(most, total, max(own.nan, other.z));
    }
    let row = of_line(local, own);
    let log_total = log(row.total);
    let range = part_of(line.number);
    for (var at = range.x + line.lane; line.exists && at < range.y; at += p.lanes) {
        results[at - p.offset] = result(x[at], row, log_total);
    }
}
