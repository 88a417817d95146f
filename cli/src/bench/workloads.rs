//! The workloads: what one run does, and how much work that is. `tools/cards` includes this file and the files of
//! the nets.

use anygpu::{Attention, Conv, Device, Result, Tensor};
use clap::ValueEnum;

use super::nets;
use super::probes::Cost;

/// The workloads by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Workload {
    /// Matrix product, f32
    Matmul,
    /// Four convolutions: two of LeNet at batch 256, and 3 × 3 ones of 64 channels
    Conv2d,
    /// Copy, relu, sums and the addition of two large tensors (`--elements`), which memory limits
    Elementwise,
    /// Softmax and layer norm of 4096 × 1000
    Softmax,
    /// Causal attention of 8 heads over 8 sequences of 256
    Attention,
    /// Additions of a small tensor, each of which depends on the one before: the time of one addition
    Chain,
    /// Training steps of LeNet at batch 256, and its predictions
    Lenet,
    /// Training steps of ResNet-18 on images of 3 × 96 × 96 at batch 32, and its predictions
    Resnet18,
    /// Training steps of a small transformer, 8 sequences of 128 tokens, and its predictions
    Transformer,
    /// Copies of 64 MiB from the host's memory to the device and back
    Transfer,
    /// All of them
    All,
}

/// One run of a workload on a device.
pub type Run = Box<dyn FnMut() -> Result<()>>;

/// Makes the inputs of a workload on a device.
type Prepare = Box<dyn Fn(&Device) -> Result<Run>>;

/// One workload of one shape.
pub struct Case {
    pub workload: &'static str,
    pub shape: String,
    pub unit: Unit,
    /// What one run does, in the base of the unit: operations of floats, bytes, images, tokens, or ops.
    work: f64,
    /// What a run computes and moves at least, if that limits it. Computed late, as it is long for nets.
    pub cost: Box<dyn Fn() -> Result<Option<Cost>>>,
    /// The elements of the largest tensor, of workloads whose sizes can be chosen.
    pub size: Option<f64>,
    /// The most runs of one repeat.
    pub most_runs: usize,
    pub prepare: Prepare,
}

/// What a figure counts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Unit {
    /// 10⁹ operations of floats in a second; a multiplication and an addition are two. Convolutions are counted as
    /// direct ones. Winograd's method does fewer operations, so it can exceed the limit of the device.
    GFlops,
    /// 10⁹ bytes in a second, counting the bytes that must be read and written at least.
    GBytes,
    Images,
    Tokens,
    /// Microseconds of one op.
    Micros,
}

impl Unit {
    pub fn name(self) -> &'static str {
        match self {
            Unit::GFlops => "GFLOP/s",
            Unit::GBytes => "GB/s",
            Unit::Images => "images/s",
            Unit::Tokens => "tokens/s",
            Unit::Micros => "µs",
        }
    }
}

impl Case {
    pub fn new(
        workload: &'static str,
        shape: impl Into<String>,
        (work, unit): (f64, Unit),
        prepare: impl Fn(&Device) -> Result<Run> + 'static,
    ) -> Case {
        let (shape, cost, prepare) = (shape.into(), Box::new(|| Ok(None)), Box::new(prepare));
        Case { workload, shape, unit, work, cost, size: None, most_runs: 512, prepare }
    }

    /// The case with its operations of floats and the bytes that it reads and writes at least.
    fn costs(self, flops: f64, bytes: f64) -> Case {
        self.costs_by(move || Ok(Cost { flops, bytes }))
    }

    /// The case with a cost that is computed when it is needed.
    pub fn costs_by(self, cost: impl Fn() -> Result<Cost> + 'static) -> Case {
        Case { cost: Box::new(move || cost().map(Some)), ..self }
    }

    /// The case with the elements of its largest tensor.
    fn of_size(self, elements: f64) -> Case {
        Case { size: Some(elements), ..self }
    }

    /// A case of which several runs at a time would fill the memory.
    fn one_at_a_time(self) -> Case {
        Case { most_runs: 1, ..self }
    }

    /// The figure of a run of so many seconds.
    pub fn figure(&self, seconds: f64) -> f64 {
        match self.unit {
            Unit::GFlops | Unit::GBytes => self.work / seconds * 1e-9,
            Unit::Images | Unit::Tokens => self.work / seconds,
            Unit::Micros => seconds / self.work * 1e6,
        }
    }
}

/// The sizes of the workloads whose sizes can be chosen.
pub struct Sizes {
    /// Sides of products.
    pub products: Vec<[usize; 3]>,
    /// Elements of the tensors of elementwise ops.
    pub elements: Vec<usize>,
}

/// The cases of these workloads, in order.
pub fn cases(workloads: &[Workload], sizes: &Sizes) -> Vec<Case> {
    let of = |workload: &Workload| match workload {
        Workload::Matmul => sizes.products.iter().map(|&shape| matmul(shape)).collect(),
        Workload::Conv2d => CONVOLUTIONS.into_iter().map(conv2d).collect(),
        Workload::Elementwise => sizes.elements.iter().flat_map(|&count| elementwise(count)).collect(),
        Workload::Softmax => softmax(),
        Workload::Attention => vec![attention()],
        Workload::Chain => vec![chain()],
        Workload::Lenet => nets::lenets(),
        Workload::Resnet18 => nets::resnets(),
        Workload::Transformer => nets::transformers(),
        Workload::Transfer => transfer(),
        Workload::All => Workload::value_variants()
            .iter()
            .filter(|w| **w != Workload::All)
            .flat_map(|w| cases(&[*w], sizes))
            .collect(),
    };
    workloads.iter().flat_map(of).collect()
}

/// Sides with `x` between them, as `--size` takes them.
pub fn sides(sides: &[usize]) -> String {
    sides.iter().map(ToString::to_string).collect::<Vec<_>>().join("x")
}

fn elements(sides: &[usize]) -> f64 {
    sides.iter().map(|&side| side as f64).product()
}

fn matmul([m, k, n]: [usize; 3]) -> Case {
    let flops = 2.0 * elements(&[m, k, n]);
    let tensors = [[m, k], [k, n], [m, n]].map(|shape| elements(&shape));
    let case = Case::new("matmul", sides(&[m, k, n]), (flops, Unit::GFlops), move |device| {
        let (a, b) = (Tensor::rand([m, k], device)?, Tensor::rand([k, n], device)?);
        Ok(Box::new(move || a.matmul(&b).map(drop)))
    });
    case.costs(flops, 4.0 * tensors.iter().sum::<f64>()).of_size(tensors.into_iter().fold(0.0, f64::max))
}

/// Images `[N, C, H, W]`, weights `[OC, C, K, K]` and the padding: two convolutions of LeNet, a middle layer of a
/// small net, and a layer of ResNet-18.
const CONVOLUTIONS: [([usize; 4], [usize; 4], usize); 4] = [
    ([256, 1, 28, 28], [20, 1, 3, 3], 0),
    ([256, 20, 13, 13], [50, 20, 5, 5], 0),
    ([32, 64, 24, 24], [64, 64, 3, 3], 1),
    ([8, 64, 56, 56], [64, 64, 3, 3], 1),
];

fn conv2d((images, weights, padding): ([usize; 4], [usize; 4], usize)) -> Case {
    let [n, _, h, w] = images;
    let out = |side: usize| side + 2 * padding + 1 - weights[2];
    let pixels = elements(&[n, out(h), out(w)]);
    let flops = 2.0 * elements(&weights) * pixels;
    let bytes = 4.0 * (elements(&images) + elements(&weights) + weights[0] as f64 * pixels);
    let shape = format!("{} * {}", sides(&images), sides(&weights));
    let case = Case::new("conv2d", shape, (flops, Unit::GFlops), move |device| {
        let (x, w) = (Tensor::rand(images, device)?, Tensor::rand(weights, device)?);
        Ok(Box::new(move || x.conv2d(&w, None, Conv::new().padding(padding)).map(drop)))
    });
    case.costs(flops, bytes)
}

/// An op of one tensor, which reads and writes this many tensors of its size.
fn of_one(workload: &'static str, shape: [usize; 2], tensors: f64, op: fn(&Tensor) -> Result<Tensor>) -> Case {
    let bytes = 4.0 * tensors * elements(&shape);
    let case = Case::new(workload, sides(&shape), (bytes, Unit::GBytes), move |device| {
        let x = Tensor::rand(shape, device)?.sub(0.5)?;
        Ok(Box::new(move || op(&x).map(drop)))
    });
    case.costs(0.0, bytes) // no adapter computes so slowly that memory would not be the limit
}

/// Columns of the tensors of [`elementwise`].
pub const COLUMNS: usize = 1 << 10;

fn elementwise(count: usize) -> Vec<Case> {
    let shape = [count / COLUMNS, COLUMNS];
    let bytes = 12.0 * elements(&shape);
    let add = Case::new("add", sides(&shape), (bytes, Unit::GBytes), move |device| {
        let (x, y) = (Tensor::rand(shape, device)?, Tensor::rand(shape, device)?);
        Ok(Box::new(move || x.add(&y).map(drop)))
    });
    let all = [
        of_one("copy", shape, 2.0, Tensor::copy),
        of_one("relu", shape, 2.0, Tensor::relu),
        add.costs(0.0, bytes),
        of_one("sum", shape, 1.0, Tensor::sum_all),
        of_one("sum rows", shape, 1.0, |x| x.sum(1, false)),
    ];
    all.map(|case| case.of_size(elements(&shape))).into()
}

fn softmax() -> Vec<Case> {
    const ROWS: [usize; 2] = [4096, 1000];
    vec![
        of_one("softmax", ROWS, 2.0, |x| x.softmax(1)),
        of_one("layer_norm", ROWS, 2.0, |x| x.layer_norm(&[ROWS[1]], None, None, 1e-5)),
    ]
}

/// Operations of the scores and the weighted sums of causal attention, in which token `t` sees `t + 1` tokens.
pub fn causal_flops(tokens: usize, width: usize) -> f64 {
    let pairs = tokens as f64 * (tokens as f64 + 1.0) / 2.0;
    4.0 * pairs * width as f64
}

fn attention() -> Case {
    const SHAPE: [usize; 4] = [8, 8, 256, 64];
    let [batch, heads, tokens, width] = SHAPE;
    let flops = (batch * heads) as f64 * causal_flops(tokens, width);
    let case = Case::new("attention", sides(&SHAPE), (flops, Unit::GFlops), |device| {
        let [q, k, v] = [Tensor::rand(SHAPE, device)?, Tensor::rand(SHAPE, device)?, Tensor::rand(SHAPE, device)?];
        Ok(Box::new(move || q.attention(&k, &v, &Attention::new().causal()).map(drop)))
    });
    case.costs(flops, 16.0 * elements(&SHAPE))
}

fn chain() -> Case {
    const OPS: usize = 100;
    Case::new("chain", format!("{OPS} additions of 4"), (OPS as f64, Unit::Micros), |device| {
        let one = Tensor::ones(4, device)?;
        Ok(Box::new(move || {
            let mut x = one.clone();
            for _ in 0..OPS {
                x = x.add(&one)?;
            }
            Ok(())
        }))
    })
}

fn transfer() -> Vec<Case> {
    const ELEMENTS: usize = 16 << 20; // 64 MiB, half of the largest binding of the smallest adapters
    let work = (4.0 * ELEMENTS as f64, Unit::GBytes);
    let to = Case::new("transfer", "64 MiB to device", work, |device| {
        let (host, device) = (vec![1.5f32; ELEMENTS], device.clone());
        Ok(Box::new(move || Tensor::from_slice(&host, ELEMENTS, &device).map(drop)))
    });
    let from = Case::new("transfer", "64 MiB from device", work, |device| {
        let x = Tensor::ones(ELEMENTS, device)?;
        Ok(Box::new(move || x.to_vec::<f32>().map(drop)))
    });
    // As between two devices of a net: both ends are memory that the devices hold. For cpu, the other is cpu/1.
    let to_tensor = Case::new("transfer", "64 MiB from a tensor of cpu/1", work, |device| {
        let (x, device) = (Tensor::ones(ELEMENTS, &Device::new("cpu/1")?)?, device.clone());
        Ok(Box::new(move || x.to(&device).map(drop)))
    });
    let from_tensor = Case::new("transfer", "64 MiB to a tensor of cpu/1", work, |device| {
        let (x, host) = (Tensor::ones(ELEMENTS, device)?, Device::new("cpu/1")?);
        Ok(Box::new(move || x.to(&host).map(drop)))
    });
    vec![to.one_at_a_time(), from.one_at_a_time(), to_tensor.one_at_a_time(), from_tensor.one_at_a_time()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_scores_that_a_token_sees_are_counted() -> Result<()> {
        // Of three tokens, 1 + 2 + 3 scores: a product of two rows of 5 and a weighted row of 5 each.
        assert_eq!(causal_flops(3, 5), 4.0 * 6.0 * 5.0);
        let cost = (attention().cost)()?.map(|cost| cost.flops);
        assert_eq!(cost, Some(f64::from(4 * 8 * 8 * 64 * (256 * 257 / 2))));
        Ok(())
    }
}
