// Pooling of planes [H, W] → [OH, OW] (a plane is one channel of one image), and its gradients.
//   max_forward:  out[q, oy, ox] ← max of x over the window;      avg_forward: its mean, padding counted as zeros
//   avg_backward: dx[q, y, x] ← Σ of g over all windows that hold the pixel, divided by the window's size
//   max_backward: dx[q, y, x] ← Σ of g over all windows whose first largest element is the pixel
// The window of (oy, ox) starts at (oy·stride_y − pad_y, ox·stride_x − pad_x). One invocation: one element of out.

struct Params {
    count: u32,    // elements of out
    x_offset: u32, // of x; of g in avg_backward
    g_offset: u32, // of g in max_backward
}

// The geometry is a layer's own and stays: as constants, it costs no division.
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
const LOWEST = -3.40282347e38;

struct Id {
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
}

fn linear_index(id: Id) -> u32 {
    return (id.group.y * id.groups.x + id.group.x) * WG + id.local;
}

/// The position in a plane of the first largest element of a window; 0xffffffff if the window holds no pixel.
fn largest(plane: u32, oy: u32, ox: u32) -> u32 {
    var at = 0xffffffffu;
    var best = LOWEST;
    for (var ky = 0u; ky < KERNEL_Y; ky++) {
        let y = oy * STRIDE_Y + ky - PAD_Y;
        if y >= HEIGHT {
            continue; // also above the image, where the subtraction has wrapped around
        }
        for (var kx = 0u; kx < KERNEL_X; kx++) {
            let xx = ox * STRIDE_X + kx - PAD_X;
            if xx >= WIDTH {
                continue;
            }
            let v = x[plane + y * WIDTH + xx];
            let nan = (bitcast<u32>(v) & 0x7fffffffu) > 0x7f800000u;
            if at == 0xffffffffu || v > best || nan {
                best = v;
                at = y * WIDTH + xx;
            }
        }
    }
    return at;
}

@compute @workgroup_size(WG)
fn max_forward(id: Id) {
    let i = linear_index(id);
    if i >= p.count {
        return;
    }
    let plane = p.x_offset + i / (OUT_X * OUT_Y) * HEIGHT * WIDTH;
    out[i] = x[plane + largest(plane, (i / OUT_X) % OUT_Y, i % OUT_X)];
}

@compute @workgroup_size(WG)
fn avg_forward(id: Id) {
    let i = linear_index(id);
    if i >= p.count {
        return;
    }
    let ox = i % OUT_X;
    let oy = (i / OUT_X) % OUT_Y;
    let plane = p.x_offset + i / (OUT_X * OUT_Y) * HEIGHT * WIDTH;
    var total = 0.0;
    for (var ky = 0u; ky < KERNEL_Y; ky++) {
        let y = oy * STRIDE_Y + ky - PAD_Y;
        if y >= HEIGHT {
            continue;
        }
        for (var kx = 0u; kx < KERNEL_X; kx++) {
            let xx = ox * STRIDE_X + kx - PAD_X;
            if xx < WIDTH {
                total += x[plane + y * WIDTH + xx];
            }
        }
    }
    out[i] = total / f32(KERNEL_Y * KERNEL_X);
}

@group(0) @binding(2) var<storage, read> g: array<f32>;
@group(0) @binding(3) var<storage, read_write> dx: array<f32>;

/// The windows of one direction that hold position `at` (counted from the padding's edge): first and one past the last.
fn windows(at: u32, kernel: u32, stride: u32, count: u32) -> vec2<u32> {
    let first = select(0u, (at - kernel) / stride + 1u, at >= kernel);
    return vec2(first, min(at / stride + 1u, count));
}

@compute @workgroup_size(WG)
fn max_backward(id: Id) {
    let i = linear_index(id);
    if i >= p.count {
        return;
    }
    let pixel = i % (WIDTH * HEIGHT);
    let q = i / (WIDTH * HEIGHT);
    let plane = p.x_offset + q * HEIGHT * WIDTH;
    let ys = windows(pixel / WIDTH + PAD_Y, KERNEL_Y, STRIDE_Y, OUT_Y);
    let xs = windows(pixel % WIDTH + PAD_X, KERNEL_X, STRIDE_X, OUT_X);
    var total = 0.0;
    for (var oy = ys.x; oy < ys.y; oy++) {
        for (var ox = xs.x; ox < xs.y; ox++) {
            if largest(plane, oy, ox) == pixel {
                total += g[p.g_offset + (q * OUT_Y + oy) * OUT_X + ox];
            }
        }
    }
    dx[i] = total;
}

@compute @workgroup_size(WG)
fn avg_backward(id: Id) {
    let i = linear_index(id);
    if i >= p.count {
        return;
    }
    let pixel = i % (WIDTH * HEIGHT);
    let q = i / (WIDTH * HEIGHT);
    let ys = windows(pixel / WIDTH + PAD_Y, KERNEL_Y, STRIDE_Y, OUT_Y);
    let xs = windows(pixel % WIDTH + PAD_X, KERNEL_X, STRIDE_X, OUT_X);
    var total = 0.0;
    for (var oy = ys.x; oy < ys.y; oy++) {
        for (var ox = xs.x; ox < xs.y; ox++) {
            total += x[p.x_offset + (q * OUT_Y + oy) * OUT_X + ox];
        }
    }
    out[i] = total / f32(KERNEL_Y * KERNEL_X);
}
