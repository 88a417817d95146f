// out = A · B (+ bias), as in matmul_tiles.wgsl and from the same panels, for large products on GPUs: 8 × 8 elements per
// invocation, so that a load from the memory of the workgroup serves 16 multiply-adds instead of 8. A workgroup of
// SIDE × SIDE computes a tile of 8 · SIDE rows and columns, SIDE steps of k at a time. `SIDE`, 8 or 16, is set by the text
// before this one.
// While a tile is multiplied, the next one is on its way into registers. A second copy of the tiles in the memory of the
// workgroup would save one of the two barriers and cost a third of the subgroups that run at the same time.

@group(0) @binding(1) var<storage, read> a: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> b: array<vec4<f32>>;

// Half of the rows or columns of a tile: an invocation has four neighbouring ones in either half.
const HALF = SIDE * 4u;
// Panels of B in a tile, and tiles of `p` in a tile, in each direction.
const PANELS = SIDE / 8u;
// The vectors of one step of k. Two unused ones after those of A put the steps into different memory banks.
const A_STRIDE = SIDE * 2u + 2u;
const B_STRIDE = SIDE * 2u;
// Steps of k that are written out.
const RUN = 4u;

var<workgroup> tile_a: array<vec4<f32>, SIDE * A_STRIDE>;
var<workgroup> tile_b: array<vec4<f32>, SIDE * B_STRIDE>;

fn load_a(valid: bool, at: u32) -> vec4<f32> {
    if valid {
        return a[at];
    }
    return vec4<f32>();
}

fn load_b(valid: bool, at: u32) -> vec4<f32> {
    if valid {
        return b[at];
    }
    return vec4<f32>();
}

@compute @workgroup_size(SIDE, SIDE)
fn matmul_blocks(id: Id, @builtin(local_invocation_id) lid: vec3<u32>) {
    let tile = linear_group(id);
    let index = id.local;
    let m_tiles = (p.m_tiles + PANELS - 1u) / PANELS;
    let n_tiles = (p.n_tiles + PANELS - 1u) / PANELS;
    let m_tile = tile % m_tiles;
    let n_tile = (tile / m_tiles) % n_tiles;
    let z = tile / (m_tiles * n_tiles);
    if z >= p.z_count {
        return;
    }
    let first = (z % p.splits) * p.k_split;
    if first >= p.k && p.k > 0u {
        return;
    }
    let last = min(first + p.k_split, p.k);

    // What this invocation loads of a tile: two vectors of A, half of the panels apart, and two of B, half of the steps
    // apart. Neighbours read all steps of a panel of A, and runs of columns of B.
    let a_part = index / (SIDE * 2u);
    let a_step = index / 2u % SIDE;
    let a_panel = m_tile * SIDE + a_part;
    let a_valid = a_panel * 8u < p.m;
    let a_lower_valid = (a_panel + SIDE / 2u) * 8u < p.m;
    let a_from = (z / p.splits) * p.a_batch + (a_panel * p.k + a_step) * 2u + index % 2u;
    let a_lower = a_from + SIDE * p.k;
    let a_to = a_step * A_STRIDE + a_part * 2u + index % 2u;
    let b_step = index / B_STRIDE;
    let b_panel = n_tile * PANELS + index % B_STRIDE / 16u;
    let b_valid = b_panel < p.n_tiles;
    let b_from = (z / p.splits) * p.b_batch + (b_panel * p.k + b_step) * 16u + index % 16u;

    var l0 = vec4<f32>(); var h0 = vec4<f32>();
    var l1 = vec4<f32>(); var h1 = vec4<f32>();
    var l2 = vec4<f32>(); var h2 = vec4<f32>();
    var l3 = vec4<f32>(); var h3 = vec4<f32>();
    var l4 = vec4<f32>(); var h4 = vec4<f32>();
    var l5 = vec4<f32>(); var h5 = vec4<f32>();
    var l6 = vec4<f32>(); var h6 = vec4<f32>();
    var l7 = vec4<f32>(); var h7 = vec4<f32>();
    // Each round stores the tile that was loaded before, begins to load the next one, and multiplies.
    var next_a = load_a(a_valid && first + a_step < last, a_from + first * 2u);
    var next_a_lower = load_a(a_lower_valid && first + a_step < last, a_lower + first * 2u);
    var next_b = load_b(b_valid && first + b_step < last, b_from + first * 16u);
    var next_b_later = load_b(b_valid && first + b_step + SIDE / 2u < last, b_from + (first + SIDE / 2u) * 16u);
    for (var k = first; k < last; k += SIDE) {
        tile_a[a_to] = next_a;
        tile_a[a_to + SIDE] = next_a_lower;
        tile_b[index] = next_b;
        tile_b[index + SIDE * SIDE] = next_b_later;
        workgroupBarrier();
        let next = k + SIDE;
        next_a = load_a(a_valid && next + a_step < last, a_from + next * 2u);
        next_a_lower = load_a(a_lower_valid && next + a_step < last, a_lower + next * 2u);
        next_b = load_b(b_valid && next + b_step < last, b_from + next * 16u);
        next_b_later = load_b(b_valid && next + b_step + SIDE / 2u < last, b_from + (next + SIDE / 2u) * 16u);
        var at_a = lid.y;
        var at_b = lid.x;
        for (var run = 0u; run < SIDE / RUN; run++) {
            for (var step = 0u; step < RUN; step++) {
                let a0 = tile_a[at_a];
                let a1 = tile_a[at_a + SIDE];
                let b0 = tile_b[at_b];
                let b1 = tile_b[at_b + SIDE];
                l0 += a0.x * b0; h0 += a0.x * b1;
                l1 += a0.y * b0; h1 += a0.y * b1;
                l2 += a0.z * b0; h2 += a0.z * b1;
                l3 += a0.w * b0; h3 += a0.w * b1;
                l4 += a1.x * b0; h4 += a1.x * b1;
                l5 += a1.y * b0; h5 += a1.y * b1;
                l6 += a1.z * b0; h6 += a1.z * b1;
                l7 += a1.w * b0; h7 += a1.w * b1;
                at_a += A_STRIDE;
                at_b += B_STRIDE;
            }
        }
        workgroupBarrier();
    }
    let m = (m_tile * SIDE * 2u + lid.y) * 4u;
    let n = (n_tile * SIDE * 2u + lid.x) * 4u;
    let lo = places(n);
    let hi = places(n + HALF);
    store_at(z, m, n, lo, l0);             store_at(z, m, n + HALF, hi, h0);
    store_at(z, m + 1u, n, lo, l1);        store_at(z, m + 1u, n + HALF, hi, h1);
    store_at(z, m + 2u, n, lo, l2);        store_at(z, m + 2u, n + HALF, hi, h2);
    store_at(z, m + 3u, n, lo, l3);        store_at(z, m + 3u, n + HALF, hi, h3);
    store_at(z, m + HALF, n, lo, l4);      store_at(z, m + HALF, n + HALF, hi, h4);
    store_at(z, m + HALF + 1u, n, lo, l5); store_at(z, m + HALF + 1u, n + HALF, hi, h5);
    store_at(z, m + HALF + 2u, n, lo, l6); store_at(z, m + HALF + 2u, n + HALF, hi, h6);
    store_at(z, m + HALF + 3u, n, lo, l7); store_at(z, m + HALF + 3u, n + HALF, hi, h7);
}
