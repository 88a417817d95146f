// out = A · B (+ bias), as in matmul_panels.wgsl and from the same panels, for software adapters with subgroups of 8. One
// subgroup: 8 · PANELS rows and 32 columns of out; one invocation: all these rows of four columns (after
// subgroup_tiles.wgsl).

@group(0) @binding(1) var<storage, read> a: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> b: array<vec4<f32>>;

@compute @workgroup_size(LANES * SUBGROUPS)
fn matmul_subgroups(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(subgroup_invocation_id) lane: u32,
) {
    let tile = tile_of(group, subgroup);
    let m = tile.m;
    let n = tile.n + lane * 4u;
    let z = tile.z;
    // All conditions for an early end are the same for the subgroup.
    if z >= p.z_count {
        return;
    }
    let first = (z % p.splits) * p.k_split;
    if first >= p.k && p.k > 0u {
        return;
    }
    let steps = min(p.k_split, p.k - first);
    // A lane has half of the rows of a panel. In place of panels past the end the last one is read, for rows that are not
    // stored.
    let panel = min((m + lane * 4u) / 8u, (p.m - 1u) / 8u);
    var at_a = (z / p.splits) * p.a_batch + (panel * p.k + first) * 2u + lane % 2u;
    var at_b = (z / p.splits) * p.b_batch + (n / 64u * p.k + first) * 16u + n % 64u / 4u;

    var sums: Sums;
    var step = 0u;
    for (; step + 3u < steps; step += 4u) {
        let rows = Fours(a[at_a], a[at_a + 2u], a[at_a + 4u], a[at_a + 6u]);
        let columns = Fours(b[at_b], b[at_b + 16u], b[at_b + 32u], b[at_b + 48u]);
        at_a += 8u;
        at_b += 64u;
        add_steps(&sums, rows, columns);
    }
    for (; step < steps; step++) {
        add_step(&sums, a[at_a], b[at_b]);
        at_a += 2u;
        at_b += 16u;
    }
    store_sums(tile, n, &sums);
}
