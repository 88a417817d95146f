// Convolutions of one group with few output pixels (after conv_registers.wgsl). One invocation: four output channels at four
// output pixels of all images.

/// Invocations of a workgroup: few, so that all threads of the host get some.
const FEW = 8u;

@compute @workgroup_size(FEW)
fn points(id: Id) {
    let i = linear_group(id) * FEW + id.local;
    if i >= p.count {
        return;
    }
    // Past the last channel or pixel, the last one is computed again and not stored.
    let blocks = (p.out_channels + 3u) / 4u;
    let o = i % blocks * 4u;
    let rows = p.w_offset + min(o + FOUR, vec4(p.out_channels - 1u)) * p.depth * KERNEL_Y * KERNEL_X;
    let q = i / blocks * 4u;
    let pixels = min(q + FOUR, vec4(p.run - 1u));
    let lines = pixels / p.out_x;
    let images = lines / p.out_y;
    let top = (lines - images * p.out_y) * STRIDE_Y - PAD_Y;
    let left = (pixels - lines * p.out_x) * STRIDE_X - PAD_X;
    var a = vec4(of_bias(o));
    var b = vec4(of_bias(min(o + 1u, p.out_channels - 1u)));
    var c = vec4(of_bias(min(o + 2u, p.out_channels - 1u)));
    var d = vec4(of_bias(min(o + 3u, p.out_channels - 1u)));
    var tap = 0u;
    for (var channel = 0u; channel < p.depth; channel++) {
        let planes = (images * p.channels + channel) * p.height;
        for (var ky = 0u; ky < KERNEL_Y; ky++) {
            let y = top + ky * DILATION_Y;
            let row = p.x_offset + (planes + y) * p.width;
            for (var kx = 0u; kx < KERNEL_X; kx++) {
                let at = left + kx * DILATION_X;
                let inside = (y < vec4(p.height)) & (at < vec4(p.width));
                let places = row + at;
                let v = vec4(
                    pixel_if(inside.x, places.x),
                    pixel_if(inside.y, places.y),
                    pixel_if(inside.z, places.z),
                    pixel_if(inside.w, places.w),
                );
                a = select(a, a + of_w(rows.x + tap) * v, inside);
                b = select(b, b + of_w(rows.y + tap) * v, inside);
                c = select(c, c + of_w(rows.z + tap) * v, inside);
                d = select(d, d + of_w(rows.w + tap) * v, inside);
                tap++;
            }
        }
    }
    let plane = p.out_y * p.out_x;
    for (var j = 0u; j < min(4u, p.run - q); j++) {
        let to = (images[j] * p.out_channels + o) * plane + pixels[j] - images[j] * plane;
        put(to, a[j]);
        if o + 1u < p.out_channels {
            put(to + plane, b[j]);
        }
        if o + 2u < p.out_channels {
            put(to + 2u * plane, c[j]);
        }
        if o + 3u < p.out_channels {
            put(to + 3u * plane, d[j]);
        }
    }
}
