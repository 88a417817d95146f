// Word w of out ← its elements x[..], dense: f32 to the nearest half (ties to even), u32 to its lowest byte. OP sets
// the type. All arithmetic is on integers: pack2x16float may round as the adapter chooses and flush subnormals to 0.
// One invocation: one word. The part of the last word past the elements is 0.

struct Params {
    count: u32, // elements
    offset: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x: array<u32>;
@group(0) @binding(2) var<storage, read_write> out: array<u32>;

override OP: u32 = 0u;
const F16 = 0u;
const BF16 = 1u;

fn f32_to_f16(v: u32) -> u32 {
    let sign = (v >> 16u) & 0x8000u;
    let size = v & 0x7fffffffu;
    if size > 0x7f800000u {
        return sign | 0x7e00u | ((size >> 13u) & 0x3ffu);
    }
    if size >= 0x47800000u { // 2^16
        return sign | 0x7c00u;
    }
    if size >= 0x38800000u { // 2^-14, the smallest normal half; rounding up may carry into the exponent correctly
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
fn narrow(id: Id) {
    let w = linear_index(id);
    let per_word = select(2u, 4u, OP > BF16);
    if w * per_word >= p.count {
        return;
    }
    var word = 0u;
    for (var j = 0u; j < per_word && w * per_word + j < p.count; j++) {
        let v = x[p.offset + w * per_word + j];
        switch OP {
            case F16: { word |= f32_to_f16(v) << (j * 16u); }
            case BF16: { word |= f32_to_bf16(v) << (j * 16u); }
            default: { word |= (v & 0xffu) << (j * 8u); }
        }
    }
    out[w] = word;
}
