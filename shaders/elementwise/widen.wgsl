// out[i] ← x[s(i)]: elements of one or two bytes, several in a word, to words, after strided.wgsl, whose first operand is
// x, and halves.wgsl. OP sets the type: halves become the bits of an f32, bytes become u32. One invocation: one element.

@group(0) @binding(1) var<storage, read> x: array<u32>;
@group(0) @binding(2) var<storage, read_write> out: array<u32>;

override OP: u32 = 1u;

@compute @workgroup_size(WG)
fn widen(id: Id) {
    let i = linear_index(id);
    if i >= p.count {
        return;
    }
    let at = places(i).x;
    switch OP {
        case F16: { out[i] = f16_to_f32((x[at / 2u] >> (at % 2u * 16u)) & 0xffffu); }
        case BF16: { out[i] = ((x[at / 2u] >> (at % 2u * 16u)) & 0xffffu) << 16u; }
        default: { out[i] = (x[at / 4u] >> (at % 4u * 8u)) & 0xffu; }
    }
}
