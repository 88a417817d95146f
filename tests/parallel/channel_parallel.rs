//! Layers whose channels are on several devices: outputs, gradients and steps are those of the plain layer.

use std::sync::LazyLock;

use anygpu::nn::{self, Conv2d, Linear, Module, ReLU, Sequential};
use anygpu::optim::{Adam, SGD};
use anygpu::parallel::{ChannelParallelConv2d, ColumnParallelLinear, RowParallelLinear};
use anygpu::{DType, DataParallel, Device, Error, Result, Tensor, autocast, no_grad};

use crate::common::{device, devices_in_turn, values};

/// Two and three devices with weights: every kind with the host, the adapters together, logical ones, and one device twice.
static MIXES: LazyLock<Vec<(Vec<Device>, Vec<f64>)>> = LazyLock::new(|| {
    let lists = [["cpu/0", "cpu/1", "cpu/2"], ["soft:0", "cpu", "soft:2"], ["cpu", "soft:0", "cpu"]];
    let named = lists.iter().filter_map(|list| list.iter().map(|name| device(name)).collect());
    let pairs = devices_in_turn().into_iter().map(|device| vec![Device::cpu(), device]);
    let weighted = |devices: Vec<Device>| [4.0, 1.0, 2.5][..devices.len()].to_vec();
    named.chain(pairs).map(|devices: Vec<Device>| (devices.clone(), weighted(devices))).collect()
});

#[track_caller]
fn assert_like(what: &str, got: &Tensor, expected: &Tensor, relative: f64) -> Result<()> {
    assert_eq!(got.shape(), expected.shape(), "{what}");
    let (got, expected) = (values(got)?, values(expected)?);
    let most = expected.iter().fold(1e-6, |most: f64, v| most.max(v.abs()));
    let worst = got.iter().zip(&expected).fold(0.0, |worst: f64, (g, e)| worst.max((g - e).abs()));
    assert!(worst <= relative * most, "{what}: differs by {worst}, of {most}");
    Ok(())
}

/// Compares outputs and the gradients of the input and of the parameters. `plain` returns a parallel layer as the plain one.
fn compare<P: Module, L: Module>(
    what: &str,
    layer: &L,
    parallel: &P,
    plain: fn(&P) -> Result<L>,
    x: &Tensor,
) -> Result<()> {
    let run = |layer: &dyn Module, x: &Tensor| -> Result<[Tensor; 2]> {
        layer.parameters().iter().for_each(|parameter| parameter.set_grad(None));
        let x = x.copy()?.requires_grad();
        let y = layer.forward(&x)?;
        assert_eq!(y.device(), x.device());
        // Every element of the output has another gradient.
        let factors =
            Tensor::arange(0.0, y.elem_count() as f32, 1.0, x.device())?.mul(0.013)?.cos()?.reshape(y.shape())?;
        y.mul(&factors)?.sum_all()?.backward()?;
        Ok([y.detach(), x.grad().expect("a gradient")])
    };
    let expected = run(layer, x)?;
    for device in [parallel.parameters().last().expect("a parameter").device().clone(), Device::new("cpu/5")?] {
        let got = run(parallel, &x.to(&device)?)?;
        let what = format!("{what}, from {device}");
        got.iter().zip(&expected).try_for_each(|(got, expected)| assert_like(&what, got, expected, 1e-5))?;
        // Gradients instead of values: a layer of the gradients is joined as one of the values.
        let grads =
            |layer: &dyn Module| layer.parameters().iter().map(|p| p.grad().expect("a gradient")).collect::<Vec<_>>();
        let mut holder = parallel.clone_box();
        let mut grads_of_parts = grads(parallel).into_iter();
        holder.visit_mut(&mut |_, parameter| *parameter = grads_of_parts.next().expect("a gradient"));
        let joined = plain(holder.downcast_ref::<P>().expect("the same type"))?;
        for (got, expected) in joined.parameters().iter().zip(grads(layer)) {
            assert_like(&what, got, &expected, 1e-5)?;
        }
    }
    let again = plain(parallel)?;
    for (got, expected) in again.parameters().iter().zip(layer.parameters()) {
        assert!(got.is_tracked() && got.to_vec::<f32>()? == expected.to_vec::<f32>()?, "{what}");
    }
    Ok(())
}

#[test]
fn linear_layers_are_those_of_one_device() -> Result<()> {
    for bias in [true, false] {
        let layer = Linear::new(11, 7)?;
        let layer = if bias { layer } else { layer.without_bias() };
        for (devices, weights) in &*MIXES {
            for shape in [&[5, 11][..], &[2, 3, 11], &[11]] {
                let x = Tensor::rand(shape, None)?.add(-0.5)?;
                let what = format!("{shape:?} on {devices:?}");
                let column = ColumnParallelLinear::new(&layer, devices, weights)?;
                assert_eq!(&column.devices(), devices);
                compare(&format!("columns, {what}"), &layer, &column, ColumnParallelLinear::to_linear, &x)?;
                let row = RowParallelLinear::new(&layer, devices, weights)?;
                compare(&format!("rows, {what}"), &layer, &row, RowParallelLinear::to_linear, &x)?;
            }
        }
    }
    Ok(())
}

#[test]
fn convolutions_are_those_of_one_device() -> Result<()> {
    let plain = Conv2d::new(4, 7, 3)?.padding(1);
    let strided = Conv2d::new(4, 5, [3, 2])?.stride(2).dilation([1, 2]).without_bias();
    let grouped = Conv2d::new(8, 12, 3)?.groups(4)?.padding([0, 1]);
    let depthwise = Conv2d::new(6, 6, 3)?.groups(6)?;
    for (conv, channels) in [(plain, 4), (strided, 4), (grouped, 8), (depthwise, 6)] {
        let x = Tensor::rand([3, channels, 9, 8], None)?.add(-0.5)?;
        for (devices, weights) in &*MIXES {
            let parallel = ChannelParallelConv2d::new(&conv, devices, weights)?;
            assert_eq!(&parallel.devices(), devices);
            compare(&format!("{conv:?} on {devices:?}"), &conv, &parallel, ChannelParallelConv2d::to_conv2d, &x)?;
        }
    }
    Ok(())
}

/// A net with all three, trained by both optimisers.
#[test]
fn five_steps_are_those_of_one_device() -> Result<()> {
    let (conv, up, down) = (Conv2d::new(1, 6, 3)?.stride(2), Linear::new(54, 30)?, Linear::new(30, 5)?);
    let x = Tensor::rand([9, 1, 8, 8], None)?.add(-0.5)?;
    let y = Tensor::from_slice(&[0u32, 1, 2, 3, 4, 0, 1, 2, 3], 9, None)?;
    type Layers = [Box<dyn Module>; 3];
    let net = |[conv, up, down]: Layers| {
        let net = Sequential::new().add("conv", conv).add("relu", ReLU).add("flat", nn::Flatten);
        net.add("up", up).add("relu2", ReLU).add("down", down)
    };
    let losses = |net: &Sequential, adam: bool| -> Result<Tensor> {
        let mut adam = adam.then(|| Adam::new(net.parameters(), 0.01));
        let mut sgd = SGD::new(net.parameters(), 0.1).momentum(0.9);
        let mut losses = Vec::new();
        for _ in 0..5 {
            sgd.zero_grad();
            let loss = nn::cross_entropy(&net.forward(&x)?, &y)?;
            loss.backward()?;
            losses.push(loss.item::<f32>()?);
            adam.as_mut().map_or_else(|| sgd.step(), Adam::step)?;
        }
        Tensor::from_vec(losses, 5, None)
    };
    for adam in [false, true] {
        let own = |layer: &dyn Module| -> Result<Box<dyn Module>> {
            let mut own = layer.clone_box();
            own.visit_mut(&mut |_, parameter| *parameter = parameter.copy().expect("a copy").requires_grad());
            Ok(own)
        };
        let expected = losses(&net([own(&conv)?, own(&up)?, own(&down)?]), adam)?;
        for (devices, weights) in &*MIXES {
            let layers: Layers = [
                Box::new(ChannelParallelConv2d::new(&conv, devices, weights)?),
                Box::new(ColumnParallelLinear::new(&up, devices, weights)?),
                Box::new(RowParallelLinear::new(&down, devices, weights)?),
            ];
            assert_like(&format!("Adam: {adam}, on {devices:?}"), &losses(&net(layers), adam)?, &expected, 1e-5)?;
        }
    }
    Ok(())
}

/// What is frozen stays frozen, halves stay halves, a graph may be walked twice, and nothing is recorded in `no_grad`.
#[test]
fn gradients_flow_where_they_do_in_the_plain_layer() -> Result<()> {
    let devices = Device::list("cpu/0,cpu/1")?;
    let mut layer = Linear::new(6, 4)?;
    layer.requires_grad_(false);
    let x = Tensor::rand([3, 6], None)?;
    let frozen = ColumnParallelLinear::new(&layer, &devices, &[1.0, 1.0])?;
    assert!(!frozen.forward(&x)?.is_tracked() && !frozen.to_linear()?.weight().is_tracked());
    let leaf = x.requires_grad();
    frozen.forward(&leaf)?.sum_all()?.backward()?;
    assert!(leaf.grad().is_some() && frozen.parameters().iter().all(|parameter| parameter.grad().is_none()));

    layer.requires_grad_(true);
    let row = no_grad(|| RowParallelLinear::new(&layer, &devices, &[1.0, 1.0]))?;
    assert!(!no_grad(|| row.forward(&x))?.is_tracked());
    let y = row.forward(&x)?.square()?.sum_all()?;
    y.backward_retain_graph()?;
    let once: Vec<Vec<f32>> =
        row.parameters().iter().map(|p| p.grad().expect("a gradient").to_vec()).collect::<Result<_>>()?;
    y.backward()?;
    for (parameter, once) in row.parameters().iter().zip(once) {
        let twice = parameter.grad().expect("a gradient").to_vec::<f32>()?;
        assert!(twice.iter().zip(once).all(|(two, one)| *two == 2.0 * one));
    }
    assert!(y.backward().is_err());

    let halves = autocast(DType::F16, || row.forward(&x))?;
    assert_eq!(halves.dtype(), DType::F16);
    assert_like("halves", &halves, &layer.forward(&x)?.detach(), 3e-3)?;
    halves.to_dtype(DType::F32)?.sum_all()?.backward()?;
    Ok(())
}

/// A move takes all parts to one device, where they compute the same; so does `DataParallel`.
#[test]
fn a_moved_layer_computes_the_same() -> Result<()> {
    let (conv, x) = (Conv2d::new(2, 5, 3)?, Tensor::rand([4, 2, 6, 6], None)?);
    let expected = conv.forward(&x)?.detach();
    for (devices, weights) in &*MIXES {
        let parallel = ChannelParallelConv2d::new(&conv, devices, weights)?;
        let names: Vec<String> = parallel.named_parameters().into_iter().map(|(name, _)| name).take(3).collect();
        assert_eq!(names, ["parts.0.weight", "parts.0.bias", "parts.1.weight"]);
        let device = &devices[devices.len() - 1];
        let moved = parallel.clone().to(device)?;
        assert!(moved.devices().iter().all(|other| other == device));
        assert_like("moved", &moved.forward(&x)?.detach(), &expected, 1e-5)?;
        let replicas = DataParallel::new(parallel, &Device::list("cpu/0,cpu/1")?)?;
        assert_like("replicated", &replicas.predict(&x)?, &expected, 1e-5)?;
    }
    Ok(())
}

#[test]
fn what_does_not_fit_is_an_error() -> Result<()> {
    let devices = Device::list("cpu/0,cpu/1")?;
    let (linear, conv) = (Linear::new(3, 2)?, Conv2d::new(4, 4, 3)?.groups(2)?);
    let refused = |result: Result<ColumnParallelLinear>| match result {
        Err(Error::InvalidArgument { op: "ColumnParallelLinear", detail }) => detail,
        other => panic!("{other:?}"),
    };
    for weights in [&[1.0][..], &[1.0, 0.0], &[1.0, f64::NAN], &[1.0, -1.0]] {
        let detail = refused(ColumnParallelLinear::new(&linear, &devices, weights));
        assert!(detail.contains("one positive number for each device"), "{detail}");
    }
    refused(ColumnParallelLinear::new(&linear, &[], &[]));
    let three = Device::list("cpu/0,cpu/1,cpu/2")?;
    let detail = refused(ColumnParallelLinear::new(&linear, &three, &[1.0; 3]));
    assert!(detail.contains("2 channels or groups cannot be split among 3 devices"), "{detail}");
    assert!(ChannelParallelConv2d::new(&conv, &three, &[1.0; 3]).is_err(), "two groups");
    let uneven = ColumnParallelLinear::new(&linear, &devices, &[1e9, 1e-9])?;
    assert_eq!(uneven.parameters()[2].shape(), [1, 3], "every part has a row");

    let row = RowParallelLinear::new(&linear, &devices, &[1.0, 1.0])?;
    let conv = ChannelParallelConv2d::new(&conv, &devices, &[1.0, 1.0])?;
    let wide = Tensor::ones([2, 4], None)?;
    for (layer, op) in [(&uneven as &dyn Module, "ColumnParallelLinear"), (&row, "RowParallelLinear")] {
        let error = layer.forward(&wide).unwrap_err();
        assert!(error.to_string().contains("from 3 to 2 features"), "{error}");
        assert!(matches!(error, Error::ShapeMismatch { op: name, .. } if name == op), "{error}");
        let whole = layer.forward(&Tensor::from_slice(&[1u32; 3], 3, None)?).unwrap_err();
        assert!(matches!(whole, Error::DTypeMismatch { op: name, .. } if name == op), "{whole}");
    }
    let error = conv.forward(&Tensor::ones([1, 3, 5, 5], None)?).unwrap_err();
    assert!(error.to_string().contains("must be [N, 4, H, W]"), "{error}");
    assert!(conv.forward(&wide).is_err());
    let small = conv.forward(&Tensor::ones([1, 4, 2, 2], None)?).unwrap_err();
    assert!(matches!(small, Error::Replica { .. }), "{small}");
    Ok(())
}
