// out = A · B (+ bias), as in matmul_tiles.wgsl and from the same panels, for large products on GPUs: 8 × 8 elements per
// invocation, so that a load from the memory of the workgroup serves 16 multiply-adds instead of 8. A workgroup of
// SIDE × SIDE computes a tile of 8 · SIDE rows and columns. The text before this one sets SIDE: 8 or 16.
// The loop over k has no branch around a load, and is short enough to be written out: then the loads of the next tile are
// on their way during the multiply-adds of this one, as RADV compiles it. docs/amd-kernels.md has the figures.

@group(0) @binding(1) var<storage, read> a: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> b: array<vec4<f32>>;

// The steps of k in a tile, and the runs of them that the inner loop has: compilers write out short loops only.
const DEPTH = 8u;
const RUN = 4u;
// Half of the rows or columns of a tile: an invocation has four neighbouring ones in either half.
const HALF = SIDE * 4u;
// Panels of B in a tile.
const PANELS = SIDE / 8u;
// The vectors of one step of k. Unused ones after those of A put the steps into different memory banks.
const A_STRIDE = SIDE * 2u + PANELS;
const B_STRIDE = SIDE * 2u;
// The vectors of A, and those of B, that an invocation moves for a tile: 2 or 1.
const MOVED = 16u / SIDE;
var<workgroup> tile_a: array<vec4<f32>, DEPTH * A_STRIDE>;
var<workgroup> tile_b: array<vec4<f32>, DEPTH * B_STRIDE>;

// Where an invocation finds its part of a tile, and where it puts it. A second vector of A is the next one, one of B is
// eight further.
struct Route {
    end: u32, // the last step of k
    from_a: u32, step_a: u32, to_a: u32,
    from_b: u32, step_b: u32, to_b: u32,
}

struct Part { a: array<vec4<f32>, 2>, b: array<vec4<f32>, 2> }

/// Loads a part of the tile from k on. Steps past the end repeat the last one.
fn load(r: Route, k: u32) -> Part {
    let from_a = r.from_a + min(k + r.step_a, r.end) * 2u;
    let from_b = r.from_b + min(k + r.step_b, r.end) * 16u;
    var part: Part;
    part.a[0] = a[from_a];
    part.b[0] = b[from_b];
    if MOVED == 2u {
        part.a[1] = a[from_a + 1u];
        part.b[1] = b[from_b + 8u];
    }
    return part;
}

fn put_a(r: Route, v: array<vec4<f32>, 2>) {
    tile_a[r.to_a] = v[0];
    if MOVED == 2u {
        tile_a[r.to_a + 1u] = v[1];
    }
}

fn put_b(r: Route, v: array<vec4<f32>, 2>) {
    tile_b[r.to_b] = v[0];
    if MOVED == 2u {
        tile_b[r.to_b + 8u] = v[1];
    }
}

/// Puts a part of the tile from k on into its place, with zeros for steps past the end.
fn put(r: Route, k: u32, part: Part) {
    put_a(r, part.a);
    put_b(r, part.b);
    if k + DEPTH - 1u > r.end {
        if k + r.step_a > r.end {
            put_a(r, array<vec4<f32>, 2>());
        }
        if k + r.step_b > r.end {
            put_b(r, array<vec4<f32>, 2>());
        }
    }
}

@compute @workgroup_size(SIDE, SIDE)
fn matmul_blocks(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_id) lid: vec3<u32>) {
    let tile = group_number(group);
    let index = lid.y * SIDE + lid.x;
    let m_tiles = (p.m_tiles + PANELS - 1u) / PANELS;
    let n_tiles = (p.n_tiles + PANELS - 1u) / PANELS;
    let m_tile = tile % m_tiles;
    let n_tile = (tile / m_tiles) % n_tiles;
    let z = tile / (m_tiles * n_tiles);
    let first = (z % p.splits) * p.k_split;
    if z >= p.z_count || (first >= p.k && p.k > 0u) {
        return;
    }
    let last = min(first + p.k_split, p.k);
    // Neighbours move a panel of A, and columns of B. In place of panels past the end they load the last one, whose sums
    // are not stored.
    let a_panel = min(m_tile * SIDE + index / SIDE, (p.m - 1u) / 8u);
    let part_a = index % SIDE * MOVED; // among the vectors of 8 steps of the panel
    let across = B_STRIDE / MOVED; // invocations for one step of B
    let b_panel = min(n_tile * PANELS + index % across / 16u, p.n_tiles - 1u);
    var route: Route;
    route.end = last - 1u;
    route.from_a = (z / p.splits) * p.a_batch + a_panel * p.k * 2u + part_a % 2u;
    route.step_a = part_a / 2u;
    route.to_a = route.step_a * A_STRIDE + index / SIDE * 2u + part_a % 2u;
    route.from_b = (z / p.splits) * p.b_batch + b_panel * p.k * 16u + index % across % 16u;
    route.step_b = index / across;
    route.to_b = route.step_b * B_STRIDE + index % across;

    var l0 = vec4<f32>(); var h0 = vec4<f32>(); var l1 = vec4<f32>(); var h1 = vec4<f32>();
    var l2 = vec4<f32>(); var h2 = vec4<f32>(); var l3 = vec4<f32>(); var h3 = vec4<f32>();
    var l4 = vec4<f32>(); var h4 = vec4<f32>(); var l5 = vec4<f32>(); var h5 = vec4<f32>();
    var l6 = vec4<f32>(); var h6 = vec4<f32>(); var l7 = vec4<f32>(); var h7 = vec4<f32>();
    if first < last {
        put(route, first, load(route, first));
    }
    workgroupBarrier();
    for (var k = first; k < last; k += DEPTH) {
        let next = load(route, k + DEPTH);
        var at_a = lid.y; var at_b = lid.x;
        for (var run = 0u; run < DEPTH / RUN; run++) {
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
                at_a += A_STRIDE; at_b += B_STRIDE;
            }
        }
        workgroupBarrier();
        put(route, k + DEPTH, next);
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
