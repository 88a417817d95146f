//! Products by other names than matmul: of vectors, by einsum, and attention.

use super::prelude::*;

pub(super) fn cases() -> Vec<Case> {
    [vectors(), einsum()].into_iter().flatten().collect()
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
    let mut row = |equation: &'static str, shapes: &[&[usize]]| {
        let operand = |(i, shape): (usize, &&[usize])| dense(signed(shape, 30 + i as u64));
        let operands: Vec<Input> = shapes.iter().enumerate().map(operand).collect();
        let op = move |t: &[Tensor]| Tensor::einsum(equation, &t.iter().collect::<Vec<_>>());
        cases.push(Case::new(format!("einsum {equation}"), operands, op, move |x| naive(equation, x)));
    };
    row("ij,jk->ik", &[&[7, 5], &[5, 3]]);
    row("bij,bjk->bik", &[&[3, 7, 5], &[3, 5, 2]]);
    row("ij,ij->", &[&[7, 17], &[7, 17]]);
    row("ij->ji", &[&[7, 17]]);
    row("ij->", &[&[7, 17]]);
    row("ii->i", &[&[5, 5]]);
    row("iji->j", &[&[3, 4, 3]]);
    row("i,j->ij", &[&[7], &[5]]);
    row("bhqd,bhkd->bhqk", &[&[2, 3, 4, 5], &[2, 3, 6, 5]]);
    row("nhwc,co->nohw", &[&[2, 3, 4, 5], &[5, 6]]);
    row("ab,bc,cd->ad", &[&[2, 3], &[3, 4], &[4, 5]]);
    row("ik,jk,lk->ijl", &[&[3, 4], &[2, 4], &[5, 4]]);
    row("ij,jk->ik", &[&[7, 1], &[5, 3]]);
    row("ij,kj->k", &[&[7, 5], &[3, 5]]);
    row("ij,jk->ik", &[&[3, 0], &[0, 2]]);
    cases
}

/// Goes through all values of all letters.
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
