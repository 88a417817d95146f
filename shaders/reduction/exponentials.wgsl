// The largest element of a row and the sum of its exponentials, after rows.wgsl. A row with a NaN or +∞, or only −∞, is odd: its
// results are NaN. This is found by bits, since some adapters have exp(NaN) = 0.

@group(0) @binding(1) var<storage, read> x: array<V>;

const INFINITE = 0x7f800000u;
/// The lowest number, for rows of −∞: differences with −∞ would be NaN.
const LOWEST = -0x1.fffffep+127f;

struct Exponentials {
    most: f32,
    /// Σ exp(x − most): at least 1, unless all are −∞.
    total: f32,
    /// 1 where an element is NaN.
    nan: f32,
}

fn is_odd(row: Exponentials) -> bool {
    return row.nan != 0.0 || (bitcast<u32>(row.most) & 0x7fffffffu) >= INFINITE || !(row.total > 0.0);
}

/// Returns `row` with further elements.
fn with_elements(row: Exponentials, v: V) -> Exponentials {
    let most = max(row.most, most_of(v));
    let total = row.total * exp(row.most - most) + sum_of(exp(v - most));
    return Exponentials(most, total, select(row.nan, 1.0, any_nan(v)));
}

/// Returns the sum of the exponentials of several parts of a row, each of an invocation. The whole workgroup must call it.
fn of_line(local: u32, own: Exponentials) -> Exponentials {
    let most = across(MOST, local, vec2(own.most, own.nan));
    let total = across(SUM, local, vec2(own.total * exp(own.most - most.x), 0.0));
    return Exponentials(most.x, total.x, most.y);
}

/// Returns the exponentials of `x[first ..]` up to `end`, of which the invocation reads every p.lanes-th from its own on. The whole
/// workgroup must call it.
fn of_range(local: u32, lane: u32, first: u32, end: u32) -> Exponentials {
    var own = Exponentials(LOWEST, 0.0, 0.0);
    for (var at = first + lane; at < end; at += p.lanes) {
        own = with_elements(own, x[at]);
    }
    return of_line(local, own);
}

alias Kept = array<V, KEPT>;

/// As `of_range`, of a range of up to KEPT · p.lanes elements, which are kept.
fn of_kept(local: u32, lane: u32, first: u32, end: u32, kept: ptr<function, Kept>) -> Exponentials {
    var most = LOWEST;
    var nan = 0.0;
    for (var k = 0u; k < KEPT; k++) {
        let at = first + lane + k * p.lanes;
        if at < end {
            let v = x[at];
            (*kept)[k] = v;
            most = max(most, most_of(v));
            nan = select(nan, 1.0, any_nan(v));
        }
    }
    let all = across(MOST, local, vec2(most, nan));
    var total = 0.0;
    for (var k = 0u; k < KEPT; k++) {
        if first + lane + k * p.lanes < end {
            total += sum_of(exp((*kept)[k] - all.x));
        }
    }
    return Exponentials(all.x, across(SUM, local, vec2(total, 0.0)).x, all.y);
}
