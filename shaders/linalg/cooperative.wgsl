// The fragments of matmul_cooperative.wgsl as cooperative matrices, which a subgroup holds together, and its entry point. The
// header before this text sets their types and S, their rows and columns.

@group(0) @binding(1) var<storage, read> a: array<f16>;
@group(0) @binding(2) var<storage, read> b: array<f16>;

/// Returns S rows and S steps of k of a panel of A, row by row.
fn left_at(i: u32) -> Left {
    return coopLoadT<Left>(&a[i], DEPTH);
}

/// Returns S steps of k and S columns of a panel of B, column by column.
fn right_at(i: u32) -> Right {
    return coopLoad<Right>(&b[i], DEPTH);
}

fn multiplied(left: Left, right: Right, sums: Sums) -> Sums {
    return coopMultiplyAdd(left, right, sums);
}

/// Puts sums into the memory of the workgroup, row by row.
fn put_sums(sums: Sums, to: u32) {
    coopStoreT(sums, &scratch[to], S);
}

@compute @workgroup_size(WG)
fn matmul_cooperative(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(num_subgroups) subgroups: u32,
    @builtin(subgroup_invocation_id) lane: u32,
    @builtin(subgroup_size) lanes: u32,
) {
    multiply(group_number(group), Team(subgroup, subgroups, lane, lanes));
}
