//! The workloads that train nets and use them.

use anygpu::nn::models::{LENET_RECIPE, lenet, resnet18};
use anygpu::nn::{self, Module, Summary};
use anygpu::{DType, DataParallel, Device, Result, Tensor, data, no_grad, optim};

use super::probes::Cost;
use super::transformer::{self, CONTEXT, LAYERS, Transformer, VOCABULARY, WIDTH};
use super::workloads::{Case, Run, Unit, causal_flops, sides};

const LENET_BATCH: usize = 256;
const RESNET_BATCH: usize = 32;
const RESNET_IMAGE: [usize; 3] = [3, 96, 96];
const SEQUENCES: usize = 8;

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

fn texts() -> Result<Vec<(Tensor, Tensor)>> {
    let tokens = |step: u32| {
        let count = (SEQUENCES * CONTEXT) as u32;
        Tensor::from_vec((0..count).map(|i| i * step % VOCABULARY as u32).collect(), [SEQUENCES, CONTEXT], None)
    };
    Ok(vec![(tokens(37)?, tokens(53)?)])
}

/// A training step and a prediction of LeNet.
pub fn lenets() -> Vec<Case> {
    let (work, cost) = ((LENET_BATCH as f64, Unit::Images), || {
        cost(&lenet()?, &Tensor::zeros([1, 1, 28, 28], None)?, LENET_BATCH, 0.0)
    });
    let case = |kind, prepare: fn(&Device) -> Result<Run>| {
        Case::new("lenet", format!("{kind}, batch {LENET_BATCH}"), work, prepare)
    };
    vec![
        case("training", |device| training(device, lenet()?, digits()?, nn::cross_entropy))
            .costs_by(move || Ok(of_training(cost()?))),
        case("predictions", |device| predictions(device, lenet()?, digits()?)).costs_by(cost),
    ]
}

/// A training step and a prediction of ResNet-18.
pub fn resnets() -> Vec<Case> {
    let [channels, height, width] = RESNET_IMAGE;
    let net = move || resnet18(channels, 10);
    let (work, cost) = ((RESNET_BATCH as f64, Unit::Images), move || {
        cost(&net()?, &Tensor::zeros([1, channels, height, width], None)?, RESNET_BATCH, 0.0)
    });
    let shape = |kind| format!("{kind}, batch {RESNET_BATCH} of {}", sides(&RESNET_IMAGE));
    let train = move |device: &Device| training(device, net()?, pictures()?, nn::cross_entropy);
    let predict = move |device: &Device| predictions(device, net()?, pictures()?);
    vec![
        Case::new("resnet18", shape("training"), work, train).costs_by(move || Ok(of_training(cost()?))),
        Case::new("resnet18", shape("predictions"), work, predict).costs_by(cost),
    ]
}

/// A training step and a prediction of a small transformer.
pub fn transformers() -> Vec<Case> {
    let (work, cost) = (((SEQUENCES * CONTEXT) as f64, Unit::Tokens), || {
        // Scores and weighted sums of attention are products without weights.
        let attention = LAYERS as f64 * causal_flops(CONTEXT, WIDTH);
        cost(&Transformer::new()?, &Tensor::full([1, CONTEXT], 0, None)?.to_dtype(DType::U32)?, SEQUENCES, attention)
    });
    let shape = |kind| format!("{kind}, {SEQUENCES} of {CONTEXT} tokens, {LAYERS} layers of {WIDTH}");
    let train = |device: &Device| training(device, Transformer::new()?, texts()?, transformer::loss);
    let predict = |device: &Device| predictions(device, Transformer::new()?, texts()?);
    vec![
        Case::new("transformer", shape("training"), work, train).costs_by(move || Ok(of_training(cost()?))),
        Case::new("transformer", shape("predictions"), work, predict).costs_by(cost),
    ]
}

/// The cost of a net's outputs for `batch` samples: the products of its convolutions and linear layers. Each reads
/// its weights and the sample, and writes its outputs, which the next layer reads. `sample` is one sample, and
/// `further` are operations of each sample that have no weight. Convolutions are counted as direct ones, also where
/// Winograd's method does fewer operations.
fn cost(net: &dyn Module, sample: &Tensor, batch: usize, further: f64) -> Result<Cost> {
    let summary = Summary::of(net, sample)?;
    let weights = net.named_parameters();
    let (mut flops, mut outputs) = (further, 0);
    for layer in summary.layers().iter().filter(|layer| ["Conv2d", "Linear"].contains(&layer.kind)) {
        let weight = weights.iter().find(|(name, _)| *name == format!("{}.weight", layer.name));
        let (Some((_, weight)), Some(output)) = (weight, &layer.output) else { continue };
        let elements: usize = output.iter().product();
        // Each output of a convolution or a linear layer is a product with a row of the weight.
        let row = weight.elem_count() / weight.shape()[0].max(1);
        flops += 2.0 * elements as f64 * row as f64;
        outputs += elements;
    }
    let each = (summary.input_bytes + 2 * 4 * outputs) as f64;
    Ok(Cost { flops: flops * batch as f64, bytes: summary.parameter_bytes as f64 + each * batch as f64 })
}

/// The cost of a training step: the gradients of weights and of inputs take as much again each.
fn of_training(forward: Cost) -> Cost {
    Cost { flops: 3.0 * forward.flops, bytes: 3.0 * forward.bytes }
}

/// Whole training steps, as `anygpu train` takes them: forward, loss, backward, SGD with momentum. The batch comes from
/// the host each time.
fn training(
    device: &Device,
    net: impl Module + 'static,
    batches: Vec<(Tensor, Tensor)>,
    loss: fn(&Tensor, &Tensor) -> Result<Tensor>,
) -> Result<Run> {
    let net = DataParallel::new(net, std::slice::from_ref(device))?;
    let mut sgd = optim::SGD::new(net.parameters(), LENET_RECIPE.lr).momentum(LENET_RECIPE.momentum);
    let mut next = 0;
    Ok(Box::new(move || {
        let (inputs, labels) = &batches[next % batches.len()];
        next += 1;
        net.train_batch(inputs, labels, loss)?;
        sgd.step()
    }))
}

/// Outputs in evaluation mode, of inputs that are on the device.
fn predictions(device: &Device, net: impl Module + 'static, batches: Vec<(Tensor, Tensor)>) -> Result<Run> {
    let net = net.to(device)?;
    net.eval();
    let inputs = batches.iter().map(|(inputs, _)| inputs.to(device)).collect::<Result<Vec<_>>>()?;
    let mut next = 0;
    Ok(Box::new(move || {
        next += 1;
        no_grad(|| net.forward(&inputs[next % inputs.len()])).map(drop)
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_operations_of_lenet_are_those_of_its_layers() -> Result<()> {
        let found = cost(&lenet()?, &Tensor::zeros([1, 1, 28, 28], None)?, 2, 0.0)?;
        let layers = [9 * 20 * 26 * 26, 25 * 20 * 50 * 9 * 9, 800 * 128, 128 * 10];
        assert_eq!(found.flops, 2.0 * 2.0 * f64::from(layers.iter().sum::<i32>()));
        let outputs = 20 * 26 * 26 + 50 * 9 * 9 + 128 + 10;
        assert_eq!(found.bytes, f64::from(4 * 129_068 + 2 * (4 * 28 * 28 + 8 * outputs)));
        Ok(())
    }

    #[test]
    fn the_layers_of_the_other_nets_are_counted() -> Result<()> {
        // torchvision's ResNet-18 has 1.82e9 multiply-adds at 3 × 224 × 224, and its last layer 1000 classes.
        let image = Tensor::zeros([1, 3, 96, 96], None)?;
        let giga = cost(&resnet18(3, 10)?, &image, 1, 0.0)?.flops * 1e-9;
        assert!((0.66..0.67).contains(&giga), "{giga}");
        let tokens = Tensor::full([1, CONTEXT], 0, None)?.to_dtype(DType::U32)?;
        let weights = (12 * LAYERS * WIDTH * WIDTH + WIDTH * VOCABULARY) as f64;
        assert_eq!(cost(&Transformer::new()?, &tokens, 1, 0.0)?.flops, 2.0 * CONTEXT as f64 * weights);
        Ok(())
    }
}
