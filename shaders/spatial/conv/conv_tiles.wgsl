// Convolutions of groups of few channels, dilation 1 (after conv_registers.wgsl). One invocation: tiles of two rows of four output
// pixels. The weights are the same for a workgroup, which is within one plane.

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
