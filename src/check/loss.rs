//! Losses.

use super::prelude::*;
use crate::nn::{self, CrossEntropyLoss, Reduction};

pub(super) fn cases() -> Vec<Case> {
    [cross_entropy(), likelihood(), distances()].into_iter().flatten().collect()
}

/// The options of a case. `ignored` is one of the labels too.
#[derive(Clone, Copy)]
struct Options {
    reduction: Reduction,
    ignored: Option<i64>,
    smoothing: f64,
    weighted: bool,
}

impl Options {
    fn all() -> Vec<Options> {
        let mut all = Vec::new();
        for reduction in [Reduction::Mean, Reduction::Sum, Reduction::None] {
            for ignored in [None, Some(1)] {
                for (smoothing, weighted) in [(0.0, false), (0.0, true), (0.25, false), (0.25, true)] {
                    all.push(Options { reduction, ignored, smoothing, weighted });
                }
            }
        }
        all
    }

    /// Computes PyTorch's formula from log-probabilities `[N, C, D]`, labels `[N, D]` and weights `[C]`.
    fn oracle(self, x: &Nd, labels: &Nd, weights: &Nd) -> Nd {
        let (classes, inner) = (x.shape[1], x.shape[2..].iter().product::<usize>());
        let weight = |c: usize| if self.weighted { weights.data[c] } else { 1.0 };
        let mut losses = labels.clone();
        let mut total = 0.0;
        for (n, loss) in losses.data.iter_mut().enumerate() {
            let label = *loss as usize;
            if self.ignored == Some(label as i64) {
                *loss = 0.0;
                continue;
            }
            let at = |c: usize| x.data[(n / inner * classes + c) * inner + n % inner];
            let spread: f64 = (0..classes).map(|c| -weight(c) * at(c)).sum();
            *loss = -(1.0 - self.smoothing) * weight(label) * at(label) + self.smoothing / classes as f64 * spread;
            total += weight(label);
        }
        match self.reduction {
            Reduction::None => losses,
            Reduction::Sum => Nd::new(&[], vec![losses.data.iter().sum()]),
            Reduction::Mean => Nd::new(&[], vec![losses.data.iter().sum::<f64>() / total]),
        }
    }
}

fn cross_entropy() -> Vec<Case> {
    let mut cases = Vec::new();
    for options in Options::all() {
        let Options { reduction, ignored, smoothing, weighted } = options;
        let mut push = |scores: Input, dtype: DType| {
            let mut shape = scores.value.shape.clone();
            let classes = shape.remove(1);
            let labels = dense(whole(&shape, 0, classes as i32, 192)).of(dtype);
            let weights = uniform(&[classes], 0.5, 2.0, 193);
            let given = weights.clone();
            let op = move |t: &[Tensor]| {
                let mut loss = CrossEntropyLoss::new().reduction(reduction).label_smoothing(smoothing as f32);
                if let Some(label) = ignored {
                    loss = loss.ignore_index(label);
                }
                if weighted {
                    loss = loss.weight(given.tensor(DType::F32, t[0].device())?);
                }
                loss.forward(&t[0], &t[1])
            };
            let oracle = move |x: &[&Nd]| options.oracle(&oracle::softmax(x[0], 1, true), x[1], &weights);
            cases.push(Case::new("cross_entropy with options", [scores, labels], op, oracle).within(2e-5, 2e-5));
        };
        let x = |shape: &[usize]| uniform(shape, -4.0, 4.0, 191);
        push(dense(x(&[7, 3])), DType::U32);
        push(transposed(x(&[5, 17]), 0, 1), DType::I32);
        push(dense(x(&[2, 4, 3, 5])), DType::U8);
        push(narrowed(x(&[3, 5, 7]), 2), DType::U32);
    }
    cases
}

fn likelihood() -> Vec<Case> {
    let mut cases = Vec::new();
    for reduction in [Reduction::Mean, Reduction::Sum, Reduction::None] {
        let options = Options { reduction, ignored: None, smoothing: 0.0, weighted: false };
        for shape in [&[7, 3][..], &[33, 10], &[2, 4, 3]] {
            let labels = [&shape[..1], &shape[2..]].concat();
            let inputs =
                [dense(uniform(shape, -4.0, 0.0, 194)), dense(whole(&labels, 0, shape[1] as i32, 195)).of(DType::U32)];
            let oracle = move |x: &[&Nd]| options.oracle(x[0], x[1], x[0]);
            cases.push(Case::new("nll_loss", inputs, move |t| nn::nll_loss(&t[0], &t[1], reduction), oracle));
        }
    }
    cases
}

/// A loss of two tensors of one shape: name, op, the loss of a pair of elements, and the intervals of both operands.
type Distance =
    (&'static str, fn(&Tensor, &Tensor, Reduction) -> Result<Tensor>, fn(f64, f64) -> f64, [f64; 2], [f64; 2]);

fn bounded(d: f64, bound: f64) -> f64 {
    let m = d.abs().min(bound);
    m * (d.abs() - m / 2.0)
}

const DISTANCES: [Distance; 6] = [
    ("mse_loss", nn::mse_loss, |x, y| (x - y) * (x - y), [-2.0, 2.0], [-2.0, 2.0]),
    ("l1_loss", nn::l1_loss, |x, y| (x - y).abs(), [-2.0, 2.0], [-2.0, 2.0]),
    (
        "smooth_l1_loss",
        |x, y, reduction| nn::smooth_l1_loss(x, y, 0.5, reduction),
        |x, y| bounded(x - y, 0.5) / 0.5,
        [-2.0, 2.0],
        [-2.0, 2.0],
    ),
    (
        "huber_loss",
        |x, y, reduction| nn::huber_loss(x, y, 1.5, reduction),
        |x, y| bounded(x - y, 1.5),
        [-2.0, 2.0],
        [-2.0, 2.0],
    ),
    (
        "bce_with_logits",
        |x, y, reduction| nn::bce_with_logits(x, y, None, reduction),
        |x, y| x.max(0.0) - x * y + (-x.abs()).exp().ln_1p(),
        [-30.0, 30.0],
        [0.0, 1.0],
    ),
    ("kl_div", nn::kl_div, |x, y| y * (y.ln() - x), [-4.0, 0.0], [0.1, 0.9]),
];

fn distances() -> Vec<Case> {
    let mut cases = Vec::new();
    for (name, op, f, [xlo, xhi], [ylo, yhi]) in DISTANCES {
        for reduction in [Reduction::Mean, Reduction::Sum, Reduction::None] {
            let mut push = |what: &str, x: Input, y: Input| {
                let oracle = move |x: &[&Nd]| {
                    let each = oracle::binary(x[0], x[1], f);
                    let sum = each.data.iter().sum::<f64>();
                    match reduction {
                        Reduction::None => each,
                        Reduction::Sum => Nd::new(&[], vec![sum]),
                        Reduction::Mean => Nd::new(&[], vec![sum / each.data.len() as f64]),
                    }
                };
                let op = move |t: &[Tensor]| op(&t[0], &t[1], reduction);
                cases.push(Case::new(format!("{name} {what}"), [x, y], op, oracle).within(2e-5, 2e-5));
            };
            let x = |shape: &[usize]| uniform(shape, xlo, xhi, 196);
            let y = |shape: &[usize]| uniform(shape, ylo, yhi, 197);
            for shape in [&[1][..], &[7], &[17, 5], &[257]] {
                push("dense", dense(x(shape)), dense(y(shape)));
            }
            push("transposed", transposed(x(&[7, 5]), 0, 1), dense(y(&[7, 5])));
            push("narrowed", dense(x(&[7, 5])), narrowed(y(&[7, 5]), 1));
        }
    }
    let inputs = [dense(uniform(&[7, 3], -9.0, 9.0, 198)), dense(uniform(&[7, 3], 0.0, 1.0, 199))];
    let weighted = |t: &[Tensor]| {
        let weight = Tensor::from_slice(&[0.5f32, 1.0, 3.0], 3, t[0].device())?;
        nn::bce_with_logits(&t[0], &t[1], Some(&weight), Reduction::None)
    };
    let oracle = |x: &[&Nd]| {
        let softplus = |x: f64| x.max(0.0) + (-x.abs()).exp().ln_1p();
        let weight = Nd::new(&[3], vec![0.5, 1.0, 3.0]);
        let first = oracle::binary(&oracle::binary(x[0], x[1], |x, y| y * softplus(-x)), &weight, |l, w| l * w);
        oracle::binary(&first, &oracle::binary(x[0], x[1], |x, y| (1.0 - y) * softplus(x)), |a, b| a + b)
    };
    cases.push(Case::new("bce_with_logits weighted", inputs, weighted, oracle).within(2e-5, 2e-5));
    let halves = |v: Nd| dense(v).of(DType::F16);
    let inputs = [halves(signed(&[300], 200)), halves(signed(&[300], 201))];
    let mean = |x: &[&Nd]| {
        Nd::new(&[], vec![oracle::binary(x[0], x[1], |x, y| (x - y) * (x - y)).data.iter().sum::<f64>() / 300.0])
    };
    cases.push(
        Case::new("mse_loss halves", inputs, |t| nn::mse_loss(&t[0], &t[1], Reduction::Mean), mean)
            .result_dtype(DType::F16)
            .within(1e-3, 1e-3),
    );
    cases
}
