// A product with at most FEW rows or columns (after matmul_unpacked.wgsl), if neighbouring steps of k lie side by side in the other
// operand, the matrix: a if LEFT, else b. One workgroup: FEW elements of out, from one row or column of the matrix. Its
// invocations take the steps of k in turn, so that they load neighbours, and add up their sums at the end.

@group(0) @binding(3) var<storage, read_write> out: array<f32>;

override LEFT: bool = false;
/// The columns of b if LEFT, else the rows of a: 1 to 4.
override FEW: u32 = 4u;

var<workgroup> sums: array<vec4<f32>, WG>;

@compute @workgroup_size(WG)
fn matmul_dots(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let task = group_number(group);
    let lines = select(p.n, p.m, LEFT);
    let line = task % lines;
    let part = task / lines % p.parts;
    let z = task / (lines * p.parts);
    if task >= p.count / FEW {
        return;
    }
    var from_a = p.a_offset + placed(z, p.a_z);
    var from_b = p.b_offset + placed(z, p.b_z);
    if LEFT {
        from_a += line * p.a_row;
    } else {
        from_b += line * p.b_column;
    }
    let first = part * p.length;
    let last = min(first + p.length, p.k);
    var sum = vec4<f32>();
    for (var k = first + local; k < last; k += WG) {
        let at_a = from_a + k * p.a_column;
        let at_b = from_b + k * p.b_row;
        for (var i = 0u; i < FEW; i++) {
            if LEFT {
                sum[i] += of_a(at_a) * of_b(at_b + i * p.b_column);
            } else {
                sum[i] += of_a(at_a + i * p.a_row) * of_b(at_b);
            }
        }
    }
    sums[local] = sum;
    workgroupBarrier();
    for (var half = WG / 2u; half > 0u; half /= 2u) {
        if local < half {
            sums[local] += sums[local + half];
        }
        workgroupBarrier();
    }
    if local < FEW {
        let i = select(local, line, LEFT);
        let j = select(line, local, LEFT);
        put(((z * p.parts + part) * p.m + i) * p.n + j, sums[0][local]);
    }
}
