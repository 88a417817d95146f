// Convolutions on software adapters (after window.wgsl, halves.wgsl and put.wgsl). Each load costs these adapters as much as
// several products, so that an invocation computes a block of results in registers, and uses each element that it loads for
// several of them:
//   tiles:  groups of few channels, dilation 1. One invocation: tiles of two rows of four output pixels. The weights are the
//           same for a workgroup, which is within one plane.
//   points: one group, few output pixels. One invocation: four output channels at four output pixels of all images.
// As everywhere, no weight is multiplied by the zeros around an image: it may be infinite.

struct Params {
    count: u32, // tiles: workgroups; points: invocations
    x_offset: u32,
    w_offset: u32,
    bias_offset: u32,
    run: u32, // tiles: tiles of a workgroup; points: output pixels of all images
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
override X_HALVES: u32 = 0u;
override W_HALVES: u32 = 0u;

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x: array<u32>;
@group(0) @binding(2) var<storage, read> w: array<u32>;
@group(0) @binding(3) var<storage, read> bias: array<f32>;
@group(0) @binding(4) var<storage, read_write> out: array<f32>;

const FOUR = vec4(0u, 1u, 2u, 3u);

fn of_x(i: u32) -> f32 {
    return float_of(x[word_of(i, X_HALVES)], i, X_HALVES);
}

fn of_w(i: u32) -> f32 {
    return float_of(w[word_of(i, W_HALVES)], i, W_HALVES);
}

fn of_bias(o: u32) -> f32 {
    if HAS_BIAS {
        return bias[p.bias_offset + o];
    }
    return 0.0;
}

/// Returns an element of x, or 0 if it is outside the image.
fn pixel_if(inside: bool, i: u32) -> f32 {
    if inside {
        return of_x(i);
    }
    return 0.0;
}

/// Returns pixel `at` of the row that begins at `row`, or 0 past its ends.
fn pixel(row: u32, at: u32) -> f32 {
    return pixel_if(at < p.width, row + at);
}

@compute @workgroup_size(WG)
fn tiles(id: Id) {
    if linear_group(id) >= p.count {
        return;
    }
    let across = (p.out_x + 3u) / 4u;
    let all = across * ((p.out_y + 1u) / 2u);
    let parts = (all + p.run - 1u) / p.run;
    let plane = linear_group(id) / parts;
    let begin = linear_group(id) % parts * p.run;
    let o = plane % p.out_channels;
    let first = plane / p.out_channels * p.channels + o / p.wide * p.depth;
    let start = vec4(of_bias(o));
    for (var t = begin + id.local; t < min(begin + p.run, all); t += WG) {
        let oy = t / across * 2u;
        let ox = (t - t / across * across) * 4u;
        var upper = start;
        var lower = start;
        // Above or left of the image the subtraction wraps around to a huge number, which is rejected too.
        let left = ox * STRIDE_X - PAD_X;
        for (var c = 0u; c < p.depth; c++) {
            let weights = p.w_offset + (o * p.depth + c) * KERNEL_Y * KERNEL_X;
            for (var i = 0u; i < KERNEL_Y + STRIDE_Y; i++) {
                let y = oy * STRIDE_Y + i - PAD_Y;
                if y >= p.height {
                    continue;
                }
                let row = p.x_offset + ((first + c) * p.height + y) * p.width;
                var v = vec4<f32>();
                if STRIDE_X == 1u {
                    v = vec4(0.0, pixel(row, left), pixel(row, left + 1u), pixel(row, left + 2u));
                }
                for (var kx = 0u; kx < KERNEL_X; kx++) {
                    let at = left + kx + FOUR * STRIDE_X;
                    if STRIDE_X == 1u {
                        v = vec4(v.yzw, pixel(row, at.w));
                    } else {
                        v = vec4(pixel(row, at.x), pixel(row, at.y), pixel(row, at.z), pixel(row, at.w));
                    }
                    let inside = at < vec4(p.width);
                    if i < KERNEL_Y {
                        upper = select(upper, upper + of_w(weights + i * KERNEL_X + kx) * v, inside);
                    }
                    if i >= STRIDE_Y {
                        lower = select(lower, lower + of_w(weights + (i - STRIDE_Y) * KERNEL_X + kx) * v, inside);
                    }
                }
            }
        }
        let to = (plane * p.out_y + oy) * p.out_x + ox;
        for (var i = 0u; i < min(4u, p.out_x - ox); i++) {
            put(to + i, upper[i]);
            if oy + 1u < p.out_y {
                put(to + p.out_x + i, lower[i]);
            }
        }
    }
}

/// Invocations of a workgroup: few, so that all threads of the host get some.
const FEW = 8u;

@compute @workgroup_size(FEW)
fn points(id: Id) {
    let i = linear_group(id) * FEW + id.local;
    if i >= p.count {
        return;
    }
    // Past the last channel or pixel, the last one is computed again and not stored.
    let blocks = (p.out_channels + 3u) / 4u;
    let o = i % blocks * 4u;
    let rows = p.w_offset + min(o + FOUR, vec4(p.out_channels - 1u)) * p.depth * KERNEL_Y * KERNEL_X;
    let q = i / blocks * 4u;
    let pixels = min(q + FOUR, vec4(p.run - 1u));
    let lines = pixels / p.out_x;
    let images = lines / p.out_y;
    let top = (lines - images * p.out_y) * STRIDE_Y - PAD_Y;
    let left = (pixels - lines * p.out_x) * STRIDE_X - PAD_X;
    var a = vec4(of_bias(o));
    var b = vec4(of_bias(min(o + 1u, p.out_channels - 1u)));
    var c = vec4(of_bias(min(o + 2u, p.out_channels - 1u)));
    var d = vec4(of_bias(min(o + 3u, p.out_channels - 1u)));
    var tap = 0u;
    for (var channel = 0u; channel < p.depth; channel++) {
        let planes = (images * p.channels + channel) * p.height;
        for (var ky = 0u; ky < KERNEL_Y; ky++) {
            let y = top + ky * DILATION_Y;
            let row = p.x_offset + (planes + y) * p.width;
            for (var kx = 0u; kx < KERNEL_X; kx++) {
                let at = left + kx * DILATION_X;
                let inside = (y < vec4(p.height)) & (at < vec4(p.width));
                let places = row + at;
                let v = vec4(
                    pixel_if(inside.x, places.x),
                    pixel_if(inside.y, places.y),
                    pixel_if(inside.z, places.z),
                    pixel_if(inside.w, places.w),
                );
                a = select(a, a + of_w(rows.x + tap) * v, inside);
                b = select(b, b + of_w(rows.y + tap) * v, inside);
                c = select(c, c + of_w(rows.z + tap) * v, inside);
                d = select(d, d + of_w(rows.w + tap) * v, inside);
                tap++;
            }
        }
    }
    let plane = p.out_y * p.out_x;
    for (var j = 0u; j < min(4u, p.run - q); j++) {
        let to = (images[j] * p.out_channels + o) * plane + pixels[j] - images[j] * plane;
        put(to, a[j]);
        if o + 1u < p.out_channels {
            put(to + plane, b[j]);
        }
        if o + 2u < p.out_channels {
            put(to + 2u * plane, c[j]);
        }
        if o + 3u < p.out_channels {
            put(to + 3u * plane, d[j]);
        }
    }
}
