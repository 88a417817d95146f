// A product read from the operands without panels (after matmul_unpacked.wgsl). For products with few rows or columns, whose panels
// would be mostly padding. One invocation: one element of out.

@group(0) @binding(3) var<storage, read_write> out: array<f32>;

@compute @workgroup_size(WG)
fn matmul_direct(id: Id) {
    let at = linear_index(id);
    if at >= p.count {
        return;
    }
    let j = at % p.n;
    let i = (at / p.n) % p.m;
    let part = at / (p.n * p.m) % p.parts;
    let z = at / (p.n * p.m * p.parts);
    let first = part * p.length;
    var from_a = p.a_offset + placed(z, p.a_z) + i * p.a_row + first * p.a_column;
    var from_b = p.b_offset + placed(z, p.b_z) + j * p.b_column + first * p.b_row;
    var sum = 0.0;
    for (var k = first; k < min(first + p.length, p.k); k++) {
        sum += of_a(from_a) * of_b(from_b);
        from_a += p.a_column;
        from_b += p.b_row;
    }
    put(at, sum);
}
