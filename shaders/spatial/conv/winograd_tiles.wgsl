// dst[place][tile / 64][channel][tile % 64] ← (Bᵀ d B)[place]: the tiles of 4 × 4 pixels that a convolution by 3 × 3 kernels
// reads for 2 × 2 results, transformed by Winograd's F(2 × 2, 3 × 3) (Lavin and Gray, 2016), as the right operands of 16
// matrix products in panels. Neighbouring tiles overlap by 2 pixels.
// One invocation: one tile of one channel. Past the last tile it is computed again, for columns that no one reads.
// After halves.wgsl.

struct Params {
    count: u32, // of tiles with padding, times channels
    channels: u32,
    offset: u32,
    image: u32, // elements of an image
    first: u32, // the first tile,
    last: u32,  // and the last one
    tiles_y: u32,
    tiles_x: u32,
    height: u32,
    width: u32,
    pad_y: u32,
    pad_x: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> src: array<u32>;
@group(0) @binding(2) var<storage, read_write> dst: array<f32>;

override X_HALVES: u32 = 0u;

/// Returns Bᵀ · v, where Bᵀ has the rows (1, 0, −1, 0), (0, 1, 1, 0), (0, −1, 1, 0) and (0, 1, 0, −1).
fn spread(v: vec4<f32>) -> vec4<f32> {
    return vec4<f32>(v.x - v.z, v.y + v.z, v.z - v.y, v.y - v.w);
}

/// Returns a pixel. Above or left of the image, the place has wrapped around to a huge number.
fn pixel(start: u32, y: u32, x: u32) -> f32 {
    if y >= p.height || x >= p.width {
        return 0.0;
    }
    let at = start + y * p.width + x;
    return float_of(src[word_of(at, X_HALVES)], at, X_HALVES);
}

/// Returns Bᵀ · d for a column d.
fn column(start: u32, y: u32, x: u32) -> vec4<f32> {
    return spread(vec4<f32>(pixel(start, y, x), pixel(start, y + 1u, x), pixel(start, y + 2u, x), pixel(start, y + 3u, x)));
}

@compute @workgroup_size(WG)
fn winograd_tiles(id: Id) {
    let i = linear_index(id);
    if i >= p.count {
        return;
    }
    let line = i / 64u;
    let channel = line % p.channels;
    let tile = min(p.first + line / p.channels * 64u + i % 64u, p.last);
    let row = tile / p.tiles_x;
    let image = row / p.tiles_y;
    let y = (row - image * p.tiles_y) * 2u - p.pad_y;
    let x = (tile - row * p.tiles_x) * 2u - p.pad_x;
    let start = p.offset + image * p.image + channel * p.height * p.width;
    let c0 = column(start, y, x);
    let c1 = column(start, y, x + 1u);
    let c2 = column(start, y, x + 2u);
    let c3 = column(start, y, x + 3u);
    for (var v = 0u; v < 4u; v++) {
        let line = spread(vec4<f32>(c0[v], c1[v], c2[v], c3[v]));
        for (var u = 0u; u < 4u; u++) {
            dst[(v * 4u + u) * p.count + i] = line[u];
        }
    }
}
