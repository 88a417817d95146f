// A convolution with few channels in a group, such as a depthwise one, as matrices are slow for it (after window.wgsl):
//   forward:     out[n, o, oy, ox] ← Σ_{c, ky, kx} w[o, c, ky, kx] · x[n, group(o), c, oy·stride_y + ky·dilation_y − pad_y, …]
//   input_grad:  dx[n, c, y, x] ← Σ of w · dy over the channels of c's group and all windows that hold the pixel
//   weight_grad: part[q, o, c, ky, kx] ← Σ of x · dy over the q-th run of output pixels of all images
// One invocation: one element of out.

struct Params {
    count: u32, // elements of out
    a_offset: u32,
    b_offset: u32,
    bias_offset: u32,
    pixels: u32, // weight_grad: output pixels of all images
    run: u32,    // weight_grad: pixels of a part
}

override CHANNELS: u32 = 1u;
override OUT_CHANNELS: u32 = 1u;
override DEPTH: u32 = 1u; // channels of a group
override WIDE: u32 = 1u;  // output channels of a group
override HAS_BIAS: bool = false;

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> a: array<f32>; // x; dy in the gradients
@group(0) @binding(2) var<storage, read> b: array<f32>; // w; x in weight_grad
@group(0) @binding(3) var<storage, read> bias: array<f32>;
@group(0) @binding(4) var<storage, read_write> out: array<f32>;

@compute @workgroup_size(WG)
fn forward(id: Id) {
    let i = linear_index(id);
    if i >= p.count {
        return;
    }
    let ox = i % OUT_X;
    let oy = (i / OUT_X) % OUT_Y;
    let o = (i / (OUT_X * OUT_Y)) % OUT_CHANNELS;
    let n = i / (OUT_X * OUT_Y * OUT_CHANNELS);
    let plane = n * CHANNELS + o / WIDE * DEPTH;
    var total = 0.0;
    if HAS_BIAS {
        total = bias[p.bias_offset + o];
    }
    for (var c = 0u; c < DEPTH; c++) {
        for (var ky = 0u; ky < KERNEL_Y; ky++) {
            // Above or left of the image the subtraction wraps around to a huge number, which is rejected too.
            let y = oy * STRIDE_Y + ky * DILATION_Y - PAD_Y;
            if y >= HEIGHT {
                continue;
            }
            for (var kx = 0u; kx < KERNEL_X; kx++) {
                let x = ox * STRIDE_X + kx * DILATION_X - PAD_X;
                if x < WIDTH {
                    let weight = b[p.b_offset + ((o * DEPTH + c) * KERNEL_Y + ky) * KERNEL_X + kx];
                    total += weight * a[p.a_offset + ((plane + c) * HEIGHT + y) * WIDTH + x];
                }
            }
        }
    }
    out[i] = total;
}

@compute @workgroup_size(WG)
fn input_grad(id: Id) {
    let i = linear_index(id);
    if i >= p.count {
        return;
    }
    let px = i % WIDTH + PAD_X;
    let py = (i / WIDTH) % HEIGHT + PAD_Y;
    let c = (i / (WIDTH * HEIGHT)) % CHANNELS;
    let n = i / (WIDTH * HEIGHT * CHANNELS);
    var total = 0.0;
    for (var m = 0u; m < WIDE; m++) {
        let o = c / DEPTH * WIDE + m;
        for (var ky = 0u; ky < KERNEL_Y; ky++) {
            let ry = py - ky * DILATION_Y; // before the first window this wraps around to a number past the last window
            let oy = ry / STRIDE_Y;
            if ky * DILATION_Y > py || oy * STRIDE_Y != ry || oy >= OUT_Y {
                continue;
            }
            for (var kx = 0u; kx < KERNEL_X; kx++) {
                let rx = px - kx * DILATION_X;
                let ox = rx / STRIDE_X;
                if kx * DILATION_X <= px && ox * STRIDE_X == rx && ox < OUT_X {
                    let weight = b[p.b_offset + ((o * DEPTH + c % DEPTH) * KERNEL_Y + ky) * KERNEL_X + kx];
                    total += weight * a[p.a_offset + ((n * OUT_CHANNELS + o) * OUT_Y + oy) * OUT_X + ox];
                }
            }
        }
    }
    out[i] = total;
}

@compute @workgroup_size(WG)
fn weight_grad(id: Id) {
    let i = linear_index(id);
    if i >= p.count {
        return;
    }
    let kx = i % KERNEL_X;
    let ky = (i / KERNEL_X) % KERNEL_Y;
    let c = (i / (KERNEL_X * KERNEL_Y)) % DEPTH;
    let o = (i / (KERNEL_X * KERNEL_Y * DEPTH)) % OUT_CHANNELS;
    let first = i / (KERNEL_X * KERNEL_Y * DEPTH * OUT_CHANNELS) * p.run;
    var total = 0.0;
    for (var pixel = first; pixel < min(first + p.run, p.pixels); pixel++) {
        let n = pixel / (OUT_X * OUT_Y);
        let y = (pixel / OUT_X) % OUT_Y * STRIDE_Y + ky * DILATION_Y - PAD_Y;
        let x = pixel % OUT_X * STRIDE_X + kx * DILATION_X - PAD_X;
        if y < HEIGHT && x < WIDTH {
            let plane = n * CHANNELS + o / WIDE * DEPTH + c;
            let grad = a[p.a_offset + (n * OUT_CHANNELS + o) * (OUT_X * OUT_Y) + pixel % (OUT_X * OUT_Y)];
            total += grad * b[p.b_offset + (plane * HEIGHT + y) * WIDTH + x];
        }
    }
    out[i] = total;
}
