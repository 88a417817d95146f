// A product of two tiles in the memory of the workgroup, for matmul_blocks.wgsl and conv_implicit.wgsl: ROWS × COLUMNS
// invocations compute 8 · ROWS rows and 8 · COLUMNS columns, 8 × 8 elements each, so that a load from the memory of the
// workgroup serves 16 multiply-adds. The text before this one sets ROWS and COLUMNS. After matmul_product.wgsl.

// The steps of k in a tile, and the runs of them that the inner loop has: compilers write out short loops only.
const DEPTH = 8u;
const RUN = 4u;
// Half of the rows, and of the columns, of a tile: an invocation has four neighbouring ones in either half.
const HALF_ROWS = ROWS * 4u;
const HALF = COLUMNS * 4u;
// The vectors of one step of k. Unused ones after those of A put the steps into different memory banks.
const A_STRIDE = ROWS * 2u + (ROWS + 7u) / 8u;
const B_STRIDE = COLUMNS * 2u;
var<workgroup> tile_a: array<vec4<f32>, DEPTH * A_STRIDE>;
var<workgroup> tile_b: array<vec4<f32>, DEPTH * B_STRIDE>;

// The sums: eight rows of four columns in the left half (l), and of four in the right half (h).
var<private> l0: vec4<f32>; var<private> h0: vec4<f32>; var<private> l1: vec4<f32>; var<private> h1: vec4<f32>;
var<private> l2: vec4<f32>; var<private> h2: vec4<f32>; var<private> l3: vec4<f32>; var<private> h3: vec4<f32>;
var<private> l4: vec4<f32>; var<private> h4: vec4<f32>; var<private> l5: vec4<f32>; var<private> h5: vec4<f32>;
var<private> l6: vec4<f32>; var<private> h6: vec4<f32>; var<private> l7: vec4<f32>; var<private> h7: vec4<f32>;

/// Adds the products of the tiles to the sums of the invocation at `lid`.
fn multiply_tiles(lid: vec3<u32>) {
    var at_a = lid.y; var at_b = lid.x;
    for (var run = 0u; run < DEPTH / RUN; run++) {
        for (var step = 0u; step < RUN; step++) {
            let a0 = tile_a[at_a];
            let a1 = tile_a[at_a + ROWS];
            let b0 = tile_b[at_b];
            let b1 = tile_b[at_b + COLUMNS];
            l0 += a0.x * b0; h0 += a0.x * b1;
            l1 += a0.y * b0; h1 += a0.y * b1;
            l2 += a0.z * b0; h2 += a0.z * b1;
            l3 += a0.w * b0; h3 += a0.w * b1;
            l4 += a1.x * b0; h4 += a1.x * b1;
            l5 += a1.y * b0; h5 += a1.y * b1;
            l6 += a1.z * b0; h6 += a1.z * b1;
            l7 += a1.w * b0; h7 += a1.w * b1;
            at_a += A_STRIDE; at_b += B_STRIDE;
        }
    }
}

/// Writes the sums of the invocation at `lid` of a tile.
fn store_tile(z: u32, m_tile: u32, n_tile: u32, lid: vec3<u32>) {
    let m = (m_tile * ROWS * 2u + lid.y) * 4u;
    let n = (n_tile * COLUMNS * 2u + lid.x) * 4u;
    let below = m + HALF_ROWS;
    let lo = places(n);
    let hi = places(n + HALF);
    store_at(z, m, n, lo, l0);          store_at(z, m, n + HALF, hi, h0);
    store_at(z, m + 1u, n, lo, l1);     store_at(z, m + 1u, n + HALF, hi, h1);
    store_at(z, m + 2u, n, lo, l2);     store_at(z, m + 2u, n + HALF, hi, h2);
    store_at(z, m + 3u, n, lo, l3);     store_at(z, m + 3u, n + HALF, hi, h3);
    store_at(z, below, n, lo, l4);      store_at(z, below, n + HALF, hi, h4);
    store_at(z, below + 1u, n, lo, l5); store_at(z, below + 1u, n + HALF, hi, h5);
    store_at(z, below + 2u, n, lo, l6); store_at(z, below + 2u, n + HALF, hi, h6);
    store_at(z, below + 3u, n, lo, l7); store_at(z, below + 3u, n + HALF, hi, h7);
}
