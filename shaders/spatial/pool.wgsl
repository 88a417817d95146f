// Pooling of planes [H, W] → [OH, OW] (a plane is one channel of one image), after window.wgsl.
//   forward:  out[q, oy, ox] ← Σ of x over the window / its divisor; MAX: its maximum, −∞ if it holds no pixel
//   index:    the position in its plane of the first largest pixel, NONE if the window holds no pixel
//   backward: dx[q, y, x] ← Σ of x / divisor over all windows that hold the pixel; MAX: Σ of x over all windows whose
//             index is the pixel. x is the gradient of the result.
// The window of (oy, ox) starts at (oy·stride_y − pad_y, ox·stride_x − pad_x).
// One invocation: the elements of out at one place of `run` planes.

struct Params {
    count: u32,  // invocations
    offset: u32, // of x
    lowest: f32, // −∞, which cannot be written in WGSL
    planes: u32,
    run: u32,    // planes of an invocation
    height: u32,
    width: u32,
    out_y: u32,
    out_x: u32,
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

/// Returns the pooled pixels of the window at `at` in the plane that starts at x[start].
fn pooled(start: u32, at: Place) -> Pooled {
    var window = Pooled(0.0, NONE);
    for (var ky = 0u; ky < KERNEL_Y; ky++) {
        let y = at.y * STRIDE_Y + ky * DILATION_Y - PAD_Y;
        if y >= p.height {
            continue; // also above the image, where the subtraction wraps around
        }
        for (var kx = 0u; kx < KERNEL_X; kx++) {
            let xx = at.x * STRIDE_X + kx * DILATION_X - PAD_X;
            if xx >= p.width {
                continue;
            }
            let v = x[start + y * p.width + xx];
            if !MAX {
                window.value += v;
            } else if window.at == NONE || v > window.value || is_nan(v) {
                window = Pooled(v, y * p.width + xx);
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
    return f32(counted(oy, KERNEL_Y, STRIDE_Y, PAD_Y, p.height) * counted(ox, KERNEL_X, STRIDE_X, PAD_X, p.width));
}

/// Returns the first plane of the invocation at `at`, and one past the last.
fn planes(at: Place) -> vec2<u32> {
    return vec2(at.plane * p.run, min((at.plane + 1u) * p.run, p.planes));
}

@compute @workgroup_size(WG)
fn forward(id: Id) {
    let i = linear_index(id);
    if i >= p.count {
        return;
    }
    let at = place(i, p.out_y, p.out_x);
    let range = planes(at);
    for (var q = range.x; q < range.y; q++) {
        let start = p.offset + q * p.height * p.width;
        let window = pooled(start, at);
        var v = p.lowest;
        if !MAX {
            v = window.value / divisor(at.y, at.x);
        } else if window.at != NONE {
            v = x[start + window.at]; // its exact bits
        }
        out[(q * p.out_y + at.y) * p.out_x + at.x] = v;
    }
}

@compute @workgroup_size(WG)
fn index(id: Id) {
    let i = linear_index(id);
    if i >= p.count {
        return;
    }
    let at = place(i, p.out_y, p.out_x);
    let range = planes(at);
    for (var q = range.x; q < range.y; q++) {
        found[(q * p.out_y + at.y) * p.out_x + at.x] = pooled(p.offset + q * p.height * p.width, at).at;
    }
}

@compute @workgroup_size(WG)
fn backward(id: Id) {
    let i = linear_index(id);
    if i >= p.count {
        return;
    }
    let at = place(i, p.height, p.width);
    let ys = windows(at.y + PAD_Y, (KERNEL_Y - 1u) * DILATION_Y + 1u, STRIDE_Y, p.out_y);
    let xs = windows(at.x + PAD_X, (KERNEL_X - 1u) * DILATION_X + 1u, STRIDE_X, p.out_x);
    let pixel = at.y * p.width + at.x;
    let range = planes(at);
    for (var q = range.x; q < range.y; q++) {
        var total = 0.0;
        for (var oy = ys.x; oy < ys.y; oy++) {
            for (var ox = xs.x; ox < xs.y; ox++) {
                let o = (q * p.out_y + oy) * p.out_x + ox;
                if !MAX {
                    total += x[p.offset + o] / divisor(oy, ox);
                } else if taken[o] == pixel {
                    total += x[p.offset + o];
                }
            }
        }
        dx[q * p.height * p.width + pixel] = total;
    }
}
