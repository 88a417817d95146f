// What the kernels of labels share: their parameters, and the weight of a label. The label to IGNORE gives 0. Any other label that is
// not a class gives NaN: an adapter cannot report an error, but it must not read out of range.

struct Params {
    count: u32, // of out
    classes: u32, // C
    inner: u32, // B
    x_offset: u32, // of x, or of g
    label_offset: u32,
    w_offset: u32,
    g_offset: u32,
    ignored: u32,
    lanes: u32, // that share a row, in cross_entropy_rows.wgsl: a power of two, up to WIDE
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(2) var<storage, read> labels: array<u32>;
@group(0) @binding(3) var<storage, read> w: array<f32>;

const NAN_BITS = 0x7fc00000u;

override IGNORE: bool = false;
override WEIGHTED: bool = false;

/// Returns the bits of a label's weight: a compiler may assume that a float is not NaN.
fn weight_bits(label: u32) -> u32 {
    if IGNORE && label == p.ignored {
        return 0u;
    }
    if label >= p.classes {
        return NAN_BITS;
    }
    if WEIGHTED {
        return bitcast<u32>(w[p.w_offset + label]);
    }
    return bitcast<u32>(1.0);
}
