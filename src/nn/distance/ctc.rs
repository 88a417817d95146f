//! Connectionist temporal classification.

use anygpu_host::tasks;

use crate::error::{Error, Result};
use crate::nn::Reduction;
use crate::nn::loss::f32s;
use crate::ops::custom_grad::attached;
use crate::ops::{named, of_sums};
use crate::tensor::Tensor;

const NAME: &str = "ctc_loss";

/// The loss of sequences without an alignment (Graves et al., "Connectionist temporal classification", 2006), like
/// PyTorch's `CTCLoss`.
///
/// The loss is the negative logarithm of the probability of a sequence's labels. That probability is the sum over all
/// ways to place the labels on the steps, with blanks between them.
///
/// The log-probabilities are read back. Losses and gradients are computed on the host in f64, with one thread per
/// sequence.
///
/// # Example
/// ```
/// use anygpu::{Tensor, nn::CTCLoss};
///
/// // Two steps, one sequence, a blank and one label: "1 1", "1 blank" and "blank 1" are all written "1".
/// let log_probs = Tensor::zeros([2, 1, 2], None)?.log_softmax(2)?;
/// let loss = CTCLoss::new().forward(&log_probs, &Tensor::new([[1u32]], None)?, &[2], &[1])?;
/// assert!((loss.item::<f32>()? + 0.75f32.ln()).abs() < 1e-6);
/// # Ok::<(), anygpu::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
#[must_use]
pub struct CTCLoss {
    blank: usize,
    reduction: Reduction,
    zero_infinity: bool,
}

impl CTCLoss {
    /// Creates the loss with PyTorch's defaults.
    ///
    /// The blank is class 0. The loss of each sequence is divided by the number of its labels, and the result is the
    /// mean over the sequences.
    pub fn new() -> CTCLoss {
        CTCLoss::default()
    }

    /// Sets the class of the blank.
    pub fn blank(mut self, blank: usize) -> CTCLoss {
        self.blank = blank;
        self
    }

    /// Sets how the losses of the sequences are combined. For the mean, each loss is first divided by the number of the
    /// sequence's labels.
    pub fn reduction(mut self, reduction: Reduction) -> CTCLoss {
        self.reduction = reduction;
        self
    }

    /// Sets the loss and the gradient of a sequence that is too short for its labels to 0. Otherwise, the loss is
    /// infinite, and the gradient is NaN.
    pub fn zero_infinity(mut self) -> CTCLoss {
        self.zero_infinity = true;
        self
    }

    /// Returns the loss of `log_probs: [T, N, C]` and `targets: [N, S]`.
    ///
    /// `log_probs` are the results of a log-softmax over the classes. `targets` are u32, i32, u8 or i64. For sequence
    /// n, the first `input_lengths[n]` steps and the first `target_lengths[n]` labels count. Returns a scalar, or `[N]`
    /// without reduction.
    ///
    /// The gradient is the derivative with respect to the log-probabilities. Through a log-softmax, it equals
    /// PyTorch's.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] for other shapes; [`Error::InvalidArgument`] for a length that is too large or missing,
    /// for a label that is the blank or not a class, and for a blank that is not a class; [`Error::DTypeMismatch`] or
    /// [`Error::DeviceMismatch`].
    pub fn forward(
        &self,
        log_probs: &Tensor,
        targets: &Tensor,
        input_lengths: &[usize],
        target_lengths: &[usize],
    ) -> Result<Tensor> {
        named(NAME, || {
            let lengths = [input_lengths, target_lengths];
            let x = f32s(NAME, log_probs)?;
            let sequences = self.sequences(log_probs, targets, lengths)?;
            let losses = self.losses(&x, &sequences)?;
            let counts: Vec<f32> = target_lengths.iter().map(|&count| 1.0 / count.max(1) as f32).collect();
            let losses = match self.reduction {
                Reduction::Mean => losses.mul(&Tensor::from_vec(counts, target_lengths.len(), x.device())?)?,
                _ => losses,
            };
            self.reduction.reduce(&losses)?.to_dtype(of_sums(log_probs.dtype()))
        })
    }

    /// Checks the arguments, and returns the steps and the labels of each sequence.
    fn sequences(&self, x: &Tensor, targets: &Tensor, lengths: [&[usize]; 2]) -> Result<Vec<(usize, Vec<usize>)>> {
        let (&[steps, count, classes], &[rows, width]) = (x.shape(), targets.shape()) else {
            let rule = "log-probabilities are [T, N, C] and targets [N, S]";
            return Err(Error::shapes(NAME, x.shape(), targets.shape(), rule));
        };
        if rows != count {
            let rule = "there must be one row of targets for each of the N sequences of [T, N, C]";
            return Err(Error::shapes(NAME, x.shape(), targets.shape(), rule));
        }
        if targets.dtype().is_float() {
            let expected = "labels of u32, i32, u8 or i64".into();
            return Err(Error::DTypeMismatch { op: NAME, expected, got: targets.dtype().to_string() });
        }
        if self.blank >= classes {
            let detail = format!("the blank, {}, is not one of the {classes} classes", self.blank);
            return Err(Error::argument(NAME, detail));
        }
        for (what, lengths, most) in [("input", lengths[0], steps), ("target", lengths[1], width)] {
            if lengths.len() != count {
                let detail = format!("there are {} {what} lengths for {count} sequences", lengths.len());
                return Err(Error::argument(NAME, detail));
            }
            if let Some(n) = lengths.iter().position(|&length| length > most) {
                let detail = format!("{what} length {n} is {}, and there are only {most}", lengths[n]);
                return Err(Error::argument(NAME, detail));
            }
        }
        let labels = targets.to_vec_f64()?;
        let of = |n: usize| {
            let mut own = Vec::new();
            for (i, &label) in labels[n * width..][..lengths[1][n]].iter().enumerate() {
                if label < 0.0 || label >= classes as f64 || label == self.blank as f64 {
                    let detail = format!("label {i} of sequence {n} is {label}: not a class, or the blank");
                    return Err(Error::argument(NAME, detail));
                }
                own.push(label as usize);
            }
            Ok((lengths[0][n], own))
        };
        (0..count).map(of).collect()
    }

    /// Returns the loss of each sequence, with its gradient.
    fn losses(&self, x: &Tensor, sequences: &[(usize, Vec<usize>)]) -> Result<Tensor> {
        let (shape, count) = (x.shape().to_vec(), sequences.len());
        let values = x.detach().to_vec::<f32>()?;
        let wanted = x.is_tracked();
        let mut all: Vec<(f32, Vec<f32>)> = vec![(0.0, Vec::new()); count];
        tasks::share(all.iter_mut().zip(sequences).enumerate(), 1, |(n, (out, (steps, labels)))| {
            let rows = Rows { values: &values, sequence: n, count, classes: shape[2] };
            *out = self.of_sequence(&rows, *steps, labels, wanted);
        });
        let losses: Vec<f32> = all.iter().map(|(loss, _)| *loss).collect();
        let out = Tensor::from_vec(losses, count, x.device())?;
        if !wanted {
            return Ok(out);
        }
        let mut slopes = vec![0.0; values.len()];
        for (n, (_, own)) in all.iter().enumerate() {
            for (t, row) in own.chunks(shape[2].max(1)).enumerate() {
                slopes[(t * count + n) * shape[2]..][..shape[2]].copy_from_slice(row);
            }
        }
        let slopes = Tensor::from_vec(slopes, shape, x.device())?;
        let backward = move |ctx: &crate::ops::Backward| Ok(vec![Some(slopes.mul(&ctx.grad().unsqueeze(-1)?)?)]);
        attached(NAME, &[x], out, Box::new(backward))
    }

    /// Returns the loss of one sequence. If `wanted`, also returns its gradient `[steps, classes]`: the negative
    /// probability that a step has a class, given the labels.
    fn of_sequence(&self, rows: &Rows, steps: usize, labels: &[usize], wanted: bool) -> (f32, Vec<f32>) {
        // The labels with blanks before, between and after them.
        let states = 2 * labels.len() + 1;
        let class = |s: usize| if s.is_multiple_of(2) { self.blank } else { labels[s / 2] };
        let skips = |s: usize| s >= 2 && s % 2 == 1 && class(s) != class(s - 2);
        if steps == 0 {
            let loss = if labels.is_empty() || self.zero_infinity { 0.0 } else { f32::INFINITY };
            return (loss, Vec::new());
        }
        // alpha[t][s]: the logarithm of the probability of the first t + 1 steps that end in state s.
        let mut alpha = vec![f64::NEG_INFINITY; steps * states];
        for (s, first) in alpha.iter_mut().enumerate().take(states.min(2)) {
            *first = rows.at(0, class(s));
        }
        for t in 1..steps {
            let (before, now) = alpha.split_at_mut(t * states);
            let before = &before[(t - 1) * states..];
            for s in 0..states {
                let one = if s >= 1 { before[s - 1] } else { f64::NEG_INFINITY };
                let two = if skips(s) { before[s - 2] } else { f64::NEG_INFINITY };
                now[s] = log_sum([before[s], one, two]) + rows.at(t, class(s));
            }
        }
        let last = &alpha[(steps - 1) * states..];
        let all = log_sum([last[states - 1], if states > 1 { last[states - 2] } else { f64::NEG_INFINITY }]);
        if self.zero_infinity && all == f64::NEG_INFINITY {
            return (0.0, vec![0.0; if wanted { steps * rows.classes } else { 0 }]);
        }
        if !wanted {
            return (-all as f32, Vec::new());
        }
        let mut slopes = vec![0.0f64; steps * rows.classes];
        // The same from the end: the logarithm of the probability of the steps after t, from state s.
        let mut beta: Vec<f64> = (0..states).map(|s| if s + 2 >= states { 0.0 } else { f64::NEG_INFINITY }).collect();
        for t in (0..steps).rev() {
            for s in 0..states {
                let share = (alpha[t * states + s] + beta[s] - all).exp();
                slopes[t * rows.classes + class(s)] -= share;
            }
            if t == 0 {
                break;
            }
            let onwards: Vec<f64> = (0..states).map(|s| beta[s] + rows.at(t, class(s))).collect();
            for s in 0..states {
                let one = onwards.get(s + 1).copied().unwrap_or(f64::NEG_INFINITY);
                let two = if s + 2 < states && skips(s + 2) { onwards[s + 2] } else { f64::NEG_INFINITY };
                beta[s] = log_sum([onwards[s], one, two]);
            }
        }
        (-all as f32, slopes.into_iter().map(|v| v as f32).collect())
    }
}

/// The log-probabilities of one of `count` sequences.
struct Rows<'a> {
    values: &'a [f32],
    sequence: usize,
    count: usize,
    classes: usize,
}

impl Rows<'_> {
    fn at(&self, step: usize, class: usize) -> f64 {
        f64::from(self.values[(step * self.count + self.sequence) * self.classes + class])
    }
}

/// Returns the logarithm of the sum of the exponentials.
fn log_sum<const N: usize>(logs: [f64; N]) -> f64 {
    let largest = logs.into_iter().fold(f64::NEG_INFINITY, f64::max);
    if largest == f64::NEG_INFINITY {
        return if logs.iter().any(|log| log.is_nan()) { f64::NAN } else { largest };
    }
    largest + logs.into_iter().map(|log| (log - largest).exp()).sum::<f64>().ln()
}

/// Returns the loss of [`CTCLoss`] with its defaults.
///
/// # Errors
/// The errors of [`CTCLoss::forward`].
///
/// # Example
/// ```
/// use anygpu::{Tensor, nn};
///
/// let log_probs = Tensor::zeros([5, 2, 4], None)?.log_softmax(2)?;
/// let targets = Tensor::new([[1u32, 2], [3, 0]], None)?; // the second has one label
/// let loss = nn::ctc_loss(&log_probs, &targets, &[5, 4], &[2, 1])?;
/// assert!(loss.item::<f32>()? > 0.0);
/// # Ok::<(), anygpu::Error>(())
/// ```
pub fn ctc_loss(
    log_probs: &Tensor,
    targets: &Tensor,
    input_lengths: &[usize],
    target_lengths: &[usize],
) -> Result<Tensor> {
    CTCLoss::new().forward(log_probs, targets, input_lengths, target_lengths)
}
