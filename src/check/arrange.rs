//! Concatenation, splitting, repetition and reordering; parts as views; indices.

use super::prelude::*;
use super::views::case;
use crate::{NewAxis, s};

pub(super) fn cases() -> Vec<Case> {
    [parts_are_views(), indices(), together_and_apart(), repeated_and_turned()].into_iter().flatten().collect()
}

fn x(shape: &[usize]) -> Nd {
    signed(shape, 81)
}

/// Returns a function that computes `out[index] = x[f(index)]`.
fn moved(shape: &'static [usize], f: impl Fn(&[usize]) -> Vec<usize>) -> impl Fn(&Nd) -> Nd {
    move |x| Nd::from_fn(shape, |index| x.at(&f(index)))
}

fn parts_are_views() -> Vec<Case> {
    vec![
        case("select", dense(x(&[7, 5, 3])), |t| t.select(1, 4), moved(&[7, 3], |i| vec![i[0], 4, i[1]])),
        case("select last", narrowed(x(&[7, 5]), 1), |t| t.select(1, 0), moved(&[7], |i| vec![i[0], 0])),
        case("slice", dense(x(&[17])), |t| t.slice(0, 2, 17, 5), moved(&[3], |i| vec![2 + 5 * i[0]])),
        case(
            "slice rows",
            transposed(x(&[7, 5]), 0, 1),
            |t| t.slice(0, 0, 7, 2),
            moved(&[4, 5], |i| vec![2 * i[0], i[1]]),
        ),
        case(
            "slice of a slice",
            dense(x(&[33, 2])),
            |t| t.slice(0, 1, 33, 4)?.slice(0, 1, 8, 3),
            moved(&[3, 2], |i| vec![5 + 12 * i[0], i[1]]),
        ),
        case("slice to nothing", dense(x(&[7, 5])), |t| t.slice(1, 5, 5, 2), moved(&[7, 0], <[usize]>::to_vec)),
        case(
            "slice broadcast",
            broadcast(x(&[7, 1]), &[7, 4]),
            |t| t.slice(1, 0, 4, 3),
            moved(&[7, 2], |i| vec![i[0], 3 * i[1]]),
        ),
        case("diagonal", dense(x(&[7, 5])), |t| t.diagonal(0, 0, 1), moved(&[5], |i| vec![i[0], i[0]])),
        case("diagonal above", narrowed(x(&[7, 5]), 1), |t| t.diagonal(2, 0, 1), moved(&[3], |i| vec![i[0], i[0] + 2])),
        case(
            "diagonal below",
            transposed(x(&[7, 5]), 0, 1),
            |t| t.diagonal(-3, 0, 1),
            moved(&[4], |i| vec![i[0] + 3, i[0]]),
        ),
        case(
            "diagonal of each",
            dense(x(&[3, 2, 3])),
            |t| t.diagonal(1, 0, 2),
            moved(&[2, 2], |i| vec![i[1], i[0], i[1] + 1]),
        ),
        case(
            "diagonal of each, swapped",
            dense(x(&[3, 2, 3])),
            |t| t.diagonal(1, 2, 0),
            moved(&[2, 2], |i| vec![i[1] + 1, i[0], i[1]]),
        ),
        case("diagonal beyond", dense(x(&[2, 3])), |t| t.diagonal(-9, 0, 1), moved(&[0], <[usize]>::to_vec)),
        case("diag of a matrix", dense(x(&[3, 3])), |t| t.diag(0), moved(&[3], |i| vec![i[0], i[0]])),
        case(
            "diag of a vector",
            narrowed(x(&[7]), 0),
            |t| t.diag(0),
            |x| Nd::from_fn(&[7, 7], |i| if i[0] == i[1] { x.data[i[0]] } else { 0.0 }),
        ),
        case(
            "diag above",
            dense(x(&[3])),
            |t| t.diag(2),
            |x| Nd::from_fn(&[5, 5], |i| if i[0] + 2 == i[1] { x.data[i[0]] } else { 0.0 }),
        ),
        case(
            "diag below",
            dense(x(&[3])),
            |t| t.diag(-1),
            |x| Nd::from_fn(&[4, 4], |i| if i[0] == i[1] + 1 { x.data[i[1]] } else { 0.0 }),
        ),
        case("diag of nothing", dense(x(&[0])), |t| t.diag(0), moved(&[0, 0], <[usize]>::to_vec)),
        case(
            "movedim",
            dense(x(&[2, 3, 4, 5])),
            |t| t.movedim(3, 1),
            moved(&[2, 5, 3, 4], |i| vec![i[0], i[2], i[3], i[1]]),
        ),
        case("movedim back", dense(x(&[2, 3, 4])), |t| t.movedim(0, 2), moved(&[3, 4, 2], |i| vec![i[2], i[0], i[1]])),
        case("expand", dense(x(&[7, 1])), |t| t.expand([2, 7, 3]), moved(&[2, 7, 3], |i| vec![i[1], 0])),
        case(
            "squeeze_all",
            transposed(x(&[1, 3, 1, 4]), 1, 3),
            |t| t.squeeze_all(),
            moved(&[3, 4], |i| vec![0, i[0], 0, i[1]]),
        ),
    ]
}

fn indices() -> Vec<Case> {
    vec![
        case("i number", dense(x(&[7, 5])), |t| t.i(-1), moved(&[5], |i| vec![6, i[0]])),
        case("i range", dense(x(&[7, 5])), |t| t.i(2..4), moved(&[2, 5], |i| vec![2 + i[0], i[1]])),
        case("i all", dense(x(&[7, 5])), |t| t.i(s![..]), moved(&[7, 5], <[usize]>::to_vec)),
        case("i columns", dense(x(&[7, 5])), |t| t.i(s![.., 1..3]), moved(&[7, 2], |i| vec![i[0], 1 + i[1]])),
        case(
            "i from the end",
            transposed(x(&[7, 5]), 0, 1),
            |t| t.i(s![-3.., ..-2]),
            moved(&[3, 3], |i| vec![4 + i[0], i[1]]),
        ),
        case("i inclusive", dense(x(&[7])), |t| t.i(s![2..=-1]), moved(&[5], |i| vec![2 + i[0]])),
        case(
            "i steps",
            narrowed(x(&[7, 5]), 0),
            |t| t.i(s![1..;2, ..;3]),
            moved(&[3, 2], |i| vec![1 + 2 * i[0], 3 * i[1]]),
        ),
        case(
            "i variables",
            dense(x(&[7, 5])),
            |t| {
                let (a, b) = (1usize, 4u32);
                t.i(s![a..3, b])
            },
            moved(&[2], |i| vec![1 + i[0], 4]),
        ),
        case("i ellipsis", dense(x(&[2, 3, 4])), |t| t.i(s![..., 1]), moved(&[2, 3], |i| vec![i[0], i[1], 1])),
        case(
            "i ellipsis between",
            dense(x(&[2, 3, 4])),
            |t| t.i(s![1, ..., 2..]),
            moved(&[3, 2], |i| vec![1, i[0], 2 + i[1]]),
        ),
        case("i empty ellipsis", dense(x(&[2, 3])), |t| t.i(s![1, ..., 2]), moved(&[], |_| vec![1, 2])),
        case(
            "i new axes",
            dense(x(&[2, 3])),
            |t| t.i(s![NewAxis, 1, NewAxis, .., NewAxis]),
            moved(&[1, 1, 3, 1], |i| vec![1, i[2]]),
        ),
        case(
            "i new axis at the end",
            dense(x(&[2, 3])),
            |t| t.i(s![..., NewAxis]),
            moved(&[2, 3, 1], |i| i[..2].to_vec()),
        ),
        case("i nothing", dense(x(&[2, 3])), |t| t.i(s![2..2]), moved(&[0, 3], <[usize]>::to_vec)),
        case("i of a scalar", dense(x(&[])), |t| t.i(s![...]), moved(&[], <[usize]>::to_vec)),
        case(
            "i of u32",
            dense(whole(&[3, 4], 0, 99, 5)).of(DType::U32),
            |t| t.i(s![.., 3]),
            moved(&[3], |i| vec![i[0], 3]),
        )
        .result_dtype(DType::U32),
    ]
}

fn together_and_apart() -> Vec<Case> {
    let two = |name: &str, a: Input, b: Input, op: fn(&[Tensor]) -> Result<Tensor>, oracle: fn(&Nd, &Nd) -> Nd| {
        Case::new(name, [a, b], op, move |x| oracle(x[0], x[1])).exact()
    };
    let second = |at: usize| {
        move |t: &Tensor, parts: Result<Vec<Tensor>>| -> Result<Tensor> { Ok(parts?.get(at).unwrap_or(t).clone()) }
    };
    let pick = second(1);
    let third = second(2);
    vec![
        two(
            "cat",
            dense(x(&[7, 5])),
            transposed(x(&[7, 3]), 0, 1),
            |t| Tensor::cat(&[&t[0], &t[1]], 1),
            |a, b| Nd::from_fn(&[7, 8], |i| if i[1] < 5 { a.at(i) } else { b.at(&[i[0], i[1] - 5]) }),
        ),
        two(
            "cat",
            dense(x(&[2, 3])),
            dense(x(&[0, 3])),
            |t| Tensor::cat(&[&t[1], &t[0], &t[0]], 0),
            |a, _| Nd::from_fn(&[4, 3], |i| a.at(&[i[0] % 2, i[1]])),
        ),
        two(
            "cat",
            dense(x(&[0, 3])),
            dense(x(&[0, 2])),
            |t| Tensor::cat(&[&t[0], &t[1]], 1),
            |_, _| Nd::new(&[0, 5], vec![]),
        ),
        two(
            "stack",
            dense(x(&[7, 5])),
            narrowed(x(&[7, 5]), 1),
            |t| Tensor::stack(&[&t[0], &t[1]], 0),
            |a, b| Nd::from_fn(&[2, 7, 5], |i| if i[0] == 0 { a.at(&i[1..]) } else { b.at(&i[1..]) }),
        ),
        two(
            "stack",
            dense(x(&[3])),
            broadcast(x(&[1]), &[3]),
            |t| Tensor::stack(&[&t[0], &t[1]], 1),
            |a, b| Nd::from_fn(&[3, 2], |i| if i[1] == 0 { a.at(&i[..1]) } else { b.at(&i[..1]) }),
        ),
        case("split", dense(x(&[7, 5])), move |t| pick(t, t.split(3, 0)), moved(&[3, 5], |i| vec![3 + i[0], i[1]])),
        case("split the rest", dense(x(&[7, 5])), move |t| third(t, t.split(3, 0)), moved(&[1, 5], |i| vec![6, i[1]])),
        case(
            "split_sizes",
            transposed(x(&[7, 5]), 0, 1),
            move |t| pick(t, t.split_sizes(&[1, 4, 0], 1)),
            moved(&[7, 4], |i| vec![i[0], 1 + i[1]]),
        ),
        case("chunk", dense(x(&[7, 5])), move |t| third(t, t.chunk(3, 1)), moved(&[7, 1], |i| vec![i[0], 4])),
    ]
}

fn repeated_and_turned() -> Vec<Case> {
    vec![
        case("repeat", dense(x(&[7, 5])), |t| t.repeat([2, 3]), moved(&[14, 15], |i| vec![i[0] % 7, i[1] % 5])),
        case(
            "repeat a transposed one",
            transposed(x(&[3, 2]), 0, 1),
            |t| t.repeat([2, 1, 3]),
            moved(&[2, 3, 6], |i| vec![i[1], i[2] % 2]),
        ),
        case(
            "repeat in five dimensions",
            dense(x(&[2, 1, 2, 1, 2])),
            |t| t.repeat([2, 2, 2, 2, 2]),
            moved(&[4, 2, 4, 2, 4], |i| vec![i[0] % 2, 0, i[2] % 2, 0, i[4] % 2]),
        ),
        case("repeat no times", dense(x(&[2, 3])), |t| t.repeat([0, 1]), moved(&[0, 3], <[usize]>::to_vec)),
        case("flip", dense(x(&[17])), |t| t.flip([0]), moved(&[17], |i| vec![16 - i[0]])),
        case(
            "flip all",
            transposed(x(&[7, 5, 3]), 0, 2),
            |t| t.flip([2, 0, 1]),
            moved(&[7, 5, 3], |i| vec![6 - i[0], 4 - i[1], 2 - i[2]]),
        ),
        case(
            "flip the middle",
            narrowed(x(&[7, 5, 3]), 1),
            |t| t.flip([1]),
            moved(&[7, 5, 3], |i| vec![i[0], 4 - i[1], i[2]]),
        ),
        case(
            "flip broadcast",
            broadcast(x(&[7, 1]), &[7, 4]),
            |t| t.flip([0, 1]),
            moved(&[7, 4], |i| vec![6 - i[0], 3 - i[1]]),
        ),
        case("flip nothing", dense(x(&[0, 3])), |t| t.flip([0, 1]), moved(&[0, 3], <[usize]>::to_vec)),
        case(
            "flip i32",
            dense(whole(&[257], -9, 9, 4)).of(DType::I32),
            |t| t.flip([0]),
            moved(&[257], |i| vec![256 - i[0]]),
        )
        .result_dtype(DType::I32),
        case("roll", dense(x(&[7, 5])), |t| t.roll(2, 0), moved(&[7, 5], |i| vec![(i[0] + 5) % 7, i[1]])),
        case("roll back", narrowed(x(&[7, 5]), 1), |t| t.roll(-13, 1), moved(&[7, 5], |i| vec![i[0], (i[1] + 3) % 5])),
        case("roll round", dense(x(&[7])), |t| t.roll(14, 0), moved(&[7], <[usize]>::to_vec)),
    ]
}
