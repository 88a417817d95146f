// The elements of a packed matrix as f32, without those after k (after packed_weights.wgsl). One invocation: RUN neighbours of a row, of
// one word.

@group(0) @binding(4) var<storage, read_write> out: array<f32>;

/// 1, or the integers of a word.
override RUN: u32 = 1u;

@compute @workgroup_size(WG)
fn packed_widen(id: Id) {
    let i = linear_index(id);
    let runs = (p.k + RUN - 1u) / RUN;
    if i >= p.n * runs {
        return;
    }
    let row = i / runs;
    let first = i % runs * RUN;
    let each = 32u / BITS;
    let at = first / each;
    let block = at / p.block;
    let word = word_at(row, at) >> (first % each * BITS);
    let zero = zero_of(row, block);
    let scale = scale_of(row, block);
    for (var j = 0u; j < min(RUN, p.k - first); j++) {
        out[row * p.k + first + j] = (f32((word >> (j * BITS)) & largest()) - zero) * scale;
    }
}
