// Goes before every shader: how an invocation finds its element, and what WGSL lacks.

/// Invocations of a workgroup of all one-dimensional kernels.
const WG = 64u;

struct Id {
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
}

/// The number of the workgroup in a grid that is folded over y where x does not suffice.
fn linear_group(id: Id) -> u32 {
    return id.group.y * id.groups.x + id.group.x;
}

/// The number of the invocation. Surplus invocations of the last workgroups must check it.
fn linear_index(id: Id) -> u32 {
    return linear_group(id) * WG + id.local;
}

/// By the bits: compilers may fold x != x away.
fn is_nan(x: f32) -> bool {
    return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u;
}
