// Pooling of planes [H, W] → [OH, OW] (a plane is one channel of one image), after window.wgsl.
//   forward:  out[q, oy, ox] ← Σ of x over the window / its divisor; MAX: its maximum, −∞ if it holds no pixel
//   index:    the position in its plane of the first largest pixel, NONE if the window holds no pixel
//   backward: dx[q, y, x] ← Σ of x / divisor over all windows that hold the pixel; MAX: Σ of x over all windows whose
//             index is the pixel. x is the gradient of the result.
// The window of (oy, ox) starts at (oy·stride_y − pad_y, ox·stride_x − pad_x). One invocation: one element of out.

struct Params {
    count: u32,  // elements of out
    offset: u32, // of x
    lowest: f32, // −∞, which cannot be written in WGSL
}

override MAX: bool = false;
// Whether a mean counts the padding. Elements past the padding, in the last window with ceil_mode, never count.
override COUNT_PAD: bool = true;

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read_write> out: array<f32>;
@group(0) @binding(2) var<storage, read_write> found: array<u32>;
@group(0) @binding(2) var<storage, read> taken: array<u32>; // the result of `index`; not read without MAX
@group(0) @binding(3) var<storage, read_write> dx: array<f32>;

const NONE = 0xffffffffu;

struct Pooled {
    value: f32, // the sum, or the maximum
    at: u32,    // its position in the plane
}

/// Returns the start of the plane of window `i`.
fn plane_of(i: u32) -> u32 {
    return p.offset + i / (OUT_X * OUT_Y) * HEIGHT * WIDTH;
}

fn pooled(i: u32) -> Pooled {
    let plane = plane_of(i);
    var window = Pooled(0.0, NONE);
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
            if !MAX {
                window.value += v;
            } else if window.at == NONE || v > window.value || is_nan(v) {
                window = Pooled(v, y * WIDTH + xx);
            }
        }
    }
    return window;
}

/// Returns the number of elements that the window at `o` counts in one direction; the product of both is the divisor.
fn counted(o: u32, kernel: u32, stride: u32, pad: u32, size: u32) -> u32 {
    let end = min(o * stride + kernel, size + 2u * pad);
    if COUNT_PAD {
        return end - o * stride;
    }
    return min(end, size + pad) - max(o * stride, pad);
}

fn divisor(oy: u32, ox: u32) -> f32 {
    return f32(counted(oy, KERNEL_Y, STRIDE_Y, PAD_Y, HEIGHT) * counted(ox, KERNEL_X, STRIDE_X, PAD_X, WIDTH));
}

@compute @workgroup_size(WG)
fn forward(id: Id) {
    let i = linear_index(id);
    if i >= p.count {
        return;
    }
    let window = pooled(i);
    if !MAX {
        out[i] = window.value / divisor((i / OUT_X) % OUT_Y, i % OUT_X);
    } else if window.at == NONE {
        out[i] = p.lowest;
    } else {
        out[i] = x[plane_of(i) + window.at];
    }
}

@compute @workgroup_size(WG)
fn index(id: Id) {
    let i = linear_index(id);
    if i < p.count {
        found[i] = pooled(i).at;
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
            if !MAX {
                total += x[p.offset + o] / divisor(oy, ox);
            } else if taken[o] == i % (WIDTH * HEIGHT) {
                total += x[p.offset + o];
            }
        }
    }
    dx[i] = total;
}
