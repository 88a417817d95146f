//! Elementwise operators and reductions on the host.

use super::super::array::{Array, Elements};
use super::super::call::Call;
use super::super::element_type::ElementType;
use super::super::fault;
use super::{MOST, broadcast, count, of_ints, positions};
use crate::error::Result;

type Inputs<'a> = [Option<&'a Array>];

pub(super) fn evaluate(call: &Call, inputs: &Inputs) -> Option<Result<Array>> {
    let x = (*inputs.first()?)?;
    let op = call.op();
    if let Some(f) = unary(op) {
        return Some(Ok(f(x)));
    }
    match (op, inputs) {
        ("Cast", _) => Some(call.type_attribute("to").and_then(|to| {
            let to = to.ok_or_else(|| fault("the attribute 'to' is missing"))?;
            Ok(x.converted(to, call.conversion()?))
        })),
        ("CastLike", [_, Some(like), ..]) => Some(call.conversion().map(|how| x.converted(like.kind, how))),
        ("Where", [Some(c), Some(a), Some(b)]) => where_cond(c, a, b),
        ("Min" | "Max" | "Sum", [_, rest @ ..]) => {
            let f: Binary = match op {
                "Min" => (|a, b| Some(a.min(b)), |a, b| if b.is_nan() || b < a { b } else { a }),
                "Max" => (|a, b| Some(a.max(b)), |a, b| if b.is_nan() || b > a { b } else { a }),
                _ => (|a, b| Some(a.wrapping_add(b)), |a, b| a + b),
            };
            let mut out = x.clone();
            for y in rest {
                out = match combine(&out, (*y)?, out.kind, f)? {
                    Ok(out) => out,
                    error => return Some(error),
                };
            }
            Some(Ok(out))
        }
        ("ReduceProd" | "ReduceSum" | "ReduceMax" | "ReduceMin", _) => reduce(call, x).transpose(),
        // Up to operator set 6, an axis says where the second begins.
        (_, [_, Some(y)]) if !call.has("axis") => match comparison(op) {
            Some(f) => combine(x, y, ElementType::Bool, f),
            None => combine(x, y, x.kind, binary(op, call.flag("fmod"))?),
        },
        _ => None,
    }
}

fn unary(op: &str) -> Option<fn(&Array) -> Array> {
    Some(match op {
        "Identity" => Array::clone,
        "Neg" => |x| map(x, i64::wrapping_neg, |v| -v),
        "Abs" => |x| map(x, i64::wrapping_abs, f64::abs),
        "Floor" => |x| map(x, |v| v, f64::floor),
        "Ceil" => |x| map(x, |v| v, f64::ceil),
        "Round" => |x| map(x, |v| v, f64::round_ties_even),
        "Sqrt" => |x| map(x, |v| v, f64::sqrt),
        "Not" => |x| map(x, |v| (v == 0).into(), |v| v),
        _ => return None,
    })
}

fn map(x: &Array, int: fn(i64) -> i64, float: fn(f64) -> f64) -> Array {
    let elements = match &x.elements {
        Elements::Ints(values) => Elements::Ints(values.iter().map(|&v| int(v)).collect()),
        Elements::Floats(values) => Elements::Floats(values.iter().map(|&v| float(v)).collect()),
    };
    Array { shape: x.shape.clone(), kind: x.kind, elements }.cast(x.kind)
}

/// An operator of integers, `None` where it is not defined, and of floats.
type Binary = (fn(i64, i64) -> Option<i64>, fn(f64, f64) -> f64);

fn binary(op: &str, fmod: bool) -> Option<Binary> {
    Some(match op {
        "Add" => (|a, b| Some(a.wrapping_add(b)), |a, b| a + b),
        "Sub" => (|a, b| Some(a.wrapping_sub(b)), |a, b| a - b),
        "Mul" => (|a, b| Some(a.wrapping_mul(b)), |a, b| a * b),
        "Div" => (i64::checked_div, |a, b| a / b),
        "Mod" if fmod => (remainder, |a, b| a % b),
        // The sign of the divisor.
        "Mod" => (
            |a, b| remainder(a, b).map(|r| if r != 0 && (r < 0) != (b < 0) { r + b } else { r }),
            |a, b| match a % b {
                0.0 => 0f64.copysign(b),
                r if (r < 0.0) != (b < 0.0) => r + b,
                r => r,
            },
        ),
        "Pow" => (power, f64::powf),
        _ => return None,
    })
}

/// Of the least number by −1, it is 0, though the quotient is beyond 64 bits.
fn remainder(a: i64, b: i64) -> Option<i64> {
    (b != 0).then(|| a.wrapping_rem(b))
}

/// A fraction is cut; the power of 0 that is none is `None`.
fn power(a: i64, b: i64) -> Option<i64> {
    match (a, b) {
        (_, 0..) => Some(a.wrapping_pow(u32::try_from(b).ok()?)),
        (0, _) => None,
        (1, _) => Some(1),
        (-1, _) => Some(if b % 2 == 0 { 1 } else { -1 }),
        _ => Some(0),
    }
}

fn comparison(op: &str) -> Option<Binary> {
    Some(match op {
        "Equal" => (|a, b| Some((a == b).into()), |a, b| (a == b).into()),
        "Less" => (|a, b| Some((a < b).into()), |a, b| (a < b).into()),
        "LessOrEqual" => (|a, b| Some((a <= b).into()), |a, b| (a <= b).into()),
        "Greater" => (|a, b| Some((a > b).into()), |a, b| (a > b).into()),
        "GreaterOrEqual" => (|a, b| Some((a >= b).into()), |a, b| (a >= b).into()),
        "And" => (|a, b| Some((a != 0 && b != 0).into()), |_, _| 0.0),
        "Or" => (|a, b| Some((a != 0 || b != 0).into()), |_, _| 0.0),
        "Xor" => (|a, b| Some(((a != 0) != (b != 0)).into()), |_, _| 0.0),
        _ => return None,
    })
}

/// Two arrays, broadcast; `None` if the result is too large for the host.
fn combine(x: &Array, y: &Array, kind: ElementType, (int, float): Binary) -> Option<Result<Array>> {
    let shape = match broadcast(&x.shape, &y.shape) {
        Ok(shape) => shape,
        Err(error) => return Some(Err(error)),
    };
    if count(&shape)? > MOST {
        return None;
    }
    let places = positions(&shape, &x.shape).zip(positions(&shape, &y.shape));
    let elements = match (&x.elements, &y.elements) {
        (Elements::Ints(a), Elements::Ints(b)) => {
            let values = places.map(|(i, j)| int(a[i], b[j]).ok_or((a[i], b[j]))).collect::<Result<Vec<i64>, _>>();
            match values {
                Ok(values) => Elements::Ints(values),
                Err((_, 0)) => return Some(Err(fault("a division of integers by zero"))),
                // Of other numbers by −1, there is a quotient, but no power.
                Err((i64::MIN, -1)) if int(0, -1).is_some() => {
                    return Some(Err(fault("-9223372036854775808 / -1 of int64, whose result is beyond int64")));
                }
                Err(_) => return Some(Err(fault("a negative power of the integer 0"))),
            }
        }
        _ => {
            let (a, b) = (x.to_floats(), y.to_floats());
            Elements::Floats(places.map(|(i, j)| float(a[i], b[j])).collect())
        }
    };
    Some(Ok(Array { shape, kind, elements }.cast(kind)))
}

fn where_cond(condition: &Array, a: &Array, b: &Array) -> Option<Result<Array>> {
    let shape = broadcast(&condition.shape, &a.shape).and_then(|shape| broadcast(&shape, &b.shape));
    let shape = match shape {
        Ok(shape) => shape,
        Err(error) => return Some(Err(error)),
    };
    if count(&shape)? > MOST {
        return None;
    }
    let chosen = condition.to_ints();
    let places = positions(&shape, &condition.shape).zip(positions(&shape, &a.shape).zip(positions(&shape, &b.shape)));
    let elements = match (&a.elements, &b.elements) {
        (Elements::Ints(a), Elements::Ints(b)) => {
            Elements::Ints(places.map(|(c, (i, j))| if chosen[c] != 0 { a[i] } else { b[j] }).collect())
        }
        _ => {
            let (a, b) = (a.to_floats(), b.to_floats());
            Elements::Floats(places.map(|(c, (i, j))| if chosen[c] != 0 { a[i] } else { b[j] }).collect())
        }
    };
    Some(Ok(Array { shape, kind: a.kind, elements }))
}

/// Reductions, which sizes are multiplied and summed with; `None` if the result is too large for the host.
fn reduce(call: &Call, x: &Array) -> Result<Option<Array>> {
    let rank = x.shape.len();
    let axes = call.list("axes", 1)?.unwrap_or_default();
    let dims = match axes.is_empty() {
        true if call.flag("noop_with_empty_axes") => return Ok(Some(x.clone())),
        true => (0..rank).collect(),
        false => call.dims(&axes, rank)?,
    };
    let kept: Vec<usize> = (0..rank).map(|dim| if dims.contains(&dim) { 1 } else { x.shape[dim] }).collect();
    // What is reduced may have no elements.
    let Some(total) = count(&kept).filter(|&total| total <= MOST) else { return Ok(None) };
    let into: Vec<usize> = positions(&x.shape, &kept).collect();
    let op = call.op();
    let array = match &x.elements {
        Elements::Ints(values) => {
            let start = match op {
                "ReduceProd" => 1,
                "ReduceSum" => 0,
                "ReduceMax" => x.kind.range().0,
                _ => x.kind.range().1,
            };
            let mut out = vec![start; total];
            for (&value, &at) in values.iter().zip(&into) {
                out[at] = match op {
                    "ReduceProd" => out[at].wrapping_mul(value),
                    "ReduceSum" => out[at].wrapping_add(value),
                    "ReduceMax" => out[at].max(value),
                    _ => out[at].min(value),
                };
            }
            of_ints(kept.clone(), x.kind, out)
        }
        Elements::Floats(values) => {
            let start = match op {
                "ReduceProd" => 1.0,
                "ReduceSum" => 0.0,
                "ReduceMax" => f64::NEG_INFINITY,
                _ => f64::INFINITY,
            };
            let mut out = vec![start; total];
            for (&value, &at) in values.iter().zip(&into) {
                out[at] = match op {
                    "ReduceProd" => out[at] * value,
                    "ReduceSum" => out[at] + value,
                    "ReduceMax" => out[at].max(value),
                    _ => out[at].min(value),
                };
            }
            Array { shape: kept.clone(), kind: x.kind, elements: Elements::Floats(out) }.cast(x.kind)
        }
    };
    if call.int("keepdims", 1) != 0 {
        return Ok(Some(array));
    }
    let left = (0..rank).filter(|dim| !dims.contains(dim)).map(|dim| x.shape[dim]).collect();
    Ok(Some(array.reshaped(left)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_integers_have_not_is_said() {
        let array =
            |value: i64| Array { shape: vec![1], kind: ElementType::Int64, elements: Elements::Ints(vec![value]) };
        let run = |op: &str, a: i64, b: i64| {
            let op = binary(op, false).expect("an operator");
            combine(&array(a), &array(b), ElementType::Int64, op).expect("it is small")
        };
        for (op, a, b, expected) in [
            ("Div", i64::MIN, -1, "beyond int64"),
            ("Div", i64::MIN, 0, "by zero"),
            ("Mod", 1, 0, "by zero"),
            ("Pow", 0, -1, "negative power"),
        ] {
            let error = run(op, a, b).expect_err("it has no result").to_string();
            assert!(error.contains(expected), "{op} {a} {b}: {error}");
        }
        for (op, a, b, expected) in [("Mod", i64::MIN, -1, 0), ("Pow", i64::MIN, -1, 0), ("Pow", -1, -3, -1)] {
            let result = run(op, a, b).expect("a number");
            assert!(matches!(result.elements, Elements::Ints(values) if values == [expected]), "{op} {a} {b}");
        }
    }
}
