// out[a, part] ← the first r in a part of row a at which x[a, r] is largest (SMALLEST: smallest); x is [A, R] dense, out is [A, parts] of
// u32. A part has `span` elements. NaN counts as the extreme. The header sets the type T. `p.lanes` neighbouring invocations have a part:
// they read neighbouring elements, and join what they have in workgroup memory.

struct Params {
    offset: u32,
    lines: u32,   // A · parts
    reduced: u32, // R
    parts: u32,   // of a row
    span: u32,
    lanes: u32,   // that share a row or a part: a power of two, up to WIDE
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x: array<T>;
@group(0) @binding(2) var<storage, read_write> out: array<u32>;

override SMALLEST: bool;

const WIDE = 256u;

fn beats(v: T, best: T) -> bool {
    return select(v > best, v < best, SMALLEST) || (is_nan(f32(v)) && !is_nan(f32(best)));
}

var<workgroup> values: array<T, WIDE>;
var<workgroup> places: array<u32, WIDE>;

@compute @workgroup_size(WIDE)
fn rows(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let number = group_number(group) * (WIDE / p.lanes) + local / p.lanes;
    let line = min(number, p.lines - 1u); // barriers are for all: surplus invocations have the last line
    let lane = local % p.lanes;
    let row = p.offset + line / p.parts * p.reduced;
    let begin = line % p.parts * p.span;
    let end = min(begin + p.span, p.reduced);
    var place = min(begin + lane, end - 1u); // of the last element for invocations without one
    var best = x[row + place];
    for (var r = begin + lane + p.lanes; r < end; r += p.lanes) {
        let v = x[row + r];
        if beats(v, best) {
            best = v;
            place = r;
        }
    }
    values[local] = best;
    places[local] = place;
    workgroupBarrier();
    for (var half = p.lanes / 2u; half > 0u; half /= 2u) {
        if lane < half {
            let v = values[local + half];
            let at = places[local + half];
            let first = at < places[local] && !beats(values[local], v);
            if beats(v, values[local]) || first {
                values[local] = v;
                places[local] = at;
            }
        }
        workgroupBarrier();
    }
    if lane == 0u && number < p.lines {
        out[line] = places[local];
    }
}
