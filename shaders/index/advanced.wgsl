// Indices of tensors.
// join:  out[i] ← left[i] · size + right[i], or NONE if left[i] is NONE or one of them is out of range: the position in two
//        dimensions as one. NONE is larger than any dimension.
// from_end: out[i] ← left[i], or left[i] + size if that is negative and within the dimension.
// truth: out[k] ← the position of element k of those that are not 0; left[i] is the number of such elements up to i.
// All dense. One invocation: one element of out.

struct Params {
    count: u32, // elements of out
    outer: u32, // the size of left's dimension
    size: u32,  // the size of right's dimension; the elements of left in `truth`; the size of left's in `from_end`
    left_offset: u32,
    right_offset: u32,
}

const NONE = 0xffffffffu;

@group(0) @binding(0) var<uniform> p: Params;

@group(0) @binding(1) var<storage, read> left: array<u32>;
@group(0) @binding(2) var<storage, read> right: array<u32>;
@group(0) @binding(3) var<storage, read_write> joined: array<u32>;

@compute @workgroup_size(WG)
fn join(id: Id) {
    let i = linear_index(id);
    if i >= p.count {
        return;
    }
    let a = left[p.left_offset + i];
    let b = right[p.right_offset + i];
    joined[i] = select(NONE, a * p.size + b, a < p.outer && b < p.size);
}

@group(0) @binding(2) var<storage, read_write> positions: array<u32>;

@compute @workgroup_size(WG)
fn from_end(id: Id) {
    let i = linear_index(id);
    if i >= p.count {
        return;
    }
    let index = bitcast<i32>(left[p.left_offset + i]);
    let size = i32(p.size);
    positions[i] = bitcast<u32>(select(index, index + size, index < 0 && index >= -size));
}

@compute @workgroup_size(WG)
fn truth(id: Id) {
    let k = linear_index(id);
    if k >= p.count {
        return;
    }
    var low = 0u;
    var high = p.size;
    while low < high {
        let at = low + (high - low) / 2u;
        if left[p.left_offset + at] <= k {
            low = at + 1u;
        } else {
            high = at;
        }
    }
    positions[k] = low;
}
