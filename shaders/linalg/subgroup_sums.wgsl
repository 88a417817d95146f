// The sums of products on software adapters with subgroups of 8 (matmul_subgroups.wgsl, matmul_shared.wgsl,
// conv_blocks.wgsl): of a tile of 8 · PANELS rows, an invocation has all, in four columns of its own.
// Loads are what these adapters are slow at. The invocations of a subgroup need the same values of the left operand, so that
// each loads a part of them and passes it on. Assignments in a loop are slow too: each is masked, and most sums are in
// memory. So a sum is assigned once for four steps. The drivers' compilers write out the loops over rows, whose bounds are
// constant, if they are short enough: then they know from which lane a value comes, and all sums have names.

const LANES = 8u;
const MOST_PANELS = 4u;
/// Panels of 8 rows in a tile, up to MOST_PANELS.
override PANELS: u32 = 4u;

alias Fours = array<vec4<f32>, 4>;
alias Sums = array<vec4<f32>, MOST_PANELS * 8u>;

/// Adds the products of two steps: lane i has rows 4 · i to 4 · i + 3 of the steps in `x` and `y`; `v` and `w` have the
/// invocation's four columns.
fn add_two_steps(sums: ptr<function, Sums>, x: vec4<f32>, y: vec4<f32>, v: vec4<f32>, w: vec4<f32>) {
    for (var i = 0u; i < PANELS * 2u; i++) {
        let r = subgroupShuffle(x, i);
        let s = subgroupShuffle(y, i);
        (*sums)[i * 4u] = (*sums)[i * 4u] + r.x * v + s.x * w;
        (*sums)[i * 4u + 1u] = (*sums)[i * 4u + 1u] + r.y * v + s.y * w;
        (*sums)[i * 4u + 2u] = (*sums)[i * 4u + 2u] + r.z * v + s.z * w;
        (*sums)[i * 4u + 3u] = (*sums)[i * 4u + 3u] + r.w * v + s.w * w;
    }
}

/// Adds the products of four steps: by two loops, since one of all four would be too long.
fn add_steps(sums: ptr<function, Sums>, rows: Fours, columns: Fours) {
    add_two_steps(sums, rows[0], rows[1], columns[0], columns[1]);
    add_two_steps(sums, rows[2], rows[3], columns[2], columns[3]);
}

/// As `add_two_steps`, of one step.
fn add_step(sums: ptr<function, Sums>, rows: vec4<f32>, columns: vec4<f32>) {
    for (var i = 0u; i < PANELS * 2u; i++) {
        let x = subgroupShuffle(rows, i);
        (*sums)[i * 4u] += x.x * columns;
        (*sums)[i * 4u + 1u] += x.y * columns;
        (*sums)[i * 4u + 2u] += x.z * columns;
        (*sums)[i * 4u + 3u] += x.w * columns;
    }
}

/// Moves the sums up by four rows, for a loop that stores the first four: so its indices are constant. The bound of such a
/// loop should not be: written out, it takes long to compile.
fn move_up(sums: ptr<function, Sums>) {
    for (var i = 4u; i < PANELS * 8u; i++) {
        (*sums)[i - 4u] = (*sums)[i];
    }
}
