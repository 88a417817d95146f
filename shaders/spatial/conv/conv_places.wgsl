// What a convolution over blocks of four images (conv_blocks.wgsl) reads and writes: its params, the places of elements in
// the image, and the result. After window.wgsl.

struct Params {
    m: u32,
    n: u32, // vectors
    k: u32,
    m_tiles: u32, // of 8 · PANELS rows
    n_tiles: u32, // of 8 vectors
    k_split: u32, // steps of a part
    splits: u32,
    image_step: u32, // vectors from an image, or a block of images, to the next
    plane_step: u32,
    width: u32,  // of a padded plane
    out_y: u32,
    out_x: u32,
    offset: u32, // of out: element m of vector n goes to offset + m · row + (n / inner) · outer + n % inner,
    split: u32,  // + the part of k · split,
    row: u32,
    inner: u32,
    outer: u32,
    part: u32,  // + its place in the vector · part
    parts: u32, // valid elements of all vectors of one place
    bias_offset: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> a: array<vec4<f32>>; // panels of 8 rows, see pack.wgsl
@group(0) @binding(2) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> bias: array<f32>;
@group(0) @binding(4) var<storage, read_write> out: array<f32>;

override HAS_BIAS: bool = false;
override WEIGHT_GRAD: bool = false;
/// Whether the kernel is turned by 180°, for the gradient of the image.
override TURNED: bool = false;

/// Returns the part of a place that depends on a position of the kernel, i = (c, ky, kx).
fn tap_place(i: u32) -> u32 {
    var kx = i % KERNEL_X;
    var ky = (i / KERNEL_X) % KERNEL_Y;
    if TURNED {
        kx = KERNEL_X - 1u - kx;
        ky = KERNEL_Y - 1u - ky;
    }
    return i / (KERNEL_X * KERNEL_Y) * p.plane_step + ky * DILATION_Y * p.width + kx * DILATION_X;
}

/// Returns the part of a place that depends on an output pixel.
fn pixel_place(at: Place) -> u32 {
    return at.plane * p.image_step + at.y * STRIDE_Y * p.width + at.x * STRIDE_X;
}

/// Returns the place of the output pixel that is four further, where `four` is the place of pixel 4.
fn four_further(at: Place, four: Place) -> Place {
    var x = at.x + four.x;
    var y = at.y + four.y;
    var plane = at.plane + four.plane;
    if x >= p.out_x {
        x -= p.out_x;
        y++;
    }
    if y >= p.out_y {
        y -= p.out_y;
        plane++;
    }
    return Place(plane, y, x);
}

/// Writes row m of a vector, of which `parts` elements are valid.
fn store(m: u32, to: u32, parts: u32, sums: vec4<f32>) {
    if m >= p.m {
        return;
    }
    var add = 0.0;
    if HAS_BIAS {
        add = bias[p.bias_offset + m];
    }
    for (var i = 0u; i < 4u; i++) {
        if i < parts {
            put(to + m * p.row + i * p.part, sums[i] + add);
        }
    }
}
