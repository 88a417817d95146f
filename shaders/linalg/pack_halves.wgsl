// An operand of f16 in panels of halves (half_panels.wgsl): dst[z − first][j][k] ← src(z, k, j), 0 if j or k is past the end.
// After pack_operand.wgsl and half_panels.wgsl.

@group(0) @binding(2) var<storage, read_write> dst: array<vec4<u32>>;

@compute @workgroup_size(WG)
fn pack_halves(id: Id) {
    let i = linear_index(id);
    if i * RUN >= p.count {
        return;
    }
    let to = run_of(i, p.depth);
    let panel = to.j / PANEL;
    let j = panel % p.panels * PANEL + to.j % PANEL;
    let base = p.offset + placed(p.z_first + panel / p.panels, p.z) + placed(j, p.j);
    var run = array<vec4<u32>, 2>();
    for (var r = 0u; r < RUN; r++) {
        if j < p.width && to.k + r < p.steps {
            let at = base + placed(to.k + r, p.k);
            run[r / 4u][r % 4u] = half_of(src[at / 2u], at);
        }
    }
    dst[i] = in_words(run);
}
