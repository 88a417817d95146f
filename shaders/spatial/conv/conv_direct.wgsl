// A convolution with few channels in a group, such as a depthwise one, as matrices are slow for it (after window.wgsl and
// halves.wgsl):
//   forward:     out[n, o, oy, ox] ← Σ_{c, ky, kx} w[o, c, ky, kx] · x[n, group(o), c, oy·stride_y + ky·dilation_y − pad_y, …]
//   input_grad:  dx[n, c, y, x] ← Σ of w · dy over the channels of c's group and all windows that hold the pixel
//   weight_grad: part[q, o, c, ky, kx] ← Σ of x · dy over the q-th run of output pixels of all images
// One invocation: the elements of out at one pixel and channel of `run` images; in weight_grad, one element.

struct Params {
    count: u32, // invocations
    a_offset: u32,
    b_offset: u32,
    bias_offset: u32,
    images: u32,
    run: u32,   // images of an invocation; in weight_grad, pixels of a part
    channels: u32,
    out_channels: u32,
    depth: u32, // channels of a group
    wide: u32,  // output channels of a group
    height: u32,
    width: u32,
    out_y: u32,
    out_x: u32,
}

override HAS_BIAS: bool = false;
override A_HALVES: u32 = 0u;
override B_HALVES: u32 = 0u;

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> a: array<u32>; // x; dy in the gradients
@group(0) @binding(2) var<storage, read> b: array<u32>; // w; x in weight_grad
@group(0) @binding(3) var<storage, read> bias: array<f32>;
@group(0) @binding(4) var<storage, read_write> out: array<f32>;

fn of_a(i: u32) -> f32 {
    return float_of(a[word_of(i, A_HALVES)], i, A_HALVES);
}

fn of_b(i: u32) -> f32 {
    return float_of(b[word_of(i, B_HALVES)], i, B_HALVES);
}

@compute @workgroup_size(WG)
fn forward(id: Id) {
    let i = linear_index(id);
    if i >= p.count {
        return;
    }
    let at = place(i, p.out_y, p.out_x);
    let o = at.plane % p.out_channels;
    let first = at.plane / p.out_channels * p.run;
    for (var n = first; n < min(first + p.run, p.images); n++) {
        let plane = n * p.channels + o / p.wide * p.depth;
        var total = 0.0;
        if HAS_BIAS {
            total = bias[p.bias_offset + o];
        }
        for (var c = 0u; c < p.depth; c++) {
            for (var ky = 0u; ky < KERNEL_Y; ky++) {
                // Above or left of the image the subtraction wraps around to a huge number, which is rejected too.
                let y = at.y * STRIDE_Y + ky * DILATION_Y - PAD_Y;
                if y >= p.height {
                    continue;
                }
                for (var kx = 0u; kx < KERNEL_X; kx++) {
                    let x = at.x * STRIDE_X + kx * DILATION_X - PAD_X;
                    if x < p.width {
                        let weight = of_b(p.b_offset + ((o * p.depth + c) * KERNEL_Y + ky) * KERNEL_X + kx);
                        total += weight * of_a(p.a_offset + ((plane + c) * p.height + y) * p.width + x);
                    }
                }
            }
        }
        put(((n * p.out_channels + o) * p.out_y + at.y) * p.out_x + at.x, total);
    }
}

@compute @workgroup_size(WG)
fn input_grad(id: Id) {
    let i = linear_index(id);
    if i >= p.count {
        return;
    }
    let at = place(i, p.height, p.width);
    let c = at.plane % p.channels;
    let first = at.plane / p.channels * p.run;
    let px = at.x + PAD_X;
    let py = at.y + PAD_Y;
    for (var n = first; n < min(first + p.run, p.images); n++) {
        var total = 0.0;
        for (var m = 0u; m < p.wide; m++) {
            let o = c / p.depth * p.wide + m;
            for (var ky = 0u; ky < KERNEL_Y; ky++) {
                let ry = py - ky * DILATION_Y; // before the first window this wraps around to a number past the last window
                let oy = ry / STRIDE_Y;
                if ky * DILATION_Y > py || oy * STRIDE_Y != ry || oy >= p.out_y {
                    continue;
                }
                for (var kx = 0u; kx < KERNEL_X; kx++) {
                    let rx = px - kx * DILATION_X;
                    let ox = rx / STRIDE_X;
                    if kx * DILATION_X <= px && ox * STRIDE_X == rx && ox < p.out_x {
                        let weight = of_b(p.b_offset + ((o * p.depth + c % p.depth) * KERNEL_Y + ky) * KERNEL_X + kx);
                        total += weight * of_a(p.a_offset + ((n * p.out_channels + o) * p.out_y + oy) * p.out_x + ox);
                    }
                }
            }
        }
        put(((n * p.channels + c) * p.height + at.y) * p.width + at.x, total);
    }
}

@compute @workgroup_size(WG)
fn weight_grad(id: Id) {
    let i = linear_index(id);
    if i >= p.count {
        return;
    }
    let tap = place(i, KERNEL_Y, KERNEL_X);
    let c = tap.plane % p.depth;
    let o = (tap.plane / p.depth) % p.out_channels;
    let first = tap.plane / (p.depth * p.out_channels) * p.run;
    let pixels = p.out_y * p.out_x;
    var at = place(first, p.out_y, p.out_x);
    var total = 0.0;
    for (var pixel = first; pixel < min(first + p.run, p.images * pixels); pixel++) {
        let y = at.y * STRIDE_Y + tap.y * DILATION_Y - PAD_Y;
        let x = at.x * STRIDE_X + tap.x * DILATION_X - PAD_X;
        if y < p.height && x < p.width {
            let plane = at.plane * p.channels + o / p.wide * p.depth + c;
            // Pixel i of all images, without the other channels' pixels.
            let grad = of_a(p.a_offset + (at.plane * (p.out_channels - 1u) + o) * pixels + pixel);
            total += grad * of_b(p.b_offset + (plane * p.height + y) * p.width + x);
        }
        at = next(at, p.out_y, p.out_x);
    }
    put(i, total);
}
