// out[i] ← f(x[i]), f chosen by OP; SCALE and SHIFT are the affine map's. Elements f32, x dense from `offset`.
// One invocation: one element.

struct Params {
    count: u32,
    offset: u32,
    scale: f32,
    shift: f32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read_write> out: array<f32>;

const WG = 64u;

override OP: u32;
const NEG = 0u;
const EXP = 1u;
const LOG = 2u;
const SQRT = 3u;
const RELU = 4u;
const AFFINE = 5u;

@compute @workgroup_size(WG)
fn unary(
    @builtin(workgroup_id) wid: vec3<u32>,
    @builtin(num_workgroups) nwg: vec3<u32>,
    @builtin(local_invocation_index) lid: u32,
) {
    let i = (wid.y * nwg.x + wid.x) * WG + lid;
    if i >= p.count {
        return;
    }
    let v = x[p.offset + i];
    var y = v;
    switch OP {
        case NEG: { y = -v; }
        case EXP: { y = exp(v); }
        case LOG: { y = log(v); }
        case SQRT: { y = sqrt(v); }
        case RELU: { y = select(v, 0.0, v <= 0.0); }
        case AFFINE: { y = v * p.scale + p.shift; }
        default: {}
    }
    out[i] = y;
}
