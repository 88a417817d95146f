// fault ← (op, index, size) of an index that is not within a dimension of `size`, unless fault has one already. With
// IGNORE, the index `ignored` is allowed. One invocation: one index.

struct Params {
    count: u32,
    offset: u32,
    size: u32,
    ignored: u32,
    op: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> index: array<u32>;
@group(0) @binding(2) var<storage, read_write> fault: array<u32>;

override IGNORE: bool = false;

@compute @workgroup_size(WG)
fn index_check(id: Id) {
    let i = linear_index(id);
    if i >= p.count {
        return;
    }
    let at = index[p.offset + i];
    // Several invocations may write: any of their indices will do.
    if at >= p.size && !(IGNORE && at == p.ignored) && fault[0] == 0u {
        fault[1] = at;
        fault[2] = p.size;
        fault[0] = p.op;
    }
}
