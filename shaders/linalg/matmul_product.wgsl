// The code that products of matrices and convolutions in tiles share: the bias of each row and the result. After the params,
// and functions that say how many columns there are, and where rows, their bias and columns are; with put.wgsl.

@group(0) @binding(3) var<storage, read> bias: array<f32>;
@group(0) @binding(4) var<storage, read_write> out: array<f32>;

override HAS_BIAS: bool = false;

/// Writes the sums of four columns from (z, m, n) on, whose places are `at`, with the bias. Columns past the end of a row
/// are dropped.
fn store_at(z: u32, m: u32, n: u32, at: vec4<u32>, sums: vec4<f32>) {
    if m >= p.m {
        return;
    }
    var add = 0.0;
    if HAS_BIAS {
        add = row_bias(z, m);
    }
    let row = row_place(z, m);
    for (var i = 0u; i < 4u; i++) {
        if n + i < column_count() {
            put(row + at[i], sums[i] + add);
        }
    }
}

/// As `store_at`, for columns that an invocation stores once.
fn store(z: u32, m: u32, n: u32, sums: vec4<f32>) {
    store_at(z, m, n, places(n), sums);
}
