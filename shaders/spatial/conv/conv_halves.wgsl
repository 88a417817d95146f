// Writes the columns of a convolution's image of f16 (conv_columns.wgsl) in panels of halves (half_panels.wgsl), with zeros past
// the end. After window.wgsl, conv_columns.wgsl and half_panels.wgsl.
//
// `im2col_halves`        writes a right operand [rows, columns]: j is a column, k a row.
// `im2col_halves_turned` writes the transposed one, [columns, rows]: j is a row, k a column.

struct Params {
    count: u32,    // invocations
    columns: u32,  // of this pass
    first: u32,    // pixel of the pass's first column; not 0 if the pass is a part of one image
    steps: u32,    // of k in a panel
    offset: u32,   // of the first image's group
    channels: u32, // of an image
    depth: u32,    // channels of a group
    height: u32,   // of an image
    width: u32,
    out_y: u32, // of a result
    out_x: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x: array<u32>;
@group(0) @binding(2) var<storage, read_write> out: array<vec4<u32>>;

/// The bits of a half.
alias Pixel = u32;

fn of_x(i: u32) -> u32 {
    return half_of(x[i / 2u], i);
}

@compute @workgroup_size(WG)
fn im2col_halves(id: Id) {
    let i = linear_index(id);
    if i >= p.count {
        return;
    }
    let to = run_of(i, p.steps);
    let rows = all_rows();
    let at = place(p.first + to.j, p.out_y, p.out_x);
    var run = array<vec4<u32>, 2>();
    for (var r = 0u; r < STEPS; r++) {
        if to.j < p.columns && to.k + r < rows {
            run[r / 4u][r % 4u] = element(to.k + r, at);
        }
    }
    out[i] = in_words(run);
}

@compute @workgroup_size(WG)
fn im2col_halves_turned(id: Id) {
    let i = linear_index(id);
    if i >= p.count {
        return;
    }
    let to = run_of(i, p.steps);
    let rows = all_rows();
    var at = place(p.first + to.k, p.out_y, p.out_x);
    var run = array<vec4<u32>, 2>();
    for (var r = 0u; r < STEPS; r++) {
        if to.j < rows && to.k + r < p.columns {
            run[r / 4u][r % 4u] = element(to.j, at);
        }
        at = next(at, p.out_y, p.out_x);
    }
    out[i] = in_words(run);
}
