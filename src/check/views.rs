//! Views, which move no element; `contiguous`, which makes them dense; and copies to another device.

use super::prelude::*;
use crate::device::Device;

pub(super) fn cases() -> Vec<Case> {
    [reshaping(), moving_dimensions(), narrowing_and_repeating(), contiguous(), moved()].into_iter().flatten().collect()
}

fn x(shape: &[usize]) -> Nd {
    signed(shape, 71)
}

/// Returns a case of an op that changes no element of its operand, but their places or their shape.
pub(super) fn case(
    name: &str,
    input: Input,
    op: impl Fn(&Tensor) -> Result<Tensor> + Send + Sync + 'static,
    oracle: impl Fn(&Nd) -> Nd + Send + Sync + 'static,
) -> Case {
    Case::new(name, [input], move |t| op(&t[0]), move |x| oracle(x[0])).exact()
}

/// Returns a function that gives the same elements another shape.
fn shaped(shape: &'static [usize]) -> impl Fn(&Nd) -> Nd {
    move |x| Nd::new(shape, x.data.clone())
}

fn reshaping() -> Vec<Case> {
    vec![
        case("reshape", dense(x(&[6, 4])), |t| t.reshape([2, 3, 4]), shaped(&[2, 3, 4])),
        case("reshape transposed", transposed(x(&[6, 4]), 0, 1), |t| t.reshape([3, 8]), shaped(&[3, 8])),
        case("reshape narrowed", narrowed(x(&[6, 4]), 1), |t| t.reshape(24), shaped(&[24])),
        case("reshape to a scalar", dense(x(&[1, 1])), |t| t.reshape(()), shaped(&[])),
        case("reshape nothing", dense(x(&[0, 4])), |t| t.reshape([2, 0]), shaped(&[2, 0])),
        case("flatten", dense(x(&[3, 2, 4])), |t| t.flatten(1), shaped(&[3, 8])),
        case("flatten transposed", transposed(x(&[3, 2, 4]), 1, 2), |t| t.flatten(1), shaped(&[3, 8])),
        case("squeeze", dense(x(&[3, 1, 4])), |t| t.squeeze(1), shaped(&[3, 4])),
        case("unsqueeze first", dense(x(&[3, 4])), |t| t.unsqueeze(0), shaped(&[1, 3, 4])),
        case("unsqueeze last", transposed(x(&[3, 4]), 0, 1), |t| t.unsqueeze(2), shaped(&[3, 4, 1])),
    ]
}

fn moving_dimensions() -> Vec<Case> {
    vec![
        case("permute", dense(x(&[2, 3, 4])), |t| t.permute([2, 0, 1]), |x| oracle::permute(x, &[2, 0, 1])),
        case(
            "permute twice",
            transposed(x(&[2, 3, 4]), 0, 1),
            |t| t.permute([1, 2, 0]),
            |x| oracle::permute(x, &[1, 2, 0]),
        ),
        case("transpose", dense(x(&[7, 17, 3])), |t| t.transpose(0, 2), |x| oracle::transpose(x, 0, 2)),
        case("t", narrowed(x(&[7, 17]), 1), |t| t.t(), |x| oracle::transpose(x, 0, 1)),
    ]
}

fn narrowing_and_repeating() -> Vec<Case> {
    vec![
        case("narrow rows", dense(x(&[7, 5])), |t| t.narrow(0, 2, 3), |x| oracle::narrow(x, 0, 2, 3)),
        case("narrow columns", dense(x(&[7, 5])), |t| t.narrow(1, 4, 1), |x| oracle::narrow(x, 1, 4, 1)),
        case("narrow the middle", dense(x(&[3, 7, 2])), |t| t.narrow(1, 1, 5), |x| oracle::narrow(x, 1, 1, 5)),
        case("narrow a narrow", narrowed(x(&[7, 5]), 0), |t| t.narrow(1, 1, 3), |x| oracle::narrow(x, 1, 1, 3)),
        case("narrow to nothing", dense(x(&[7, 5])), |t| t.narrow(0, 7, 0), |x| oracle::narrow(x, 0, 7, 0)),
        case("broadcast_to rows", dense(x(&[5])), |t| t.broadcast_to([3, 5]), |x| oracle::broadcast(x, &[3, 5])),
        case("broadcast_to columns", dense(x(&[7, 1])), |t| t.broadcast_to([7, 4]), |x| oracle::broadcast(x, &[7, 4])),
        case("broadcast_to a scalar", dense(x(&[])), |t| t.broadcast_to([2, 3]), |x| oracle::broadcast(x, &[2, 3])),
        case("broadcast_to nothing", dense(x(&[1])), |t| t.broadcast_to([0]), |x| oracle::broadcast(x, &[0])),
    ]
}

fn contiguous() -> Vec<Case> {
    let mut cases = Vec::new();
    for input in [
        dense(x(&[7, 17])),
        transposed(x(&[33, 65]), 0, 1),
        transposed(x(&[3, 5, 7]), 0, 2),
        transposed(x(&[2, 3, 2, 3, 2, 3]), 0, 5),
        narrowed(x(&[7, 5]), 1),
        narrowed(x(&[3, 4, 5]), 1),
        broadcast(x(&[7, 1]), &[3, 7, 4]),
        transposed(x(&[0, 4]), 0, 1),
    ] {
        cases.push(case("contiguous", input, |t| t.contiguous(), Nd::clone));
    }
    cases.push(case("copy", dense(x(&[7, 17])), |t| t.copy(), Nd::clone));
    cases.push(case("copy", transposed(x(&[3, 5, 7]), 0, 2), |t| t.copy(), Nd::clone));
    for dtype in [DType::I32, DType::U32] {
        let input = transposed(whole(&[7, 5], 0, 100, 72), 0, 1).of(dtype);
        cases.push(case("contiguous", input, |t| t.contiguous(), Nd::clone).result_dtype(dtype));
    }
    cases
}

/// Returns cases of copies to the host and back.
fn moved() -> Vec<Case> {
    let there_and_back = |t: &Tensor| t.to(Device::cpu())?.to(t.device());
    let mut cases = Vec::new();
    for input in [
        dense(x(&[7, 17])),
        transposed(x(&[7, 5]), 0, 1),
        narrowed(x(&[7, 5]), 1),
        broadcast(x(&[7, 1]), &[7, 4]),
        dense(x(&[])),
        dense(x(&[0, 3])),
    ] {
        cases.push(case("to", input, there_and_back, Nd::clone));
    }
    for dtype in DType::COMPUTED {
        let input = narrowed(whole(&[7, 5], 0, 2, 73), 1).of(dtype);
        cases.push(case(&format!("to {dtype}"), input, there_and_back, Nd::clone).result_dtype(dtype).no_gradient());
    }
    cases
}
