// What the shaders that write and read columns share: their params, the image, and one element of it. After window.wgsl,
// halves.wgsl and conv_columns.wgsl.

struct Params {
    count: u32,    // col2im: invocations
    columns: u32,  // of this pass
    first: u32,    // pixel of the pass's first column; not 0 if the pass is a part of one image
    offset: u32,   // of the first image's group, in x for im2col, in dx for col2im
    add: u32,      // col2im: whether to add to dx
    channels: u32, // of an image
    depth: u32,    // channels of a group
    run: u32,      // col2im: channels of an invocation
    height: u32,   // of an image
    width: u32,
    out_y: u32, // of a result
    out_x: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x: array<u32>;

override X_HALVES: u32 = 0u;

const PANEL = WG;
const RUN = 8u;

alias Pixel = f32;

fn of_x(i: u32) -> f32 {
    return float_of(x[word_of(i, X_HALVES)], i, X_HALVES);
}
