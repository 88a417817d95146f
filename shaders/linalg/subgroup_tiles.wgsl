// The tiles of products whose subgroups share loads (matmul_subgroups.wgsl, matmul_shared.wgsl): each subgroup has one, of
// 8 · PANELS rows and 32 columns (after matmul_product.wgsl and subgroup_sums.wgsl).

/// Subgroups of a workgroup.
const SUBGROUPS = 4u;

/// Has nothing of a single invocation: compilers must see that it is the same for the subgroup.
struct Tile {
    m: u32, // its first row
    n: u32, // its first column; an invocation's are from n + 4 · lane on
    z: u32,
}

/// Returns the tile of a subgroup. The last workgroup may have surplus ones, whose z is past the end.
fn tile_of(group: vec3<u32>, subgroup: u32) -> Tile {
    let task = group_number(group) * SUBGROUPS + subgroup;
    let m_tiles = (p.m + PANELS * 8u - 1u) / (PANELS * 8u);
    let n_tiles = (p.n + 31u) / 32u;
    return Tile(task % m_tiles * PANELS * 8u, task / m_tiles % n_tiles * 32u, task / (m_tiles * n_tiles));
}

/// Stores the sums of an invocation, whose first column is n, and which are lost.
fn store_sums(tile: Tile, n: u32, sums: ptr<function, Sums>) {
    let at = places(n);
    let end = min(tile.m + PANELS * 8u, p.m);
    for (var row = tile.m; row < end; row += 4u) {
        store_at(tile.z, row, n, at, (*sums)[0]);
        store_at(tile.z, row + 1u, n, at, (*sums)[1]);
        store_at(tile.z, row + 2u, n, at, (*sums)[2]);
        store_at(tile.z, row + 3u, n, at, (*sums)[3]);
        move_up(sums);
    }
}
