// What kernels share whose workgroups share rows of neighbouring elements, after by_one.wgsl or by_four.wgsl. `p.lanes` neighbouring invocations have a row, or a part of one:
// they read neighbouring elements, and join what they found in workgroup memory, always in the same order. That takes no
// subgroup operations, whose order the driver would choose.

const WIDE = 256u;

/// The row, or the part of a row, of an invocation.
struct Line {
    number: u32,
    /// The number of the invocation within the line.
    lane: u32,
    /// Whether there is such a line. Surplus invocations have the last one, since barriers are for all.
    exists: bool,
}

fn line_of(group: vec3<u32>, local: u32, lines: u32) -> Line {
    let number = group_number(group) * (WIDE / p.lanes) + local / p.lanes;
    return Line(min(number, lines - 1u), local % p.lanes, number < lines);
}

const SUM = 0u;
const MOST = 1u;

var<workgroup> held: array<vec2<f32>, WIDE>;

/// Returns the sum, or the largest, of the values of all invocations of a line. The whole workgroup must call it.
fn across(op: u32, local: u32, value: vec2<f32>) -> vec2<f32> {
    held[local] = value;
    workgroupBarrier();
    for (var half = p.lanes / 2u; half > 0u; half /= 2u) {
        if local % p.lanes < half {
            let other = held[local + half];
            held[local] = select(held[local] + other, max(held[local], other), op == MOST);
        }
        workgroupBarrier();
    }
    let joined = held[local - local % p.lanes];
    workgroupBarrier(); // the next call writes again
    return joined;
}
