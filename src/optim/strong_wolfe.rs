//! A search along a line for a point that meets the strong Wolfe conditions, as in PyTorch's LBFGS.

use crate::error::Result;
use crate::tensor::Tensor;

/// A step lowers the loss enough if it is below the line of this part of the first slope.
const DECREASE: f64 = 1e-4;
/// A slope is flat enough if it is at most this part of the first one.
const CURVATURE: f64 = 0.9;

/// A point of the line.
#[derive(Clone)]
pub(super) struct Point {
    /// The distance from the start, in directions.
    pub step: f64,
    pub loss: f64,
    pub gradient: Tensor,
    /// The product of the gradient and the direction.
    pub slope: f64,
}

/// What a search may do.
pub(super) struct Limits {
    /// The number of evaluations after the first one.
    pub evaluations: usize,
    /// The largest change of a parameter that is not worth another evaluation.
    pub change: f64,
    /// The largest element of the direction.
    pub longest: f64,
}

/// Returns the point that is found, and the number of evaluations. `evaluate` returns the point at a step.
pub(super) fn strong_wolfe(
    start: &Point,
    first: f64,
    limits: &Limits,
    evaluate: &mut dyn FnMut(f64) -> Result<Point>,
) -> Result<(Point, usize)> {
    let too_high = |point: &Point| point.loss > start.loss + DECREASE * point.step * start.slope;
    let flat = |point: &Point| point.slope.abs() <= -CURVATURE * start.slope;
    let (mut before, mut new) = (start.clone(), evaluate(first)?);
    let mut spent = 0;
    let mut bracket = None;
    while spent < limits.evaluations {
        if too_high(&new) || spent > 1 && new.loss >= before.loss {
            bracket = Some([before, new.clone()]);
            break;
        }
        if flat(&new) {
            return Ok((new, spent + 1));
        }
        if new.slope >= 0.0 {
            bracket = Some([before, new.clone()]);
            break;
        }
        let bounds = [new.step + 0.01 * (new.step - before.step), new.step * 10.0];
        let step = lowest(&before, &new, bounds);
        before = new;
        new = evaluate(step)?;
        spent += 1;
    }
    let mut bracket = bracket.unwrap_or_else(|| [start.clone(), new]);
    let lower = |bracket: &[Point; 2]| usize::from(bracket[0].loss > bracket[1].loss);
    let (mut low, mut stalled) = (lower(&bracket), false);
    while spent < limits.evaluations {
        let [a, b] = [bracket[0].step, bracket[1].step];
        let (least, most) = (a.min(b), a.max(b));
        if (most - least) * limits.longest < limits.change {
            break;
        }
        let mut step = lowest(&bracket[0], &bracket[1], [least, most]);
        // A step close to an end is tried once, and then moved away from it.
        let margin = 0.1 * (most - least);
        let close = (most - step).min(step - least) < margin;
        let moves = close && (stalled || step >= most || step <= least);
        if moves {
            step = if (step - most).abs() < (step - least).abs() { most - margin } else { least + margin };
        }
        stalled = close && !moves;
        let new = evaluate(step)?;
        spent += 1;
        if too_high(&new) || new.loss >= bracket[low].loss {
            bracket[1 - low] = new;
            low = lower(&bracket);
            continue;
        }
        let done = flat(&new);
        if !done && new.slope * (bracket[1 - low].step - bracket[low].step) >= 0.0 {
            bracket[1 - low] = bracket[low].clone();
        }
        bracket[low] = new;
        if done {
            break;
        }
    }
    let [a, b] = bracket;
    Ok((if low == 0 { a } else { b }, spent + 1))
}

/// Returns the step of the minimum of the cubic through two points, within bounds; their middle if it has none.
fn lowest(a: &Point, b: &Point, [low, high]: [f64; 2]) -> f64 {
    let d1 = a.slope + b.slope - 3.0 * (a.loss - b.loss) / (a.step - b.step);
    let square = d1 * d1 - a.slope * b.slope;
    if square >= 0.0 {
        let d2 = square.sqrt();
        let (near, far) = if a.step <= b.step { (a, b) } else { (b, a) };
        let part = (far.slope + d2 - d1) / (far.slope - near.slope + 2.0 * d2);
        (far.step - (far.step - near.step) * part).max(low).min(high)
    } else {
        f64::midpoint(low, high)
    }
}
