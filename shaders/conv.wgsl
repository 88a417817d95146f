// Writes a convolution's image as a matrix, and adds it back (after window.wgsl). Images are [N, C, H, W]; a pass
// handles one group of their channels. Each column is for one output pixel:
//   cols[(c, ky, kx), (n, oy, ox)] = x[n, c, oy·stride_y + ky·dilation_y − pad_y, ox·stride_x + …], 0 outside the image.
//
// `im2col`       writes panels for a right operand [DEPTH·KH·KW, columns] (64 columns side by side, see pack.wgsl).
// `im2col_turned` writes panels for the transposed one, [columns, DEPTH·KH·KW].
//                 One invocation of either: one element of the panels.
// `col2im`       dx[n, c, y, x] ← Σ of cols over all places to which im2col copied it; cols is [DEPTH·KH·KW, columns]
//                 row-major. One invocation: one element of dx.

struct Params {
    count: u32,
    columns: u32, // of this pass
    first: u32,   // pixel of the pass's first column; not 0 if the pass is a part of one image
    offset: u32,  // of the first image's group, in x for im2col, in dx for col2im
    add: u32,     // col2im: whether to add to dx
}

override CHANNELS: u32 = 1u; // of an image
override DEPTH: u32 = 1u;    // of a group

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read_write> out: array<f32>;

const PANEL = 64u;

fn element(row: u32, from_first: u32) -> f32 {
    if row >= DEPTH * KERNEL_Y * KERNEL_X || from_first >= p.columns {
        return 0.0;
    }
    let column = p.first + from_first;
    let kx = row % KERNEL_X;
    let ky = (row / KERNEL_X) % KERNEL_Y;
    let c = row / (KERNEL_X * KERNEL_Y);
    let ox = column % OUT_X;
    let oy = (column / OUT_X) % OUT_Y;
    let n = column / (OUT_Y * OUT_X);
    // Above or left of the image the subtraction wraps around to a huge number, which the comparison rejects too.
    let y = oy * STRIDE_Y + ky * DILATION_Y - PAD_Y;
    let xx = ox * STRIDE_X + kx * DILATION_X - PAD_X;
    if y >= HEIGHT || xx >= WIDTH {
        return 0.0;
    }
    return x[p.offset + ((n * CHANNELS + c) * HEIGHT + y) * WIDTH + xx];
}

@compute @workgroup_size(WG)
fn im2col(id: Id) {
    let i = linear_index(id);
    if i < p.count {
        let rows = DEPTH * KERNEL_Y * KERNEL_X;
        out[i] = element((i / PANEL) % rows, i / (PANEL * rows) * PANEL + i % PANEL);
    }
}

@compute @workgroup_size(WG)
fn im2col_turned(id: Id) {
    let i = linear_index(id);
    if i < p.count {
        out[i] = element(i / (PANEL * p.columns) * PANEL + i % PANEL, (i / PANEL) % p.columns);
    }
}

@compute @workgroup_size(WG)
fn col2im(id: Id) {
    let i = linear_index(id);
    if i >= p.count {
        return;
    }
    let px = i % WIDTH + PAD_X;
    let py = (i / WIDTH) % HEIGHT + PAD_Y;
    let c = (i / (WIDTH * HEIGHT)) % DEPTH;
    let n = i / (WIDTH * HEIGHT * DEPTH);
    var total = 0.0;
    for (var ky = 0u; ky < KERNEL_Y; ky++) {
        if ky * DILATION_Y > py {
            break;
        }
        let ry = py - ky * DILATION_Y;
        let oy = ry / STRIDE_Y;
        if oy * STRIDE_Y != ry || oy >= OUT_Y {
            continue;
        }
        for (var kx = 0u; kx < KERNEL_X; kx++) {
            if kx * DILATION_X > px {
                break;
            }
            let rx = px - kx * DILATION_X;
            let ox = rx / STRIDE_X;
            let column = (n * OUT_Y + oy) * OUT_X + ox - p.first;
            if ox * STRIDE_X == rx && ox < OUT_X && column < p.columns {
                total += x[((c * KERNEL_Y + ky) * KERNEL_X + kx) * p.columns + column];
            }
        }
    }
    let at = p.offset + ((n * CHANNELS + c) * HEIGHT + (i / WIDTH) % HEIGHT) * WIDTH + i % WIDTH;
    if p.add == 1u {
        total += out[at];
    }
    out[at] = total;
}
