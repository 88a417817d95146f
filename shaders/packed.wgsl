// Elements of one or two bytes, several to a word, to words and back; OP says which type.
//   widen:  out[i] ← x[s(i)], any strides (shape and strides in eight slots, outermost first, in elements);
//           halves to the bits of an f32, bytes to u32. One invocation: one element.
//   narrow: out word w ← its elements x[..], dense; f32 to the nearest half (ties to even), u32 to its lowest byte.
//           One invocation: one word. What lies beyond the elements in the last word is 0.
// Integer arithmetic throughout: pack2x16float may round as the adapter likes, and flush what is subnormal.

struct Params {
    count: u32,
    rank: u32, // of widen; the offset of narrow
    offset: u32,
    unused: u32,
    shape: array<vec4<u32>, 2>,
    strides: array<vec4<u32>, 2>,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x: array<u32>;
@group(0) @binding(2) var<storage, read_write> out: array<u32>;

const WG = 64u;

override OP: u32 = 0u;
const F16 = 0u;
const BF16 = 1u;

struct Id {
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
}

fn linear_index(id: Id) -> u32 {
    return (id.group.y * id.groups.x + id.group.x) * WG + id.local;
}

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
    let top = firstLeadingBit(fraction); // subnormal here, normal as f32
    return sign | ((top + 103u) << 23u) | ((fraction << (23u - top)) & 0x7fffffu);
}

fn f32_to_f16(v: u32) -> u32 {
    let sign = (v >> 16u) & 0x8000u;
    let size = v & 0x7fffffffu;
    if size > 0x7f800000u {
        return sign | 0x7e00u | ((size >> 13u) & 0x3ffu);
    }
    if size >= 0x47800000u { // 2^16
        return sign | 0x7c00u;
    }
    if size >= 0x38800000u { // 2^-14, the smallest normal half; rounding up may carry into the exponent, as it should
        return sign | ((size - 0x38000000u + 0xfffu + ((size >> 13u) & 1u)) >> 13u);
    }
    let exponent = size >> 23u;
    if exponent < 102u {
        return sign;
    }
    let fraction = (size & 0x7fffffu) | 0x800000u;
    let shift = 126u - exponent;
    let kept = fraction >> shift;
    let rest = fraction & ((1u << shift) - 1u);
    let tie = 1u << (shift - 1u);
    return sign | (kept + select(0u, 1u, rest > tie || (rest == tie && (kept & 1u) == 1u)));
}

fn f32_to_bf16(v: u32) -> u32 {
    if (v & 0x7fffffffu) > 0x7f800000u {
        return (v >> 16u) | 0x40u;
    }
    return (v + 0x7fffu + ((v >> 16u) & 1u)) >> 16u;
}

@compute @workgroup_size(WG)
fn widen(id: Id) {
    let i = linear_index(id);
    if i >= p.count {
        return;
    }
    var rest = i;
    var at = p.offset;
    for (var d = p.rank; d > 0u; d--) {
        let slot = d - 1u;
        let size = p.shape[slot / 4u][slot % 4u];
        at += rest % size * p.strides[slot / 4u][slot % 4u];
        rest /= size;
    }
    switch OP {
        case F16: { out[i] = f16_to_f32((x[at / 2u] >> (at % 2u * 16u)) & 0xffffu); }
        case BF16: { out[i] = ((x[at / 2u] >> (at % 2u * 16u)) & 0xffffu) << 16u; }
        default: { out[i] = (x[at / 4u] >> (at % 4u * 8u)) & 0xffu; }
    }
}

@compute @workgroup_size(WG)
fn narrow(id: Id) {
    let w = linear_index(id);
    let per_word = select(2u, 4u, OP > BF16);
    if w * per_word >= p.count {
        return;
    }
    var word = 0u;
    for (var j = 0u; j < per_word && w * per_word + j < p.count; j++) {
        let v = x[p.rank + w * per_word + j];
        switch OP {
            case F16: { word |= f32_to_f16(v) << (j * 16u); }
            case BF16: { word |= f32_to_bf16(v) << (j * 16u); }
            default: { word |= (v & 0xffu) << (j * 8u); }
        }
    }
    out[w] = word;
}
