// dst[plane, y, x] ← the same element of four images, or of four channels, as one vector: images `[N, C, H, W]` in blocks
// of four, with zeros around them. Plane i starts at (i / inner) · outer_step + (i % inner) · inner_step in src.
// One invocation: up to RUN vectors of a line. After halves.wgsl.

struct Params {
    count: u32, // invocations
    offset: u32,
    inner: u32,
    outer_step: u32,
    inner_step: u32,
    part_step: u32,  // from an element of a vector to the next
    parts: u32,      // valid elements of all vectors of (i / inner), or of (i % inner)
    part_outer: u32, // elements that precede the vector: (i / inner) · part_outer + (i % inner) · part_inner
    part_inner: u32,
    height: u32, // of src
    width: u32,
    rows: u32, // of dst
    columns: u32,
    pad_y: u32, // zeros above and left of the image; less than 0, modulo 2³², where parts of it are left out
    pad_x: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> src: array<u32>;
@group(0) @binding(2) var<storage, read_write> dst: array<vec4<f32>>;

override X_HALVES: u32 = 0u;
const RUN = 8u;

fn of_x(i: u32) -> f32 {
    return float_of(src[word_of(i, X_HALVES)], i, X_HALVES);
}

@compute @workgroup_size(WG)
fn image_blocks(id: Id) {
    let i = linear_index(id);
    if i >= p.count {
        return;
    }
    let runs = (p.columns + RUN - 1u) / RUN;
    let line = i / runs;
    let first = (i - line * runs) * RUN;
    let plane = line / p.rows;
    let outer = plane / p.inner;
    let inner = plane - outer * p.inner;
    let parts = p.parts - outer * p.part_outer - inner * p.part_inner;
    // Above or left of the image the subtraction wraps around to a huge number, which the comparison rejects too.
    let y = line - plane * p.rows - p.pad_y;
    let start = p.offset + outer * p.outer_step + inner * p.inner_step + y * p.width;
    for (var column = first; column < min(first + RUN, p.columns); column++) {
        let x = column - p.pad_x;
        var v = vec4<f32>();
        if y < p.height && x < p.width {
            v.x = of_x(start + x);
            if parts > 1u {
                v.y = of_x(start + x + p.part_step);
            }
            if parts > 2u {
                v.z = of_x(start + x + 2u * p.part_step);
            }
            if parts > 3u {
                v.w = of_x(start + x + 3u * p.part_step);
            }
        }
        dst[line * p.columns + column] = v;
    }
}
