// A product as in matmul_subgroups.wgsl, from the operands where they are instead of from panels, for software adapters with
// subgroups of 8 (after matmul_unpacked.wgsl, matmul_product.wgsl and subgroup_sums.wgsl). Vectors of four are read along k
// from an operand that is DEEP, whose steps of k lie side by side, else across it. All places are multiples of four, and so
// are k and the number of rows, or of columns, of an operand that is not deep.
// One turn of the loop adds four steps to each sum.

@group(0) @binding(1) var<storage, read> a4: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> b4: array<vec4<f32>>;

override DEEP_A: bool = false;
override DEEP_B: bool = false;

/// Returns the place of the first column of row m. z counts the parts of k.
fn row_place(z: u32, m: u32) -> u32 {
    return (z * p.m + m) * p.n;
}

fn row_bias(z: u32, m: u32) -> f32 {
    return bias[0]; // there is none
}

fn places(n: u32) -> vec4<u32> {
    return n + vec4(0u, 1u, 2u, 3u);
}

/// As `add_steps`, where lane i has four steps of row 8 · j + i in `rows[j]`.
fn add_deep_steps(sums: ptr<function, Sums>, rows: Fours, columns: Fours) {
    for (var i = 0u; i < PANELS * 2u; i++) {
        let x = rows[i / 2u].xy;
        let r0 = subgroupShuffle(x, i % 2u * 4u);
        let r1 = subgroupShuffle(x, i % 2u * 4u + 1u);
        let r2 = subgroupShuffle(x, i % 2u * 4u + 2u);
        let r3 = subgroupShuffle(x, i % 2u * 4u + 3u);
        (*sums)[i * 4u] = (*sums)[i * 4u] + r0.x * columns[0] + r0.y * columns[1];
        (*sums)[i * 4u + 1u] = (*sums)[i * 4u + 1u] + r1.x * columns[0] + r1.y * columns[1];
        (*sums)[i * 4u + 2u] = (*sums)[i * 4u + 2u] + r2.x * columns[0] + r2.y * columns[1];
        (*sums)[i * 4u + 3u] = (*sums)[i * 4u + 3u] + r3.x * columns[0] + r3.y * columns[1];
    }
    for (var i = 0u; i < PANELS * 2u; i++) {
        let x = rows[i / 2u].zw;
        let r0 = subgroupShuffle(x, i % 2u * 4u);
        let r1 = subgroupShuffle(x, i % 2u * 4u + 1u);
        let r2 = subgroupShuffle(x, i % 2u * 4u + 2u);
        let r3 = subgroupShuffle(x, i % 2u * 4u + 3u);
        (*sums)[i * 4u] = (*sums)[i * 4u] + r0.x * columns[2] + r0.y * columns[3];
        (*sums)[i * 4u + 1u] = (*sums)[i * 4u + 1u] + r1.x * columns[2] + r1.y * columns[3];
        (*sums)[i * 4u + 2u] = (*sums)[i * 4u + 2u] + r2.x * columns[2] + r2.y * columns[3];
        (*sums)[i * 4u + 3u] = (*sums)[i * 4u + 3u] + r3.x * columns[2] + r3.y * columns[3];
    }
}

@compute @workgroup_size(LANES * SUBGROUPS)
fn matmul_shared(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(subgroup_invocation_id) lane: u32,
) {
    let task = group_number(group) * SUBGROUPS + subgroup;
    let m_tiles = (p.m + PANELS * 8u - 1u) / (PANELS * 8u);
    let n_tiles = (p.n + 31u) / 32u;
    let m = task % m_tiles * PANELS * 8u;
    let n = task / m_tiles % n_tiles * 32u + lane * 4u;
    let z = task / (m_tiles * n_tiles);
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
            add_deep_steps(&sums, rows, columns);
        } else {
            add_steps(&sums, rows, columns);
        }
    }
    let at = places(n);
    let end = min(m + PANELS * 8u, p.m);
    for (var row = m; row < end; row += 4u) {
        store_at(z, row, n, at, sums[0]);
        store_at(z, row + 1u, n, at, sums[1]);
        store_at(z, row + 2u, n, at, sums[2]);
        store_at(z, row + 3u, n, at, sums[3]);
        move_up(&sums);
    }
}
