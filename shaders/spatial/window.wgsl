// Windows that move over planes. The settings of a layer are constants: compilers replace divisions by them. The sizes of
// planes are parameters, so that one pipeline serves images of all sizes. Integer division by a parameter is slow, above
// all on software adapters: an invocation divides once, and computes several elements at the place that it found.
override KERNEL_Y: u32 = 1u;
override KERNEL_X: u32 = 1u;
override STRIDE_Y: u32 = 1u;
override STRIDE_X: u32 = 1u;
override PAD_Y: u32 = 0u;
override PAD_X: u32 = 0u;
override DILATION_Y: u32 = 1u;
override DILATION_X: u32 = 1u;

struct Place {
    plane: u32,
    y: u32,
    x: u32,
}

/// Returns the place of element `i` of planes `[height, width]`.
fn place(i: u32, height: u32, width: u32) -> Place {
    let row = i / width;
    let plane = row / height;
    return Place(plane, row - plane * height, i - row * width);
}

/// Returns the place of the element after one.
fn next(at: Place, height: u32, width: u32) -> Place {
    if at.x + 1u < width {
        return Place(at.plane, at.y, at.x + 1u);
    }
    if at.y + 1u < height {
        return Place(at.plane, at.y + 1u, 0u);
    }
    return Place(at.plane + 1u, 0u, 0u);
}

/// Returns the windows of one direction that hold place `at` (counted from the padding's edge): the first, and one past
/// the last.
fn windows(at: u32, span: u32, stride: u32, count: u32) -> vec2<u32> {
    let first = select(0u, (at - span) / stride + 1u, at >= span);
    return vec2(first, min(at / stride + 1u, count));
}
