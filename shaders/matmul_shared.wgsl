// A product as in matmul_subgroups.wgsl, from the operands where they are instead of from panels, for software adapters with
// subgroups of 8 (after unpacked_places.wgsl and subgroup_tiles.wgsl). Vectors of four are read along k from an operand that
// is DEEP, whose steps of k lie side by side, else across it. All places are multiples of four, and so are k and the number
// of rows, or of columns, of an operand that is not deep.
// One turn of the loop adds four steps to each sum.

@group(0) @binding(1) var<storage, read> a4: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> b4: array<vec4<f32>>;

/// As `add_two_steps`, where lane i has row 8 · j + i of both steps in `rows[j]`.
fn add_two_deep_steps(sums: ptr<function, Sums>, rows: array<vec2<f32>, 4>, v: vec4<f32>, w: vec4<f32>) {
    for (var i = 0u; i < PANELS * 2u; i++) {
        let x = rows[i / 2u];
        let r0 = subgroupShuffle(x, i % 2u * 4u);
        let r1 = subgroupShuffle(x, i % 2u * 4u + 1u);
        let r2 = subgroupShuffle(x, i % 2u * 4u + 2u);
        let r3 = subgroupShuffle(x, i % 2u * 4u + 3u);
        (*sums)[i * 4u] = (*sums)[i * 4u] + r0.x * v + r0.y * w;
        (*sums)[i * 4u + 1u] = (*sums)[i * 4u + 1u] + r1.x * v + r1.y * w;
        (*sums)[i * 4u + 2u] = (*sums)[i * 4u + 2u] + r2.x * v + r2.y * w;
        (*sums)[i * 4u + 3u] = (*sums)[i * 4u + 3u] + r3.x * v + r3.y * w;
    }
}

@compute @workgroup_size(LANES * SUBGROUPS)
fn matmul_shared(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(subgroup_invocation_id) lane: u32,
) {
    let tile = tile_of(group, subgroup);
    let m = tile.m;
    let n = tile.n + lane * 4u;
    let z = tile.z;
    // The same for the subgroup.
    if z >= p.count / (p.m * p.n) {
        return;
    }
    let first = z % p.parts * p.length;
    let steps = min(p.length, p.k - first); // no part is empty
    let from_a = p.a_offset + placed(z / p.parts, p.a_z) + first * p.a_column;
    let from_b = p.b_offset + placed(z / p.parts, p.b_z) + first * p.b_row;
    // In place of rows and columns past the end the last ones are loaded; their sums are not stored. All in vectors.
    var at_a = vec4<u32>();
    var step_a = 1u;
    if DEEP_A {
        at_a = (from_a + min(m + lane + vec4(0u, 8u, 16u, 24u), vec4(p.m - 1u)) * p.a_row) / 4u;
    } else {
        at_a = (from_a + min(m + lane * 4u, p.m - 4u) + vec4(0u, 1u, 2u, 3u) * p.a_column) / 4u;
        step_a = p.a_column;
    }
    var at_b = vec4<u32>();
    var step_b = 1u;
    if DEEP_B {
        at_b = (from_b + min(n + vec4(0u, 1u, 2u, 3u), vec4(p.n - 1u)) * p.b_column) / 4u;
    } else {
        at_b = (from_b + min(n, p.n - 4u) + vec4(0u, 1u, 2u, 3u) * p.b_row) / 4u;
        step_b = p.b_row;
    }

    var sums: Sums;
    for (var k = 0u; k < steps; k += 4u) {
        var rows = Fours(a4[at_a.x], vec4<f32>(), vec4<f32>(), vec4<f32>());
        if !DEEP_A || PANELS > 1u {
            rows[1] = a4[at_a.y];
        }
        if !DEEP_A || PANELS > 2u {
            rows[2] = a4[at_a.z];
        }
        if !DEEP_A || PANELS > 3u {
            rows[3] = a4[at_a.w];
        }
        at_a += step_a;
        let b = Fours(b4[at_b.x], b4[at_b.y], b4[at_b.z], b4[at_b.w]);
        at_b += step_b;
        var columns = b;
        if DEEP_B {
            columns[0] = vec4(b[0].x, b[1].x, b[2].x, b[3].x);
            columns[1] = vec4(b[0].y, b[1].y, b[2].y, b[3].y);
            columns[2] = vec4(b[0].z, b[1].z, b[2].z, b[3].z);
            columns[3] = vec4(b[0].w, b[1].w, b[2].w, b[3].w);
        }
        if DEEP_A {
            let xy = array<vec2<f32>, 4>(rows[0].xy, rows[1].xy, rows[2].xy, rows[3].xy);
            let zw = array<vec2<f32>, 4>(rows[0].zw, rows[1].zw, rows[2].zw, rows[3].zw);
            add_two_deep_steps(&sums, xy, columns[0], columns[1]);
            add_two_deep_steps(&sums, zw, columns[2], columns[3]);
        } else {
            add_steps(&sums, rows, columns);
        }
    }
    store_sums(tile, n, &sums);
}
