//! From a file of PyTorch to a net for another task: a LeNet that PyTorch trained on digits (`tests/data/lenet.pt`, of
//! `torch.save`) gets a new head that tells odd digits from even ones.
//!
//! `cargo run --release --example transfer_learning [device]`

use anygpu::data::DataLoader;
use anygpu::nn::{self, AvgPool2d, Conv2d, Flatten, Linear, Module, ReLU, Sequential};
use anygpu::{Device, Result, Tensor, checkpoint, data, manual_seed, no_grad, optim, try_gpu};

/// LeNet without its last layer, and a new one.
#[derive(Clone)]
struct OddOrEven {
    body: Sequential,
    head: Linear,
}

impl OddOrEven {
    fn new() -> Result<OddOrEven> {
        let body = Sequential::new()
            .add("conv1", Conv2d::new(1, 20, 3)?)
            .add("relu1", ReLU)
            .add("pool1", AvgPool2d::new(2))
            .add("conv2", Conv2d::new(20, 50, 5)?)
            .add("relu2", ReLU)
            .add("pool2", AvgPool2d::new(2))
            .add("flatten", Flatten)
            .add("fc1", Linear::new(800, 128)?)
            .add("relu3", ReLU);
        Ok(OddOrEven { body, head: Linear::new(128, 2)? })
    }
}

impl Module for OddOrEven {
    anygpu::children!(body, head);

    fn forward(&self, images: &Tensor) -> Result<Tensor> {
        self.head.forward(&self.body.forward(images)?)
    }
}

/// 1 for odd digits, 0 for even ones.
fn odd(labels: &Tensor, device: &Device) -> Result<Tensor> {
    let odd: Vec<u32> = labels.to_vec::<u32>()?.into_iter().map(|label| label % 2).collect();
    Tensor::from_vec(odd, labels.shape(), device)
}

fn accuracy(net: &OddOrEven, test: &DataLoader, device: &Device) -> Result<f64> {
    net.eval();
    let mut right = 0;
    for batch in test.epoch(0) {
        let (images, labels) = batch?;
        right += nn::correct(&no_grad(|| net.forward(&images.to(device)?))?, &odd(&labels, device)?)?;
    }
    Ok(right as f64 / test.len() as f64)
}

/// Some steps of training of what the optimiser has.
fn train(net: &OddOrEven, sgd: &mut optim::Sgd, loader: &DataLoader, steps: usize, device: &Device) -> Result<()> {
    net.train();
    for batch in loader.epoch(0).take(steps) {
        let (images, labels) = batch?;
        net.parameters().iter().for_each(|p| p.set_grad(None));
        nn::cross_entropy(&net.forward(&images.to(device)?)?, &odd(&labels, device)?)?.backward()?;
        sgd.step()?;
    }
    Ok(())
}

fn main() -> Result<()> {
    let device = match std::env::args().nth(1) {
        Some(name) => Device::new(&name)?,
        None => try_gpu(0),
    };
    manual_seed(0);
    let (loader, test) = data::mnist_5k()?.loaders(64, 0)?;
    let mut net = OddOrEven::new()?;
    net.to(&device)?;

    // The state that PyTorch saved, in f16; without its head, whose place here is empty.
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/lenet.pt");
    let mut state = checkpoint::load(file, &device)?;
    state.remove("fc2.weight");
    state.remove("fc2.bias");
    let report = net.load_state_dict(&state.add_prefix("body."), false)?;
    assert_eq!((report.missing.len(), report.unexpected.len()), (2, 0), "the head is new: {report:?}");

    let before = accuracy(&net, &test, &device)?;
    // First the head alone: what the optimiser does not have, stays.
    let frozen = net.body.state_dict().copied()?;
    let mut sgd = optim::Sgd::new(net.head.parameters(), 0.05).momentum(0.9);
    train(&net, &mut sgd, &loader, 20, &device)?;
    let head = accuracy(&net, &test, &device)?;
    let same = |(old, new): ((&str, &Tensor), Tensor)| Ok(old.1.to_vec::<f32>()? == new.to_vec::<f32>()?);
    let body = net.body.parameters().into_iter();
    assert!(frozen.iter().zip(body).map(same).collect::<Result<Vec<bool>>>()?.into_iter().all(|same| same));
    // Then everything, in small steps.
    let mut sgd = optim::Sgd::new(net.parameters(), 0.01).momentum(0.9);
    train(&net, &mut sgd, &loader, 20, &device)?;
    let all = accuracy(&net, &test, &device)?;

    println!(
        "accuracy on {device}: {before:.3} with a new head, {head:.3} with a trained one, {all:.3} with all trained"
    );
    assert!(head > before + 0.2 && head > 0.93 && all > 0.95, "{before} {head} {all}");
    Ok(())
}
