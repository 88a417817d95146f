// A convolution or its weight's gradient as a matrix product out[m, n] = Σ_k a[m, k] · x[k, n] that reads x from the image,
// so that no columns are in memory. For software adapters with subgroups of 8 (after conv_places.wgsl).
// The image is in blocks of four with all its padding (image_blocks.wgsl). The place of element (k, n) in it is a sum of two
// places, one that depends on k and one that depends on n:
//   the convolution: k is (c, ky, kx), n an output pixel (block, oy, ox) of four images, a the weight;
//   WEIGHT_GRAD:     k is an output pixel (image, oy, ox), n is (block, ky, kx) of four channels, a the gradient.
// One subgroup: 8 · PANELS rows and 8 vectors of four columns; one invocation: all these rows of one vector. As in
// matmul_subgroups.wgsl, each invocation loads the values of a for one step in eight, and passes them on with the step's
// place in the image.

const LANES = 8u;
/// Panels of a, 1 to 3.
override PANELS: u32 = 2u;

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
    var eight = Place(0u, 0u, 0u);
    if WEIGHT_GRAD {
        base = tap_place(valid);
        pixel = place(first + lane, p.out_y, p.out_x);
        eight = place(LANES, p.out_y, p.out_x);
    } else {
        base = pixel_place(place(valid, p.out_y, p.out_x));
    }
    // Where there is no second or third panel, the last is read again, for rows that are not stored.
    let panel = m / 8u;
    let last = (p.m - 1u) / 8u;
    var at_a = (panel * p.k + first + lane) * 2u;
    let to_second = (min(panel + 1u, last) - panel) * p.k * 2u;
    let to_third = (min(panel + 2u, last) - panel) * p.k * 2u;

    var c0 = vec4<f32>(); var c1 = vec4<f32>(); var c2 = vec4<f32>(); var c3 = vec4<f32>();
    var c4 = vec4<f32>(); var c5 = vec4<f32>(); var c6 = vec4<f32>(); var c7 = vec4<f32>();
    var d0 = vec4<f32>(); var d1 = vec4<f32>(); var d2 = vec4<f32>(); var d3 = vec4<f32>();
    var d4 = vec4<f32>(); var d5 = vec4<f32>(); var d6 = vec4<f32>(); var d7 = vec4<f32>();
    var e0 = vec4<f32>(); var e1 = vec4<f32>(); var e2 = vec4<f32>(); var e3 = vec4<f32>();
    var e4 = vec4<f32>(); var e5 = vec4<f32>(); var e6 = vec4<f32>(); var e7 = vec4<f32>();
    for (var begin = 0u; begin < steps; begin += LANES) {
        var a0 = vec4<f32>(); var a1 = vec4<f32>();
        var a2 = vec4<f32>(); var a3 = vec4<f32>();
        var a4 = vec4<f32>(); var a5 = vec4<f32>();
        var place_of_k = 0u;
        if begin + lane < steps {
            a0 = a[at_a];
            a1 = a[at_a + 1u];
            if PANELS > 1u {
                a2 = a[at_a + to_second];
                a3 = a[at_a + to_second + 1u];
            }
            if PANELS > 2u {
                a4 = a[at_a + to_third];
                a5 = a[at_a + to_third + 1u];
            }
            if WEIGHT_GRAD {
                place_of_k = pixel_place(pixel);
            } else {
                place_of_k = tap_place(first + begin + lane);
            }
        }
        if WEIGHT_GRAD {
            pixel = eight_further(pixel, eight);
        }
        at_a += LANES * 2u;
        let count = min(LANES, steps - begin);
        for (var step = 0u; step < count; step++) {
            let v = x[base + subgroupShuffle(place_of_k, step)];
            let r0 = subgroupShuffle(a0, step);
            c0 += r0.x * v; c1 += r0.y * v; c2 += r0.z * v; c3 += r0.w * v;
            let r1 = subgroupShuffle(a1, step);
            c4 += r1.x * v; c5 += r1.y * v; c6 += r1.z * v; c7 += r1.w * v;
            if PANELS > 1u {
                let r2 = subgroupShuffle(a2, step);
                d0 += r2.x * v; d1 += r2.y * v; d2 += r2.z * v; d3 += r2.w * v;
                let r3 = subgroupShuffle(a3, step);
                d4 += r3.x * v; d5 += r3.y * v; d6 += r3.z * v; d7 += r3.w * v;
            }
            if PANELS > 2u {
                let r4 = subgroupShuffle(a4, step);
                e0 += r4.x * v; e1 += r4.y * v; e2 += r4.z * v; e3 += r4.w * v;
                let r5 = subgroupShuffle(a5, step);
                e4 += r5.x * v; e5 += r5.y * v; e6 += r5.z * v; e7 += r5.w * v;
            }
        }
    }
    let outer = n / p.inner;
    let to = p.offset + split * p.split + outer * p.outer + (n - outer * p.inner);
    var parts = 0u;
    if n < p.n {
        parts = p.parts - outer * 4u;
    }
    store(m, to, parts, c0);
    store(m + 1u, to, parts, c1);
    store(m + 2u, to, parts, c2);
    store(m + 3u, to, parts, c3);
    store(m + 4u, to, parts, c4);
    store(m + 5u, to, parts, c5);
    store(m + 6u, to, parts, c6);
    store(m + 7u, to, parts, c7);
    if PANELS > 1u {
        store(m + 8u, to, parts, d0);
        store(m + 9u, to, parts, d1);
        store(m + 10u, to, parts, d2);
        store(m + 11u, to, parts, d3);
        store(m + 12u, to, parts, d4);
        store(m + 13u, to, parts, d5);
        store(m + 14u, to, parts, d6);
        store(m + 15u, to, parts, d7);
    }
    if PANELS > 2u {
        store(m + 16u, to, parts, e0);
        store(m + 17u, to, parts, e1);
        store(m + 18u, to, parts, e2);
        store(m + 19u, to, parts, e3);
        store(m + 20u, to, parts, e4);
        store(m + 21u, to, parts, e5);
        store(m + 22u, to, parts, e6);
        store(m + 23u, to, parts, e7);
    }
}
