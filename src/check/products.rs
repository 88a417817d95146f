//! Products of vectors, einsum, and attention.

use super::prelude::*;
use crate::ops::Attention;

pub(super) fn cases() -> Vec<Case> {
    [vectors(), einsum(), attention()].into_iter().flatten().collect()
}

fn a(shape: &[usize]) -> Nd {
    signed(shape, 21)
}

fn b(shape: &[usize]) -> Nd {
    signed(shape, 22)
}

fn vectors() -> Vec<Case> {
    let dot = |x: &[&Nd]| naive("i,i->", x);
    let mut cases = vec![
        Case::new("mv dense", [dense(a(&[17, 33])), dense(b(&[33]))], |t| t[0].mv(&t[1]), |x| naive("ij,j->i", x)),
        Case::new(
            "mv views",
            [transposed(a(&[7, 5]), 0, 1), narrowed(b(&[5]), 0)],
            |t| t[0].mv(&t[1]),
            |x| naive("ij,j->i", x),
        ),
        Case::new("outer dense", [dense(a(&[7])), dense(b(&[17]))], |t| t[0].outer(&t[1]), |x| naive("i,j->ij", x)),
    ];
    for n in [1, 257, 0] {
        cases.push(Case::new("dot dense", [dense(a(&[n])), dense(b(&[n]))], |t| t[0].dot(&t[1]), dot));
    }
    cases
}

fn einsum() -> Vec<Case> {
    let mut cases = Vec::new();
    let mut push = |equation: &'static str, shapes: &[&[usize]]| {
        let operand = |(i, shape): (usize, &&[usize])| dense(signed(shape, 30 + i as u64));
        let operands: Vec<Input> = shapes.iter().enumerate().map(operand).collect();
        let op = move |t: &[Tensor]| Tensor::einsum(equation, &t.iter().collect::<Vec<_>>());
        cases.push(Case::new(format!("einsum {equation}"), operands, op, move |x| naive(equation, x)));
    };
    push("ij,jk->ik", &[&[7, 5], &[5, 3]]);
    push("bij,bjk->bik", &[&[3, 7, 5], &[3, 5, 2]]);
    push("ij,ij->", &[&[7, 17], &[7, 17]]);
    push("ij->ji", &[&[7, 17]]);
    push("ij->", &[&[7, 17]]);
    push("ii->i", &[&[5, 5]]);
    push("iji->j", &[&[3, 4, 3]]);
    push("i,j->ij", &[&[7], &[5]]);
    push("bhqd,bhkd->bhqk", &[&[2, 3, 4, 5], &[2, 3, 6, 5]]);
    push("nhwc,co->nohw", &[&[2, 3, 4, 5], &[5, 6]]);
    push("ab,bc,cd->ad", &[&[2, 3], &[3, 4], &[4, 5]]);
    push("ik,jk,lk->ijl", &[&[3, 4], &[2, 4], &[5, 4]]);
    push("ij,jk->ik", &[&[7, 1], &[5, 3]]);
    push("ij,kj->k", &[&[7, 5], &[3, 5]]);
    push("ij,jk->ik", &[&[3, 0], &[0, 2]]);
    cases
}

/// The rule by which a case of attention hides keys.
#[derive(Clone, Copy, PartialEq)]
enum Seen {
    All,
    Causal,
    /// By a mask, the fourth operand: booleans, or numbers that are added.
    Masked,
}

fn attention_oracle(x: &[&Nd], seen: Seen, mask: DType, scale: f64) -> Nd {
    let rank = x[1].shape.len();
    let scores = oracle::matmul(x[0], &oracle::transpose(x[1], rank - 2, rank - 1)).map(|v| v * scale);
    let scores = match (seen, mask) {
        (Seen::All, _) => scores,
        (Seen::Causal, _) => Nd::from_fn(&scores.shape, |i| match i {
            [.., query, key] if key > query => f64::NEG_INFINITY,
            _ => scores.at(i),
        }),
        (_, DType::Bool) => oracle::binary(&scores, x[3], |v, seen| if seen != 0.0 { v } else { f64::NEG_INFINITY }),
        _ => oracle::binary(&scores, x[3], |v, added| v + added),
    };
    oracle::matmul(&oracle::softmax(&scores, scores.shape.len() - 1, false), x[2])
}

fn attention_case(what: &str, inputs: Vec<Input>, seen: Seen, scale: Option<f32>) -> Case {
    let width = inputs[0].value.shape.last().copied().unwrap_or(1);
    let factor = scale.map_or((width as f64).sqrt().recip(), f64::from);
    let (dtype, mask) = (inputs[0].dtype, inputs.get(3).map_or(DType::F32, |mask| mask.dtype));
    let op = move |t: &[Tensor]| {
        let mut options = Attention::new();
        if seen == Seen::Causal {
            options = options.causal();
        }
        if let Some(mask) = t.get(3) {
            options = options.mask(mask);
        }
        if let Some(scale) = scale {
            options = options.scale(scale);
        }
        t[0].attention(&t[1], &t[2], &options)
    };
    let oracle = move |x: &[&Nd]| attention_oracle(x, seen, mask, factor);
    Case::new(format!("attention {what}"), inputs, op, oracle).result_dtype(dtype).within(3e-5, 1e-5)
}

fn attention() -> Vec<Case> {
    let q = |shape: &[usize]| signed(shape, 41);
    let k = |shape: &[usize]| signed(shape, 42);
    let v = |shape: &[usize]| signed(shape, 43);
    let all = |l: usize, s: usize| vec![dense(q(&[2, 3, l, 5])), dense(k(&[2, 3, s, 5])), dense(v(&[2, 3, s, 7]))];
    let with = |mut inputs: Vec<Input>, mask: Input| {
        inputs.push(mask);
        inputs
    };
    // Each query can use its first key.
    let seen = |shape: &[usize]| Nd::from_fn(shape, |i| if i.last() == Some(&0) || i[0] % 2 == 1 { 1.0 } else { 0.0 });
    let views = vec![
        transposed(q(&[2, 3, 4, 5]), 1, 2),
        narrowed(k(&[2, 3, 6, 5]), 2),
        broadcast(v(&[2, 1, 6, 1]), &[2, 3, 6, 7]),
    ];
    let broadcasting = vec![dense(q(&[2, 1, 4, 5])), dense(k(&[3, 6, 5])), dense(v(&[6, 7]))];
    let mut cases = vec![
        attention_case("dense", all(4, 6), Seen::All, None),
        attention_case("causal", all(5, 5), Seen::Causal, None),
        attention_case("causal, more keys", all(3, 6), Seen::Causal, None),
        attention_case("scaled", all(4, 6), Seen::All, Some(0.3)),
        attention_case("masked", with(all(4, 6), dense(seen(&[4, 6])).of(DType::Bool)), Seen::Masked, None),
        attention_case("biased", with(all(4, 6), dense(signed(&[3, 1, 6], 44))), Seen::Masked, None),
        attention_case("views", views, Seen::All, None),
        attention_case("broadcasting", broadcasting, Seen::All, None),
        attention_case("of one key", all(4, 1), Seen::Causal, None),
        attention_case("of no query", all(0, 6), Seen::All, None),
        attention_case(
            "long",
            vec![dense(q(&[1, 65, 9])), dense(k(&[1, 257, 9])), dense(v(&[1, 257, 3]))],
            Seen::All,
            None,
        ),
        attention_case(
            "long, causal",
            vec![dense(q(&[1, 70, 9])), dense(k(&[1, 67, 9])), transposed(v(&[1, 67, 5]), 1, 2)],
            Seen::Causal,
            None,
        ),
    ];
    // In one pass, which takes rows in vectors of four.
    for seen in [Seen::All, Seen::Causal] {
        for [batch, l, s, e, o] in [
            [6, 4, 6, 8, 8],
            [1, 1, 1, 4, 4],
            [2, 70, 67, 64, 64],
            [2, 67, 130, 12, 20],
            [3, 130, 5, 8, 64],
            [1, 33, 4096, 32, 32],
        ] {
            let inputs = vec![dense(q(&[batch, l, e])), dense(k(&[batch, s, e])), dense(v(&[batch, s, o]))];
            let case = attention_case("", inputs, seen, None);
            let rule = if seen == Seen::Causal { ", causal" } else { "" };
            let name = format!("attention/fused {batch} of {l} queries, {s} keys of {e}, values of {o}{rule}");
            cases.push(case.named(name).variant("attention", "fused"));
        }
        let views =
            vec![transposed(q(&[2, 3, 4, 8]), 1, 2), dense(k(&[1, 6, 8])), broadcast(v(&[2, 1, 6, 4]), &[2, 3, 6, 4])];
        let rule = if seen == Seen::Causal { ", causal" } else { "" };
        cases.push(
            attention_case("", views, seen, Some(0.3))
                .named(format!("attention/fused views{rule}"))
                .variant("attention", "fused"),
        );
    }
    // A score that no difference may overflow.
    let far =
        vec![dense(q(&[1, 5, 4]).map(|v| 300.0 * v)), dense(k(&[1, 9, 4]).map(|v| 300.0 * v)), dense(v(&[1, 9, 4]))];
    cases.push(
        attention_case("", far, Seen::All, None)
            .named("attention/fused far apart")
            .variant("attention", "fused")
            .within(1e-3, 1e-3),
    );
    for (dtype, tolerance) in [(DType::F16, 5e-3), (DType::BF16, 4e-2)] {
        let halves = all(4, 6).into_iter().map(|input| input.of(dtype)).collect();
        cases.push(attention_case(&dtype.to_string(), halves, Seen::All, None).within(tolerance, tolerance));
    }
    cases
}

/// Adds the products over all values of all labels.
fn naive(equation: &str, x: &[&Nd]) -> Nd {
    let (left, output) = equation.split_once("->").unwrap_or((equation, ""));
    let terms: Vec<&str> = left.split(',').collect();
    let mut letters: Vec<char> = output.chars().collect();
    letters.extend(terms.concat().chars());
    let mut seen = Vec::new();
    letters.retain(|l| {
        !seen.contains(l) && {
            seen.push(*l);
            true
        }
    });
    let size = |letter: char| {
        let sizes = terms.iter().zip(x).flat_map(|(term, x)| term.chars().zip(&x.shape));
        sizes.filter(|(l, _)| *l == letter).map(|(_, s)| *s).fold(1, |a, s| if a == 1 { s } else { a })
    };
    let all: Vec<usize> = letters.iter().map(|&l| size(l)).collect();
    let shape: Vec<usize> = output.chars().map(size).collect();
    let mut out = Nd::from_fn(&shape, |_| 0.0);
    Nd::from_fn(&all, |at| {
        let place = |letter: char| at[letters.iter().position(|l| *l == letter).unwrap_or(0)];
        let mut product = 1.0;
        for (term, x) in terms.iter().zip(x) {
            let own: Vec<usize> = term.chars().zip(&x.shape).map(|(l, &s)| if s == 1 { 0 } else { place(l) }).collect();
            product *= x.at(&own);
        }
        let mut position = 0;
        for (letter, size) in output.chars().zip(&shape) {
            position = position * size + place(letter);
        }
        out.data[position] += product;
        product
    });
    out
}
