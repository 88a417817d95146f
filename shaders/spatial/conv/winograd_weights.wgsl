// dst[place][row / 8][k][row % 8] ← (G g Gᵀ)[place], 0 if the row is past the end: the 3 × 3 kernels of a convolution,
// transformed by Winograd's F(2 × 2, 3 × 3) (Lavin and Gray, 2016), as the left operands of 16 matrix products in panels.
// One invocation: one kernel, for a row (an output channel) and a step k (an input channel). After halves.wgsl.

struct Params {
    count: u32, // of rows with padding, times depth
    rows: u32,
    depth: u32,
    offset: u32,
    row_step: u32, // from the kernel of a row to that of the next, in src
    k_step: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> src: array<u32>;
@group(0) @binding(2) var<storage, read_write> dst: array<f32>;

override X_HALVES: u32 = 0u;
/// Whether the kernels are turned by 180°, for the gradient of the image.
override TURNED: bool = false;

/// Returns G · (a, b, c), where G has the rows (1, 0, 0), (½, ½, ½), (½, −½, ½) and (0, 0, 1).
fn spread(a: f32, b: f32, c: f32) -> vec4<f32> {
    let outer = 0.5 * (a + c);
    let inner = 0.5 * b;
    return vec4<f32>(a, outer + inner, outer - inner, c);
}

fn tap(kernel: u32, i: u32) -> f32 {
    let at = kernel + select(i, 8u - i, TURNED);
    return float_of(src[word_of(at, X_HALVES)], at, X_HALVES);
}

@compute @workgroup_size(WG)
fn winograd_weights(id: Id) {
    let i = linear_index(id);
    if i >= p.count {
        return;
    }
    let line = i / 8u;
    let k = line % p.depth;
    let row = line / p.depth * 8u + i % 8u;
    // The columns of G g.
    var c0 = vec4<f32>();
    var c1 = vec4<f32>();
    var c2 = vec4<f32>();
    if row < p.rows {
        let kernel = p.offset + row * p.row_step + k * p.k_step;
        c0 = spread(tap(kernel, 0u), tap(kernel, 3u), tap(kernel, 6u));
        c1 = spread(tap(kernel, 1u), tap(kernel, 4u), tap(kernel, 7u));
        c2 = spread(tap(kernel, 2u), tap(kernel, 5u), tap(kernel, 8u));
    }
    for (var y = 0u; y < 4u; y++) {
        let line = spread(c0[y], c1[y], c2[y]);
        for (var x = 0u; x < 4u; x++) {
            dst[(y * 4u + x) * p.count + i] = line[x];
        }
    }
}
