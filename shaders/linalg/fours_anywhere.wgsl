// Vectors of four elements from any place of a buffer of such vectors, for products that read the operands where they are
// (matmul_shared.wgsl; after unpacked_places.wgsl and subgroup_sums.wgsl): each is made of two neighbours. They come in groups of
// four. Of an operand that is `deep`, whose steps of k lie side by side, a group has four steps of four lines, with a vector for
// each line; of another, whose lines lie side by side, a vector for each step.

struct Operand {
    start: u32, // the place of its first element
    lines: u32, // rows of a left operand, columns of a right one
    apart: u32, // from one line to the next
    step: u32,  // from one step of k to the next
}

/// Returns the places of the elements where the first vectors begin: in the lines `deep_lines` if `deep`, else in the line
/// `line` and the three after it. Instead of lines past the end the last one is taken if `deep`, else what follows it; their
/// sums are not stored.
fn starts(x: Operand, deep: bool, deep_lines: vec4<u32>, line: u32) -> vec4<u32> {
    if deep {
        return x.start + min(deep_lines, vec4(x.lines - 1u)) * x.apart;
    }
    return x.start + line + FOUR * x.step;
}

/// Returns the index of the vector with the last element, four times. None past it may be read: indices are not checked.
fn end_of(x: Operand, steps: u32) -> vec4<u32> {
    return vec4((x.start + (x.lines - 1u) * x.apart + (steps - 1u) * x.step) / 4u);
}

/// Returns the four of the eight elements of x and y from element `shift` on, which is less than four.
fn shifted(x: vec4<f32>, y: vec4<f32>, shift: u32) -> vec4<f32> {
    let by_two = (shift & 2u) != 0u;
    let four = select(x, vec4(x.zw, y.xy), by_two);
    let next = select(y.x, y.z, by_two);
    return select(four, vec4(four.yzw, next), (shift & 1u) != 0u);
}

/// Returns the vectors that follow those of the lane: those of the next lane. `last` of lane i, for i < 4, is the vector that
/// follows vector i of the last lane.
fn followers(x: Fours, last: vec4<f32>, lane: u32) -> Fours {
    let next = (lane + 1u) % LANES;
    let is_last = next == 0u;
    return Fours(
        select(subgroupShuffle(x[0], next), subgroupShuffle(last, 0u), is_last),
        select(subgroupShuffle(x[1], next), subgroupShuffle(last, 1u), is_last),
        select(subgroupShuffle(x[2], next), subgroupShuffle(last, 2u), is_last),
        select(subgroupShuffle(x[3], next), subgroupShuffle(last, 3u), is_last),
    );
}

/// Returns the vectors from element `shift` of `x` on, where `next` has the vectors that follow. Steps of k that are `past` the
/// end are zeros.
fn moved(x: Fours, next: Fours, shift: vec4<u32>, deep: bool, past: vec4<bool>) -> Fours {
    let a = shifted(x[0], next[0], shift.x);
    let b = shifted(x[1], next[1], shift.y);
    let c = shifted(x[2], next[2], shift.z);
    let d = shifted(x[3], next[3], shift.w);
    let zero = vec4<f32>();
    if deep {
        return Fours(select(a, zero, past), select(b, zero, past), select(c, zero, past), select(d, zero, past));
    }
    return Fours(select(a, zero, past.x), select(b, zero, past.y), select(c, zero, past.z), select(d, zero, past.w));
}

fn transposed(x: Fours) -> Fours {
    return Fours(
        vec4(x[0].x, x[1].x, x[2].x, x[3].x),
        vec4(x[0].y, x[1].y, x[2].y, x[3].y),
        vec4(x[0].z, x[1].z, x[2].z, x[3].z),
        vec4(x[0].w, x[1].w, x[2].w, x[3].w),
    );
}
