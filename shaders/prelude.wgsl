// Precedes every shader: how an invocation finds its element, and functions that WGSL lacks.

/// Invocations of a workgroup of all one-dimensional kernels.
const WG = 64u;

struct Id {
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
}

/// What `Id` has of the workgroup. Kernels that meet at barriers, or share values within subgroups, take this: browsers
/// require conditions that are the same for the workgroup, and take no member of a parameter for that if one differs.
struct Group {
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
}

/// Returns the number of the workgroup, in a grid that is folded over y if x is too small for it.
fn group_number(id: Group) -> u32 {
    return id.group.y * id.groups.x + id.group.x;
}

/// Returns the number of the workgroup of an invocation.
fn linear_group(id: Id) -> u32 {
    return group_number(Group(id.group, id.groups));
}

/// Returns the number of the invocation. The last workgroups may have surplus invocations, which must check it.
fn linear_index(id: Id) -> u32 {
    return linear_group(id) * WG + id.local;
}

/// Returns whether x is NaN, by its bits: compilers may remove x != x.
fn is_nan(x: f32) -> bool {
    return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u;
}

/// Returns the upper 32 bits of a product, computed from halves: WGSL has no 64-bit integers.
fn mul_high(a: u32, b: u32) -> u32 {
    let low = (a & 0xffffu) * (b & 0xffffu);
    let left = (a >> 16u) * (b & 0xffffu) + (low >> 16u);
    let right = (a & 0xffffu) * (b >> 16u) + (left & 0xffffu);
    return (a >> 16u) * (b >> 16u) + (left >> 16u) + (right >> 16u);
}
