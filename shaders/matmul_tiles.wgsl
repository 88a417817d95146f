// out = A · B (+ bias), as in matmul_panels.wgsl and from the same panels, for GPUs: a workgroup of 16 × 16 loads 64
// rows and 64 columns of 16 steps of k at a time into its memory, where each invocation reads the values for its 4 × 4
// elements.

@group(0) @binding(1) var<storage, read> a: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> b: array<vec4<f32>>;

// The steps of k in a tile, and the vectors of 64 rows or columns.
const DEPTH = 16u;
const VECTORS = 16u;
// Two unused vectors after each step of k put the rows of A into different memory banks.
const A_STRIDE = 18u;

var<workgroup> tile_a: array<vec4<f32>, 288>; // DEPTH · A_STRIDE
var<workgroup> tile_b: array<vec4<f32>, 256>; // DEPTH · VECTORS

@compute @workgroup_size(16, 16)
fn matmul_tiles(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_id) lid: vec3<u32>) {
    let tile = group_number(group);
    let index = lid.y * 16u + lid.x;
    let m_tile = tile % p.m_tiles;
    let n_tile = (tile / p.m_tiles) % p.n_tiles;
    let z = tile / (p.m_tiles * p.n_tiles);
    if z >= p.z_count {
        return;
    }
    let first = (z % p.splits) * p.k_split;
    if first >= p.k && p.k > 0u {
        return;
    }
    let last = min(first + p.k_split, p.k);

    // The part of a tile that this invocation loads. For A, 32 neighbours read 16 steps of a panel; for B, all one run.
    let a_panel = m_tile * 8u + index / 32u;
    let a_step = index % 32u / 2u;
    let a_valid = a_panel * 8u < p.m;
    let a_from = (z / p.splits) * p.a_batch + a_panel * p.k * 2u + index % 2u;
    let a_to = a_step * A_STRIDE + index / 32u * 2u + index % 2u;
    let b_step = index / VECTORS;
    let b_from = (z / p.splits) * p.b_batch + n_tile * p.k * VECTORS + index % VECTORS;

    var s0 = vec4<f32>();
    var s1 = vec4<f32>();
    var s2 = vec4<f32>();
    var s3 = vec4<f32>();
    for (var k = first; k < last; k += DEPTH) {
        // What is not part of an operand is loaded from place 0: a load in an `if` is waited for before the next begins.
        let a_inside = a_valid && k + a_step < last;
        let b_inside = k + b_step < last;
        let part_a = a[select(0u, a_from + (k + a_step) * 2u, a_inside)];
        let part_b = b[select(0u, b_from + (k + b_step) * VECTORS, b_inside)];
        tile_a[a_to] = select(vec4<f32>(), part_a, a_inside);
        tile_b[index] = select(vec4<f32>(), part_b, b_inside);
        workgroupBarrier();
        for (var step = 0u; step < DEPTH; step++) {
            let va = tile_a[step * A_STRIDE + lid.y];
            let vb = tile_b[step * VECTORS + lid.x];
            s0 += va.x * vb;
            s1 += va.y * vb;
            s2 += va.z * vb;
            s3 += va.w * vb;
        }
        workgroupBarrier();
    }
    let m = m_tile * 64u + lid.y * 4u;
    let n = n_tile * 64u + lid.x * 4u;
    store(z, m, n, s0);
    store(z, m + 1u, n, s1);
    store(z, m + 2u, n, s2);
    store(z, m + 3u, n, s3);
}
