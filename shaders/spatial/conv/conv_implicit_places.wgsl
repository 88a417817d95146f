// What a convolution without columns in memory (conv_implicit.wgsl) takes: its params, the places of elements in the image,
// and those of the result. After window.wgsl, of which it uses the places only.
//
// A window's position (ty, tx) reads the image at y = at.y · stride_y + ty · dilation_y − pad_y, x likewise. These settings are
// params, so that one pipeline serves all layers; dilation and padding may be less than 0, modulo 2³².
//
// The gradient of an image is a convolution of dy for the pixels of each phase: the pixels at the same place between two windows,
// which the same positions of the kernel reach. The params are then those of the convolution, but for `height` and `width`, the
// windows of dy, and `out_y` and `out_x`, the pixels of the image. All phases run in one grid.

struct Params {
    m: u32,
    n: u32, // with phases: of the largest one
    k: u32, // of the sum; none with phases
    tiles_split: u32, // tiles of a part of the sum
    splits: u32,
    z_count: u32, // groups · splits · phases: a folded grid may have more workgroups
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
    tap_step_y: u32, // with phases: from a position that reaches a pixel to the next; else 0
    tap_step_x: u32,
}

@group(0) @binding(0) var<uniform> p: Params;

// What is not the same for all phases. The number of tiles of a sum is computed from the value of `shape_of`, which all
// invocations have in common as compilers see it, and the rest from `g`.
struct Shape {
    n: u32,
    k: u32,
    out: u32, // the first place of the result
    a_first: u32,
    a_y: u32,
    a_x: u32,
    taps_y: u32,
    taps_x: u32,
    out_y: u32,
    out_x: u32,
    stride_y: u32,
    stride_x: u32,
    dilation_y: u32,
    dilation_x: u32,
    pad_y: u32,
    pad_x: u32,
}
var<private> g: Shape;

// A phase in one direction, the pixels first, first + stride, …: their number, the positions that reach them, tap, tap + tap_step, …,
// and where they read dy: pixel i at the t-th of these reads i + start − t · step.
struct Phase {
    pixels: u32,
    tap: u32,
    taps: u32,
    start: u32,
    step: u32,
}

fn phase(first: u32, size: u32, kernel: u32, stride: u32, dilation: u32, pad: u32, tap_step: u32) -> Phase {
    let at = first + pad;
    let different = min(tap_step, kernel);
    var tap = 0u;
    while tap < different && tap * dilation % stride != at % stride {
        tap++;
    }
    var f: Phase;
    f.pixels = (size - first + stride - 1u) / stride;
    f.tap = tap;
    f.taps = select(0u, (kernel - tap + tap_step - 1u) / tap_step, tap < different);
    f.start = bitcast<u32>((bitcast<i32>(at) - bitcast<i32>(tap * dilation)) / bitcast<i32>(stride)); // a whole number
    f.step = dilation * tap_step / stride;
    return f;
}

/// Returns the phases in both directions; 1 and 1 without phases.
fn phases() -> vec2<u32> {
    if p.tap_step_y == 0u {
        return vec2(1u, 1u);
    }
    return vec2(min(p.stride_y, p.out_y), min(p.stride_x, p.out_x));
}

/// Returns what belongs to a phase.
fn shape_of(number: u32) -> Shape {
    if p.tap_step_y == 0u {
        return Shape(
            p.n, p.k, 0u, p.a_first, p.a_y, p.a_x, p.taps_y, p.taps_x, p.out_y, p.out_x,
            p.stride_y, p.stride_x, p.dilation_y, p.dilation_x, p.pad_y, p.pad_x,
        );
    }
    let across = phases().y;
    let first_y = number / across;
    let first_x = number % across;
    let y = phase(first_y, p.out_y, p.taps_y, p.stride_y, p.dilation_y, p.pad_y, p.tap_step_y);
    let x = phase(first_x, p.out_x, p.taps_x, p.stride_x, p.dilation_x, p.pad_x, p.tap_step_x);
    let largest = ((p.out_y + p.stride_y - 1u) / p.stride_y) * ((p.out_x + p.stride_x - 1u) / p.stride_x);
    return Shape(
        p.n / largest * y.pixels * x.pixels, y.taps * x.taps * p.channels, first_y * p.out_x + first_x,
        y.tap * p.a_y + x.tap * p.a_x, p.tap_step_y * p.a_y, p.tap_step_x * p.a_x, y.taps, x.taps, y.pixels, x.pixels,
        1u, 1u, 0u - y.step, 0u - x.step, 0u - y.start, 0u - x.start,
    );
}

/// Returns the number of columns.
fn column_count() -> u32 {
    return g.n;
}

/// Whether the sums are over the windows: the gradient of the weight.
override WEIGHT_GRAD: bool = false;

/// Returns the place of the first column of row m.
fn row_place(z: u32, m: u32) -> u32 {
    return p.offset + g.out + z % p.splits * p.batch + (z / p.splits * p.m + m) * p.row;
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
    let at = place(n, g.out_y, g.out_x);
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
    let y = ty * g.dilation_y - g.pad_y;
    let x = tx * g.dilation_x - g.pad_x;
    return Spot((channel * p.height + y) * p.width + x, y, x);
}

/// Returns the part that depends on a window.
fn window_spot(at: Place) -> Spot {
    let y = at.y * g.stride_y;
    let x = at.x * g.stride_x;
    return Spot(at.plane * p.image_step + y * p.width + x, y, x);
}
