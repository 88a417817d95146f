// The operation of reductions, running results among them, chosen by OP. The header sets the type T. NaN is larger and smaller than any
// number.

override OP: u32;
const SUM = 0u;
const PROD = 1u;
const MAX = 2u;

fn join(a: T, v: T) -> T {
    switch OP {
        case SUM: { return a + v; }
        case PROD: { return a * v; }
        case MAX: { return select(a, v, v > a || is_nan(f32(v))); }
        default: { return select(a, v, v < a || is_nan(f32(v))); }
    }
}
