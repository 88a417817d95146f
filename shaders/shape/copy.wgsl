// out[o(i)] ← x[s(i)] for every element i of one shape, after strided.wgsl and fours.wgsl: x and out are its first two
// operands. Elements are 32-bit words of any type.
//   fours:   both are dense: vectors of four. One invocation: `run` vectors.
//   strided: any places. One invocation of `count`: up to `run` elements of a line along the last dimension.

@group(0) @binding(1) var<storage, read> x: array<u32>;
@group(0) @binding(2) var<storage, read_write> out: array<u32>;
@group(0) @binding(1) var<storage, read> x4: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read_write> out4: array<vec4<u32>>;

@compute @workgroup_size(WG)
fn fours(id: Id) {
    let range = vectors(id, p.run, p.count);
    for (var i = range.x; i < range.y; i++) {
        out4[p.offsets.y / 4u + i] = x4[p.offsets.x / 4u + i];
    }
}

@compute @workgroup_size(WG)
fn strided(id: Id) {
    let i = linear_index(id);
    if i >= p.count {
        return;
    }
    let inner = p.dims[p.rank - 1u];
    let runs = (inner.w + p.run - 1u) / p.run;
    let line = i / runs;
    let first = (i - line * runs) * p.run;
    var at = places(line * inner.w + first);
    for (var column = first; column < min(first + p.run, inner.w); column++) {
        out[at.y] = x[at.x];
        at += inner.xyz;
    }
}
