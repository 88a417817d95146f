//! Converts a drawing to MNIST's form: the digit in a square of 20 × 20, with the middle of its ink in the middle
//! of 28 × 28.

/// The side of the picture.
pub const SIDE: usize = 28;

/// The longer side of the digit in it.
const DIGIT: f32 = 20.0;

/// Less ink than this, on the scale 0 to 1, does not count.
const FAINT: f32 = 0.1;

/// Returns the picture, 0 to 1, for a square of ink, 0 to 255; `None` if there is no ink.
pub fn like_mnist(ink: &[u8]) -> Option<Vec<f32>> {
    let side = ink.len().isqrt();
    let at = |x: usize, y: usize| f32::from(ink[y * side + x]) / 255.0;
    let (mut least, mut most) = ([usize::MAX; 2], [0; 2]);
    let (mut total, mut moments) = (0.0, [0.0; 2]);
    for y in 0..side {
        for x in 0..side {
            let ink = at(x, y);
            if ink < FAINT {
                continue;
            }
            total += ink;
            for (d, place) in [x, y].into_iter().enumerate() {
                (least[d], most[d]) = (least[d].min(place), most[d].max(place));
                moments[d] += ink * (place as f32 + 0.5);
            }
        }
    }
    if total == 0.0 {
        return None;
    }
    let middle = moments.map(|moment| moment / total);
    // A dot is not made as large as a digit.
    let longer = (0..2).map(|d| most[d] - least[d] + 1).max().unwrap_or(1).max(side / 6);
    let step = longer as f32 / DIGIT;
    // The mean of points that are at most a pixel of the drawing apart.
    let points = (step.ceil() as usize).max(1);
    let sample = |x: f32, y: f32| {
        let inside = |place: f32| (place >= 0.0 && place < side as f32).then_some(place as usize);
        inside(x).zip(inside(y)).map_or(0.0, |(x, y)| at(x, y))
    };
    let pixel = |i: usize| {
        let place = |d: usize, pixel: usize, point: usize| {
            let offset = (point as f32 + 0.5) / points as f32;
            (pixel as f32 + offset - SIDE as f32 / 2.0) * step + middle[d]
        };
        let mut sum = 0.0;
        for v in 0..points {
            for u in 0..points {
                sum += sample(place(0, i % SIDE, u), place(1, i / SIDE, v));
            }
        }
        sum / (points * points) as f32
    };
    Some((0..SIDE * SIDE).map(pixel).collect())
}
