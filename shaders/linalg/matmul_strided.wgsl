// A product in tiles as in matmul_blocks.wgsl, from the operands where they are instead of from panels: for products that are
// too small for panels to be worth it (after unpacked_places.wgsl and tile_product.wgsl); in slices of k if there are few tiles.
// An invocation moves vectors of four rows of one step of k, and of four columns. Neighbours move neighbouring steps of an
// operand that is DEEP, whose steps lie side by side, else neighbouring vectors.

// The invocations that move one step of k, and the vectors that each moves for a tile.
const ACROSS = ROWS * COLUMNS * SLICES / DEPTH;
const MOVED = COLUMNS * 2u / ACROSS;

// What an invocation moves of an operand: the step of k in a tile, the first vector, and the places of the vectors' elements
// for step 0.
struct Route {
    step: u32,
    vector: u32,
    at: array<vec4<u32>, MOVED>,
}

fn route(deep: bool, index: u32, first: u32, lines: u32, offset: u32, apart: u32) -> Route {
    var r: Route;
    r.step = select(index / ACROSS, index % DEPTH, deep);
    r.vector = select(index % ACROSS, index / DEPTH, deep);
    for (var i = 0u; i < MOVED; i++) {
        let line = first + (r.vector + i * ACROSS) * 4u;
        // In place of lines past the end the last one is loaded; its sums are not stored.
        r.at[i] = offset + min(line + FOUR, vec4(lines - 1u)) * apart;
    }
    return r;
}

struct Part {
    a: array<vec4<f32>, MOVED>,
    b: array<vec4<f32>, MOVED>,
}

/// Loads a part of the tile from k on. Steps past the end repeat the last one.
fn load(ra: Route, rb: Route, k: u32, end: u32) -> Part {
    let skip_a = min(k + ra.step, end) * p.a_column;
    let skip_b = min(k + rb.step, end) * p.b_row;
    var part: Part;
    for (var i = 0u; i < MOVED; i++) {
        let at = ra.at[i] + skip_a;
        part.a[i] = vec4(of_a(at.x), of_a(at.y), of_a(at.z), of_a(at.w));
    }
    for (var i = 0u; i < MOVED; i++) {
        let at = rb.at[i] + skip_b;
        part.b[i] = vec4(of_b(at.x), of_b(at.y), of_b(at.z), of_b(at.w));
    }
    return part;
}

/// Puts a part of the tile from k on into its place, with zeros for steps past the end.
fn put_part(ra: Route, rb: Route, k: u32, end: u32, part: Part) {
    for (var i = 0u; i < MOVED; i++) {
        tile_a[ra.step * A_STRIDE + ra.vector + i * ACROSS] = part.a[i];
        tile_b[rb.step * B_STRIDE + rb.vector + i * ACROSS] = part.b[i];
    }
    if k + DEPTH - 1u > end {
        for (var i = 0u; i < MOVED; i++) {
            if k + ra.step > end {
                tile_a[ra.step * A_STRIDE + ra.vector + i * ACROSS] = vec4<f32>();
            }
            if k + rb.step > end {
                tile_b[rb.step * B_STRIDE + rb.vector + i * ACROSS] = vec4<f32>();
            }
        }
    }
}

@compute @workgroup_size(COLUMNS, ROWS, SLICES)
fn matmul_strided(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_id) lid: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let tile = group_number(group);
    let m_tiles = (p.m + ROWS * 8u - 1u) / (ROWS * 8u);
    let n_tiles = (p.n + COLUMNS * 8u - 1u) / (COLUMNS * 8u);
    let m_tile = tile % m_tiles;
    let n_tile = (tile / m_tiles) % n_tiles;
    let z = tile / (m_tiles * n_tiles);
    if z >= p.count / (p.m * p.n) {
        return;
    }
    let first = z % p.parts * p.length;
    let last = min(first + p.length, p.k); // no part is empty
    let first_a = p.a_offset + placed(z / p.parts, p.a_z);
    let first_b = p.b_offset + placed(z / p.parts, p.b_z);
    let ra = route(DEEP_A, local, m_tile * ROWS * 8u, p.m, first_a, p.a_row);
    let rb = route(DEEP_B, local, n_tile * COLUMNS * 8u, p.n, first_b, p.b_column);
    put_part(ra, rb, first, last - 1u, load(ra, rb, first, last - 1u));
    workgroupBarrier();
    for (var k = first; k < last; k += DEPTH) {
        let next = load(ra, rb, k + DEPTH, last - 1u);
        multiply_tiles(lid);
        workgroupBarrier();
        put_part(ra, rb, k + DEPTH, last - 1u, next);
        workgroupBarrier();
    }
    if SLICES > 1u {
        join_slices(lid);
    }
    if lid.z == 0u {
        store_tile(z, m_tile, n_tile, lid);
    }
}
