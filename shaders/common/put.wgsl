// The store of kernels whose results elementwise kernels may follow: a kernel that is fused with those has another function in
// the place of this one. The shader before this text declares `out`, and writes it only by this function.

/// Writes element `i` of the result. A kernel calls it once for each element.
fn put(i: u32, value: f32) {
    out[i] = value;
}
