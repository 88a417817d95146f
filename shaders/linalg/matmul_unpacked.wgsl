// What products take whose operands are read where they are, with any strides, instead of from panels (matmul_direct.wgsl,
// matmul_dots.wgsl, matmul_strided.wgsl, matmul_shared.wgsl): out[z, c, i, j] ← Σ a[z, i, k] · b[z, k, j] over part c of k. After index_map.wgsl
// and halves.wgsl.

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
    a_z: vec4<u32>, // a map, as b_z
    b_offset: u32,
    b_row: u32,
    b_column: u32,
    b_z: vec4<u32>,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> a: array<u32>;
@group(0) @binding(2) var<storage, read> b: array<u32>;

override A_HALVES: u32 = 0u;
override B_HALVES: u32 = 0u;

fn of_a(i: u32) -> f32 {
    return float_of(a[word_of(i, A_HALVES)], i, A_HALVES);
}

fn of_b(i: u32) -> f32 {
    return float_of(b[word_of(i, B_HALVES)], i, B_HALVES);
}
