//! Copies and results of flat windows, at every level of vectors.

use super::*;
use crate::vectors::levels;
use crate::window::WindowParams;

/// Copies and spreads.
fn check(window: Window) {
    let Window { params, size, out: [height, across] } = window;
    let g = Sizes { images: 1, channels: 2, out_channels: 2, groups: 1, window };
    let (plan, x) = (Plan::new(&g), (1..=2 * g.window.plane()).map(|i| i as f32).collect::<Vec<_>>());
    let lines = height / 3..height;
    let mut to = vec![0.0; plan.copied(lines.len())];
    with_vectors(Copy { plan: &plan, x: &x, lines: lines.clone(), to: &mut to });
    for (k, place) in plan.places(lines.len()).into_iter().enumerate() {
        let (c, tap) = (k / g.window.taps(), k % g.window.taps());
        let tap = [tap / params.kernel[1], tap % params.kernel[1]];
        for (line, column) in (0..lines.len()).flat_map(|line| (0..across).map(move |column| (line, column))) {
            let o = [lines.start + line, column];
            let pixel = [0, 1].map(|d| {
                let at = (o[d] * params.stride[d] + tap[d] * params.dilation[d]).checked_sub(params.padding[d]);
                at.filter(|at| *at < size[d])
            });
            let wanted = match pixel {
                [Some(y), Some(column)] => x[(c * size[0] + y) * size[1] + column],
                _ => 0.0,
            };
            assert_eq!(to[place + line * plan.pitch + column], wanted, "{:?} at {o:?}", g.window);
        }
    }
    // Some columns of sums that are the numbers of their windows.
    let (windows, step) = (plan.windows(height), plan.windows(height) + 5);
    let columns = windows / 5..windows;
    let sums: Vec<f32> = (0..2 * step).map(|i| (columns.start + i % step) as f32).collect();
    let mut planes = vec![vec![-1.0; height * across]; 2];
    let mut out: Vec<&mut [f32]> = planes.iter_mut().map(|plane| &mut plane[..]).collect();
    let pitch = plan.pitch;
    with_vectors(Spread { sums: &sums, step, columns: columns.clone(), pitch, across, out: &mut out });
    for (at, v) in planes.iter().flat_map(|plane| plane.iter().enumerate()) {
        let window = at / across * pitch + at % across;
        assert_eq!(*v, if window < columns.start { -1.0 } else { window as f32 });
    }
}

#[test]
fn phases_and_lines_are_right_at_every_level() -> Result<()> {
    for (size, kernel, stride, padding, dilation) in [
        ([9, 40], [3, 3], [1, 1], [1, 1], [1, 1]),
        ([10, 37], [3, 5], [2, 2], [1, 2], [1, 1]),
        ([7, 5], [2, 3], [3, 1], [4, 6], [2, 3]),
        ([5, 70], [1, 1], [2, 3], [0, 0], [1, 1]),
    ] {
        let window =
            WindowParams { kernel, stride, padding, dilation }.over(size, false).expect("a kernel within the image");
        levels::each(|| {
            check(window);
            Ok(())
        })?;
    }
    Ok(())
}
