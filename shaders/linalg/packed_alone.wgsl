// X · Wᵀ of a packed matrix W, for few rows of X (after packed_factor.wgsl). One invocation: a row of W and FEW rows of X.

@compute @workgroup_size(WG)
fn packed_alone(id: Id) {
    let task = linear_index(id);
    let column = task % p.n;
    let row = task / p.n * FEW;
    if row >= p.m {
        return;
    }
    var sums = vec4(0.0); // not vec4<f32>(): naga would define its zero twice in HLSL, beside that of V()
    for (var block = 0u; block < p.blocks; block++) {
        let zero = V(zero_of(column, block));
        var products = vec4(0.0);
        for (var at = block * p.block; at < (block + 1u) * p.block; at++) {
            let word = N(word_at(column, at));
            for (var e = 0u; e < 32u / BITS; e += WIDTH) {
                let weights = V((word >> (numbers(e / WIDTH) * BITS)) & N(largest())) - zero;
                for (var i = 0u; i < FEW; i++) {
                    products[i] += sum_of(weights * x_at(row + i, at * (32u / BITS) + e));
                }
            }
        }
        sums += scale_of(column, block) * products;
    }
    for (var i = 0u; i < FEW; i++) {
        if row + i < p.m {
            out[(row + i) * p.n + column] = sums[i];
        }
    }
}
