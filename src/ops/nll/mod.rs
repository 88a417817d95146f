//! The negative log-likelihood of labels, element by element, and the cross-entropy.

mod cross_entropy;

use std::sync::Arc;

use anygpu_host::tasks::try_share;

use crate::device::gpu::{Buffer, Gpu, Kernel, KernelBuilder, Shader, label_of, no_class, params, shader, wgsl};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::ops::index::range::check_labels_on_adapter;
use crate::ops::long::cast::indices;
use crate::ops::long::refuse;
use crate::ops::names::{Names, names};
use crate::ops::reduction::softmax::{BY_FOUR, BY_ONE, EXPONENTIALS, LINES, ROWS};
use crate::ops::{
    CpuIn, CpuOut, Dense, Elements, GpuIn, Gradient, Gradients, Op, Output, Saves, apply, expect_dtype, expect_float,
    named, of_sums, same_device,
};
use crate::process_group::{self, mean};
use crate::tensor::Tensor;

params! {
    struct Params {
        count: usize,
        classes: usize,
        inner: usize,
        x_offset: usize,
        label_offset: usize,
        w_offset: usize,
        g_offset: usize,
        ignored: u32,
        lanes: usize,
    }
}
/// The text before the shaders.
const LABELS: &str = wgsl!("nll/nll_labels");
shader!(SHADER: Params = "nll/nll", after [LABELS]);
shader!(SHARED: Params = "nll/cross_entropy_rows", after [LABELS, BY_ONE, LINES, ROWS, EXPONENTIALS]);
shader!(SHARED_IN_FOURS: Params = "nll/cross_entropy_rows" named "cross_entropy_rows_4", after [LABELS, BY_FOUR, LINES, ROWS, EXPONENTIALS]);

/// The function of `[A, C, B]` to compute.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Pass {
    /// Log-probabilities, labels → `−w[label] · x[label]`.
    Forward,
    /// Labels, labels → `w[label]`.
    Weights,
    /// Gradients `[A, B]`, labels → gradients `[A, C, B]`.
    Backward,
}

/// The op. Its inputs are the inputs of the pass, and the weights of the classes if `weighted`.
#[derive(Clone, Copy, Debug)]
struct Nll {
    pass: Pass,
    classes: usize,
    inner: usize,
    ignored: Option<u32>,
    weighted: bool,
    /// The element type of the labels that the user gave.
    given: DType,
}

impl Nll {
    /// Returns the weight of a label; `None` if the label is ignored.
    fn weight(&self, n: usize, label: u32, weights: Option<&[f32]>) -> Result<Option<f32>> {
        if self.ignored == Some(label) {
            return Ok(None);
        }
        if label as usize >= self.classes {
            return Err(self.wrong(n, label_of(label, self.given)));
        }
        Ok(Some(weights.map_or(1.0, |w| w[label as usize])))
    }

    /// Returns the error for label `n`, in the order of memory, which is not a class. Within a step on several devices,
    /// these are the labels of a part of the batch.
    fn wrong(&self, n: usize, label: i64) -> Error {
        let within = if self.inner == 1 { String::new() } else { format!(", position {}", n % self.inner) };
        let joint = process_group::rank().is_some();
        let part = if joint { " in a device's part of the batch" } else { "" };
        let place = format!(" of row {}{within}{part}", n / self.inner.max(1));
        Error::argument("nll", no_class(label, &place, self.classes))
    }

    /// Starts a kernel of so many labels or elements, with the gradient if there is one. `lanes` is for kernels whose
    /// workgroups share rows.
    fn kernel(
        &self,
        (shader, entry): (Shader<Params>, &'static str),
        [x, labels]: [&GpuIn<Dense>; 2],
        weights: Option<&GpuIn<Dense>>,
        grad: Option<&GpuIn<Dense>>,
        (count, lanes): (usize, usize),
    ) -> KernelBuilder {
        let weights = weights.unwrap_or(x); // the kernel does not read them if there are none
        let params = Params {
            count,
            classes: self.classes,
            inner: self.inner,
            x_offset: x.offset(),
            label_offset: labels.offset(),
            w_offset: weights.offset(),
            g_offset: grad.map_or(0, GpuIn::offset),
            ignored: self.ignored.unwrap_or(0),
            lanes,
        };
        let kernel = Kernel::build(shader, entry, params)
            .constant("IGNORE", self.ignored.is_some())
            .constant("WEIGHTED", self.weighted);
        let kernel = kernel.input(x).input(labels).input(weights);
        if let Some(grad) = grad { kernel.input(grad) } else { kernel }
    }
}

impl Op for Nll {
    type Layout = Dense;
    const ELEMENTS: Elements = Elements::Any;
    const NAMES: Names = names!["nll"];

    fn output(&self, inputs: &[&Tensor]) -> Result<Output> {
        expect_dtype("nll", inputs[1], DType::U32)?;
        let mut shape = inputs[1].shape().to_vec();
        if self.pass == Pass::Backward {
            shape.insert(1, self.classes);
        }
        Ok((shape, DType::F32))
    }

    fn cpu(&self, inputs: &[CpuIn<Dense>], out: CpuOut) -> Result<()> {
        let (labels, out) = (inputs[1].slice::<u32>(), out.slice::<f32>());
        let weights = self.weighted.then(|| inputs[2].slice::<f32>());
        let (classes, inner) = (self.classes, self.inner);
        if self.pass == Pass::Backward {
            let g = inputs[0].slice::<f32>();
            let rows = out.chunks_mut(classes * inner).zip(g.chunks(inner)).zip(labels.chunks(inner));
            return try_share(rows, 16, |((out, g), labels)| {
                out.fill(0.0);
                for (b, (&label, g)) in labels.iter().zip(g).enumerate() {
                    if let Some(weight) = self.weight(b, label, weights)? {
                        out[label as usize * inner + b] = -g * weight;
                    }
                }
                Ok(())
            });
        }
        for (n, (out, &label)) in out.iter_mut().zip(labels).enumerate() {
            let weight = self.weight(n, label, weights)?;
            *out = match (self.pass, weight) {
                (_, None) => 0.0,
                (Pass::Weights, Some(weight)) => weight,
                (_, Some(weight)) => {
                    let at = (n / inner * classes + label as usize) * inner + n % inner;
                    -inputs[0].slice::<f32>()[at] * weight
                }
            };
        }
        Ok(())
    }

    fn gpu(&self, gpu: &Arc<Gpu>, inputs: &[GpuIn<Dense>], out: &Buffer) -> Result<Vec<Kernel>> {
        let (x, labels) = (&inputs[0], &inputs[1]);
        let labelled = labels.elem_count();
        let count = if self.pass == Pass::Backward { labelled * self.classes } else { labelled };
        let entry = match self.pass {
            Pass::Forward => "forward",
            Pass::Weights => "weights",
            Pass::Backward => "backward",
        };
        let weights = self.weighted.then(|| &inputs[2]);
        let kernel = self.kernel((SHADER, entry), [x, labels], weights, None, (count, 1)).output(out).each(count);
        if self.pass != Pass::Forward {
            return Ok(vec![kernel]); // the labels were checked in the forward pass
        }
        let labelled = (self.name(), self.given);
        Ok(vec![check_labels_on_adapter(gpu, labelled, labels, self.classes, self.ignored)?, kernel])
    }

    fn saves(&self) -> Saves {
        Saves::Inputs
    }

    fn gradient_changes_with(&self, _input: usize) -> Saves {
        Saves::Nothing
    }

    /// Forward and backward are linear in their first input, and each is the other's gradient.
    fn backward(&self, ctx: &Gradient) -> Result<Gradients> {
        let pass = if self.pass == Pass::Backward { Pass::Forward } else { Pass::Backward };
        let op = Nll { pass, ..*self };
        let inputs: Vec<&Tensor> = [ctx.grad, &ctx.inputs[1]].into_iter().chain(ctx.inputs.get(2)).collect();
        Ok(vec![Some(apply(op, &inputs)?), None, None].into_iter().take(ctx.inputs.len()).collect())
    }
}

/// Labels of the type that the kernels read, and the op for them.
pub(crate) struct Labelled {
    op: Nll,
    labels: Tensor,
    weights: Option<Tensor>,
}

/// Returns a label as a u32. A negative i32 label has the bits of a large u32.
fn label_bits(label: i64) -> Result<u32> {
    match (u32::try_from(label), i32::try_from(label)) {
        (Ok(bits), _) => Ok(bits),
        (_, Ok(negative)) => Ok(negative as u32),
        _ => Err(Error::argument("cross_entropy", format!("{label}, the label to ignore, is not a u32 or i32"))),
    }
}

impl Labelled {
    /// Checks labels `[N, ..]` of u32, i32, u8 or i64 against `x`: `[N, C, ..]`, and the weights `[C]`.
    pub(crate) fn new(x: &Tensor, labels: &Tensor, weights: Option<&Tensor>, ignored: Option<i64>) -> Result<Labelled> {
        same_device("nll", &[x, labels])?;
        let (mut rows, classes) = (x.shape().to_vec(), x.shape().get(1).copied().unwrap_or(0));
        if rows.len() > 1 {
            rows.remove(1);
        }
        if x.rank() < 2 || rows != labels.shape() {
            let detail = "log-probabilities are [N, C, ..], labels [N, ..]";
            return Err(Error::shapes("nll", x.shape(), labels.shape(), detail));
        }
        if let Some(weights) = weights.filter(|w| w.shape() != [classes]) {
            return Err(Error::shapes("nll", x.shape(), weights.shape(), "the weights are [C], one for each class"));
        }
        refuse("nll", weights)?;
        let weights = weights.map(|w| w.detach().to_dtype(DType::F32)).transpose()?;
        let op = Nll {
            pass: Pass::Forward,
            classes,
            inner: x.shape()[2..].iter().product(),
            ignored: ignored.map(label_bits).transpose()?,
            weighted: weights.is_some(),
            given: labels.dtype(),
        };
        if labels.dtype() == DType::I64 && labels.device().is_cpu() {
            // A word does not tell whether it was negative or large.
            let beyond = |label: &i64| i32::try_from(*label).is_err() && ignored != Some(*label);
            let all = labels.to_vec::<i64>()?;
            if let Some(n) = all.iter().position(beyond) {
                return Err(op.wrong(n, all[n]));
            }
        }
        let words = match labels.dtype() {
            DType::U32 | DType::I32 | DType::U8 => labels.to_dtype(DType::U32)?,
            DType::I64 => indices("nll", labels)?,
            other => {
                let expected = "labels of u32, i32, u8 or i64".into();
                return Err(Error::DTypeMismatch { op: "nll", expected, got: other.to_string() });
            }
        };
        Ok(Labelled { op, labels: words, weights })
    }

    /// Returns `−w[label] · x[label]` of f32 log-probabilities: `[N, ..]`, 0 where the label is ignored.
    pub(crate) fn losses(&self, x: &Tensor) -> Result<Tensor> {
        self.run(self.op, x)
    }

    /// Returns `w[label]`, or 0 where the label is ignored. If `alike`, the weights of all classes are 1.
    pub(crate) fn weights(&self, alike: bool) -> Result<Tensor> {
        let op = Nll { pass: Pass::Weights, weighted: self.op.weighted && !alike, ..self.op };
        self.run(op, &self.labels)
    }

    fn run(&self, op: Nll, first: &Tensor) -> Result<Tensor> {
        let weights = self.weights.iter().filter(|_| op.weighted);
        apply(op, &[first, &self.labels].into_iter().chain(weights).collect::<Vec<_>>())
    }
}

impl Tensor {
    /// Returns the mean cross-entropy `mean_n(−log softmax(x[n])[label[n]])` of class scores (logits, not
    /// probabilities).
    ///
    /// Scores `[N, C, ..]` of floats and labels `[N, ..]` (u32, i32, u8 or i64) → rank 0. For label smoothing, weights
    /// or ignored labels, use [`nn::CrossEntropyLoss`](crate::nn::CrossEntropyLoss). In a step on several devices, the
    /// result is the mean of the whole batch: see [`nn::Reduction`](crate::nn::Reduction).
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] or [`Error::DTypeMismatch`] if the inputs are of other shapes or types;
    /// [`Error::InvalidArgument`] if a label is not below C. An adapter reports such a label at the next call that
    /// waits for it, and the loss is NaN.
    ///
    /// ```
    /// # use anygpu::Tensor;
    /// let logits = Tensor::zeros([2, 4], None)?;
    /// let loss = logits.cross_entropy(&Tensor::new([0u32, 3], None)?)?.item::<f32>()?;
    /// assert!((loss - 4f32.ln()).abs() < 1e-6);
    /// # Ok::<(), anygpu::Error>(())
    /// ```
    pub fn cross_entropy(&self, labels: &Tensor) -> Result<Tensor> {
        same_device("cross_entropy", &[self, labels])?;
        if self.rank() < 2 || labels.rank() + 1 != self.rank() {
            let detail = "scores are [N, C, ..], labels [N, ..]";
            return Err(Error::shapes("cross_entropy", self.shape(), labels.shape(), detail));
        }
        named("cross_entropy", || self.mean_nll(labels))
    }

    fn mean_nll(&self, labels: &Tensor) -> Result<Tensor> {
        refuse("cross_entropy", [self])?;
        let wide = if self.dtype().is_float() { self.to_dtype(DType::F32)? } else { self.clone() };
        expect_float("cross_entropy", &wide)?;
        mean(&Labelled::new(&wide, labels, None, None)?.cross_entropy(&wide)?)?.to_dtype(of_sums(self.dtype()))
    }
}
