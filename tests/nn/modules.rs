//! Modules: names, nested layers, freezing, replacing and summaries, on every device where the device matters.

use anygpu::nn::init;
use anygpu::nn::{
    BatchNorm2d, Buffer, Conv1d, Conv2d, ConvTranspose2d, Flatten, Identity, Linear, Mode, Module, MultiheadAttention,
    ReLU, Residual, Sequential, models,
};
use anygpu::optim::SGD;
use anygpu::{Attention, Conv, DataParallel, Device, Error, Result, Tensor, nn};
use serde_json::Value;

use crate::common::devices_in_turn;

/// A user's module, with every kind of field.
#[derive(Clone)]
struct Net {
    stem: Conv2d,
    blocks: Vec<Block>,
    pair: [Linear; 2],
    extra: Option<Linear>,
    none: Option<Linear>,
    scale: Tensor,
    count: Buffer,
    mode: Mode,
    head: Box<dyn Module>,
}

#[derive(Clone)]
struct Block(Linear, ReLU);

impl Module for Block {
    anygpu::children!(0, 1);

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.1.forward(&self.0.forward(x)?)
    }
}

impl Module for Net {
    anygpu::children!(stem, blocks, pair, extra, none, scale, count, mode, head);

    /// `[N, 1, 4, 4]` → `[N, 2]`
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let mut x = self.stem.forward(x)?.flatten(1)?;
        for block in &self.blocks {
            x = block.forward(&x)?;
        }
        for layer in self.pair.iter().chain(&self.extra).chain(&self.none) {
            x = layer.forward(&x)?;
        }
        self.head.forward(&x.mul(&self.scale)?)
    }
}

anygpu::module! {
    /// A module with a number and a list, written by the macro.
    #[derive(Debug)]
    pub(crate) struct Scaled(width: usize, factor: f32) {
        pub factor: f32 = factor * 2.0,
        layers: Vec<Linear> = (0..2).map(|_| Linear::new(width, width)).collect::<Result<_>>()?,
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        x.apply(&self.layers[0])?.apply(&self.layers[1])? * self.factor
    }
}

#[test]
fn a_module_by_the_macro_is_one_as_any_other() -> Result<()> {
    let net = Scaled::new(3, 0.5)?;
    assert_eq!(net.factor, 1.0);
    let state = net.state_dict();
    let names: Vec<&str> = state.names().collect();
    assert_eq!(names, ["layers.0.weight", "layers.0.bias", "layers.1.weight", "layers.1.bias"]);
    for device in devices_in_turn() {
        let x = Tensor::ones((2, 3), &device)?;
        let expected = net.forward(&x.cpu()?)?;
        assert!(x.apply(&net.clone().to(&device)?)?.cpu()?.allclose(&expected, 1e-5, 1e-6)?, "{device}");
    }
    Ok(())
}

fn net() -> Result<Net> {
    let block = || Ok(Block(Linear::new(8, 8)?, ReLU));
    Ok(Net {
        stem: Conv2d::new(1, 2, 3)?,
        blocks: vec![block()?, block()?],
        pair: [Linear::new(8, 8)?, Linear::new(8, 8)?],
        extra: Some(Linear::new(8, 3)?),
        none: None,
        scale: Tensor::ones([3], None)?.requires_grad(),
        count: Buffer(Tensor::zeros([1], None)?),
        mode: Mode::default(),
        head: Box::new(Sequential::new().push(Linear::new(3, 3)?).push(ReLU).push(Linear::new(3, 2)?)),
    })
}

#[test]
fn every_kind_of_field_is_reached_by_its_name() -> Result<()> {
    let net = net()?;
    let names: Vec<String> = net.named_parameters().into_iter().map(|(name, _)| name).collect();
    let of = |layer: &str| [format!("{layer}.weight"), format!("{layer}.bias")];
    let expected = ["stem", "blocks.0.0", "blocks.1.0", "pair.0", "pair.1", "extra"].map(of).concat();
    assert_eq!(names, [expected, vec!["scale".into()], of("head.0").into(), of("head.2").into()].concat());
    for name in &names {
        assert!(net.get(name).is_some(), "{name}");
    }
    assert_eq!(net.get("count").map(|c| c.shape().to_vec()), Some(vec![1]));
    assert!(net.get("none.weight").is_none() && net.get("head").is_none());

    let all = net.named_modules().into_iter().map(|(name, module)| format!("{name}:{}", module.type_name()));
    let expected = ":Net stem:Conv2d blocks.0:Block blocks.0.0:Linear blocks.0.1:ReLU blocks.1:Block blocks.1.0:Linear \
                    blocks.1.1:ReLU pair.0:Linear pair.1:Linear extra:Linear head:Sequential head.0:Linear head.1:ReLU \
                    head.2:Linear";
    assert_eq!(all.collect::<Vec<_>>().join(" "), expected);
    assert!(net.get_submodule("blocks.1").is_some_and(|block| block.is::<Block>()));
    assert!(net.get_submodule("blocks").is_none() && net.get_submodule("head.0").is_some_and(|l| l.is::<Linear>()));
    Ok(())
}

#[test]
fn a_layer_that_cannot_be_told_apart_is_refused() -> Result<()> {
    let doubled = Sequential::new().add("fc", Linear::new(2, 2)?).add("fc", Linear::new(2, 5)?);
    assert_eq!(doubled.len(), 1);
    let error = doubled.forward(&Tensor::ones([1, 2], None)?).unwrap_err();
    assert!(
        matches!(&error, Error::InvalidArgument { .. }) && error.to_string().contains("already is a layer 'fc'"),
        "{error}"
    );
    // Replicas say so too.
    let devices = [Device::cpu()];
    assert!(DataParallel::new(doubled, &devices)?.predict(&Tensor::ones([1, 2], None)?).is_err());
    for name in ["", "a.b"] {
        assert!(Sequential::new().add_module(name, ReLU).is_err(), "'{name}'");
    }
    // A number that was given before is taken.
    let mut taken = Sequential::new().add("1", ReLU).push(Identity);
    assert!(taken.forward(&Tensor::ones([1], None)?).is_err());
    assert!(taken.add_module("2", ReLU).is_ok());
    Ok(())
}

#[test]
fn layers_are_found_by_number_and_by_name() -> Result<()> {
    let net = models::lenet()?;
    assert_eq!(net.iter().map(|(name, _)| name).collect::<Vec<_>>()[..3], ["conv1", "relu1", "pool1"]);
    assert_eq!((net.len(), net.is_empty()), (10, false));
    assert!(net[0].is::<Conv2d>() && net["flatten"].is::<Flatten>());
    let fc1 = net["fc1"].downcast_ref::<Linear>().expect("a linear layer");
    assert!(fc1.weight().is_same(&net.get("fc1.weight").expect("a weight")));
    let resnet = models::resnet18(1, 10)?;
    assert!(resnet.get("layer4.1.bn2.running_var").is_some());
    Ok(())
}

#[test]
fn apply_reaches_every_layer_on_every_device() -> Result<()> {
    for device in devices_in_turn() {
        let mut net = net()?;
        net.to_(&device)?;
        let parameters = net.parameters();
        let mut kinds = Vec::new();
        net.apply(|layer| {
            kinds.push(layer.type_name());
            if let Some(linear) = layer.downcast_ref::<Linear>() {
                init::constant_(linear.weight(), 0.25)?;
                linear.bias().map_or(Ok(()), init::ones_)?;
            }
            Ok(())
        })?;
        assert_eq!((kinds.len(), kinds.last()), (15, Some(&"Net")), "{device}"); // what is within comes first
        for name in ["blocks.1.0", "pair.0", "extra", "head.2"] {
            let values = |part: &str| net.get(&format!("{name}.{part}")).expect("a parameter").to_vec::<f32>();
            assert!(
                values("weight")?.iter().all(|&v| v == 0.25) && values("bias")?.iter().all(|&v| v == 1.0),
                "{name}"
            );
        }
        // In place: what an optimiser has stays the module's own.
        assert!(net.parameters().iter().zip(&parameters).all(|(new, old)| new.is_same(old)));
        let failed = net.apply(|layer| match layer.downcast_ref::<Conv2d>() {
            Some(conv) => init::xavier_normal_(conv.bias().expect("a bias"), 1.0),
            None => Ok(()),
        });
        assert!(failed.is_err_and(|error| error.to_string().contains("xavier_normal_")));
    }
    Ok(())
}

#[test]
fn frozen_layers_stay_and_a_new_head_trains() -> Result<()> {
    for device in devices_in_turn() {
        let mut net = Sequential::new()
            .add("body", Sequential::new().push(Linear::new(4, 6)?).push(ReLU))
            .add("head", Linear::new(6, 3)?);
        net.requires_grad_(false);
        net.set("head", Linear::new(6, 2)?)?;
        net.to_(&device)?;
        let before = net.get("body.0.weight").expect("a weight").to_vec::<f32>()?;
        let head = net.get("head.weight").expect("a weight").to_vec::<f32>()?;
        let mut sgd = SGD::new(net.parameters(), 0.1).momentum(0.9).weight_decay(0.1);
        let (x, y) = (Tensor::ones([5, 4], &device)?, Tensor::from_slice(&[0, 1, 0, 1, 1u32], 5, &device)?);
        for _ in 0..3 {
            sgd.zero_grad();
            nn::cross_entropy(&net.forward(&x)?, &y)?.backward()?;
            assert!(net.get("body.0.weight").expect("a weight").grad().is_none());
            sgd.step()?;
        }
        assert_eq!(net.get("body.0.weight").expect("a weight").to_vec::<f32>()?, before, "{device}");
        assert_ne!(net.get("head.weight").expect("a weight").to_vec::<f32>()?, head, "{device}");
        net["body"].requires_grad_(true);
        nn::cross_entropy(&net.forward(&x)?, &y)?.backward()?;
        assert!(net.get("body.0.weight").expect("a weight").grad().is_some());
    }
    Ok(())
}

#[test]
fn frozen_replicas_stay_too() -> Result<()> {
    let mut net = models::mlp(&[4, 6, 2])?;
    net["fc1"].requires_grad_(false);
    let devices = devices_in_turn();
    let net = DataParallel::new(net, &devices[..2.min(devices.len())])?;
    let before: Vec<Vec<f32>> = net.parameters().iter().map(Tensor::to_vec).collect::<Result<_>>()?;
    let mut sgd = SGD::new(net.parameters(), 0.1);
    net.train_batch(
        &Tensor::ones([6, 4], None)?,
        &Tensor::from_slice(&[0, 1, 0, 1, 1, 1u32], 6, None)?,
        nn::cross_entropy,
    )?;
    sgd.step()?;
    for (i, (parameter, before)) in net.parameters().iter().zip(&before).enumerate() {
        let same = parameter.to_vec::<f32>()? == *before;
        assert_eq!(same, i % 4 < 2, "parameter {i} of fc1.weight, fc1.bias, fc2.weight, fc2.bias, …");
    }
    Ok(())
}

#[test]
fn a_layer_is_replaced_where_it_fits() -> Result<()> {
    let mut net = net()?;
    net.set("head.2", Linear::new(3, 7)?)?; // any type in a Sequential
    net.set("head.1", Identity)?;
    net.set("pair.1", Linear::new(8, 8)?.without_bias())?; // the same type in a field
    assert_eq!(net.forward(&Tensor::ones([2, 1, 4, 4], None)?)?.shape(), [2, 7]);
    assert!(net.get("pair.1.bias").is_none());
    net.set("head", Linear::new(3, 4)?)?; // any type in a box
    assert_eq!(net.forward(&Tensor::ones([2, 1, 4, 4], None)?)?.shape(), [2, 4]);
    let error = net.set("stem", Linear::new(1, 1)?).unwrap_err().to_string();
    assert_eq!(error, "set: 'stem' is a field of type Conv2d, which cannot hold a Linear");
    let error = net.set("fc", ReLU).unwrap_err().to_string();
    assert!(error.contains("there is no layer 'fc'; the layers are stem, blocks.0"), "{error}");
    Ok(())
}

#[test]
fn a_summary_shows_shapes_and_counts() -> Result<()> {
    for device in devices_in_turn() {
        let mut net = models::resnet18(3, 10)?;
        net.to_(&device)?;
        net["conv1"].requires_grad_(false);
        let before: Vec<f32> = net.get("bn1.running_mean").expect("a buffer").to_vec()?;
        let summary = net.summary(&[2, 3, 32, 32])?;
        let row = |name: &str| summary.layers().iter().find(|layer| layer.name == name).expect("a row").clone();
        assert_eq!(row("").output, Some(vec![2, 10]));
        assert_eq!(row("maxpool").output, Some(vec![2, 64, 8, 8]));
        assert_eq!(row("layer2.0.conv2").output, Some(vec![2, 128, 4, 4]));
        assert_eq!((row("layer2.0").output, row("layer2.0").kind), (Some(vec![2, 128, 4, 4]), "BasicBlock"));
        assert_eq!((row("layer2.0.downsample.0").parameters, row("layer2").parameters), (64 * 128, 0));
        assert_eq!((summary.parameters, summary.trainable), (11_181_642, 11_181_642 - 9_408));
        assert_eq!((summary.parameter_bytes, summary.buffer_bytes), (11_181_642 * 4, 4800 * 2 * 4));
        let rows: usize = summary.layers().iter().map(|layer| layer.parameters).sum();
        assert_eq!(rows, summary.parameters);
        let text = summary.to_string();
        assert!(text.contains("11 181 642 parameters (9 408 frozen), 42.7 MiB"), "{text}");
        assert!(text.lines().any(|l| l.starts_with("  fc (Linear)") && l.ends_with("5 130")), "{text}");
        // It changes nothing, and costs nothing afterwards.
        assert_eq!(net.get("bn1.running_mean").expect("a buffer").to_vec::<f32>()?, before);
        net.forward(&Tensor::rand([2, 3, 32, 32], &device)?)?;
        assert_ne!(net.get("bn1.running_mean").expect("a buffer").to_vec::<f32>()?, before, "still in training");
        assert!(net.summary(&[2, 3]).is_err());
    }
    Ok(())
}

#[test]
fn a_summary_of_ones_own_module() -> Result<()> {
    let summary = net()?.summary(&[2, 1, 4, 4])?;
    let outputs: Vec<(&str, Option<&[usize]>)> =
        summary.layers().iter().map(|layer| (layer.name.as_str(), layer.output.as_deref())).collect();
    assert_eq!(outputs[0], ("", Some(&[2, 2][..])));
    assert_eq!(outputs[1], ("stem", Some(&[2, 2, 2, 2][..])));
    assert_eq!(outputs[2], ("blocks.0", None)); // nothing sees the calls of a typed field of one's own type
    assert_eq!(outputs[3], ("blocks.0.0", Some(&[2, 8][..])));
    assert!(outputs.contains(&("head", Some(&[2, 2]))) && outputs.contains(&("head.1", Some(&[2, 3]))));
    // 16 of the stem, 2·2·16 of the blocks, 16 + 16 + 6 of the three linear layers, 6 + 6 + 4 of the head, in f32
    assert_eq!(summary.output_bytes, 4 * (16 + 64 + 38 + 16));
    let words = Sequential::new().push(nn::Embedding::new(10, 4)?);
    let summary = nn::Summary::of(&words, &Tensor::from_slice(&[1, 2u32], 2, None)?)?;
    assert_eq!(summary.layers()[1].output.as_deref(), Some(&[2, 4][..]));
    Ok(())
}

/// sin(i + k) / 2, as scripts/pytorch_modules.py has it.
fn wave(shape: &[usize], k: f64, device: &Device) -> Result<Tensor> {
    let values: Vec<f32> = (0..shape.iter().product()).map(|i: usize| ((i as f64 + k).sin() / 2.0) as f32).collect();
    Tensor::from_vec(values, shape, device)
}

fn reference() -> Value {
    serde_json::from_str(include_str!("../data/modules.json")).expect("JSON")
}

#[track_caller]
fn assert_values(what: &str, got: &Tensor, expected: &Value) -> Result<()> {
    let got = got.to_vec::<f32>()?;
    let expected: Vec<f64> = expected.as_array().expect("values").iter().filter_map(Value::as_f64).collect();
    assert_eq!(got.len(), expected.len(), "{what}");
    let worst = got.iter().zip(&expected).map(|(g, e)| (f64::from(*g) - e).abs()).fold(0.0, f64::max);
    assert!(worst < 1e-5, "{what}: {worst} away from PyTorch's");
    Ok(())
}

#[test]
fn multihead_attention_is_pytorchs() -> Result<()> {
    let reference = &reference()["attention"];
    for device in devices_in_turn() {
        let mut layer = MultiheadAttention::new(6, 2)?;
        layer.to_(&device)?;
        let names: Vec<String> = layer.named_parameters().into_iter().map(|(name, _)| name).collect();
        assert_eq!(serde_json::json!(names), reference["names"]);
        for (k, parameter) in layer.parameters().iter().enumerate() {
            anygpu::no_grad(|| parameter.copy_(&wave(parameter.shape(), k as f64, &device)?))?;
        }
        let x = wave(&[2, 3, 6], 10.0, &device)?.requires_grad();
        let y = wave(&[2, 4, 6], 11.0, &device)?;
        let what = |case: &str| format!("{case} on {device}");
        assert_values(&what("plain"), &layer.forward(&x)?, &reference["plain"])?;
        let seen = Tensor::from_slice(&[true, true, true, false, true, true, false, false], [2, 1, 1, 4], &device)?;
        let cross = layer.attend(&x, &y, &y, &Attention::new().mask(&seen))?;
        assert_values(&what("cross"), &cross, &reference["cross"])?;
        let causal = layer.clone().causal().forward(&x)?;
        assert_values(&what("causal"), &causal, &reference["causal"])?;
        causal.square()?.sum_all()?.backward()?;
        assert_values(&what("dx"), &x.grad().expect("a gradient"), &reference["causal_grad_x"])?;
        let grad = layer.parameters()[0].grad().expect("a gradient");
        assert_values(&what("dw"), &grad, &reference["causal_grad_in_proj_weight"])?;
        assert!(layer.attend(&x, &y, &x, &Attention::new()).is_err());
    }
    assert!(MultiheadAttention::new(6, 4).is_err());
    assert!([-0.1, 1.5, f32::NAN].into_iter().all(|p| MultiheadAttention::new(6, 2).unwrap().dropout(p).is_err()));
    Ok(())
}

#[test]
fn convolutions_take_their_settings() -> Result<()> {
    for device in devices_in_turn() {
        let mut up = ConvTranspose2d::new(4, 6, 3)?.groups(2)?.stride(2).padding(1).output_padding(1);
        up.to_(&device)?;
        let x = Tensor::rand([2, 4, 5, 5], &device)?;
        assert_eq!((up.weight().shape(), up.bias().map(Tensor::shape)), (&[4, 3, 3, 3][..], Some(&[6][..])));
        let conv = Conv::new().groups(2).stride(2).padding(1).output_padding(1);
        let expected = x.conv_transpose2d(up.weight(), up.bias(), conv)?.to_vec::<f32>()?;
        let y = up.forward(&x)?;
        assert_eq!((y.shape(), y.to_vec::<f32>()?), (&[2, 6, 10, 10][..], expected));

        let mut line = Conv1d::new(4, 6, 3)?.dilation(2).without_bias();
        line.to_(&device)?;
        let x = Tensor::rand([2, 4, 9], &device)?;
        let expected = x.conv1d(line.weight(), None, Conv::new().dilation(2))?.to_vec::<f32>()?;
        assert_eq!(line.forward(&x)?.to_vec::<f32>()?, expected);

        let mut block = Residual::new(Sequential::new().push(Conv2d::new(2, 2, 1)?).push(BatchNorm2d::new(2)?));
        block.to_(&device)?;
        block.eval();
        init::zeros_(&block.get("inner.0.weight").expect("a weight"))?;
        init::zeros_(&block.get("inner.0.bias").expect("a bias"))?;
        let x = Tensor::rand([1, 2, 3, 3], &device)?;
        assert_eq!(block.forward(&x)?.to_vec::<f32>()?, x.to_vec::<f32>()?, "{device}");
    }
    let uneven = Residual::new(Conv2d::new(2, 1, 1)?);
    assert!(uneven.forward(&Tensor::ones([1, 2, 3, 3], None)?).is_err()); // would broadcast, and mean nothing
    Ok(())
}
