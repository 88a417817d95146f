// out[offset + i] ← value, or value + i. Elements are words of any type. One invocation: one element.

struct Params {
    count: u32,
    offset: u32,
    value: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read_write> out: array<u32>;

@compute @workgroup_size(WG)
fn fill(id: Id) {
    let i = linear_index(id);
    if i < p.count {
        out[p.offset + i] = p.value;
    }
}

@compute @workgroup_size(WG)
fn iota(id: Id) {
    let i = linear_index(id);
    if i < p.count {
        out[p.offset + i] = p.value + i;
    }
}
