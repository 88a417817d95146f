// out[i] ← x[s(i)]: elements of one or two bytes, several in a word, to words, after strided.wgsl, whose first operand is
// x. OP sets the type: halves become the bits of an f32, bytes become u32. All arithmetic is on integers:
// unpack2x16float may flush subnormals to 0. One invocation: one element.

@group(0) @binding(1) var<storage, read> x: array<u32>;
@group(0) @binding(2) var<storage, read_write> out: array<u32>;

override OP: u32 = 0u;
const F16 = 0u;
const BF16 = 1u;

fn f16_to_f32(h: u32) -> u32 {
    let sign = (h & 0x8000u) << 16u;
    let exponent = (h >> 10u) & 31u;
    let fraction = h & 0x3ffu;
    if exponent == 31u {
        return sign | 0x7f800000u | (fraction << 13u) | select(0u, 0x400000u, fraction != 0u);
    }
    if exponent != 0u {
        return sign | ((exponent + 112u) << 23u) | (fraction << 13u);
    }
    if fraction == 0u {
        return sign;
    }
    let top = firstLeadingBit(fraction); // subnormal as a half, normal as f32
    return sign | ((top + 103u) << 23u) | ((fraction << (23u - top)) & 0x7fffffu);
}

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
