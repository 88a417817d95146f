// X · Wᵀ of a packed matrix W, for few rows of X (after packed_factor.wgsl). One workgroup: four rows of W and FEW rows of X. Its
// invocations take the words of a row in turn, so that they load neighbours, and add up their sums at the end, in one order.

const ROWS = 4u;

var<workgroup> totals: array<vec4<f32>, WG * ROWS>;

@compute @workgroup_size(WG)
fn packed_shared(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let task = group_number(group);
    let columns = (p.n + 3u) / 4u;
    let first = task % columns * 4u;
    let row = task / columns * FEW;
    if row >= p.m {
        return;
    }
    let r = min(first + vec4(0u, 1u, 2u, 3u), vec4(p.n - 1u));
    var sums: array<vec4<f32>, ROWS>;
    for (var at = local; at < p.blocks * p.block; at += WG) {
        let block = at / p.block;
        let four = vec4(word_at(r.x, at), word_at(r.y, at), word_at(r.z, at), word_at(r.w, at));
        let zero = vec4(zero_of(r.x, block), zero_of(r.y, block), zero_of(r.z, block), zero_of(r.w, block));
        let scale = vec4(scale_of(r.x, block), scale_of(r.y, block), scale_of(r.z, block), scale_of(r.w, block));
        // Set to 0: without it, a browser kept the values of the last iteration.
        var products = array<vec4<f32>, ROWS>();
        for (var e = 0u; e < 32u / BITS; e += WIDTH) {
            let k = at * (32u / BITS) + e;
            for (var i = 0u; i < FEW; i++) {
                let v = x_at(row + i, k);
                for (var c = 0u; c < WIDTH; c++) {
                    let weights = vec4<f32>((four >> vec4((e + c) * BITS)) & vec4(largest())) - zero;
                    products[i] += weights * one_of(v, c);
                }
            }
        }
        for (var i = 0u; i < FEW; i++) {
            sums[i] += scale * products[i];
        }
    }
    for (var i = 0u; i < FEW; i++) {
        totals[i * WG + local] = sums[i];
    }
    workgroupBarrier();
    for (var half = WG / 2u; half > 0u; half /= 2u) {
        if local < half {
            for (var i = 0u; i < FEW; i++) {
                totals[i * WG + local] += totals[i * WG + local + half];
            }
        }
        workgroupBarrier();
    }
    let i = local / 4u;
    let column = first + local % 4u;
    if i < FEW && row + i < p.m && column < p.n {
        out[(row + i) * p.n + column] = totals[i * WG][local % 4u];
    }
}
