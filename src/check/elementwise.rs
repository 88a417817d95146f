//! Functions of one element and of two.

use super::prelude::*;

pub(super) fn cases() -> Vec<Case> {
    [
        unary(),
        more_elements_than_one_row_of_workgroups(),
        what_is_no_number(),
        binary(),
        whole_numbers(),
        eq(),
        to_dtype(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

type Unary = (&'static str, fn(&Tensor) -> Result<Tensor>, fn(f64) -> f64, [f64; 2]);
type Binary = (&'static str, fn(&Tensor, &Tensor) -> Result<Tensor>, fn(f64, f64) -> f64);

/// Name, op, oracle, and where its operands lie.
const UNARY: [Unary; 7] = [
    ("neg", |x| x.neg(), |v| -v, [-2.0, 2.0]),
    ("exp", |x| x.exp(), f64::exp, [-3.0, 3.0]),
    ("log", |x| x.log(), f64::ln, [0.2, 4.0]),
    ("sqrt", |x| x.sqrt(), f64::sqrt, [0.2, 4.0]),
    ("relu", |x| x.relu(), |v| v.max(0.0), [-2.0, 2.0]),
    ("add_scalar", |x| x.add_scalar(1.5), |v| v + 1.5, [-2.0, 2.0]),
    ("mul_scalar", |x| x.mul_scalar(-2.5), |v| v * -2.5, [-2.0, 2.0]),
];

const BINARY: [Binary; 4] = [
    ("add", |a, b| a + b, |a, b| a + b),
    ("sub", |a, b| a - b, |a, b| a - b),
    ("mul", |a, b| a * b, |a, b| a * b),
    ("div", |a, b| a / b, |a, b| a / b),
];

fn unary() -> Vec<Case> {
    let mut cases = Vec::new();
    for (name, op, f, [lo, hi]) in UNARY {
        let mut row = |layout: &str, input: Input| {
            cases.push(Case::new(format!("{name} {layout}"), [input], move |t| op(&t[0]), move |x| x[0].map(f)));
        };
        let x = |shape: &[usize]| uniform(shape, lo, hi, 1).map(|v| if v.abs() < 0.01 { 0.5 } else { v });
        for shape in [&[][..], &[1], &[7], &[17, 33], &[257], &[0], &[3, 0, 2]] {
            row("dense", dense(x(shape)));
        }
        row("transposed", transposed(x(&[7, 17]), 0, 1));
        row("narrowed", narrowed(x(&[17]), 0));
        row("narrowed with gaps", narrowed(x(&[3, 7]), 1));
        row("broadcast", broadcast(x(&[7, 1]), &[2, 7, 3]));
    }
    cases
}

/// One invocation per element, and more elements than 65 535 workgroups of one dimension hold.
fn more_elements_than_one_row_of_workgroups() -> Vec<Case> {
    let x = uniform(&[65_535 * 64 + 77], -1.0, 1.0, 2);
    let cases = [
        Case::new("relu large", [dense(x.clone())], |t| t[0].relu(), |x| x[0].map(|v| v.max(0.0))),
        Case::new("add large", [dense(x.clone()), dense(x)], |t| &t[0] + &t[1], |x| x[0].map(|v| 2.0 * v)),
    ];
    cases.map(|case| case.exact().no_gradient().only(&["cpu", "soft:0", "soft:3"])).into()
}

fn what_is_no_number() -> Vec<Case> {
    let odd = Nd::new(&[4], vec![f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1.0]);
    let cases = [
        Case::new("neg no number", [dense(odd.clone())], |t| t[0].neg(), |x| x[0].map(|v| -v)),
        Case::new("mul_scalar no number", [dense(odd.clone())], |t| t[0].mul_scalar(2.0), |x| x[0].map(|v| v * 2.0)),
        Case::new("add no number", [dense(odd.clone()), dense(odd)], |t| &t[0] + &t[1], |x| x[0].map(|v| v + v)),
    ];
    cases.map(Case::no_gradient).into()
}

fn binary() -> Vec<Case> {
    let mut cases = Vec::new();
    for (name, op, f) in BINARY {
        let mut row = |layout: &str, a: Input, b: Input| {
            let oracle = move |x: &[&Nd]| oracle::binary(x[0], x[1], f);
            cases.push(Case::new(format!("{name} {layout}"), [a, b], move |t| op(&t[0], &t[1]), oracle));
        };
        let (a, b) = (|shape: &[usize]| signed(shape, 3), |shape: &[usize]| signed(shape, 4));
        for shape in [&[][..], &[1], &[7, 17], &[257], &[33, 0]] {
            row("same shape", dense(a(shape)), dense(b(shape)));
        }
        for (left, right) in [
            (&[7, 1][..], &[1, 17][..]),
            (&[7, 17], &[17]),
            (&[], &[3, 5]),
            (&[3, 5], &[1]),
            (&[2, 1, 3, 1], &[5, 1, 4]),
            (&[0, 3], &[1]),
            (&[1, 3], &[0, 1]),
        ] {
            row("broadcasting", dense(a(left)), dense(b(right)));
        }
        row("left transposed", transposed(a(&[7, 17]), 0, 1), dense(b(&[7, 17])));
        row("right transposed", dense(a(&[3, 5, 4])), transposed(b(&[3, 5, 4]), 0, 2));
        row("narrowed", narrowed(a(&[17]), 0), dense(b(&[17])));
        row("narrowed with gaps", narrowed(a(&[3, 7]), 1), narrowed(b(&[7]), 0));
        row("strides of 0", broadcast(a(&[5, 1]), &[5, 6]), broadcast(b(&[6]), &[5, 6]));
        row("six dimensions", transposed(a(&[2, 3, 2, 2, 3, 2]), 1, 4), dense(b(&[3, 1, 2, 1, 2])));
    }
    cases
}

fn whole_numbers() -> Vec<Case> {
    let mut cases = Vec::new();
    for (dtype, low) in [(DType::I32, -40), (DType::U32, 0)] {
        for (name, op, f) in BINARY {
            // Division truncates; u32 differences must not fall below 0.
            let a = whole(&[7, 17], low.max(0) + 50, 90, 5);
            let b = whole(&[17], low, 50, 6).map(|v| if v == 0.0 { 1.0 } else { v });
            let inputs = [dense(a).of(dtype), dense(b).of(dtype)];
            let oracle = move |x: &[&Nd]| oracle::binary(x[0], x[1], f).map(f64::trunc);
            cases.push(Case::new(format!("{name} {dtype}"), inputs, move |t| op(&t[0], &t[1]), oracle).gives(dtype));
        }
    }
    cases
}

fn eq() -> Vec<Case> {
    let same = |x: &[&Nd]| oracle::binary(x[0], x[1], |a, b| f64::from(u8::from(a == b)));
    let mut cases = Vec::new();
    for dtype in [DType::F32, DType::I32, DType::U32] {
        for (a, b) in [(&[33][..], &[33][..]), (&[7, 5], &[5]), (&[1], &[1]), (&[0], &[0])] {
            let inputs = [dense(whole(a, 0, 3, 7)).of(dtype), dense(whole(b, 0, 3, 8)).of(dtype)];
            cases.push(
                Case::new(format!("eq {dtype}"), inputs, |t| t[0].eq(&t[1]), same).gives(dtype).exact().no_gradient(),
            );
        }
    }
    cases
}

fn to_dtype() -> Vec<Case> {
    let mut cases = Vec::new();
    let numbers = uniform(&[7, 5], 0.0, 100.0, 9);
    for from in DType::ALL {
        for to in DType::ALL {
            for input in [dense(numbers.clone()), transposed(numbers.clone(), 0, 1), narrowed(numbers.clone(), 1)] {
                let name = format!("to_dtype {from} to {to}");
                let case = Case::new(name, [input.of(from)], move |t| t[0].to_dtype(to), move |x| x[0].rounded(to));
                cases.push(case.gives(to).exact().no_gradient());
            }
        }
    }
    let negative = Nd::new(&[3], vec![-1.75, -0.5, 2.9]);
    let truncated = |x: &[&Nd]| x[0].map(f64::trunc);
    cases.push(
        Case::new("to_dtype towards 0", [dense(negative)], |t| t[0].to_dtype(DType::I32), truncated).gives(DType::I32),
    );
    cases.push(
        Case::new("to_dtype f32 stays", [dense(numbers)], |t| t[0].to_dtype(DType::F32), |x| x[0].clone()).exact(),
    );
    cases
}
