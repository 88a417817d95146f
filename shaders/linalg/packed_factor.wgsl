// Precedes the products X · Wᵀ of a packed matrix W (after packed_weights.wgsl, and by_four.wgsl or by_one.wgsl): the rows of X.

@group(0) @binding(4) var<storage, read> x: array<V>;
@group(0) @binding(5) var<storage, read_write> out: array<f32>;

/// The rows of X that an invocation multiplies: 1 to 4.
override FEW: u32 = 1u;

/// Returns elements k to k + WIDTH − 1 of a row of X, 0 after the last one. A row that does not exist is the last one.
fn x_at(row: u32, k: u32) -> V {
    var v = V();
    if k < p.k {
        v = x[(p.x_offset + min(row, p.m - 1u) * p.k + k) / WIDTH];
    }
    return v;
}
