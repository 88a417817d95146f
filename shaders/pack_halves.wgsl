// An operand of f16 in panels for matmul_cooperative.wgsl, two halves in a word: dst[z − first][j / 64][k / 16][j % 64][k % 16]
// ← src(z, k, j), 0 if j or k is past the end. So the steps of k of a row of A, or of a column of B, are neighbours within a
// fragment, as cards hold them. After pack_operand.wgsl; the depth is a multiple of 16. One invocation: 8 neighbouring elements.

@group(0) @binding(2) var<storage, read_write> dst: array<vec4<u32>>;

const PANEL = 64u;
// The runs of a row or column of a fragment.
const RUNS = 2u;

@compute @workgroup_size(WG)
fn pack_halves(id: Id) {
    let i = linear_index(id);
    if i * RUN >= p.count {
        return;
    }
    let block = i / (PANEL * RUNS);
    let blocks = p.depth / (RUNS * RUN);
    let panel = block / blocks;
    let first = (block % blocks * RUNS + i % RUNS) * RUN;
    let j = panel % p.panels * PANEL + i / RUNS % PANEL;
    let base = p.offset + placed(p.z_first + panel / p.panels, p.z) + placed(j, p.j);
    var run = array<vec4<u32>, 2>();
    for (var r = 0u; r < RUN; r++) {
        if j < p.width && first + r < p.steps {
            let at = base + placed(first + r, p.k);
            run[r / 4u][r % 4u] = (src[at / 2u] >> (at % 2u * 16u)) & 0xffffu;
        }
    }
    dst[i] = vec4(run[0].xz, run[1].xz) | (vec4(run[0].yw, run[1].yw) << vec4(16u));
}
