// Average pooling of planes [H, W] → [OH, OW] (a plane is one channel of one image), after window.wgsl.
//   forward:  out[q, oy, ox] ← Σ of x over the window / its divisor
//   backward: out[q, y, x] ← Σ of x / divisor over all windows that hold the pixel; x is the gradient of the result
// The window of (oy, ox) starts at (oy·stride_y − pad_y, ox·stride_x − pad_x). One invocation: one element of out.

struct Params {
    count: u32, // elements of out
    x_offset: u32,
}

// Whether a mean counts the padding. Elements past the padding, in the last window with ceil_mode, never count.
override COUNT_PAD: bool = true;

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read_write> out: array<f32>;

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
    out[i] = total / divisor(oy, ox);
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
            total += x[p.x_offset + (q * OUT_Y + oy) * OUT_X + ox] / divisor(oy, ox);
        }
    }
    out[i] = total;
}
