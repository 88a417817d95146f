// The columns of a convolution's image. Images are [N, C, H, W]; a pass handles one group of their channels. Each column is for
// one output pixel:
//   cols[(c, ky, kx), (n, oy, ox)] = x[n, c, oy·stride_y + ky·dilation_y − pad_y, ox·stride_x + …], 0 outside the image.
// After window.wgsl. The text after this one declares the params `p`, the type Pixel and `of_x`, which reads one.

/// Returns the number of rows of the columns.
fn all_rows() -> u32 {
    return p.depth * KERNEL_Y * KERNEL_X;
}

/// Returns the pixel that row (c, ky, kx) has in the column of output pixel `at`.
fn element(row: u32, at: Place) -> Pixel {
    let kx = row % KERNEL_X;
    let ky = (row / KERNEL_X) % KERNEL_Y;
    let c = row / (KERNEL_X * KERNEL_Y);
    // Above or left of the image the subtraction wraps around to a huge number, which the comparison rejects too.
    let y = at.y * STRIDE_Y + ky * DILATION_Y - PAD_Y;
    let xx = at.x * STRIDE_X + kx * DILATION_X - PAD_X;
    if y >= p.height || xx >= p.width {
        return Pixel(0);
    }
    return of_x(p.offset + ((at.plane * p.channels + c) * p.height + y) * p.width + xx);
}
