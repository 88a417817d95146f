// The geometry of sliding windows. It is fixed for a layer, so it is in constants: compilers replace divisions by them.
override HEIGHT: u32 = 1u;
override WIDTH: u32 = 1u;
override KERNEL_Y: u32 = 1u;
override KERNEL_X: u32 = 1u;
override STRIDE_Y: u32 = 1u;
override STRIDE_X: u32 = 1u;
override PAD_Y: u32 = 0u;
override PAD_X: u32 = 0u;
override DILATION_Y: u32 = 1u;
override DILATION_X: u32 = 1u;
override OUT_Y: u32 = 1u;
override OUT_X: u32 = 1u;

/// Returns the windows of one direction that hold place `at` (counted from the padding's edge): the first, and one past
/// the last.
fn windows(at: u32, span: u32, stride: u32, count: u32) -> vec2<u32> {
    let first = select(0u, (at - span) / stride + 1u, at >= span);
    return vec2(first, min(at / stride + 1u, count));
}

/// Returns the windows that hold pixel `i`: rows in x and y, columns in z and w.
fn windows_over(i: u32) -> vec4<u32> {
    let ys = windows((i / WIDTH) % HEIGHT + PAD_Y, (KERNEL_Y - 1u) * DILATION_Y + 1u, STRIDE_Y, OUT_Y);
    return vec4(ys, windows(i % WIDTH + PAD_X, (KERNEL_X - 1u) * DILATION_X + 1u, STRIDE_X, OUT_X));
}
