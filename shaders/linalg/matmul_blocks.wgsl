// out = A · B (+ bias), as in matmul_tiles.wgsl and from the same panels, for large products on GPUs: 8 × 8 elements per
// invocation, so that a load from the memory of the workgroup serves 16 multiply-adds instead of 8. A workgroup computes a
// tile of 8 · SIDE rows and columns, where ROWS and COLUMNS are SIDE (after tile_product.wgsl).
// The loop over k has no branch around a load, and is short enough to be written out: then the loads of the next tile are
// on their way during the multiply-adds of this one, as RADV compiles it. docs/amd-kernels.md has the figures.

@group(0) @binding(1) var<storage, read> a: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> b: array<vec4<f32>>;

const SIDE = ROWS;
// Panels of B in a tile.
const PANELS = SIDE / 8u;
// The vectors of A, and those of B, that an invocation moves for a tile: 2 or 1.
const MOVED = 16u / SIDE;

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
fn put_part(r: Route, k: u32, part: Part) {
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

    if first < last {
        put_part(route, first, load(route, first));
    }
    workgroupBarrier();
    for (var k = first; k < last; k += DEPTH) {
        let next = load(route, k + DEPTH);
        multiply_tiles(lid);
        workgroupBarrier();
        put_part(route, k + DEPTH, next);
        workgroupBarrier();
    }
    store_tile(z, m_tile, n_tile, lid);
}
