// What the variants of the matrix product take beside the panels: sizes and places. `Product::kernel` sets the params.
// Element (z, m, n) of the result goes to offset + z · batch + m · row + (n / inner) · outer + n % inner.
struct Params {
    m: u32,
    n: u32,
    k: u32,
    m_tiles: u32,  // workgroups along M
    n_tiles: u32,  // workgroups along N
    a_batch: u32,  // panel step of z, in vec4
    b_batch: u32,
    k_split: u32,  // k per split: z counts batch · splits
    splits: u32,
    offset: u32,
    batch: u32,
    row: u32,
    inner: u32,
    outer: u32,
    bias_offset: u32,
    z_count: u32, // batch · splits: a folded grid may have more workgroups
}

@group(0) @binding(0) var<uniform> p: Params;

/// Returns the number of columns.
fn column_count() -> u32 {
    return p.n;
}

/// Returns the place of the first column of row m.
fn row_place(z: u32, m: u32) -> u32 {
    return p.offset + z * p.batch + m * p.row;
}

fn row_bias(z: u32, m: u32) -> f32 {
    return bias[p.bias_offset + m];
}

/// Returns the places of four columns from n on, within a row.
fn places(n: u32) -> vec4<u32> {
    let columns = n + vec4(0u, 1u, 2u, 3u);
    return columns / p.inner * p.outer + columns % p.inner;
}
