// Convolutions on software adapters (conv_tiles.wgsl, conv_points.wgsl): what both read. Each load costs these adapters as much
// as several products, so that an invocation computes a block of results in registers, and uses each element that it loads for
// several of them. As everywhere, no weight is multiplied by the zeros around an image: it may be infinite.
// After window.wgsl, halves.wgsl and put.wgsl.

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
