// out[z, c, i, j] ← Σ a[z, i, k] · b[z, k, j] over part c of k, read from the operands without panels, with any
// strides. For products with few rows or columns, whose panels would be mostly padding. Batch element z of an operand
// is at (z / inner) · outer + (z % inner) · step. One invocation: one element of out.

struct Params {
    count: u32, // elements of out
    m: u32,
    n: u32,
    k: u32,
    parts: u32,
    length: u32, // of a part
    a_offset: u32,
    a_row: u32,
    a_column: u32,
    a_inner: u32,
    a_step: u32,
    a_outer: u32,
    b_offset: u32,
    b_row: u32,
    b_column: u32,
    b_inner: u32,
    b_step: u32,
    b_outer: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> a: array<f32>;
@group(0) @binding(2) var<storage, read> b: array<f32>;
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
    var from_a = p.a_offset + (z / p.a_inner) * p.a_outer + (z % p.a_inner) * p.a_step + i * p.a_row + first * p.a_column;
    var from_b = p.b_offset + (z / p.b_inner) * p.b_outer + (z % p.b_inner) * p.b_step + j * p.b_column + first * p.b_row;
    var sum = 0.0;
    for (var k = first; k < min(first + p.length, p.k); k++) {
        sum += a[from_a] * b[from_b];
        from_a += p.a_column;
        from_b += p.b_row;
    }
    out[at] = sum;
}
