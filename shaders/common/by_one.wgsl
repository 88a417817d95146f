// What is read at once of rows of floats, before rows.wgsl: one element.

alias V = f32;
alias N = u32;
const WIDTH = 1u;

fn sum_of(v: V) -> f32 {
    return v;
}

fn most_of(v: V) -> f32 {
    return v;
}

/// Returns element `i` of `v`.
fn one_of(v: V, i: u32) -> f32 {
    return v;
}

/// Returns the numbers of the elements of the `at`-th V of a row.
fn numbers(at: u32) -> N {
    return at;
}

fn any_nan(v: V) -> bool {
    return (bitcast<u32>(v) & 0x7fffffffu) > 0x7f800000u;
}

/// Returns `v`, or NaN where `odd`.
fn nan_if(v: V, odd: bool) -> V {
    return bitcast<f32>(select(bitcast<u32>(v), 0x7fc00000u, odd));
}
