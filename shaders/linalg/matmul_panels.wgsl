// out = A · B (+ bias), A [M, K], B [K, N], both stored in panels by pack.wgsl: A in panels of 8 rows, B in panels of
// 64 columns. One invocation: 8 × 8 elements of out; one workgroup: 64 × 64. Element (z, m, n) goes to
// z · batch + m · row + (n / inner) · outer + n % inner.
// The loop has no barrier and no bounds check, which is fast on software adapters (16 times fewer loads than with one
// element per invocation). On other adapters the loads are coalesced, since the columns of a panel are adjacent.

@group(0) @binding(1) var<storage, read> a: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> b: array<vec4<f32>>;

fn store_row(z: u32, m: u32, n: u32, lo: vec4<f32>, hi: vec4<f32>) {
    store(z, m, n, lo);
    store(z, m, n + 4u, hi);
}

@compute @workgroup_size(8, 8)
fn matmul_panels(id: Id, @builtin(local_invocation_id) lid: vec3<u32>) {
    let tile = linear_group(id);
    let m_panel = (tile % p.m_tiles) * 8u + lid.y;
    let n_panel = (tile / p.m_tiles) % p.n_tiles;
    let z = tile / (p.m_tiles * p.n_tiles);
    let m = m_panel * 8u;
    let n = n_panel * 64u + lid.x * 8u;
    if m >= p.m || n >= p.n || z >= p.z_count {
        return;
    }
    let first = (z % p.splits) * p.k_split;
    if first >= p.k && p.k > 0u {
        return;
    }
    let steps = min(p.k_split, p.k - first);
    var at_a = (z / p.splits) * p.a_batch + (m_panel * p.k + first) * 2u;
    var at_b = (z / p.splits) * p.b_batch + (n_panel * p.k + first) * 16u + lid.x * 2u;

    var l0 = vec4<f32>(); var h0 = vec4<f32>();
    var l1 = vec4<f32>(); var h1 = vec4<f32>();
    var l2 = vec4<f32>(); var h2 = vec4<f32>();
    var l3 = vec4<f32>(); var h3 = vec4<f32>();
    var l4 = vec4<f32>(); var h4 = vec4<f32>();
    var l5 = vec4<f32>(); var h5 = vec4<f32>();
    var l6 = vec4<f32>(); var h6 = vec4<f32>();
    var l7 = vec4<f32>(); var h7 = vec4<f32>();
    for (var step = 0u; step < steps; step++) {
        let a0 = a[at_a];
        let a1 = a[at_a + 1u];
        let b0 = b[at_b];
        let b1 = b[at_b + 1u];
        at_a += 2u;
        at_b += 16u;
        l0 += a0.x * b0; h0 += a0.x * b1;
        l1 += a0.y * b0; h1 += a0.y * b1;
        l2 += a0.z * b0; h2 += a0.z * b1;
        l3 += a0.w * b0; h3 += a0.w * b1;
        l4 += a1.x * b0; h4 += a1.x * b1;
        l5 += a1.y * b0; h5 += a1.y * b1;
        l6 += a1.z * b0; h6 += a1.z * b1;
        l7 += a1.w * b0; h7 += a1.w * b1;
    }
    store_row(z, m, n, l0, h0);
    store_row(z, m + 1u, n, l1, h1);
    store_row(z, m + 2u, n, l2, h2);
    store_row(z, m + 3u, n, l3, h3);
    store_row(z, m + 4u, n, l4, h4);
    store_row(z, m + 5u, n, l5, h5);
    store_row(z, m + 6u, n, l6, h6);
    store_row(z, m + 7u, n, l7, h7);
}
