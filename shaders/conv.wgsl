// A convolution's image as a matrix, and back. Images are [N, C, H, W], a column stands for one output pixel:
//   cols[(c, ky, kx), (n, oy, ox)] = x[n, c, oy·stride_y + ky − pad_y, ox·stride_x + kx − pad_x], 0 outside the image.
//
// `im2col`       writes panels for a right operand [C·KH·KW, N·OH·OW] (64 columns side by side, see pack.wgsl).
// `im2col_turned` writes panels for the transposed one, [N·OH·OW, C·KH·KW].
//                 One invocation of either: one element of the panels.
// `col2im`       dx[n, c, y, x] ← Σ of cols over all places that im2col has read it from; cols is [C·KH·KW, N·OH·OW]
//                 row-major. One invocation: one element of dx.

struct Params {
    count: u32,
    images: u32,
    offset: u32, // of the first image, in x for im2col, in dx for col2im
}

// The geometry is a layer's own and stays: as constants, it costs no division.
override CHANNELS: u32 = 1u;
override HEIGHT: u32 = 1u;
override WIDTH: u32 = 1u;
override KERNEL_Y: u32 = 1u;
override KERNEL_X: u32 = 1u;
override STRIDE_Y: u32 = 1u;
override STRIDE_X: u32 = 1u;
override PAD_Y: u32 = 0u;
override PAD_X: u32 = 0u;
override OUT_Y: u32 = 1u;
override OUT_X: u32 = 1u;

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read_write> out: array<f32>;

const WG = 64u;
const PANEL = 64u;

fn element(row: u32, column: u32) -> f32 {
    let pixels = OUT_Y * OUT_X;
    if row >= CHANNELS * KERNEL_Y * KERNEL_X || column >= p.images * pixels {
        return 0.0;
    }
    let kx = row % KERNEL_X;
    let ky = (row / KERNEL_X) % KERNEL_Y;
    let c = row / (KERNEL_X * KERNEL_Y);
    let ox = column % OUT_X;
    let oy = (column / OUT_X) % OUT_Y;
    let n = column / pixels;
    // Above or left of the image the subtraction wraps around to a huge number, which the comparison catches too.
    let y = oy * STRIDE_Y + ky - PAD_Y;
    let xx = ox * STRIDE_X + kx - PAD_X;
    if y >= HEIGHT || xx >= WIDTH {
        return 0.0;
    }
    return x[p.offset + ((n * CHANNELS + c) * HEIGHT + y) * WIDTH + xx];
}

@compute @workgroup_size(WG)
fn im2col(
    @builtin(workgroup_id) wid: vec3<u32>,
    @builtin(num_workgroups) nwg: vec3<u32>,
    @builtin(local_invocation_index) lid: u32,
) {
    let i = (wid.y * nwg.x + wid.x) * WG + lid;
    if i < p.count {
        let rows = CHANNELS * KERNEL_Y * KERNEL_X;
        out[i] = element((i / PANEL) % rows, i / (PANEL * rows) * PANEL + i % PANEL);
    }
}

@compute @workgroup_size(WG)
fn im2col_turned(
    @builtin(workgroup_id) wid: vec3<u32>,
    @builtin(num_workgroups) nwg: vec3<u32>,
    @builtin(local_invocation_index) lid: u32,
) {
    let i = (wid.y * nwg.x + wid.x) * WG + lid;
    if i < p.count {
        let columns = p.images * OUT_Y * OUT_X;
        out[i] = element(i / (PANEL * columns) * PANEL + i % PANEL, (i / PANEL) % columns);
    }
}

@compute @workgroup_size(WG)
fn col2im(
    @builtin(workgroup_id) wid: vec3<u32>,
    @builtin(num_workgroups) nwg: vec3<u32>,
    @builtin(local_invocation_index) lid: u32,
) {
    let i = (wid.y * nwg.x + wid.x) * WG + lid;
    if i >= p.count {
        return;
    }
    let px = i % WIDTH + PAD_X;
    let py = (i / WIDTH) % HEIGHT + PAD_Y;
    let c = (i / (WIDTH * HEIGHT)) % CHANNELS;
    let n = i / (WIDTH * HEIGHT * CHANNELS);
    let pixels = OUT_Y * OUT_X;
    var total = 0.0;
    for (var ky = 0u; ky < min(KERNEL_Y, py + 1u); ky++) {
        let oy = (py - ky) / STRIDE_Y;
        if oy * STRIDE_Y != py - ky || oy >= OUT_Y {
            continue;
        }
        for (var kx = 0u; kx < min(KERNEL_X, px + 1u); kx++) {
            let ox = (px - kx) / STRIDE_X;
            if ox * STRIDE_X == px - kx && ox < OUT_X {
                let row = (c * KERNEL_Y + ky) * KERNEL_X + kx;
                total += x[row * (p.images * pixels) + n * pixels + oy * OUT_X + ox];
            }
        }
    }
    out[p.offset + i] = total;
}
