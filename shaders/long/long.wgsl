// Integers of 64 bits, pairs of words with the lower one first, to words and back. Both are dense. One invocation: one number.
//   from_pairs: out[i] ← the f32 that is nearest to a pair (ties to even), its index of u32 or i32, or of i32 only, whether it is not 0, or
//               its lower word
//   to_pairs:   the pair out[2i], out[2i + 1] ← x[i], a word of f32, i32 or u32. A float is rounded towards 0 and limited to the range;
//               NaN becomes 0
// OP sets the type. All arithmetic is on integers, so that every adapter computes the same bits.

struct Params {
    count: u32, // numbers
    offset: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x: array<u32>;
@group(0) @binding(2) var<storage, read_write> out: array<u32>;

override OP: u32 = 0u;
const FLOAT = 0u;
const SIGNED = 1u; // to_pairs
const INDEX = 1u; // from_pairs
const TRUTH = 2u;
const SIGNED_INDEX = 4u;

fn negated(v: vec2<u32>) -> vec2<u32> {
    return vec2<u32>(~v.x + 1u, select(~v.y, ~v.y + 1u, v.x == 0u));
}

/// Returns the bits of the nearest f32.
fn to_float(v: vec2<u32>) -> u32 {
    let sign = v.y & 0x80000000u;
    let size = select(v, negated(v), sign != 0u);
    if size.x == 0u && size.y == 0u {
        return 0u;
    }
    // The number as bits from the highest one on: 32 bits, and the rest.
    let upper = size.y != 0u;
    let zeros = 31u - firstLeadingBit(select(size.x, size.y, upper)); // of the word with the highest bit
    var top = select(size.x, size.y, upper) << zeros;
    var rest = 0u;
    if upper {
        rest = size.x << zeros;
        if zeros > 0u {
            top |= size.x >> (32u - zeros);
        }
    }
    let dropped = top & 0xffu;
    let kept = top >> 8u;
    let up = dropped > 0x80u || (dropped == 0x80u && (rest != 0u || (kept & 1u) == 1u));
    let exponent = select(158u, 190u, upper) - zeros; // 127 + the place of the highest bit
    // The highest bit of `kept` is one of the exponent's; rounding up may carry into it correctly.
    return sign | (((exponent - 1u) << 23u) + kept + select(0u, 1u, up));
}

fn from_float(word: u32) -> vec2<u32> {
    let negative = (word & 0x80000000u) != 0u;
    let size = word & 0x7fffffffu;
    let exponent = size >> 23u;
    if size > 0x7f800000u || exponent < 127u {
        return vec2<u32>(0u, 0u);
    }
    if exponent >= 190u { // 2^63
        return select(vec2<u32>(0xffffffffu, 0x7fffffffu), vec2<u32>(0u, 0x80000000u), negative);
    }
    let fraction = (size & 0x7fffffu) | 0x800000u; // times 2^(exponent − 150)
    var v = vec2<u32>(0u, 0u);
    if exponent <= 150u {
        v.x = fraction >> (150u - exponent);
    } else if exponent < 182u {
        v = vec2<u32>(fraction << (exponent - 150u), fraction >> (182u - exponent));
    } else {
        v.y = fraction << (exponent - 182u);
    }
    return select(v, negated(v), negative);
}

/// Returns the lower word if the number is one of u32 or i32, and otherwise −2^31, which is beyond every dimension.
fn as_index(v: vec2<u32>) -> u32 {
    let fits = v.y == 0u || (v.y == 0xffffffffu && v.x >= 0x80000000u);
    return select(0x80000000u, v.x, fits);
}

/// As as_index, for numbers of i32 only.
fn as_signed_index(v: vec2<u32>) -> u32 {
    let fits = v.y == select(0u, 0xffffffffu, v.x >= 0x80000000u);
    return select(0x80000000u, v.x, fits);
}

@compute @workgroup_size(WG)
fn from_pairs(id: Id) {
    let i = linear_index(id);
    if i >= p.count {
        return;
    }
    let v = vec2<u32>(x[p.offset + 2u * i], x[p.offset + 2u * i + 1u]);
    switch OP {
        case FLOAT: { out[i] = to_float(v); }
        case INDEX: { out[i] = as_index(v); }
        case SIGNED_INDEX: { out[i] = as_signed_index(v); }
        case TRUTH: { out[i] = select(0u, 1u, (v.x | v.y) != 0u); }
        default: { out[i] = v.x; }
    }
}

@compute @workgroup_size(WG)
fn to_pairs(id: Id) {
    let i = linear_index(id);
    if i >= p.count {
        return;
    }
    let word = x[p.offset + i];
    var v = vec2<u32>(word, 0u);
    switch OP {
        case FLOAT: { v = from_float(word); }
        case SIGNED: { v.y = select(0u, 0xffffffffu, word >= 0x80000000u); }
        default: {}
    }
    out[2u * i] = v.x;
    out[2u * i + 1u] = v.y;
}
