// As im2col of conv.wgsl, for four columns at a time, where each four are neighbours in a row of the result. One invocation: RUN
// rows of four columns. For software adapters, which take half the time so. After conv_image.wgsl.

@group(0) @binding(2) var<storage, read_write> out: array<vec4<f32>>;

@compute @workgroup_size(WG)
fn im2col_fours(id: Id) {
    const ACROSS = PANEL / 4u;
    let rows = all_rows();
    let runs = (rows + RUN - 1u) / RUN;
    let i = linear_index(id);
    let panel = i / ACROSS / runs;
    let first = i / ACROSS % runs * RUN;
    if panel * PANEL >= p.columns {
        return;
    }
    let column = panel * PANEL + i % ACROSS * 4u;
    let at = place(p.first + column, p.out_y, p.out_x);
    let image = p.offset + at.plane * p.channels * p.height * p.width;
    // Above or left of the image the subtraction wraps around to a huge number, which the comparisons reject too.
    let top = at.y * STRIDE_Y - PAD_Y;
    let left = at.x * STRIDE_X - PAD_X + vec4(0u, STRIDE_X, 2u * STRIDE_X, 3u * STRIDE_X);
    for (var row = first; row < min(first + RUN, rows); row++) {
        let kx = row % KERNEL_X;
        let ky = (row / KERNEL_X) % KERNEL_Y;
        let c = row / (KERNEL_X * KERNEL_Y);
        let y = top + ky * DILATION_Y;
        var v = vec4<f32>();
        if column < p.columns && y < p.height {
            let line = image + (c * p.height + y) * p.width;
            let xx = left + kx * DILATION_X;
            if xx.x < p.width {
                v.x = of_x(line + xx.x);
            }
            if xx.y < p.width {
                v.y = of_x(line + xx.y);
            }
            if xx.z < p.width {
                v.z = of_x(line + xx.z);
            }
            if xx.w < p.width {
                v.w = of_x(line + xx.w);
            }
        }
        out[(panel * rows + row) * ACROSS + i % ACROSS] = v;
    }
}
