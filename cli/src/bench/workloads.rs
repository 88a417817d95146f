//! The workloads: what one run does, and how much work that is.

use anygpu::nn::models::{LENET_RECIPE, lenet, resnet18};
use anygpu::nn::{self, Module, Sequential};
use anygpu::{Attention, Conv, DataParallel, Device, Result, Tensor, data, no_grad, optim};

use clap::ValueEnum;

use super::Workload;

/// One run of a workload on a device.
type Run = Box<dyn FnMut() -> Result<()>>;

/// Makes the inputs of a workload on a device.
type Prepare = Box<dyn Fn(&Device) -> Result<Run>>;

/// One workload of one shape.
pub struct Case {
    pub workload: &'static str,
    pub shape: String,
    pub unit: Unit,
    /// What one run does, in the base of the unit: operations of floats, bytes, images, or ops.
    work: f64,
    /// The most runs of one repeat.
    pub most_runs: usize,
    pub prepare: Prepare,
}

/// What a figure counts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Unit {
    /// 10⁹ operations of floats in a second; a multiplication and an addition are two.
    GFlops,
    /// 10⁹ bytes in a second, of those that must be read and written at least.
    GBytes,
    Images,
    /// Microseconds of one op.
    Micros,
}

impl Unit {
    pub fn name(self) -> &'static str {
        match self {
            Unit::GFlops => "GFLOP/s",
            Unit::GBytes => "GB/s",
            Unit::Images => "images/s",
            Unit::Micros => "µs",
        }
    }
}

impl Case {
    fn new(
        workload: &'static str,
        shape: impl Into<String>,
        (work, unit): (f64, Unit),
        prepare: impl Fn(&Device) -> Result<Run> + 'static,
    ) -> Case {
        Case { workload, shape: shape.into(), unit, work, most_runs: 512, prepare: Box::new(prepare) }
    }

    /// A case of which several runs at a time would fill the memory.
    fn one_at_a_time(self) -> Case {
        Case { most_runs: 1, ..self }
    }

    /// The figure of a run of so many seconds.
    pub fn figure(&self, seconds: f64) -> f64 {
        match self.unit {
            Unit::GFlops | Unit::GBytes => self.work / seconds * 1e-9,
            Unit::Images => self.work / seconds,
            Unit::Micros => seconds / self.work * 1e6,
        }
    }
}

/// The cases of these workloads, in order.
pub fn cases(workloads: &[Workload], products: &[[usize; 3]]) -> Vec<Case> {
    let of = |workload: &Workload| match workload {
        Workload::Matmul => products.iter().map(|&shape| matmul(shape)).collect(),
        Workload::Conv2d => CONVOLUTIONS.into_iter().map(conv2d).collect(),
        Workload::Elementwise => elementwise(),
        Workload::Softmax => softmax(),
        Workload::Attention => vec![attention()],
        Workload::Chain => vec![chain()],
        Workload::Lenet => vec![lenet_training(), lenet_predictions()],
        Workload::Resnet18 => vec![resnet18_training(), resnet18_predictions()],
        Workload::Transfer => transfer(),
        Workload::All => Workload::value_variants()
            .iter()
            .filter(|w| **w != Workload::All)
            .flat_map(|w| cases(&[*w], products))
            .collect(),
    };
    workloads.iter().flat_map(of).collect()
}

/// Sides with × between them.
fn sides(sides: &[usize]) -> String {
    sides.iter().map(ToString::to_string).collect::<Vec<_>>().join("x")
}

fn elements(sides: &[usize]) -> f64 {
    sides.iter().map(|&side| side as f64).product()
}

fn matmul([m, k, n]: [usize; 3]) -> Case {
    let work = (2.0 * elements(&[m, k, n]), Unit::GFlops);
    Case::new("matmul", sides(&[m, k, n]), work, move |device| {
        let (a, b) = (Tensor::rand([m, k], device)?, Tensor::rand([k, n], device)?);
        Ok(Box::new(move || a.matmul(&b).map(drop)))
    })
}

/// Images `[N, C, H, W]`, weights `[OC, C, K, K]` and the padding: the two of LeNet, a middle layer of a small net, and one
/// of ResNet-18.
const CONVOLUTIONS: [([usize; 4], [usize; 4], usize); 4] = [
    ([256, 1, 28, 28], [20, 1, 3, 3], 0),
    ([256, 20, 13, 13], [50, 20, 5, 5], 0),
    ([32, 64, 24, 24], [64, 64, 3, 3], 1),
    ([8, 64, 56, 56], [64, 64, 3, 3], 1),
];

fn conv2d((images, weights, padding): ([usize; 4], [usize; 4], usize)) -> Case {
    let [n, _, h, w] = images;
    let out = |side: usize| side + 2 * padding + 1 - weights[2];
    let work = 2.0 * elements(&weights) * elements(&[n, out(h), out(w)]);
    let shape = format!("{} * {}", sides(&images), sides(&weights));
    Case::new("conv2d", shape, (work, Unit::GFlops), move |device| {
        let (x, w) = (Tensor::rand(images, device)?, Tensor::rand(weights, device)?);
        Ok(Box::new(move || x.conv2d(&w, None, Conv::new().padding(padding)).map(drop)))
    })
}

/// An op of one tensor, which reads and writes so many tensors of its size.
fn of_one(workload: &'static str, shape: [usize; 2], tensors: f64, op: fn(&Tensor) -> Result<Tensor>) -> Case {
    Case::new(workload, sides(&shape), (4.0 * tensors * elements(&shape), Unit::GBytes), move |device| {
        let x = Tensor::rand(shape, device)?.sub(0.5)?;
        Ok(Box::new(move || op(&x).map(drop)))
    })
}

fn elementwise() -> Vec<Case> {
    const LARGE: [usize; 2] = [16 << 10, 1 << 10];
    let add = Case::new("add", sides(&LARGE), (12.0 * elements(&LARGE), Unit::GBytes), |device| {
        let (x, y) = (Tensor::rand(LARGE, device)?, Tensor::rand(LARGE, device)?);
        Ok(Box::new(move || x.add(&y).map(drop)))
    });
    vec![
        of_one("copy", LARGE, 2.0, Tensor::copy),
        of_one("relu", LARGE, 2.0, Tensor::relu),
        add,
        of_one("sum", LARGE, 1.0, Tensor::sum_all),
        of_one("sum rows", LARGE, 1.0, |x| x.sum(1, false)),
    ]
}

fn softmax() -> Vec<Case> {
    const ROWS: [usize; 2] = [4096, 1000];
    vec![
        of_one("softmax", ROWS, 2.0, |x| x.softmax(1)),
        of_one("layer_norm", ROWS, 2.0, |x| x.layer_norm(&[ROWS[1]], None, None, 1e-5)),
    ]
}

fn attention() -> Case {
    const SHAPE: [usize; 4] = [8, 8, 256, 64];
    let work = (4.0 * elements(&SHAPE) * SHAPE[2] as f64, Unit::GFlops);
    Case::new("attention", sides(&SHAPE), work, |device| {
        let [q, k, v] = [Tensor::rand(SHAPE, device)?, Tensor::rand(SHAPE, device)?, Tensor::rand(SHAPE, device)?];
        Ok(Box::new(move || q.attention(&k, &v, &Attention::new().causal()).map(drop)))
    })
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

const LENET_BATCH: usize = 256;
const RESNET_BATCH: usize = 32;
const RESNET_IMAGE: [usize; 3] = [3, 96, 96];

fn digits() -> Result<Vec<(Tensor, Tensor)>> {
    let (train, _) = data::mnist_5k()?.loaders(LENET_BATCH, 0)?;
    let whole = train.len() / LENET_BATCH; // without the last batch, which is shorter
    train.epoch(0).take(whole).collect()
}

fn pictures() -> Result<Vec<(Tensor, Tensor)>> {
    let [channels, height, width] = RESNET_IMAGE;
    let images = Tensor::rand([RESNET_BATCH, channels, height, width], None)?;
    let labels = (0..RESNET_BATCH as u32).map(|i| i % 10).collect();
    Ok(vec![(images, Tensor::from_vec(labels, RESNET_BATCH, None)?)])
}

fn lenet_training() -> Case {
    let shape = format!("training, batch {LENET_BATCH}");
    Case::new("lenet", shape, (LENET_BATCH as f64, Unit::Images), |device| training(device, lenet()?, digits()?))
}

fn lenet_predictions() -> Case {
    let shape = format!("predictions, batch {LENET_BATCH}");
    Case::new("lenet", shape, (LENET_BATCH as f64, Unit::Images), |device| predictions(device, lenet()?, digits()?))
}

fn resnet18_training() -> Case {
    let shape = format!("training, batch {RESNET_BATCH} of {}", sides(&RESNET_IMAGE));
    Case::new("resnet18", shape, (RESNET_BATCH as f64, Unit::Images), |device| {
        training(device, resnet18(RESNET_IMAGE[0], 10)?, pictures()?)
    })
}

fn resnet18_predictions() -> Case {
    let shape = format!("predictions, batch {RESNET_BATCH} of {}", sides(&RESNET_IMAGE));
    Case::new("resnet18", shape, (RESNET_BATCH as f64, Unit::Images), |device| {
        predictions(device, resnet18(RESNET_IMAGE[0], 10)?, pictures()?)
    })
}

/// Whole training steps, as `anygpu train` takes them: forward, cross entropy, backward, SGD with momentum. The batch
/// comes from the host each time.
fn training(device: &Device, net: Sequential, batches: Vec<(Tensor, Tensor)>) -> Result<Run> {
    let net = DataParallel::new(net, std::slice::from_ref(device))?;
    let mut sgd = optim::SGD::new(net.parameters(), LENET_RECIPE.lr).momentum(LENET_RECIPE.momentum);
    let mut next = 0;
    Ok(Box::new(move || {
        let (images, labels) = &batches[next % batches.len()];
        next += 1;
        net.train_batch(images, labels, nn::cross_entropy)?;
        sgd.step()
    }))
}

/// Outputs in evaluation mode, of images that are on the device.
fn predictions(device: &Device, net: Sequential, batches: Vec<(Tensor, Tensor)>) -> Result<Run> {
    let net = net.to(device)?;
    net.eval();
    let images = batches.iter().map(|(images, _)| images.to(device)).collect::<Result<Vec<_>>>()?;
    let mut next = 0;
    Ok(Box::new(move || {
        next += 1;
        no_grad(|| net.forward(&images[next % images.len()])).map(drop)
    }))
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
    vec![to.one_at_a_time(), from.one_at_a_time()]
}
