// out = A · B (+ bias), as in matmul_panels.wgsl and from the same panels, for GPUs: a workgroup of SIDE × SIDE loads
// 4 · SIDE rows and columns of 16 steps of k at a time into its memory, where each invocation reads the values for its 4 × 4
// elements. The text before this one sets SIDE: 16 or 8.

@group(0) @binding(1) var<storage, read> a: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> b: array<vec4<f32>>;

// The steps of k in a tile, which has SIDE vectors of rows and of columns for each.
const DEPTH = 16u;
// Two unused vectors after each step of k put the rows of A into different memory banks.
const A_STRIDE = SIDE + 2u;
// The vectors of A, and those of B, that an invocation moves for a tile, and the distance from one to the next.
const MOVED = DEPTH / SIDE;
const APART = SIDE * SIDE;

var<workgroup> tile_a: array<vec4<f32>, DEPTH * A_STRIDE>;
var<workgroup> tile_b: array<vec4<f32>, DEPTH * SIDE>;

@compute @workgroup_size(SIDE, SIDE)
fn matmul_tiles(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_id) lid: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let tile = group_number(group);
    let m_tiles = (p.m + SIDE * 4u - 1u) / (SIDE * 4u);
    let n_tiles = (p.n + SIDE * 4u - 1u) / (SIDE * 4u);
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
    // The parts of a tile that this invocation loads. For A, 32 neighbours read 16 steps of a panel; for B, runs of the columns
    // of a step.
    var from_a: array<u32, MOVED>;
    var from_b: array<u32, MOVED>;
    var end_a: array<u32, MOVED>; // one past the last tile with the step, for A and B
    var end_b: array<u32, MOVED>;
    var to_a: array<u32, MOVED>;
    for (var i = 0u; i < MOVED; i++) {
        let index = local + i * APART;
        let panel = m_tile * (SIDE / 2u) + index / 32u;
        let vector = n_tile * SIDE + index % SIDE;
        let a_step = index % 32u / 2u;
        let b_step = index / SIDE;
        from_a[i] = (z / p.splits) * p.a_batch + (panel * p.k + a_step) * 2u + index % 2u;
        from_b[i] = (z / p.splits) * p.b_batch + (vector / 16u * p.k + b_step) * 16u + vector % 16u;
        end_a[i] = select(0u, last - min(last, a_step), panel * 8u < p.m);
        end_b[i] = last - min(last, b_step);
        to_a[i] = a_step * A_STRIDE + index / 32u * 2u + index % 2u;
    }

    var s0 = vec4<f32>();
    var s1 = vec4<f32>();
    var s2 = vec4<f32>();
    var s3 = vec4<f32>();
    for (var k = first; k < last; k += DEPTH) {
        // What is not part of an operand is loaded from place 0: a load in an `if` is waited for before the next begins.
        for (var i = 0u; i < MOVED; i++) {
            let a_inside = k < end_a[i];
            let b_inside = k < end_b[i];
            let part_a = a[select(0u, from_a[i] + k * 2u, a_inside)];
            let part_b = b[select(0u, from_b[i] + k * 16u, b_inside)];
            tile_a[to_a[i]] = select(vec4<f32>(), part_a, a_inside);
            tile_b[local + i * APART] = select(vec4<f32>(), part_b, b_inside);
        }
        workgroupBarrier();
        for (var step = 0u; step < DEPTH; step++) {
            let va = tile_a[step * A_STRIDE + lid.y];
            let vb = tile_b[step * SIDE + lid.x];
            s0 += va.x * vb;
            s1 += va.y * vb;
            s2 += va.z * vb;
            s3 += va.w * vb;
        }
        workgroupBarrier();
    }
    let m = (m_tile * SIDE + lid.y) * 4u;
    let n = (n_tile * SIDE + lid.x) * 4u;
    store(z, m, n, s0);
    store(z, m + 1u, n, s1);
    store(z, m + 2u, n, s2);
    store(z, m + 3u, n, s3);
}
