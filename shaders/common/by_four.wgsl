// What is read at once of rows of floats, before rows.wgsl: a vector of four neighbours.

alias V = vec4<f32>;
alias N = vec4<u32>;
const WIDTH = 4u;

fn sum_of(v: V) -> f32 {
    return (v.x + v.y) + (v.z + v.w);
}

fn most_of(v: V) -> f32 {
    return max(max(v.x, v.y), max(v.z, v.w));
}

/// Returns element `i` of `v`.
fn one_of(v: V, i: u32) -> f32 {
    return v[i];
}

/// Returns the numbers of the elements of the `at`-th V of a row.
fn numbers(at: u32) -> N {
    return at * 4u + vec4(0u, 1u, 2u, 3u);
}

fn any_nan(v: V) -> bool {
    return any((bitcast<vec4<u32>>(v) & vec4(0x7fffffffu)) > vec4(0x7f800000u));
}

/// Returns `v`, or NaN where `odd`.
fn nan_if(v: V, odd: bool) -> V {
    return bitcast<vec4<f32>>(select(bitcast<vec4<u32>>(v), vec4(0x7fc00000u), odd));
}
