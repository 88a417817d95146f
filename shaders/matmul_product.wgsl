// The code that the variants of the matrix product share: sizes, places, the bias of each row and the result.
// `Product::kernel` sets the params. Element (z, m, n) of the result goes to
// offset + z · batch + m · row + (n / inner) · outer + n % inner.
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
@group(0) @binding(3) var<storage, read> bias: array<f32>;
@group(0) @binding(4) var<storage, read_write> out: array<f32>;

override HAS_BIAS: bool = false;

/// Returns the places of four columns from n on, within a row.
fn places(n: u32) -> vec4<u32> {
    let columns = n + vec4(0u, 1u, 2u, 3u);
    return columns / p.inner * p.outer + columns % p.inner;
}

/// Writes the sums of four columns from (z, m, n) on, whose places are `at`, with the bias. Columns past the end of a row
/// are dropped.
fn store_at(z: u32, m: u32, n: u32, at: vec4<u32>, sums: vec4<f32>) {
    if m >= p.m {
        return;
    }
    var add = 0.0;
    if HAS_BIAS {
        add = bias[p.bias_offset + m];
    }
    let row = p.offset + z * p.batch + m * p.row;
    for (var i = 0u; i < 4u; i++) {
        if n + i < p.n {
            out[row + at[i]] = sums[i] + add;
        }
    }
}

/// As `store_at`, for columns that an invocation stores once.
fn store(z: u32, m: u32, n: u32, sums: vec4<f32>) {
    store_at(z, m, n, places(n), sums);
}
