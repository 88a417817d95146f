// A product of two tiles in the memory of the workgroup, for matmul_blocks.wgsl and conv_implicit.wgsl: ROWS × COLUMNS
// invocations compute 8 · ROWS rows and 8 · COLUMNS columns, 8 × 8 elements each, so that a load from the memory of the
// workgroup serves 16 multiply-adds. With SLICES, as many such groups of invocations share a tile: each multiplies a run of its
// steps of k, so that few tiles have more invocations, and join_slices adds up what they have. The text before this one sets
// ROWS, COLUMNS and SLICES. After matmul_product.wgsl.

// The steps of k in a tile, and the runs of them that the inner loop has: compilers write out short loops only.
const RUN = 4u;
const DEPTH = RUN * max(SLICES, 2u);
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

/// Adds the products of the tiles, or of a slice of them, to the sums of the invocation at `lid`.
fn multiply_tiles(lid: vec3<u32>) {
    var at_a = lid.y + lid.z * RUN * A_STRIDE; var at_b = lid.x + lid.z * RUN * B_STRIDE;
    for (var run = 0u; run < DEPTH / RUN / SLICES; run++) {
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

struct Sums {
    l: vec4<f32>,
    h: vec4<f32>,
}

/// Returns the sums of all slices, to the first one.
fn of_slices(lid: vec3<u32>, l: vec4<f32>, h: vec4<f32>) -> Sums {
    const OF_SLICE = ROWS * COLUMNS;
    let at = lid.y * COLUMNS + lid.x;
    if lid.z > 0u {
        tile_a[(lid.z - 1u) * OF_SLICE + at] = l;
        tile_b[(lid.z - 1u) * OF_SLICE + at] = h;
    }
    workgroupBarrier();
    var sums = Sums(l, h);
    if lid.z == 0u {
        for (var slice = 0u; slice + 1u < SLICES; slice++) {
            sums.l += tile_a[slice * OF_SLICE + at];
            sums.h += tile_b[slice * OF_SLICE + at];
        }
    }
    workgroupBarrier();
    return sums;
}

/// Adds up the sums of the slices, after the last tile and a barrier. The first slice has them then.
fn join_slices(lid: vec3<u32>) {
    let r0 = of_slices(lid, l0, h0); l0 = r0.l; h0 = r0.h;
    let r1 = of_slices(lid, l1, h1); l1 = r1.l; h1 = r1.h;
    let r2 = of_slices(lid, l2, h2); l2 = r2.l; h2 = r2.h;
    let r3 = of_slices(lid, l3, h3); l3 = r3.l; h3 = r3.h;
    let r4 = of_slices(lid, l4, h4); l4 = r4.l; h4 = r4.h;
    let r5 = of_slices(lid, l5, h5); l5 = r5.l; h5 = r5.h;
    let r6 = of_slices(lid, l6, h6); l6 = r6.l; h6 = r6.h;
    let r7 = of_slices(lid, l7, h7); l7 = r7.l; h7 = r7.h;
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
