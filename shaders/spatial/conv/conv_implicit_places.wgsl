// What a convolution without columns in memory (conv_implicit.wgsl) takes: its params, the places of elements in the image,
// and those of the result. After window.wgsl, of which it uses the places only.
//
// A window's position (ty, tx) reads the image at y = at.y · stride_y + ty · dilation_y − pad_y, x likewise. These settings are
// params, so that one pipeline serves all layers; dilation and padding may be less than 0, modulo 2³².

struct Params {
    m: u32,
    n: u32,
    k: u32, // of the sum
    tiles_split: u32, // tiles of a part of the sum
    splits: u32,
    z_count: u32, // groups · splits: a folded grid may have more workgroups
    offset: u32,  // of out: row m of a group goes to offset + part · batch + (group · M + m) · row
    batch: u32,
    row: u32,
    outer: u32, // from an image of out to the next
    line: u32,  // from a line of pixels to the next
    step: u32,  // from a pixel to the next
    bias_offset: u32,
    a_depth: u32, // steps of k in a panel of a
    a_first: u32, // the step of position (0, 0), and those to the next positions
    a_y: u32,
    a_x: u32,
    image_offset: u32,
    image_step: u32, // from an image to the next
    channels: u32,
    height: u32, // of the image
    width: u32,
    taps_y: u32,
    taps_x: u32,
    out_y: u32, // windows of an image
    out_x: u32,
    stride_y: u32,
    stride_x: u32,
    dilation_y: u32,
    dilation_x: u32,
    pad_y: u32,
    pad_x: u32,
}

@group(0) @binding(0) var<uniform> p: Params;

/// Whether the sums are over the windows: the gradient of the weight.
override WEIGHT_GRAD: bool = false;

/// Returns the place of the first column of row m.
fn row_place(z: u32, m: u32) -> u32 {
    return p.offset + z % p.splits * p.batch + (z / p.splits * p.m + m) * p.row;
}

/// Returns the bias of row m: the first part of a sum has it.
fn row_bias(z: u32, m: u32) -> f32 {
    if z % p.splits > 0u {
        return 0.0;
    }
    return bias[p.bias_offset + z / p.splits * p.m + m];
}

/// Returns the place of a column of out.
fn column_place(n: u32) -> u32 {
    if WEIGHT_GRAD {
        return n;
    }
    let at = place(n, p.out_y, p.out_x);
    return at.plane * p.outer + at.y * p.line + at.x * p.step;
}

/// Returns the places of four columns from n on.
fn places(n: u32) -> vec4<u32> {
    return vec4(column_place(n), column_place(n + 1u), column_place(n + 2u), column_place(n + 3u));
}

/// A part of an element's place in the image, to which another part is added.
struct Spot {
    at: u32,
    y: u32,
    x: u32,
}

/// Returns the part that depends on a channel and a position of the window.
fn tap_spot(channel: u32, ty: u32, tx: u32) -> Spot {
    let y = ty * p.dilation_y - p.pad_y;
    let x = tx * p.dilation_x - p.pad_x;
    return Spot((channel * p.height + y) * p.width + x, y, x);
}

/// Returns the part that depends on a window.
fn window_spot(at: Place) -> Spot {
    let y = at.y * p.stride_y;
    let x = at.x * p.stride_x;
    return Spot(at.plane * p.image_step + y * p.width + x, y, x);
}
