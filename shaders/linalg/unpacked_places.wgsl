// What products in tiles have in common that read the operands where they are (matmul_strided.wgsl, matmul_shared.wgsl; after
// matmul_unpacked.wgsl and matmul_product.wgsl): how the operands lie, and the places of results. z counts the parts of k.

/// Whether the steps of k of an operand lie side by side.
override DEEP_A: bool = false;
override DEEP_B: bool = false;

const FOUR = vec4(0u, 1u, 2u, 3u);

/// Returns the number of columns.
fn column_count() -> u32 {
    return p.n;
}

/// Returns the place of the first column of row m.
fn row_place(z: u32, m: u32) -> u32 {
    return (z * p.m + m) * p.n;
}

fn row_bias(z: u32, m: u32) -> f32 {
    return bias[0]; // there is none
}

fn places(n: u32) -> vec4<u32> {
    return n + FOUR;
}
