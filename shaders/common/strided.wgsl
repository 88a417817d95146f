// What kernels of operands with strides share: their parameters, and the places of an element.
// `Walk::params` sets the parameters, except `number` (for binary.wgsl) and `run`, and copy.wgsl has another `count`.

struct Params {
    count: u32, // elements
    rank: u32,
    number: u32,
    run: u32, // vectors of an invocation; in copy.wgsl, elements too
    offsets: vec4<u32>, // of up to three operands
    // For each dimension, outermost first: the strides of the operands (0 where one is broadcast), and in w the size.
    dims: array<vec4<u32>, 8>,
}

@group(0) @binding(0) var<uniform> p: Params;

/// Returns the place of element `i` in each operand.
fn places(i: u32) -> vec3<u32> {
    var rest = i;
    var at = p.offsets.xyz;
    for (var d = p.rank; d > 1u; d--) {
        let dim = p.dims[d - 1u];
        at += rest % dim.w * dim.xyz;
        rest /= dim.w;
    }
    return at + rest * p.dims[0].xyz;
}
