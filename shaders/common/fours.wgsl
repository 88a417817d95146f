// Precedes the shaders that read and write four elements at a time: the part of the vectors that one invocation computes.
// The last vector may have elements past the end: buffers are whole vectors, and nothing reads what is written there.

/// Returns the first vector of the invocation and the one after its last: up to `run` neighbours, of all vectors that
/// hold `count` elements.
fn vectors(id: Id, run: u32, count: u32) -> vec2<u32> {
    let first = linear_index(id) * run;
    return vec2(first, min(first + run, (count + 3u) / 4u));
}
