// The elements of a packed matrix as f32, without those after k (after packed_weights.wgsl). One invocation: one element.

@group(0) @binding(4) var<storage, read_write> out: array<f32>;

@compute @workgroup_size(WG)
fn packed_widen(id: Id) {
    let i = linear_index(id);
    if i >= p.n * p.k {
        return;
    }
    let row = i / p.k;
    let k = i % p.k;
    let each = 32u / BITS;
    let at = k / each;
    let block = at / p.block;
    let integer = (word_at(row, at) >> (k % each * BITS)) & largest();
    out[i] = (f32(integer) - zero_of(row, block)) * scale_of(row, block);
}
