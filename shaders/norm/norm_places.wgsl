// The params and the options of a normalisation and the places of its elements: x is [A, C, B]. Integer division is slow,
// above all on software adapters, so that an invocation divides once, and steps from one element to the next.

struct Params {
    outer: u32,    // A
    channels: u32, // C
    inner: u32,    // B
    chunks: u32,   // K
    span: u32,     // S
    features: u32, // M
    run: u32,      // elements of an invocation
    x_offset: u32,
    stats_offset: u32,
    w_offset: u32,
    last_offset: u32, // of g or the bias
    residual_offset: u32,
    eps: f32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(2) var<storage, read> stats: array<f32>; // [2, C]: means and variances

override CENTRE: bool = true;
override FIXED: bool = false;
override WEIGHT: bool = false;
override BIAS: bool = false;
/// What follows: 0: nothing, 1: relu, 2: a tensor is added, then relu.
override RELU: u32 = 0u;

/// The place of an element.
struct At {
    a: u32,
    c: u32,
    b: u32,
}

/// Where the weight and the bias of an element are: 0: (i / S) mod M, 1: at its c, 2: at its b.
override FEATURE: u32 = 0u;

/// Returns the index of an element.
fn index(at: At) -> u32 {
    return (at.a * p.channels + at.c) * p.inner + at.b;
}

/// Returns the place of element `i`.
fn place(i: u32) -> At {
    let row = i / p.inner;
    let a = row / p.channels;
    return At(a, row - a * p.channels, i - row * p.inner);
}

/// Returns the place of the next element.
fn next(at: At) -> At {
    if at.b + 1u < p.inner {
        return At(at.a, at.c, at.b + 1u);
    }
    if at.c + 1u < p.channels {
        return At(at.a, at.c + 1u, 0u);
    }
    return At(at.a + 1u, 0u, 0u);
}

/// Returns the place of element `e` of those of one c. There may be none: division by 0 is undefined.
fn place_of(c: u32, e: u32) -> At {
    let a = e / max(p.inner, 1u);
    return At(a, c, e - a * p.inner);
}

/// Returns the place that is further among the elements of one c, by as many as `step` is from their first.
fn further(at: At, step: At) -> At {
    let b = at.b + step.b;
    if b >= p.inner {
        return At(at.a + step.a + 1u, at.c, b - p.inner);
    }
    return At(at.a + step.a, at.c, b);
}

/// Returns the index of an element's weight and bias.
fn feature(at: At) -> u32 {
    if FEATURE == 1u {
        return at.c;
    }
    if FEATURE == 2u {
        return at.b;
    }
    return (index(at) / p.span) % p.features;
}

/// Returns 1 / √(variance + eps).
fn scale(c: u32) -> f32 {
    return 1.0 / sqrt(stats[p.stats_offset + p.channels + c] + p.eps);
}
