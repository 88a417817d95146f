// What kernels share whose workgroups share rows of neighbouring elements: `p.lanes` neighbouring invocations have a row, or a part of
// one, and read neighbouring elements of it.

/// Invocations of a workgroup, of which `p.lanes`, a power of two, share a line.
const WIDE = 256u;

/// The row, or the part of a row, of an invocation.
struct Line {
    number: u32,
    /// The number of the invocation within the line.
    lane: u32,
    /// Whether there is such a line. Surplus invocations have the last one, since barriers are for all.
    exists: bool,
}

fn line_of(group: vec3<u32>, local: u32, lines: u32) -> Line {
    let number = group_number(group) * (WIDE / p.lanes) + local / p.lanes;
    return Line(min(number, lines - 1u), local % p.lanes, number < lines);
}
