// out[.., i, j] ← x[.., i, j] on the diagonal j = i + k and on one side of it, otherwise the word `fill`; dense
// matrices of `columns`. Elements are words of any type. One invocation: one element.

struct Params {
    count: u32,
    rows: u32,
    columns: u32,
    offset: u32,
    diagonal: i32, // k
    fill: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x: array<u32>;
@group(0) @binding(2) var<storage, read_write> out: array<u32>;

override UPPER: bool = false;

@compute @workgroup_size(WG)
fn triangle(id: Id) {
    let i = linear_index(id);
    if i >= p.count {
        return;
    }
    let above = i32(i % p.columns) - i32((i / p.columns) % p.rows) - p.diagonal;
    out[i] = select(p.fill, x[p.offset + i], select(above <= 0, above >= 0, UPPER));
}
