// The pixels under the windows of planes as columns, and the sums of columns as planes; all dense.
//   unfold: out[p, k, o] ← x[p, the pixel of position k of window o], or 0 outside of the plane
//   fold:   out[p, y, x] ← Σ x[p, k, o] over all positions k of windows o that are at this pixel
// p is a plane (image and channel). The header sets the type T. One invocation: one element of out.

struct Params {
    count: u32, // elements of out
    height: u32,
    width: u32,
    rows: u32,    // of windows
    columns: u32, // of windows
    offset: u32,
    kernel_y: u32,
    kernel_x: u32,
    stride_y: u32,
    stride_x: u32,
    pad_y: u32,
    pad_x: u32,
    dilation_y: u32,
    dilation_x: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x: array<T>;
@group(0) @binding(2) var<storage, read_write> out: array<T>;

@compute @workgroup_size(WG)
fn unfold(id: Id) {
    let i = linear_index(id);
    if i >= p.count {
        return;
    }
    let ox = i % p.columns;
    let oy = (i / p.columns) % p.rows;
    let k = i / (p.columns * p.rows);
    let kx = k % p.kernel_x;
    let ky = (k / p.kernel_x) % p.kernel_y;
    let plane = k / (p.kernel_x * p.kernel_y);
    // Counted from the padding's edge.
    let y = oy * p.stride_y + ky * p.dilation_y;
    let at = ox * p.stride_x + kx * p.dilation_x;
    var value = T(0);
    if y >= p.pad_y && y < p.pad_y + p.height && at >= p.pad_x && at < p.pad_x + p.width {
        value = x[p.offset + (plane * p.height + y - p.pad_y) * p.width + at - p.pad_x];
    }
    out[i] = value;
}

@compute @workgroup_size(WG)
fn fold(id: Id) {
    let i = linear_index(id);
    if i >= p.count {
        return;
    }
    let at = i % p.width + p.pad_x;
    let y = (i / p.width) % p.height + p.pad_y;
    let plane = i / (p.width * p.height);
    var total = T(0);
    for (var ky = 0u; ky < p.kernel_y && ky * p.dilation_y <= y; ky++) {
        let start_y = y - ky * p.dilation_y;
        if start_y % p.stride_y > 0u || start_y / p.stride_y >= p.rows {
            continue;
        }
        let first = ((plane * p.kernel_y + ky) * p.kernel_x * p.rows + start_y / p.stride_y) * p.columns;
        for (var kx = 0u; kx < p.kernel_x && kx * p.dilation_x <= at; kx++) {
            let start_x = at - kx * p.dilation_x;
            if start_x % p.stride_x == 0u && start_x / p.stride_x < p.columns {
                total += x[p.offset + first + kx * p.rows * p.columns + start_x / p.stride_x];
            }
        }
    }
    out[i] = total;
}
