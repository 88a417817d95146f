// out = A · B (+ bias), as in matmul_panels.wgsl and from the same panels, for software adapters with subgroups of 8. One
// subgroup: 16 rows and 32 columns of out, one invocation: 16 × 4 elements; one workgroup: 64 × 64.
// Loads are what these adapters are slow at. The invocations of a subgroup need the same values of A, so that each loads
// those of one step of k in eight and passes them on. The loop over the eight steps is not written out: that takes twice
// the time to compile and is no faster.

@group(0) @binding(1) var<storage, read> a: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> b: array<vec4<f32>>;

const LANES = 8u;

@compute @workgroup_size(64)
fn matmul_subgroups(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(subgroup_invocation_id) lane: u32,
) {
    let tile = group_number(group);
    let m = (tile % p.m_tiles) * 64u + subgroup / 2u * 16u;
    let column = subgroup % 2u * 32u + lane * 4u; // within the panel of B
    let n_panel = (tile / p.m_tiles) % p.n_tiles;
    let n = n_panel * 64u + column;
    let z = tile / (p.m_tiles * p.n_tiles);
    // All conditions for an early end are the same for the subgroup.
    if m >= p.m || z >= p.z_count {
        return;
    }
    let first = (z % p.splits) * p.k_split;
    if first >= p.k && p.k > 0u {
        return;
    }
    let steps = min(p.k_split, p.k - first);
    // Where there is no second panel, the first is read again, for rows that are not stored.
    let panel = m / 8u;
    let next = min(panel + 1u, (p.m - 1u) / 8u);
    let at_a = (z / p.splits) * p.a_batch + (first + lane) * 2u;
    var at_upper = at_a + panel * p.k * 2u;
    var at_lower = at_a + next * p.k * 2u;
    var at_b = (z / p.splits) * p.b_batch + (n_panel * p.k + first) * 16u + column / 4u;

    var c0 = vec4<f32>(); var c1 = vec4<f32>(); var c2 = vec4<f32>(); var c3 = vec4<f32>();
    var c4 = vec4<f32>(); var c5 = vec4<f32>(); var c6 = vec4<f32>(); var c7 = vec4<f32>();
    var d0 = vec4<f32>(); var d1 = vec4<f32>(); var d2 = vec4<f32>(); var d3 = vec4<f32>();
    var d4 = vec4<f32>(); var d5 = vec4<f32>(); var d6 = vec4<f32>(); var d7 = vec4<f32>();
    for (var begin = 0u; begin < steps; begin += LANES) {
        var a0 = vec4<f32>(); var a1 = vec4<f32>();
        var a2 = vec4<f32>(); var a3 = vec4<f32>();
        if begin + lane < steps {
            a0 = a[at_upper];
            a1 = a[at_upper + 1u];
            a2 = a[at_lower];
            a3 = a[at_lower + 1u];
        }
        at_upper += LANES * 2u;
        at_lower += LANES * 2u;
        let count = min(LANES, steps - begin);
        for (var step = 0u; step < count; step++) {
            let v = b[at_b];
            at_b += 16u;
            let r0 = subgroupShuffle(a0, step);
            c0 += r0.x * v; c1 += r0.y * v; c2 += r0.z * v; c3 += r0.w * v;
            let r1 = subgroupShuffle(a1, step);
            c4 += r1.x * v; c5 += r1.y * v; c6 += r1.z * v; c7 += r1.w * v;
            let r2 = subgroupShuffle(a2, step);
            d0 += r2.x * v; d1 += r2.y * v; d2 += r2.z * v; d3 += r2.w * v;
            let r3 = subgroupShuffle(a3, step);
            d4 += r3.x * v; d5 += r3.y * v; d6 += r3.z * v; d7 += r3.w * v;
        }
    }
    store(z, m, n, c0);
    store(z, m + 1u, n, c1);
    store(z, m + 2u, n, c2);
    store(z, m + 3u, n, c3);
    store(z, m + 4u, n, c4);
    store(z, m + 5u, n, c5);
    store(z, m + 6u, n, c6);
    store(z, m + 7u, n, c7);
    store(z, m + 8u, n, d0);
    store(z, m + 9u, n, d1);
    store(z, m + 10u, n, d2);
    store(z, m + 11u, n, d3);
    store(z, m + 12u, n, d4);
    store(z, m + 13u, n, d5);
    store(z, m + 14u, n, d6);
    store(z, m + 15u, n, d7);
}
