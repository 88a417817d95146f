// Max pooling of planes [H, W] → [OH, OW] (a plane is one channel of one image), after window.wgsl.
//   forward:  out[q, oy, ox] ← max of x over the window; −∞ if it holds no pixel
//   index:    that pixel's position in its plane
//   backward: dx[q, y, x] ← Σ of g over all windows whose index is the pixel
// The window of (oy, ox) starts at (oy·stride_y − pad_y, ox·stride_x − pad_x). One invocation: one element of out.

struct Params {
    count: u32, // elements of out
    x_offset: u32,
    g_offset: u32,
    lowest: f32, // −∞, which cannot be written in WGSL
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read_write> out: array<f32>;
@group(0) @binding(2) var<storage, read_write> found: array<u32>;
@group(0) @binding(1) var<storage, read> taken: array<u32>;
@group(0) @binding(2) var<storage, read> g: array<f32>;
@group(0) @binding(3) var<storage, read_write> dx: array<f32>;

const NONE = 0xffffffffu;

/// Returns the start of the plane of window `i`.
fn plane_of(i: u32) -> u32 {
    return p.x_offset + i / (OUT_X * OUT_Y) * HEIGHT * WIDTH;
}

/// Returns the position in its plane of the first largest pixel of window `i`, or NONE if the window holds no pixel.
fn largest(i: u32) -> u32 {
    let plane = plane_of(i);
    var at = NONE;
    var best = 0.0;
    for (var ky = 0u; ky < KERNEL_Y; ky++) {
        let y = (i / OUT_X) % OUT_Y * STRIDE_Y + ky * DILATION_Y - PAD_Y;
        if y >= HEIGHT {
            continue; // also above the image, where the subtraction wraps around
        }
        for (var kx = 0u; kx < KERNEL_X; kx++) {
            let xx = i % OUT_X * STRIDE_X + kx * DILATION_X - PAD_X;
            if xx >= WIDTH {
                continue;
            }
            let v = x[plane + y * WIDTH + xx];
            if at == NONE || v > best || is_nan(v) {
                best = v;
                at = y * WIDTH + xx;
            }
        }
    }
    return at;
}

@compute @workgroup_size(WG)
fn forward(id: Id) {
    let i = linear_index(id);
    if i < p.count {
        let at = largest(i);
        if at == NONE {
            out[i] = p.lowest;
        } else {
            out[i] = x[plane_of(i) + at];
        }
    }
}

@compute @workgroup_size(WG)
fn index(id: Id) {
    let i = linear_index(id);
    if i < p.count {
        found[i] = largest(i);
    }
}

@compute @workgroup_size(WG)
fn backward(id: Id) {
    let i = linear_index(id);
    if i >= p.count {
        return;
    }
    let q = i / (WIDTH * HEIGHT);
    let over = windows_over(i);
    var total = 0.0;
    for (var oy = over.x; oy < over.y; oy++) {
        for (var ox = over.z; ox < over.w; ox++) {
            let o = (q * OUT_Y + oy) * OUT_X + ox;
            if taken[o] == i % (WIDTH * HEIGHT) {
                total += g[p.g_offset + o];
            }
        }
    }
    dx[i] = total;
}
