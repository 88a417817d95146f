// A stable sort of every row of x, [rows, n] dense, as pairs of a key and the column that it came from.
// `rank` sorts blocks of BLOCK columns: each element counts how many elements of its block come before it.
// `merge` joins pairs of runs of `width` columns: each element finds its place in the other run by bisection.
// Keys are u32 in the requested order. Those of floats follow IEEE 754's order of bits, with −0 = 0 and NaN largest.
// One invocation: one element.

struct Params {
    count: u32, // rows · n
    n: u32,
    offset: u32, // of x, for `rank`
    width: u32,  // of the sorted runs, for `merge`
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x: array<u32>; // the elements' words
@group(0) @binding(2) var<storage, read_write> keys: array<u32>;
@group(0) @binding(3) var<storage, read_write> order: array<u32>;

const BLOCK = 64u;
const SIGN = 0x80000000u;

override OP: u32; // the type of x
const F32 = 0u;
const I32 = 1u;
override DESCENDING: bool = false;

fn key_of(bits: u32) -> u32 {
    var key = bits; // u32
    if OP == F32 {
        if (bits & 0x7fffffffu) > 0x7f800000u {
            key = 0xffffffffu; // NaN
        } else if bits == SIGN {
            key = SIGN; // −0, as 0
        } else if bits >= SIGN {
            key = ~bits;
        } else {
            key = bits | SIGN;
        }
    } else if OP == I32 {
        key = bits ^ SIGN;
    }
    return select(key, ~key, DESCENDING);
}

@compute @workgroup_size(WG)
fn rank(id: Id) {
    let i = linear_index(id);
    if i >= p.count {
        return;
    }
    let column = i % p.n;
    let row = i - column;
    let first = column - column % BLOCK;
    let key = key_of(x[p.offset + i]);
    var place = first;
    for (var c = first; c < min(first + BLOCK, p.n); c++) {
        let other = key_of(x[p.offset + row + c]);
        place += u32(other < key || (other == key && c < column));
    }
    keys[row + place] = key;
    order[row + place] = column;
}

@group(0) @binding(1) var<storage, read> run_keys: array<u32>;
@group(0) @binding(2) var<storage, read> run_order: array<u32>;
@group(0) @binding(3) var<storage, read_write> merged_keys: array<u32>;
@group(0) @binding(4) var<storage, read_write> merged_order: array<u32>;

@compute @workgroup_size(WG)
fn merge(id: Id) {
    let i = linear_index(id);
    if i >= p.count {
        return;
    }
    let column = i % p.n;
    let row = i - column;
    let start = column - column % (2u * p.width);
    let middle = min(start + p.width, p.n);
    let left = column < middle;
    let key = run_keys[i];
    // Counts the other run's elements that come before this one: equal ones do if the other run is the left one.
    let begin = select(start, middle, left);
    var low = begin;
    var high = select(middle, min(start + 2u * p.width, p.n), left);
    while low < high {
        let at = (low + high) / 2u;
        let other = run_keys[row + at];
        if other < key || (other == key && !left) {
            low = at + 1u;
        } else {
            high = at;
        }
    }
    let own = select(column - middle, column - start, left);
    let place = row + start + own + (low - begin);
    merged_keys[place] = key;
    merged_order[place] = run_order[i];
}
