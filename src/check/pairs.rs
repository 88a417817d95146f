//! Functions of two elements, and the selection of one of two.

use super::prelude::*;

pub(super) fn cases() -> Vec<Case> {
    [
        layouts(),
        halves(),
        everywhere(),
        whole_numbers(),
        bits(),
        mixed(),
        comparisons(),
        verdicts(),
        where_cond(),
        large(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

type Binary = (&'static str, fn(&Tensor, &Tensor) -> Result<Tensor>, fn(f64, f64) -> f64);

/// Computes Python's remainder.
fn rem(a: f64, b: f64) -> f64 {
    let rest = a % b;
    if rest != 0.0 && (rest < 0.0) != (b < 0.0) { rest + b } else { rest }
}

fn larger(a: f64, b: f64) -> f64 {
    if a > b || a.is_nan() { a } else { b }
}

fn smaller(a: f64, b: f64) -> f64 {
    if a < b || a.is_nan() { a } else { b }
}

const ARITHMETIC: [Binary; 4] = [
    ("add", |a, b| a + b, |a, b| a + b),
    ("sub", |a, b| a - b, |a, b| a - b),
    ("mul", |a, b| a * b, |a, b| a * b),
    ("div", |a, b| a / b, |a, b| a / b),
];

/// The functions with steps: a half may be on one, where the oracle's difference is not the gradient.
const STEPS: [Binary; 4] = [
    ("rem", |a, b| a.rem(b), rem),
    ("fmod", |a, b| a.fmod(b), |a, b| a % b),
    ("div_floor", |a, b| a.div_floor(b), |a, b| (a / b).floor()),
    ("div_trunc", |a, b| a.div_trunc(b), |a, b| (a / b).trunc()),
];

const OTHERS: [Binary; 3] = [
    ("maximum", |a, b| a.maximum(b), larger),
    ("minimum", |a, b| a.minimum(b), smaller),
    ("atan2", |a, b| a.atan2(b), f64::atan2),
];

fn layouts() -> Vec<Case> {
    let mut cases = Vec::new();
    for (name, op, f) in ARITHMETIC.into_iter().chain(STEPS).chain(OTHERS) {
        let mut push = |layout: &str, a: Input, b: Input| {
            let oracle = move |x: &[&Nd]| oracle::binary(x[0], x[1], f);
            cases.push(Case::new(format!("{name} {layout}"), [a, b], move |t| op(&t[0], &t[1]), oracle));
        };
        let (a, b) = (|shape: &[usize]| signed(shape, 3), |shape: &[usize]| signed(shape, 4));
        for shape in [&[][..], &[1], &[7, 17], &[257], &[33, 0]] {
            push("same shape", dense(a(shape)), dense(b(shape)));
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
            push("broadcasting", dense(a(left)), dense(b(right)));
        }
        push("left transposed", transposed(a(&[7, 17]), 0, 1), dense(b(&[7, 17])));
        push("right transposed", dense(a(&[3, 5, 4])), transposed(b(&[3, 5, 4]), 0, 2));
        push("narrowed", narrowed(a(&[17]), 0), dense(b(&[17])));
        push("narrowed with gaps", narrowed(a(&[3, 7]), 1), narrowed(b(&[7]), 0));
        push("strides of 0", broadcast(a(&[5, 1]), &[5, 6]), broadcast(b(&[6]), &[5, 6]));
        push("six dimensions", transposed(a(&[2, 3, 2, 2, 3, 2]), 1, 4), dense(b(&[3, 1, 2, 1, 2])));
    }
    for (left, right) in [(&[7, 17][..], &[7, 17][..]), (&[7, 1], &[17]), (&[257], &[]), (&[0], &[1])] {
        let inputs = [dense(uniform(left, 0.2, 3.0, 3)), dense(uniform(right, -3.0, 3.0, 4))];
        let oracle = |x: &[&Nd]| oracle::binary(x[0], x[1], f64::powf);
        cases.push(Case::new("pow", inputs, |t| t[0].pow(&t[1]), oracle).within(0.0, 2e-6));
    }
    cases
}

/// Returns the cases that are computed in f32 and stored as halves.
fn halves() -> Vec<Case> {
    let mut cases = Vec::new();
    for (dtype, rtol) in [(DType::F16, 1e-3), (DType::BF16, 8e-3)] {
        let steps = STEPS.into_iter().map(|row| (row, true));
        let smooth = ARITHMETIC.into_iter().chain(OTHERS).map(|row| (row, false));
        for ((name, op, f), has_steps) in steps.chain(smooth) {
            let inputs = [transposed(signed(&[7, 5], 3), 0, 1).of(dtype), narrowed(signed(&[5], 4), 0).of(dtype)];
            let oracle = move |x: &[&Nd]| oracle::binary(x[0], x[1], f);
            let case = Case::new(format!("{name} {dtype}"), inputs, move |t| op(&t[0], &t[1]), oracle);
            let case = case.result_dtype(dtype).within(rtol, rtol);
            cases.push(if has_steps { case.no_gradient() } else { case });
        }
        let inputs = [dense(uniform(&[7, 1], 0.2, 3.0, 3)).of(dtype), dense(uniform(&[5], -3.0, 3.0, 4)).of(dtype)];
        let oracle = |x: &[&Nd]| oracle::binary(x[0], x[1], f64::powf);
        let case = Case::new(format!("pow {dtype}"), inputs, |t| t[0].pow(&t[1]), oracle);
        cases.push(case.result_dtype(dtype).within(rtol, rtol));
    }
    cases
}

/// Returns all pairs of numbers of many sizes and signs, infinities and NaN.
fn operands() -> [Nd; 2] {
    let mut all = vec![f64::NAN, f64::INFINITY, 0.0, 0.1, 0.5, 1.0, 2.0, 3.0, 5.0, 7.5, 10.0, 127.0, 1e4, 16_777_217.0];
    all.extend((-12..13).map(|i| 1.37 * 10f64.powi(i * 3)));
    let negative: Vec<f64> = all.iter().map(|v| -v).collect();
    all.extend(negative);
    let count = all.len();
    [Nd::new(&[count, 1], all.clone()).rounded(DType::F32), Nd::new(&[count], all).rounded(DType::F32)]
}

fn everywhere() -> Vec<Case> {
    let smallest = f64::from(f32::MIN_POSITIVE);
    let rows: [(Binary, f64); 7] = [
        (("pow", |a, b| a.pow(b), f64::powf), 2e-6),
        (("rem", |a, b| a.rem(b), |a, b| f64::from(f32_rem(a as f32, b as f32))), 0.0),
        (("fmod", |a, b| a.fmod(b), |a, b| a % b), 0.0),
        (("maximum", |a, b| a.maximum(b), larger), 0.0),
        (("minimum", |a, b| a.minimum(b), smaller), 0.0),
        (("atan2", |a, b| a.atan2(b), f64::atan2), 1e-6),
        (("div", |a, b| a / b, |a, b| a / b), 1e-6),
    ];
    let case = |((name, op, f), rtol): (Binary, f64)| {
        let oracle = move |x: &[&Nd]| oracle::binary(x[0], x[1], f).rounded(DType::F32);
        let [a, b] = operands();
        let case = Case::new(format!("{name} everywhere"), [dense(a), dense(b)], move |t| op(&t[0], &t[1]), oracle);
        case.within(smallest, rtol).no_gradient()
    };
    rows.into_iter().map(case).collect()
}

/// Computes Python's remainder in f32: the sum with the divisor is rounded.
fn f32_rem(a: f32, b: f32) -> f32 {
    let rest = a % b;
    if rest != 0.0 && (rest < 0.0) != (b < 0.0) { rest + b } else { rest }
}

fn whole_numbers() -> Vec<Case> {
    let rows: [Binary; 10] = [
        ("add", |a, b| a + b, |a, b| a + b),
        ("sub", |a, b| a - b, |a, b| a - b),
        ("mul", |a, b| a * b, |a, b| a * b),
        ("div_trunc", |a, b| a.div_trunc(b), |a, b| if b == 0.0 { a } else { (a / b).trunc() }),
        ("div_floor", |a, b| a.div_floor(b), |a, b| if b == 0.0 { a } else { (a / b).floor() }),
        ("rem", |a, b| a % b, |a, b| if b == 0.0 { 0.0 } else { rem(a, b) }),
        ("fmod", |a, b| a.fmod(b), |a, b| if b == 0.0 { 0.0 } else { a % b }),
        ("pow", |a, b| a.rem(4)?.pow(&b.rem(7)?), |a, b| rem(a, 4.0).powf(rem(b, 7.0))),
        ("maximum", |a, b| a.maximum(b), f64::max),
        ("minimum", |a, b| a.minimum(b), f64::min),
    ];
    let mut cases = Vec::new();
    for dtype in [DType::I32, DType::U32, DType::U8] {
        for (name, op, f) in rows {
            // Differences of unsigned numbers must not be below 0, and bytes wrap around.
            let (low, high) = if dtype == DType::I32 { (-40, 50) } else { (0, 16) };
            let a = whole(&[7, 17], if dtype == DType::I32 { -90 } else { high }, if low < 0 { 90 } else { 17 }, 5);
            let inputs = [dense(a).of(dtype), dense(whole(&[17], low, high, 6)).of(dtype)];
            let oracle = move |x: &[&Nd]| {
                oracle::binary(x[0], x[1], f).map(move |v| if dtype == DType::U8 { v % 256.0 } else { v })
            };
            cases.push(
                Case::new(format!("{name} {dtype}"), inputs, move |t| op(&t[0], &t[1]), oracle).result_dtype(dtype),
            );
        }
        let inputs = [dense(whole(&[33], 0, 99, 5)).of(dtype), dense(whole(&[33], 1, 9, 6)).of(dtype)];
        let oracle = |x: &[&Nd]| oracle::binary(x[0], x[1], |a, b| a / b);
        cases.push(Case::new(format!("div {dtype}"), inputs, |t| &t[0] / &t[1], oracle).within(0.0, 1e-6));
    }
    cases
}

/// Returns cases of functions of bits. Bytes are computed as larger numbers and lose what they cannot hold.
fn bits() -> Vec<Case> {
    type Bits = (&'static str, fn(&Tensor, &Tensor) -> Result<Tensor>, fn(i64, i64) -> i64);
    let logical: [Bits; 3] = [
        ("bitwise_and", |a, b| a.bitwise_and(b), |a, b| a & b),
        ("bitwise_or", |a, b| a.bitwise_or(b), |a, b| a | b),
        ("bitwise_xor", |a, b| a.bitwise_xor(b), |a, b| a ^ b),
    ];
    let shifts: [Bits; 2] = [
        ("bitwise_left_shift", |a, b| a.bitwise_left_shift(b), |a, b| if (0..32).contains(&b) { a << b } else { 0 }),
        ("bitwise_right_shift", |a, b| a.bitwise_right_shift(b), |a, b| a >> if (0..32).contains(&b) { b } else { 32 }),
    ];
    let mut cases = Vec::new();
    for dtype in [DType::I32, DType::U32, DType::U8, DType::Bool] {
        let kept = move |v: i64| match dtype {
            DType::I32 => f64::from(v as i32),
            DType::U32 => f64::from(v as u32),
            _ => f64::from(v as u8),
        };
        let low = if dtype == DType::I32 { -3 } else { 0 };
        let a = dense(whole(&[7, 17], 40 * low, 130, 5)).of(dtype);
        let shifts = if dtype == DType::Bool { &[][..] } else { &shifts };
        for &(name, op, f) in logical.iter().chain(shifts) {
            let inputs = [a.clone(), dense(whole(&[17], low, 40, 6)).of(dtype)];
            let oracle = move |x: &[&Nd]| oracle::binary(x[0], x[1], |a, b| kept(f(a as i64, b as i64)));
            let case = Case::new(format!("{name} {dtype}"), inputs, move |t| op(&t[0], &t[1]), oracle);
            cases.push(case.result_dtype(dtype));
        }
        let not = move |x: &[&Nd]| x[0].map(|v| if dtype == DType::Bool { 1.0 - v } else { kept(!(v as i64)) });
        let case = Case::new(format!("bitwise_not {dtype}"), [a], |t| t[0].bitwise_not(), not);
        cases.push(case.result_dtype(dtype));
    }
    cases
}

/// Returns cases with operands of two types, which are promoted to one of them or to a third.
fn mixed() -> Vec<Case> {
    let mut cases = Vec::new();
    for a in DType::COMPUTED {
        for b in DType::COMPUTED {
            let Ok(meet) = a.promote(b) else { continue };
            let inputs = [dense(whole(&[7, 5], 0, 6, 5)).of(a), transposed(whole(&[7, 5], 0, 6, 6), 0, 1).of(b)];
            let truth = meet == DType::Bool;
            let oracle = move |x: &[&Nd]| oracle::binary(x[0], x[1], |a, b| if truth { a.max(b) } else { a + b });
            let case = Case::new(format!("add {a} {b}"), inputs, |t| &t[0] + &t[1], oracle);
            cases.push(case.result_dtype(meet).exact().no_gradient());
        }
    }
    cases
}

fn comparisons() -> Vec<Case> {
    type Compare = (&'static str, fn(&Tensor, &Tensor) -> Result<Tensor>, fn(f64, f64) -> bool);
    let rows: [Compare; 9] = [
        ("eq", |a, b| a.eq(b), |a, b| a == b),
        ("ne", |a, b| a.ne(b), |a, b| a != b),
        ("lt", |a, b| a.lt(b), |a, b| a < b),
        ("le", |a, b| a.le(b), |a, b| a <= b),
        ("gt", |a, b| a.gt(b), |a, b| a > b),
        ("ge", |a, b| a.ge(b), |a, b| a >= b),
        ("logical_and", |a, b| a.logical_and(b), |a, b| a != 0.0 && b != 0.0),
        ("logical_or", |a, b| a.logical_or(b), |a, b| a != 0.0 || b != 0.0),
        ("logical_xor", |a, b| a.logical_xor(b), |a, b| (a != 0.0) != (b != 0.0)),
    ];
    let mut cases = Vec::new();
    for (name, op, f) in rows {
        let mut push = |what: &str, inputs: [Input; 2]| {
            let oracle = move |x: &[&Nd]| oracle::binary(x[0], x[1], |a, b| f64::from(u8::from(f(a, b))));
            let case = Case::new(format!("{name} {what}"), inputs, move |t| op(&t[0], &t[1]), oracle);
            cases.push(case.result_dtype(DType::Bool));
        };
        for dtype in DType::COMPUTED {
            for (a, b) in [(&[33][..], &[33][..]), (&[7, 5], &[5]), (&[1], &[1]), (&[0], &[0])] {
                let inputs = [dense(whole(a, 0, 3, 7)).of(dtype), dense(whole(b, 0, 3, 8)).of(dtype)];
                push(&dtype.to_string(), inputs);
            }
        }
        let [a, b] = operands();
        push("everywhere", [dense(a), dense(b)]);
        if !name.starts_with("logical") {
            // No type holds the values of both.
            let signed = Nd::new(&[5], vec![-1.0, -2_147_483_648.0, 0.0, 7.0, 2_147_483_647.0]);
            let unsigned = Nd::new(&[6, 1], vec![0.0, 7.0, 2_147_483_647.0, 2_147_483_648.0, 4_294_967_040.0, 1.0]);
            push("i32 u32", [dense(signed.clone()).of(DType::I32), dense(unsigned.clone()).of(DType::U32)]);
            push("u32 i32", [dense(unsigned).of(DType::U32), dense(signed).of(DType::I32)]);
        }
    }
    cases
}

/// Returns cases of one verdict over all elements.
fn verdicts() -> Vec<Case> {
    let mut cases = Vec::new();
    let mut push = |name: String, op: fn(&Tensor, &Tensor) -> Result<bool>, inputs: [Input; 2], expected: bool| {
        let op = move |t: &[Tensor]| Tensor::scalar(op(&t[0], &t[1])?, t[0].device());
        let oracle = move |_: &[&Nd]| Nd::new(&[], vec![f64::from(u8::from(expected))]);
        cases.push(Case::new(name, inputs, op, oracle).result_dtype(DType::Bool).no_gradient());
    };
    for dtype in DType::COMPUTED {
        let ones = |last: f64| Nd::from_fn(&[7, 5], |i| if i == [6, 4] { last } else { 1.0 });
        for last in [0.0, 1.0] {
            let inputs = [dense(ones(1.0)).of(dtype), dense(ones(last)).of(dtype)];
            push(format!("equal {dtype}"), |x, y| x.equal(y), inputs, last == 1.0);
        }
    }
    push(
        "equal shapes".into(),
        |x, y| x.equal(y),
        [dense(whole(&[6], 0, 1, 1)), dense(whole(&[2, 3], 0, 1, 1))],
        false,
    );
    push(
        "equal nothing".into(),
        |x, y| x.equal(y),
        [dense(whole(&[0, 3], 0, 1, 1)), dense(whole(&[0, 3], 0, 1, 1))],
        true,
    );
    let (infinite, nan) = (f64::INFINITY, f64::NAN);
    for (x, y, expected) in [
        (1000.0, 1000.5, true),
        (1000.0, 1001.5, false),
        (0.0, 0.0005, true),
        (infinite, infinite, true),
        (infinite, -infinite, false),
        (1.0, infinite, false),
        (infinite, 1.0, false),
        (3e38, -3e38, false),
        (nan, nan, false),
    ] {
        let inputs = [dense(Nd::new(&[2, 1], vec![1.0, x])), dense(Nd::new(&[2, 3], vec![1.0, 1.0, 1.0, y, y, y]))];
        push(format!("allclose {x} {y}"), |x, y| x.allclose(y, 1e-3, 1e-3), inputs, expected);
    }
    for (dtype, expected) in [(DType::F16, true), (DType::BF16, true), (DType::F32, false)] {
        let inputs = [dense(Nd::new(&[1], vec![1.0])).of(dtype), dense(Nd::new(&[1], vec![1.0001])).of(dtype)];
        push(format!("allclose {dtype}"), |x, y| x.allclose(y, 1e-5, 0.0), inputs, expected);
    }
    cases
}

fn where_cond() -> Vec<Case> {
    let choose = |x: &[&Nd]| {
        let condition = oracle::binary(x[0], &oracle::binary(x[1], x[2], |_, _| 0.0), |c, _| c);
        let both = |v: &Nd| oracle::broadcast(v, &condition.shape);
        let (a, b) = (both(x[1]), both(x[2]));
        let chosen = condition.data.iter().zip(a.data.iter().zip(&b.data));
        Nd::new(&condition.shape, chosen.map(|(&c, (&a, &b))| if c != 0.0 { a } else { b }).collect())
    };
    let mut cases = Vec::new();
    let mut push = |name: &str, inputs: [Input; 3], dtype: DType| {
        let case = Case::new(format!("where_cond {name}"), inputs, |t| Tensor::where_cond(&t[0], &t[1], &t[2]), choose);
        let case = case.result_dtype(dtype);
        cases.push(if name == "no number" || dtype == DType::F16 { case.no_gradient() } else { case });
    };
    let (c, a, b) = (|s: &[usize]| whole(s, 0, 2, 1), |s: &[usize]| signed(s, 2), |s: &[usize]| signed(s, 3));
    for [of_c, of_a, of_b] in [
        [&[257][..], &[257][..], &[257][..]],
        [&[7, 17], &[17], &[7, 1]],
        [&[], &[3, 5], &[5]],
        [&[5, 1, 1], &[3, 1], &[4]],
        [&[7, 5], &[], &[]],
        [&[0, 3], &[1], &[3]],
    ] {
        push("broadcasting", [dense(c(of_c)).of(DType::Bool), dense(a(of_a)), dense(b(of_b))], DType::F32);
    }
    let odd = Nd::new(&[4], vec![f64::NAN, f64::INFINITY, f64::NAN, 1.0]);
    let mask = Nd::new(&[4], vec![0.0, 1.0, 1.0, 0.0]);
    push("no number", [dense(mask.clone()).of(DType::I32), dense(odd.clone()), dense(b(&[4]))], DType::F32);
    push(
        "strided",
        [transposed(c(&[7, 17]), 0, 1).of(DType::U8), narrowed(a(&[7, 17]), 1), dense(b(&[7, 17]))],
        DType::F32,
    );
    push("large", [dense(c(&[300, 1])).of(DType::Bool), dense(a(&[300, 70])), dense(b(&[70]))], DType::F32);
    for (x, y) in
        [(DType::I32, DType::I32), (DType::U8, DType::U8), (DType::Bool, DType::Bool), (DType::F16, DType::I32)]
    {
        let inputs = [
            dense(c(&[7, 5])).of(DType::Bool),
            dense(whole(&[7, 5], 0, 9, 2)).of(x),
            dense(whole(&[5], 0, 9, 3)).of(y),
        ];
        push(&format!("{x} {y}"), inputs, x);
    }
    cases
}

/// Returns a case with one invocation per element, and more elements than 65 535 workgroups of one dimension hold.
fn large() -> Vec<Case> {
    let x = uniform(&[65_535 * 64 + 77], -1.0, 1.0, 2);
    let add = Case::new("add large", [dense(x.clone()), dense(x)], |t| &t[0] + &t[1], |x| x[0].map(|v| 2.0 * v));
    vec![add.exact().no_gradient()]
}
