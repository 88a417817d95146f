// out[i] ← x[i] as another type. The header sets the types S (of x) and T (of out), and the results for floats that are
// at least TOP or at most BOTTOM. One invocation: one element.
//   convert: value(x) of the header; as an integer, NaN becomes 0 and a value that is too large the largest integer
//   truth:   1 where x is not 0, otherwise 0
//   byte:    x without its fraction, limited to 0 to 255

struct Params {
    count: u32,
    offset: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x: array<S>;
@group(0) @binding(2) var<storage, read_write> out: array<T>;

@compute @workgroup_size(WG)
fn convert(id: Id) {
    let i = linear_index(id);
    if i < p.count {
        let v = x[p.offset + i];
        out[i] = value(v);
        if is_nan(f32(v)) {
            out[i] = T(0);
        } else if f32(v) >= TOP {
            out[i] = LARGEST;
        } else if f32(v) <= BOTTOM {
            out[i] = LEAST;
        }
    }
}

@compute @workgroup_size(WG)
fn truth(id: Id) {
    let i = linear_index(id);
    if i < p.count {
        let v = x[p.offset + i];
        out[i] = select(T(0), T(1), (bitcast<u32>(v) & ~SIGN) != 0u); // subnormals too, which some adapters read as 0
    }
}

@compute @workgroup_size(WG)
fn byte(id: Id) {
    let i = linear_index(id);
    if i < p.count {
        let v = x[p.offset + i];
        out[i] = select(T(clamp(f32(v), 0.0, 255.0)), T(0), is_nan(f32(v)));
    }
}
