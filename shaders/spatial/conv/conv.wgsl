// Writes a convolution's image as a matrix (conv_columns.wgsl), and adds it back. After conv_image.wgsl.
//
// `im2col`       writes panels for a right operand [rows, columns] (64 columns side by side, see pack.wgsl), rows being
//                 DEPTH·KH·KW. One workgroup: RUN rows of a panel.
// `im2col_turned` writes panels for the transposed one, [columns, rows]. One workgroup: RUN columns of a panel of 64 rows.
// `col2im`       dx[n, c, y, x] ← Σ of cols over all places to which im2col copied it; cols is [rows, columns] row-major.
//                 One invocation: the elements of dx at one pixel of `run` channels.

@group(0) @binding(2) var<storage, read_write> out: array<f32>;

@compute @workgroup_size(WG)
fn im2col(id: Id) {
    let rows = all_rows();
    let runs = (rows + RUN - 1u) / RUN;
    let panel = linear_group(id) / runs;
    let first = linear_group(id) % runs * RUN;
    if panel * PANEL >= p.columns {
        return;
    }
    let column = panel * PANEL + id.local;
    let at = place(p.first + column, p.out_y, p.out_x);
    for (var row = first; row < min(first + RUN, rows); row++) {
        var v = 0.0;
        if column < p.columns {
            v = element(row, at);
        }
        out[(panel * rows + row) * PANEL + id.local] = v;
    }
}

@compute @workgroup_size(WG)
fn im2col_turned(id: Id) {
    let rows = all_rows();
    let runs = (p.columns + RUN - 1u) / RUN;
    let panel = linear_group(id) / runs;
    let first = linear_group(id) % runs * RUN;
    if panel * PANEL >= rows {
        return;
    }
    let row = panel * PANEL + id.local;
    var at = place(p.first + first, p.out_y, p.out_x);
    for (var column = first; column < min(first + RUN, p.columns); column++) {
        var v = 0.0;
        if row < rows {
            v = element(row, at);
        }
        out[(panel * p.columns + column) * PANEL + id.local] = v;
        at = next(at, p.out_y, p.out_x);
    }
}

@compute @workgroup_size(WG)
fn col2im(id: Id) {
    let i = linear_index(id);
    if i >= p.count {
        return;
    }
    let at = place(i, p.height, p.width);
    let runs = (p.depth + p.run - 1u) / p.run;
    let n = at.plane / runs;
    let first = at.plane % runs * p.run;
    let px = at.x + PAD_X;
    let py = at.y + PAD_Y;
    let last = min(first + p.run, p.depth);
    let row = p.columns * KERNEL_Y * KERNEL_X; // from a channel to the next
    // Four channels at a time, which have the same places. Past the last channel, the last is read again.
    for (var c = first; c < last; c += 4u) {
        let more = min(vec4(0u, 1u, 2u, 3u), vec4(last - 1u - c)) * row;
        var total = vec4<f32>();
        for (var ky = 0u; ky < KERNEL_Y; ky++) {
            if ky * DILATION_Y > py {
                break;
            }
            let ry = py - ky * DILATION_Y;
            let oy = ry / STRIDE_Y;
            if oy * STRIDE_Y != ry || oy >= p.out_y {
                continue;
            }
            for (var kx = 0u; kx < KERNEL_X; kx++) {
                if kx * DILATION_X > px {
                    break;
                }
                let rx = px - kx * DILATION_X;
                let ox = rx / STRIDE_X;
                let column = (n * p.out_y + oy) * p.out_x + ox - p.first;
                if ox * STRIDE_X == rx && ox < p.out_x && column < p.columns {
                    let cell = ((c * KERNEL_Y + ky) * KERNEL_X + kx) * p.columns + column;
                    total += vec4(of_x(cell), of_x(cell + more.y), of_x(cell + more.z), of_x(cell + more.w));
                }
            }
        }
        let to = p.offset + ((n * p.channels + c) * p.height + at.y) * p.width + at.x;
        for (var i = 0u; i < min(4u, last - c); i++) {
            let element = to + i * p.height * p.width;
            if p.add == 1u {
                total[i] += out[element];
            }
            out[element] = total[i];
        }
    }
}
