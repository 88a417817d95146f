// out[o(i)] ← x[s(i)] for every element i of one shape, after strided.wgsl: x and out are its first two operands.
// Elements are 32-bit words of any type. One invocation: one element.

@group(0) @binding(1) var<storage, read> x: array<u32>;
@group(0) @binding(2) var<storage, read_write> out: array<u32>;

@compute @workgroup_size(WG)
fn strided(id: Id) {
    let i = linear_index(id);
    if i < p.count {
        let at = places(i);
        out[at.y] = x[at.x];
    }
}
