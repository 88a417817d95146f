// cross_entropy and cross_entropy_grad of nll.wgsl for rows of neighbouring scores (B = 1), after nll_labels.wgsl and exponentials.wgsl,
// by workgroups that share rows. C and the offset of x are multiples of WIDTH.
//   losses: each score is read once.
//   kept, streamed: gradients; the scores of a row of up to KEPT · lanes elements of V are read once, those of longer ones twice.

@group(0) @binding(4) var<storage, read_write> out: array<f32>;
@group(0) @binding(4) var<storage, read> g: array<f32>;
@group(0) @binding(5) var<storage, read_write> dx: array<V>;

/// Returns the place in x of the first scores of a row.
fn first_of(number: u32) -> u32 {
    return (p.x_offset + number * p.classes) / WIDTH;
}

@compute @workgroup_size(WIDE)
fn losses(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let line = line_of(group, local, p.count);
    let first = first_of(line.number);
    let row = of_range(local, line.lane, first, first + p.classes / WIDTH);
    if !line.exists || line.lane != 0u {
        return;
    }
    let label = labels[p.label_offset + line.number];
    var bits = weight_bits(label);
    if label < p.classes && !(IGNORE && label == p.ignored) {
        let own = one_of(x[first + label / WIDTH], label % WIDTH);
        let loss = -bitcast<f32>(bits) * ((own - row.most) - log(row.total));
        bits = select(bitcast<u32>(loss), NAN_BITS, is_odd(row));
    }
    out[line.number] = bitcast<f32>(bits);
}

/// What the gradients of a row have in common.
struct Slope {
    factor: f32,
    label: u32,
    ignored: bool,
    odd: bool,
}

fn slope_of(number: u32, row: Exponentials) -> Slope {
    let label = labels[p.label_offset + number];
    let factor = bitcast<f32>(weight_bits(label)) * g[p.g_offset + number];
    return Slope(factor, label, IGNORE && label == p.ignored, is_odd(row) || label >= p.classes);
}

/// Returns the gradients of the scores `v`, the `at`-th of their row.
fn gradients(v: V, at: u32, row: Exponentials, slope: Slope) -> V {
    let own = select(V(0.0), V(1.0), numbers(at) == N(slope.label));
    let value = slope.factor * (exp(v - row.most) / row.total - own);
    return select(nan_if(value, slope.odd), V(0.0), slope.ignored);
}

@compute @workgroup_size(WIDE)
fn kept(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let line = line_of(group, local, p.count);
    let first = first_of(line.number);
    let length = p.classes / WIDTH;
    var own: Kept;
    let row = of_kept(local, line.lane, first, first + length, &own);
    let slope = slope_of(line.number, row);
    for (var k = 0u; k < KEPT; k++) {
        let at = line.lane + k * p.lanes;
        if line.exists && at < length {
            dx[line.number * length + at] = gradients(own[k], at, row, slope);
        }
    }
}

@compute @workgroup_size(WIDE)
fn streamed(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let line = line_of(group, local, p.count);
    let first = first_of(line.number);
    let length = p.classes / WIDTH;
    let row = of_range(local, line.lane, first, first + length);
    let slope = slope_of(line.number, row);
    for (var at = line.lane; line.exists && at < length; at += p.lanes) {
        dx[line.number * length + at] = gradients(x[first + at], at, row, slope);
    }
}
