// out = A · B (+ bias), from panels of halves (pack_halves.wgsl) of 64 rows or columns each, whose steps of k are padded with
// zeros to parts of whole fragments. A subgroup computes a tile of 4 × 4 fragments of S × S elements, in f32. The text
// before this one (cooperative.wgsl) says what a fragment is, loads, multiplies and stores it. After matmul_product.wgsl.
// Loads come from the panels directly: a fragment that is loaded serves four products, and the subgroups of a workgroup read
// the same rows.

const PANEL = 64u;
// Steps of k that are neighbours in a panel.
const DEPTH = 16u;
const TILE = 4u * S;
const FRAGMENT = S * S;
// From a fragment of a panel to the next.
const APART = S * DEPTH;

/// One fragment of sums for each subgroup of a workgroup; the smallest has 8 invocations.
var<workgroup> scratch: array<f32, FRAGMENT * WG / 8u>;

/// A subgroup: its number and the number of all in the workgroup, the invocation's number in it and the number of all.
struct Team {
    number: u32,
    count: u32,
    lane: u32,
    lanes: u32,
}

/// Returns the place of the first half of a tile.
fn tile_start(tile: u32) -> u32 {
    let first = tile * TILE;
    return first / PANEL * p.k * PANEL + first % PANEL * DEPTH;
}

/// Writes a fragment of sums whose first element is (z, m, n).
fn finish(sums: Sums, z: u32, m: u32, n: u32, team: Team) {
    let mine = team.number * FRAGMENT;
    put_sums(sums, mine);
    workgroupBarrier();
    for (var i = team.lane; i < FRAGMENT / 4u; i += team.lanes) {
        let row = i / (S / 4u);
        let column = i % (S / 4u) * 4u;
        let at = mine + row * S + column;
        store(z, m + row, n + column, vec4(scratch[at], scratch[at + 1u], scratch[at + 2u], scratch[at + 3u]));
    }
    workgroupBarrier();
}

/// Computes the tiles of a workgroup. There are workgroups for one subgroup in each: with more subgroups, the last have no
/// tile. They take part in the barriers, with sums of no steps that are not stored.
fn multiply(group: u32, team: Team) {
    let m_tiles = (p.m + TILE - 1u) / TILE;
    let tiles = m_tiles * ((p.n + TILE - 1u) / TILE);
    let z = group / tiles;
    let tile = group % tiles * team.count + team.number;
    let m_tile = tile % m_tiles;
    let n_tile = min(tile, tiles - 1u) / m_tiles;
    let first = z % p.splits * p.k_split;
    let last = select(first, min(first + p.k_split, p.k), tile < tiles && z < p.z_count);
    let from_a = z / p.splits * p.a_batch * 8u + tile_start(m_tile);
    let from_b = z / p.splits * p.b_batch * 8u + tile_start(n_tile);
    var s00: Sums; var s01: Sums; var s02: Sums; var s03: Sums;
    var s10: Sums; var s11: Sums; var s12: Sums; var s13: Sums;
    var s20: Sums; var s21: Sums; var s22: Sums; var s23: Sums;
    var s30: Sums; var s31: Sums; var s32: Sums; var s33: Sums;
    for (var k = first; k < last; k += S) {
        // Compilers must see that it is a multiple of S, to load several halves at once.
        let step = k / DEPTH * DEPTH * PANEL + k % DEPTH / S * S;
        let at_a = from_a + step;
        let at_b = from_b + step;
        let r0 = right_at(at_b);
        let r1 = right_at(at_b + APART);
        let r2 = right_at(at_b + 2u * APART);
        let r3 = right_at(at_b + 3u * APART);
        let l0 = left_at(at_a);
        s00 = multiplied(l0, r0, s00); s01 = multiplied(l0, r1, s01);
        s02 = multiplied(l0, r2, s02); s03 = multiplied(l0, r3, s03);
        let l1 = left_at(at_a + APART);
        s10 = multiplied(l1, r0, s10); s11 = multiplied(l1, r1, s11);
        s12 = multiplied(l1, r2, s12); s13 = multiplied(l1, r3, s13);
        let l2 = left_at(at_a + 2u * APART);
        s20 = multiplied(l2, r0, s20); s21 = multiplied(l2, r1, s21);
        s22 = multiplied(l2, r2, s22); s23 = multiplied(l2, r3, s23);
        let l3 = left_at(at_a + 3u * APART);
        s30 = multiplied(l3, r0, s30); s31 = multiplied(l3, r1, s31);
        s32 = multiplied(l3, r2, s32); s33 = multiplied(l3, r3, s33);
    }
    let m = select(p.m, m_tile * TILE, tile < tiles && z < p.z_count); // rows past the end are not stored
    let n = n_tile * TILE;
    finish(s00, z, m, n, team);          finish(s01, z, m, n + S, team);
    finish(s02, z, m, n + 2u * S, team); finish(s03, z, m, n + 3u * S, team);
    finish(s10, z, m + S, n, team);          finish(s11, z, m + S, n + S, team);
    finish(s12, z, m + S, n + 2u * S, team); finish(s13, z, m + S, n + 3u * S, team);
    finish(s20, z, m + 2u * S, n, team);          finish(s21, z, m + 2u * S, n + S, team);
    finish(s22, z, m + 2u * S, n + 2u * S, team); finish(s23, z, m + 2u * S, n + 3u * S, team);
    finish(s30, z, m + 3u * S, n, team);          finish(s31, z, m + 3u * S, n + S, team);
    finish(s32, z, m + 3u * S, n + 2u * S, team); finish(s33, z, m + 3u * S, n + 3u * S, team);
}
