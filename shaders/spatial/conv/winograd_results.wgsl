// out ← Aᵀ m A: the results of a convolution by 3 × 3 kernels, 2 × 2 for each tile, from the 16 products of Winograd's
// F(2 × 2, 3 × 3) (Lavin and Gray, 2016), src[place][row][tile].
// One invocation: one tile of one row, which is an output channel.

struct Params {
    count: u32, // rows · tiles
    tiles: u32,
    first: u32, // the first tile
    tiles_y: u32,
    tiles_x: u32,
    height: u32, // of out
    width: u32,
    image: u32, // elements of an image of out
    bias_offset: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> src: array<f32>;
@group(0) @binding(2) var<storage, read> bias: array<f32>;
@group(0) @binding(3) var<storage, read_write> out: array<f32>;

override HAS_BIAS: bool = false;

/// Returns Aᵀ · (a, b, c, d), where Aᵀ has the rows (1, 1, 1, 0) and (0, 1, −1, −1).
fn gathered(a: f32, b: f32, c: f32, d: f32) -> vec2<f32> {
    return vec2<f32>(a + b + c, b - c - d);
}

@compute @workgroup_size(WG)
fn winograd_results(id: Id) {
    let i = linear_index(id);
    if i >= p.count {
        return;
    }
    let row = i / p.tiles;
    let tile = p.first + i - row * p.tiles;
    let tile_row = tile / p.tiles_x;
    let image = tile_row / p.tiles_y;
    let y = (tile_row - image * p.tiles_y) * 2u;
    let x = (tile - tile_row * p.tiles_x) * 2u;
    var columns = array<vec2<f32>, 4>();
    for (var u = 0u; u < 4u; u++) {
        let at = u * p.count + i;
        let next = 4u * p.count;
        columns[u] = gathered(src[at], src[at + next], src[at + 2u * next], src[at + 3u * next]);
    }
    var add = 0.0;
    if HAS_BIAS {
        add = bias[p.bias_offset + row];
    }
    let to = image * p.image + (row * p.height + y) * p.width + x;
    for (var v = 0u; v < 2u; v++) {
        let pair = gathered(columns[0][v], columns[1][v], columns[2][v], columns[3][v]);
        if y + v < p.height {
            put(to + v * p.width, pair.x + add);
            if x + 1u < p.width {
                put(to + v * p.width + 1u, pair.y + add);
            }
        }
    }
}
