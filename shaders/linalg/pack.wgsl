// dst[z − first][j / W][k][j % W] ← src(z, k, j), 0 if j is past the end: an operand of a matrix product in panels.
// W is 8 for A (j its row, k its column) and 64 for B (j its column, k its row). src may hold halves: so they are widened
// here, and in no pass of their own. After halves.wgsl and pack_operand.wgsl.
// One invocation: 8 neighbouring elements of dst, two vectors of four.

@group(0) @binding(2) var<storage, read_write> dst: array<vec4<f32>>;

override W: u32 = 8u;
override X_HALVES: u32 = 0u;

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
            let at = base + within * p.j.y;
            run[r / 4u][r % 4u] = float_of(src[word_of(at, X_HALVES)], at, X_HALVES);
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
