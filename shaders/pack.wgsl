// dst[z − first][j / W][k][j % W] ← src(z, k, j), 0 if j is past the end: an operand of a matrix product in panels.
// W is 8 for A (j its row, k its column) and 64 for B (j its column, k its row). After index_map.wgsl.
// One invocation: 8 neighbouring elements of dst, two vectors of four.

struct Params {
    count: u32,  // elements of dst
    depth: u32,  // K
    panels: u32, // panels of one z
    width: u32,  // valid j
    offset: u32,
    z_first: u32,
    z: vec4<u32>, // maps
    k: vec4<u32>,
    j: vec4<u32>,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> src: array<f32>;
@group(0) @binding(2) var<storage, read_write> dst: array<vec4<f32>>;

override W: u32 = 8u;
const RUN = 8u;

@compute @workgroup_size(WG)
fn pack(id: Id) {
    let i = linear_index(id);
    if i * RUN >= p.count {
        return;
    }
    let line = i / (W / RUN);
    let k = line % p.depth;
    let panel = line / p.depth;
    let j = (panel % p.panels) * W + (i % (W / RUN)) * RUN;
    let z = p.z_first + panel / p.panels;
    var base = p.offset + placed(z, p.z) + placed(k, p.k) + (j / p.j.x) * p.j.z;
    // Integer division is slow, above all on software adapters: one division at the start of the run, then additions.
    var within = j % p.j.x;
    var run = array<vec4<f32>, 2>();
    for (var r = 0u; r < RUN; r++) {
        if j + r < p.width {
            run[r / 4u][r % 4u] = src[base + within * p.j.y];
        }
        within++;
        if within == p.j.x {
            within = 0u;
            base += p.j.z;
        }
    }
    dst[i * 2u] = run[0];
    dst[i * 2u + 1u] = run[1];
}
