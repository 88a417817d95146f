// What invocations that share a row of floats do together, after lines.wgsl and by_one.wgsl or by_four.wgsl. They join what they found in
// workgroup memory, always in the same order. That takes no subgroup operations, whose order the driver would choose.

/// The elements V of an invocation that stay in registers from one pass over its row to the next.
const KEPT = 4u;

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
