// A convolution or its weight's gradient as a matrix product out[m, n] = Σ_k a[m, k] · x[k, n] that reads x from the image,
// so that no columns are in memory. For software adapters with subgroups of 8 (after conv_places.wgsl).
// The image is in blocks of four with all its padding (image_blocks.wgsl). The place of element (k, n) in it is a sum of two
// places, one that depends on k and one that depends on n:
//   the convolution: k is (c, ky, kx), n an output pixel (block, oy, ox) of four images, a the weight;
//   WEIGHT_GRAD:     k is an output pixel (image, oy, ox), n is (block, ky, kx) of four channels, a the gradient.
// One subgroup: 8 · PANELS rows and 8 vectors of four columns; one invocation: all these rows of one vector (after
// subgroup_sums.wgsl). Each invocation finds the place in the image for one step in four, and passes it on.

@compute @workgroup_size(64)
fn conv_blocks(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(subgroup_invocation_id) lane: u32,
) {
    let task = group_number(group) * 8u + subgroup;
    let n_tile = task / p.m_tiles;
    let split = n_tile / p.n_tiles;
    let m = (task - n_tile * p.m_tiles) * 8u * PANELS;
    let n = (n_tile - split * p.n_tiles) * LANES + lane;
    // All conditions for an early end are the same for the subgroup.
    let first = split * p.k_split;
    if split >= p.splits || first >= p.k {
        return;
    }
    let steps = min(p.k_split, p.k - first);
    // Vectors past the end are computed as the last one, and not stored.
    let valid = min(n, p.n - 1u);
    var base = 0u;
    var pixel = Place(0u, 0u, 0u);
    var four = Place(0u, 0u, 0u);
    if WEIGHT_GRAD {
        base = tap_place(valid);
        pixel = place(first + lane % 4u, p.out_y, p.out_x);
        four = place(4u, p.out_y, p.out_x);
    } else {
        base = pixel_place(place(valid, p.out_y, p.out_x));
    }
    // A lane has half of the rows of a panel. In place of panels past the end the last one is read, for rows that are not
    // stored.
    let panel = min((m + lane * 4u) / 8u, (p.m - 1u) / 8u);
    var at_a = (panel * p.k + first) * 2u + lane % 2u;

    var sums: Sums;
    var step = 0u;
    for (; step + 3u < steps; step += 4u) {
        var place_of_k = 0u;
        if WEIGHT_GRAD {
            place_of_k = pixel_place(pixel);
            pixel = four_further(pixel, four);
        } else {
            place_of_k = tap_place(first + step + lane % 4u);
        }
        let rows = Fours(a[at_a], a[at_a + 2u], a[at_a + 4u], a[at_a + 6u]);
        let columns = Fours(
            x[base + subgroupShuffle(place_of_k, 0u)],
            x[base + subgroupShuffle(place_of_k, 1u)],
            x[base + subgroupShuffle(place_of_k, 2u)],
            x[base + subgroupShuffle(place_of_k, 3u)],
        );
        at_a += 8u;
        add_steps(&sums, rows, columns);
    }
    for (; step < steps; step++) {
        var place_of_k = 0u;
        if WEIGHT_GRAD {
            place_of_k = pixel_place(place(first + step, p.out_y, p.out_x));
        } else {
            place_of_k = tap_place(first + step);
        }
        add_step(&sums, a[at_a], x[base + place_of_k]);
        at_a += 2u;
    }
    let outer = n / p.inner;
    let to = p.offset + split * p.split + outer * p.outer + (n - outer * p.inner);
    var parts = 0u;
    if n < p.n {
        parts = p.parts - outer * 4u;
    }
    let end = min(m + PANELS * 8u, p.m);
    for (var row = m; row < end; row += 4u) {
        store(row, to, parts, sums[0]);
        store(row + 1u, to, parts, sums[1]);
        store(row + 2u, to, parts, sums[2]);
        store(row + 3u, to, parts, sums[3]);
        move_up(&sums);
    }
}
