// A convolution's image as a matrix, and back. Images are [N, C, H, W], a column stands for one output pixel:
//   cols[(c, ky, kx), (n, oy, ox)] = x[n, c, oy·stride_y + ky − pad_y, ox·stride_x + kx − pad_x], 0 outside the image.
//
// `im2col`       writes panels for a right operand [C·KH·KW, N·OH·OW] (64 columns side by side, see matmul.wgsl).
// `im2col_turned` writes panels for the transposed one, [N·OH·OW, C·KH·KW].
//                 One invocation of either: one element of the panels.
// `col2im`       dx[n, c, y, x] ← Σ of cols over all places that im2col has read it from; cols is [C·KH·KW, N·OH·OW]
//                 row-major. One invocation: one element of dx.

struct Params {
    count: u32,
    images: u32,
    channels: u32,
    height: u32,
    width: u32,
    kernel_y: u32,
    kernel_x: u32,
    stride_y: u32,
    stride_x: u32,
    pad_y: u32,
    pad_x: u32,
    out_y: u32,
    out_x: u32,
    offset: u32, // of the first image, in x for im2col, in dx for col2im
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read_write> out: array<f32>;

const WG = 64u;
const PANEL = 64u;

fn element(row: u32, column: u32) -> f32 {
    let pixels = p.out_y * p.out_x;
    if row >= p.channels * p.kernel_y * p.kernel_x || column >= p.images * pixels {
        return 0.0;
    }
    let kx = row % p.kernel_x;
    let ky = (row / p.kernel_x) % p.kernel_y;
    let c = row / (p.kernel_x * p.kernel_y);
    let ox = column % p.out_x;
    let oy = (column / p.out_x) % p.out_y;
    let n = column / pixels;
    // Above or left of the image the subtraction wraps around to a huge number, which the comparison catches too.
    let y = oy * p.stride_y + ky - p.pad_y;
    let xx = ox * p.stride_x + kx - p.pad_x;
    if y >= p.height || xx >= p.width {
        return 0.0;
    }
    return x[p.offset + ((n * p.channels + c) * p.height + y) * p.width + xx];
}

@compute @workgroup_size(WG)
fn im2col(
    @builtin(workgroup_id) wid: vec3<u32>,
    @builtin(num_workgroups) nwg: vec3<u32>,
    @builtin(local_invocation_index) lid: u32,
) {
    let i = (wid.y * nwg.x + wid.x) * WG + lid;
    if i < p.count {
        let rows = p.channels * p.kernel_y * p.kernel_x;
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
        let columns = p.images * p.out_y * p.out_x;
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
    let px = i % p.width + p.pad_x;
    let py = (i / p.width) % p.height + p.pad_y;
    let c = (i / (p.width * p.height)) % p.channels;
    let n = i / (p.width * p.height * p.channels);
    let pixels = p.out_y * p.out_x;
    var total = 0.0;
    for (var ky = 0u; ky < min(p.kernel_y, py + 1u); ky++) {
        let oy = (py - ky) / p.stride_y;
        if oy * p.stride_y != py - ky || oy >= p.out_y {
            continue;
        }
        for (var kx = 0u; kx < min(p.kernel_x, px + 1u); kx++) {
            let ox = (px - kx) / p.stride_x;
            if ox * p.stride_x == px - kx && ox < p.out_x {
                let row = (c * p.kernel_y + ky) * p.kernel_x + kx;
                total += x[row * (p.images * pixels) + n * pixels + oy * p.out_x + ox];
            }
        }
    }
    out[p.offset + i] = total;
}
