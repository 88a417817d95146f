// What the kernels of attention share, after by_four.wgsl: their parameters, and where the rows of a head are. All places and widths are counted in vectors
// of four elements. Loops over the elements of a row have constant bounds, so that rows stay in registers.

struct Params {
    heads: u32,
    queries: u32, // L
    keys: u32,    // S
    rank: u32,    // of the dimensions before the last two
    rows: vec4<u32>,    // from one row to the next, of q, k and v
    offsets: vec4<u32>, // of q, k, v and g
    scale: f32,
    first: u32, // workgroup of this dispatch: several share the work of a large one
    // For each of those dimensions, outermost first: the strides of q, k and v (0 where one is broadcast), and in w the size.
    dims: array<vec4<u32>, 8>,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> q: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> k: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> v: array<vec4<f32>>;

/// Vectors of a query and of a key, and those of a value.
override OF_KEY: u32 = 16u;
override OF_VALUE: u32 = 16u;
/// Whether query i attends to the keys 0 to i only.
override CAUSAL: bool = false;

const MOST = 16u;
alias Row = array<vec4<f32>, MOST>;

const INFINITE = 0x7f800000u;
/// The lowest number, in place of −∞: differences with −∞ would be NaN.
const LOWEST = -0x1.fffffep+127f;

/// Where the operands of a head begin.
fn places(head: u32) -> vec3<u32> {
    var rest = head;
    var at = p.offsets.xyz;
    for (var d = p.rank; d > 0u; d--) {
        let dim = p.dims[d - 1u];
        at += rest % dim.w * dim.xyz;
        rest /= dim.w;
    }
    return at;
}

/// The rows of a workgroup: WG neighbouring queries, or keys, of a head.
struct Tile {
    head: u32,
    first: u32,
}

fn tile_of(group: vec3<u32>, rows: u32) -> Tile {
    let tiles = (rows + WG - 1u) / WG;
    let number = p.first + group_number(group);
    return Tile(number / tiles, number % tiles * WG);
}

/// Returns whether a query has a score that is NaN or +∞, or −∞ alone, from the largest, Σ exp(score − most), and whether one is NaN. Its
/// results are NaN. This is found by bits, since some adapters have exp(NaN) = 0.
fn is_odd(most: f32, total: f32, nan: bool) -> bool {
    return nan || (bitcast<u32>(most) & 0x7fffffffu) >= INFINITE || !(total > 0.0);
}

/// Returns the query at `at`, by the scale.
fn scaled_query(at: u32) -> Row {
    var row: Row;
    for (var e = 0u; e < OF_KEY; e++) {
        row[e] = q[at + e] * p.scale;
    }
    return row;
}

/// Returns the product of `row` and the key at `at`.
fn by_key(row: ptr<function, Row>, at: u32) -> f32 {
    var sum = vec4<f32>();
    for (var e = 0u; e < OF_KEY; e++) {
        sum += (*row)[e] * k[at + e];
    }
    return sum_of(sum);
}

/// Returns the product of `row` and the value at `at`.
fn by_value(row: ptr<function, Row>, at: u32) -> f32 {
    var sum = vec4<f32>();
    for (var e = 0u; e < OF_VALUE; e++) {
        sum += (*row)[e] * v[at + e];
    }
    return sum_of(sum);
}
