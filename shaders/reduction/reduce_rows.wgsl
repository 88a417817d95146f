// out[a, part] ← ⊕ x[a, r] over the elements r of a part of row a, after join.wgsl and row_parts.wgsl; x is [A, R], out is [A, parts]. The
// header and by_one or by_four of reduce.rs set the type T of the elements and what is read at once, V: R and all places in x are
// counted in V. Invocations join what they have in workgroup memory, always in the same order.

@group(0) @binding(1) var<storage, read> x: array<V>;
@group(0) @binding(2) var<storage, read_write> out: array<T>;

var<workgroup> held: array<T, WIDE>;

@compute @workgroup_size(WIDE)
fn rows(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let line = line_of(group, local, p.lines);
    let part = part_of(line);
    let first = part.row + part.first;
    let end = part.row + part.end;
    var own = x[min(first + line.lane, end - 1u)];
    for (var at = first + line.lane + p.lanes; at < end; at += p.lanes) {
        own = joined(own, x[at]);
    }
    held[local] = within(own);
    workgroupBarrier();
    // Invocations without an element have a copy of the last one, which must not count.
    let count = min(end - first, p.lanes);
    for (var half = p.lanes / 2u; half > 0u; half /= 2u) {
        if line.lane < half && line.lane + half < count {
            held[local] = join(held[local], held[local + half]);
        }
        workgroupBarrier();
    }
    if line.lane == 0u && line.exists {
        out[line.number] = held[local];
    }
}
