// Precedes every shader: how an invocation finds its element, and functions that WGSL lacks.

/// Invocations of a workgroup of all one-dimensional kernels.
const WG = 64u;

/// The workgroups of a row, in a grid that is folded over y since x is too small for it: `ROW` of device/gpu/kernel.rs. A
/// kernel must not ask for the number of workgroups: in HLSL, naga has it right only within an entry point.
const ROW = 2048u;

struct Id {
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
}

/// Returns the number of a workgroup. Kernels that meet at barriers, or share values within subgroups, take the place of the
/// workgroup as a parameter of its own: of `Id`, browsers take no member to be the same for the workgroup.
fn group_number(group: vec3<u32>) -> u32 {
    return group.y * ROW + group.x;
}

/// Returns the number of the workgroup of an invocation.
fn linear_group(id: Id) -> u32 {
    return group_number(id.group);
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
