//! Reductions of all elements.

use super::prelude::*;

pub(super) fn cases() -> Vec<Case> {
    [layouts(), element_types(), long(), empty()].into_iter().flatten().collect()
}

/// The element types for which a total is defined, and the type of its result.
#[derive(Clone, Copy, PartialEq)]
enum Rule {
    /// All types but booleans; the result has the operand's type.
    Same,
    /// All types; bytes and booleans become i32.
    Sum,
    /// Floats; the result has the operand's type.
    Floats,
    /// All types, to booleans.
    Truth,
    /// All types, to u32: a position.
    Position,
}

impl Rule {
    fn result(self, dtype: DType) -> Option<DType> {
        match self {
            Rule::Floats => Some(dtype).filter(|dtype| dtype.is_float()),
            Rule::Same => Some(dtype).filter(|&dtype| dtype != DType::Bool),
            Rule::Sum if matches!(dtype, DType::U8 | DType::Bool) => Some(DType::I32),
            Rule::Sum => Some(dtype),
            Rule::Truth => Some(DType::Bool),
            Rule::Position => Some(DType::U32),
        }
    }
}

struct Total {
    name: &'static str,
    op: fn(&Tensor) -> Result<Tensor>,
    /// Computes the total of the elements in row-major order.
    oracle: fn(&[f64]) -> f64,
    rule: Rule,
}

fn truth(holds: bool) -> f64 {
    f64::from(u8::from(holds))
}

fn mean(x: &[f64]) -> f64 {
    x.iter().sum::<f64>() / x.len() as f64
}

fn variance(x: &[f64]) -> f64 {
    let mean = mean(x);
    x.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>() / (x.len() as f64 - 1.0)
}

/// Returns the first position whose element no other element exceeds.
fn position(x: &[f64], exceeds: fn(&f64, &f64) -> bool) -> f64 {
    (0..x.len()).reduce(|best, i| if exceeds(&x[i], &x[best]) { i } else { best }).unwrap_or(0) as f64
}

const TOTALS: &[Total] = &[
    Total { name: "sum_all", op: |x| x.sum_all(), oracle: |x| x.iter().sum(), rule: Rule::Sum },
    Total { name: "prod_all", op: |x| x.prod_all(), oracle: |x| x.iter().product(), rule: Rule::Sum },
    Total { name: "mean_all", op: |x| x.mean_all(), oracle: mean, rule: Rule::Floats },
    Total { name: "var_all", op: |x| x.var_all(), oracle: variance, rule: Rule::Floats },
    Total { name: "std_all", op: |x| x.std_all(), oracle: |x| variance(x).sqrt(), rule: Rule::Floats },
    Total {
        name: "norm_all",
        op: |x| x.norm_all(2.0),
        oracle: |x| x.iter().map(|v| v * v).sum::<f64>().sqrt(),
        rule: Rule::Floats,
    },
    Total {
        name: "max_all",
        op: |x| x.max_all(),
        oracle: |x| x.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        rule: Rule::Same,
    },
    Total {
        name: "min_all",
        op: |x| x.min_all(),
        oracle: |x| x.iter().copied().fold(f64::INFINITY, f64::min),
        rule: Rule::Same,
    },
    Total { name: "argmax_all", op: |x| x.argmax_all(), oracle: |x| position(x, f64::gt), rule: Rule::Position },
    Total { name: "argmin_all", op: |x| x.argmin_all(), oracle: |x| position(x, f64::lt), rule: Rule::Position },
    Total { name: "any_all", op: |x| x.any_all(), oracle: |x| truth(x.iter().any(|v| *v != 0.0)), rule: Rule::Truth },
    Total { name: "all_all", op: |x| x.all_all(), oracle: |x| truth(x.iter().all(|v| *v != 0.0)), rule: Rule::Truth },
];

/// Returns a case, if the total is defined for the operand's type.
fn case(&Total { name, op, oracle, rule }: &Total, what: &str, input: Input) -> Option<Case> {
    let dtype = rule.result(input.dtype)?;
    let oracle = move |x: &[&Nd]| Nd::new(&[], vec![oracle(&x[0].data)]);
    let case = Case::new(format!("{name} {what}"), [input], move |t| op(&t[0]), oracle);
    Some(case.result_dtype(dtype))
}

/// Returns numbers close to 1 of one sign, so that a long product stays finite.
fn x(shape: &[usize]) -> Nd {
    uniform(shape, 0.8, 1.2, 211)
}

fn layouts() -> Vec<Case> {
    let mut cases = Vec::new();
    for total in TOTALS {
        for shape in [&[2][..], &[33, 17], &[257, 3, 2]] {
            cases.extend(case(total, "dense", dense(x(shape))));
        }
        cases.extend(case(total, "transposed", transposed(x(&[7, 5, 3]), 0, 2)));
        cases.extend(case(total, "narrowed", narrowed(x(&[4, 17]), 1)));
        // Equal extremes share their gradient. Differences do not show that.
        let ties = case(total, "broadcast", broadcast(x(&[7, 1]), &[7, 4]));
        cases.extend(ties.map(|case| if total.rule == Rule::Same { case.no_gradient() } else { case }));
        if !matches!(total.name, "var_all" | "std_all") {
            cases.extend(case(total, "of one element", dense(x(&[1]))));
            cases.extend(case(total, "of a scalar", dense(x(&[]))));
        }
    }
    cases
}

fn element_types() -> Vec<Case> {
    let mut cases = Vec::new();
    for total in TOTALS {
        for dtype in DType::COMPUTED {
            // Small integers, some of which are 0, so the product fits in every type.
            let value = if dtype.is_float() { x(&[5, 7]) } else { whole(&[5, 7], 0, 3, 212) };
            let rtol = if dtype == DType::F16 { 2e-3 } else { 1e-2 };
            for input in [dense(value.clone()), transposed(value, 0, 1)] {
                let case = case(total, &dtype.to_string(), input.of(dtype));
                let half = matches!(dtype, DType::F16 | DType::BF16);
                let close =
                    |case: Case| if half && case.result_dtype == dtype { case.within(rtol, rtol) } else { case };
                // In rounded halves, several elements may be the extreme.
                let ties = |case: Case| if half && total.rule == Rule::Same { case.no_gradient() } else { case };
                cases.extend(case.map(close).map(ties));
            }
        }
    }
    for (total, odd) in
        TOTALS.iter().filter(|total| total.rule == Rule::Truth).flat_map(|total| [(total, 0), (total, 1)])
    {
        // One element differs from the others.
        let input = Nd::from_fn(&[7, 5], |i| truth((i == [6, 2]) != (odd == 1)));
        cases.extend(case(total, "with one odd element", dense(input).of(DType::Bool)));
    }
    cases
}

/// Returns cases longer than one workgroup adds.
fn long() -> Vec<Case> {
    let long = |total| case(total, "long", dense(uniform(&[70_001], 0.999, 1.001, 213)));
    TOTALS.iter().filter_map(long).map(|case| case.within(1e-3, 1e-3).no_gradient()).collect()
}

/// Returns the cases of totals that have a value for no elements.
fn empty() -> Vec<Case> {
    let defined = |total: &&Total| ["sum_all", "prod_all", "norm_all", "any_all", "all_all"].contains(&total.name);
    TOTALS.iter().filter(defined).filter_map(|total| case(total, "of nothing", dense(x(&[3, 0])))).collect()
}
