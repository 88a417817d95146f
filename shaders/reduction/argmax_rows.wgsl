// out[a, part] ← the first r in a part of row a at which x[a, r] is largest (SMALLEST: smallest), after row_parts.wgsl; x is [A, R], out is
// [A, parts] of u32. NaN counts as the extreme. The header sets the type T. Invocations join what they have in workgroup memory.

@group(0) @binding(1) var<storage, read> x: array<T>;
@group(0) @binding(2) var<storage, read_write> out: array<u32>;

override SMALLEST: bool;

fn beats(v: T, best: T) -> bool {
    return select(v > best, v < best, SMALLEST) || (is_nan(f32(v)) && !is_nan(f32(best)));
}

var<workgroup> values: array<T, WIDE>;
var<workgroup> places: array<u32, WIDE>;

@compute @workgroup_size(WIDE)
fn rows(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let line = line_of(group, local, p.lines);
    let part = part_of(line);
    var place = min(part.first + line.lane, part.end - 1u); // of the last element for invocations without one
    var best = x[part.row + place];
    for (var r = part.first + line.lane + p.lanes; r < part.end; r += p.lanes) {
        let v = x[part.row + r];
        if beats(v, best) {
            best = v;
            place = r;
        }
    }
    values[local] = best;
    places[local] = place;
    workgroupBarrier();
    for (var half = p.lanes / 2u; half > 0u; half /= 2u) {
        if line.lane < half {
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
    if line.lane == 0u && line.exists {
        out[line.number] = places[local];
    }
}
