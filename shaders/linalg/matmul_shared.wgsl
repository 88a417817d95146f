// A product as in matmul_subgroups.wgsl, from the operands where they are instead of from panels, for software adapters with
// subgroups of 8 (after unpacked_places.wgsl, subgroup_tiles.wgsl and fours_anywhere.wgsl). The steps of k of each operand lie side
// by side if it is DEEP, else its rows of a, or columns of b, do: vectors of four are read in that direction. Unless SHIFTED, k,
// the length of parts, the offsets and the steps in the other direction are multiples of four.
// One turn of the loop adds four steps to each sum.

@group(0) @binding(1) var<storage, read> a4: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> b4: array<vec4<f32>>;

/// Whether vectors may begin in the middle of those of the buffers, or the last turn may have fewer than four steps.
override SHIFTED: bool = false;

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

fn load_a(at: vec4<u32>) -> Fours {
    var rows = Fours(a4[at.x], vec4<f32>(), vec4<f32>(), vec4<f32>());
    if !DEEP_A || PANELS > 1u {
        rows[1] = a4[at.y];
    }
    if !DEEP_A || PANELS > 2u {
        rows[2] = a4[at.z];
    }
    if !DEEP_A || PANELS > 3u {
        rows[3] = a4[at.w];
    }
    return rows;
}

fn load_b(at: vec4<u32>) -> Fours {
    return Fours(b4[at.x], b4[at.y], b4[at.z], b4[at.w]);
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
    let a = Operand(p.a_offset + placed(z / p.parts, p.a_z) + first * p.a_column, p.m, p.a_row, p.a_column);
    let b = Operand(p.b_offset + placed(z / p.parts, p.b_z) + first * p.b_row, p.n, p.b_column, p.b_row);
    let start_a = starts(a, DEEP_A, m + lane + FOUR * 8u, m + lane * 4u);
    let start_b = starts(b, DEEP_B, n + FOUR, n);
    let end_a = end_of(a, steps);
    let end_b = end_of(b, steps);
    let step_a = select(a.step, 1u, DEEP_A);
    let step_b = select(b.step, 1u, DEEP_B);
    // Indices of vectors, from here on.
    var at_a = start_a / 4u;
    var at_b = start_b / 4u;
    // If steps do not lie side by side, lane i % 4 has the vector of step i that follows that of the last lane.
    var after_a = (a.start + m + lane % 4u * a.step) / 4u + LANES;
    var after_b = (b.start + tile.n + lane % 4u * b.step) / 4u + LANES;
    // If they do, each vector is loaded one turn early, since it also ends those of the turn before if SHIFTED.
    var early_a: Fours;
    var early_b: Fours;
    if DEEP_A {
        early_a = load_a(min(at_a, end_a));
        at_a += step_a;
    }
    if DEEP_B {
        early_b = load_b(min(at_b, end_b));
        at_b += step_b;
    }

    var sums: Sums;
    for (var k = 0u; k < steps; k += 4u) {
        let next_a = load_a(min(at_a, end_a));
        let next_b = load_b(min(at_b, end_b));
        at_a += step_a;
        at_b += step_b;
        var rows = next_a;
        if DEEP_A {
            rows = early_a;
            early_a = next_a;
        }
        var columns = next_b;
        if DEEP_B {
            columns = early_b;
            early_b = next_b;
        }
        if SHIFTED {
            let past = k + FOUR >= vec4(steps);
            var after_rows = next_a;
            if !DEEP_A {
                after_rows = followers(rows, a4[min(after_a, end_a.x)], lane);
                after_a += step_a;
            }
            rows = moved(rows, after_rows, start_a % 4u, DEEP_A, past);
            var after_columns = next_b;
            if !DEEP_B {
                after_columns = followers(columns, b4[min(after_b, end_b.x)], lane);
                after_b += step_b;
            }
            columns = moved(columns, after_columns, start_b % 4u, DEEP_B, past);
        }
        if DEEP_B {
            columns = transposed(columns);
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
