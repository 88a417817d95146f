// The parts of the rows of [A, R], dense, that workgroups share, after lines.wgsl. A part has `span` elements.

struct Params {
    offset: u32,
    lines: u32,   // A · parts
    reduced: u32, // R
    parts: u32,   // of a row
    span: u32,
    lanes: u32,   // that share a row or a part: a power of two, up to WIDE
}

@group(0) @binding(0) var<uniform> p: Params;

struct Part {
    /// Where its row begins.
    row: u32,
    /// Its first element within the row, and the one after its last.
    first: u32,
    end: u32,
}

fn part_of(line: Line) -> Part {
    let first = line.number % p.parts * p.span;
    return Part(p.offset + line.number / p.parts * p.reduced, first, min(first + p.span, p.reduced));
}
