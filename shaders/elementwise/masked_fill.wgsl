// out[i] ← the value where mask[i] is not 0, else x[i]. Dense; elements are words of any type.
// One invocation: one element.

struct Params {
    count: u32,
    x_offset: u32,
    mask_offset: u32,
    value: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x: array<u32>;
@group(0) @binding(2) var<storage, read> mask: array<u32>;
@group(0) @binding(3) var<storage, read_write> out: array<u32>;

@compute @workgroup_size(WG)
fn masked_fill(id: Id) {
    let i = linear_index(id);
    if i < p.count {
        out[i] = select(x[p.x_offset + i], p.value, mask[p.mask_offset + i] != 0u);
    }
}
