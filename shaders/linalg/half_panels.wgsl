// Panels of halves for matmul_cooperative.wgsl, two in a word: dst[j / 64][k / 16][j % 64][k % 16]. So the steps of k of a row of
// A, or of a column of B, are neighbours within a fragment, as cards hold them. One invocation writes 8 neighbouring steps.

const PANEL = 64u;
const STEPS = 8u;
// The runs of steps in a row or column of a fragment.
const RUNS = 2u;

/// What an invocation writes: the steps from k on of row or column j, which counts those of all panels.
struct Run {
    j: u32,
    k: u32,
}

/// Returns what invocation i writes, in panels of `depth` steps, a multiple of 16.
fn run_of(i: u32, depth: u32) -> Run {
    let block = i / (PANEL * RUNS);
    let blocks = depth / (RUNS * STEPS);
    return Run(block / blocks * PANEL + i / RUNS % PANEL, (block % blocks * RUNS + i % RUNS) * STEPS);
}

/// Returns the bits of element i of an operand, from its word.
fn half_of(word: u32, i: u32) -> u32 {
    return (word >> (i % 2u * 16u)) & 0xffffu;
}

/// Returns the bits of the halves of a run, two in a word.
fn in_words(run: array<vec4<u32>, 2>) -> vec4<u32> {
    return vec4(run[0].xz, run[1].xz) | (vec4(run[0].yw, run[1].yw) << vec4(16u));
}
