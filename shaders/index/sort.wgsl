// A stable sort of every row of x, [rows, n] dense, as pairs of a key and the column that it came from.
// `rank` sorts blocks of BLOCK columns: each element counts how many elements of its block come before it.
// `rank_tile` sorts blocks of TILE columns: a workgroup each, in its memory, by exchanging pairs (Batcher 1968).
// `merge` joins pairs of runs of `width` columns: each element finds its place in the other run by bisection.
// Keys are u32 in the requested order. Those of floats follow IEEE 754's order of bits, with −0 = 0 and NaN largest.
// One invocation: one element, but for `rank_tile`.

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

const TILE = 1024u;
const WIDE = 256u;
var<workgroup> tile_keys: array<u32, TILE>;
var<workgroup> tile_columns: array<u32, TILE>;

@compute @workgroup_size(WIDE)
fn rank_tile(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let tiles = (p.n + TILE - 1u) / TILE;
    let number = group_number(group);
    // Surplus workgroups of a folded grid have the last tile, since barriers are for all.
    let tile = min(number, p.count / p.n * tiles - 1u);
    let first = tile % tiles * TILE;
    let row = tile / tiles * p.n;
    let size = min(TILE, p.n - first);
    for (var i = local; i < TILE; i += WIDE) {
        // Places past the end come last, also after equal keys.
        var key = 0xffffffffu;
        var column = 0xffffffffu;
        if i < size {
            column = first + i;
            key = key_of(x[p.offset + row + column]);
        }
        tile_keys[i] = key;
        tile_columns[i] = column;
    }
    workgroupBarrier();
    for (var run = 2u; run <= TILE; run *= 2u) {
        for (var apart = run / 2u; apart > 0u; apart /= 2u) {
            for (var pair = local; pair < TILE / 2u; pair += WIDE) {
                let i = pair / apart * apart * 2u + pair % apart;
                let j = i + apart;
                let a = vec2(tile_keys[i], tile_columns[i]);
                let b = vec2(tile_keys[j], tile_columns[j]);
                let later = a.x > b.x || (a.x == b.x && a.y > b.y);
                if later == ((i & run) == 0u) {
                    tile_keys[i] = b.x;
                    tile_keys[j] = a.x;
                    tile_columns[i] = b.y;
                    tile_columns[j] = a.y;
                }
            }
            workgroupBarrier();
        }
    }
    for (var i = local; i < size; i += WIDE) {
        if number == tile {
            keys[row + first + i] = tile_keys[i];
            order[row + first + i] = tile_columns[i];
        }
    }
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
