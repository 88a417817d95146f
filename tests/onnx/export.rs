//! Modules written by `onnx::export`: read again, they compute the same, for batches of any size, and keep their names.
//!
//! `ANYGPU_ONNX_EXPORTS=DIR` also leaves the files there, with inputs and outputs as .npy, for `scripts/onnx_exports.py`, which runs
//! ONNX's checker and ONNX Runtime on them.

use std::path::Path;

use anygpu::nn::*;
use anygpu::onnx::{self, Exporter};
use anygpu::{
    Attention, ConvPadding, DType, Device, Error, Interpolation, Padding, Pool, Resample, ResampleFilter, Result,
    ScatterReduce, Tensor, Unfold, no_grad,
};

use super::common::devices;

/// The largest difference, relative to the largest element, but at least to 1.
fn difference(a: &Tensor, b: &Tensor) -> f32 {
    assert_eq!((a.shape(), a.dtype()), (b.shape(), b.dtype()));
    let floats = |x: &Tensor| x.cpu().and_then(|x| x.to_dtype(DType::F32)).and_then(|x| x.to_vec::<f32>()).expect("values");
    let (a, b) = (floats(a), floats(b));
    let scale = b.iter().fold(1f32, |most, x| if x.is_finite() { most.max(x.abs()) } else { most });
    let far = |(a, b): (&f32, &f32)| if a == b || (a.is_nan() && b.is_nan()) { 0.0 } else { (a - b).abs() / scale };
    a.iter().zip(&b).map(far).fold(0.0, f32::max)
}

/// Exports the forward function, loads the file and compares both on batches of other sizes.
fn check<M: Module + Clone>(
    name: &str,
    module: &M,
    inputs: impl Fn(usize) -> Result<Vec<Tensor>>,
    forward: impl Fn(&M, &[Tensor]) -> Result<Vec<Tensor>>,
) -> Result<()> {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("net.onnx");
    let examples = inputs(1)?;
    let examples: Vec<&Tensor> = examples.iter().collect();
    Exporter::new().export_with(module, &examples, &path, &forward)?;
    let model = onnx::load(&path)?;
    let copy = module.clone();
    copy.eval();
    for samples in [1, 4] {
        let given = inputs(samples)?;
        let expected = no_grad(|| forward(&copy, &given))?;
        let infos = model.inputs();
        let named: Vec<(&str, &Tensor)> = infos.iter().map(|info| &info.name[..]).zip(&given).collect();
        let got = model.run(&named)?.into_vec();
        assert_eq!(got.len(), expected.len(), "{name}");
        for (i, (got, expected)) in got.iter().zip(&expected).enumerate() {
            let far = difference(got, expected);
            assert!(far < 1e-5, "{name}: output {i} of a batch of {samples} differs by {far}");
        }
        if let Some(folder) = std::env::var_os("ANYGPU_ONNX_EXPORTS") {
            leave(Path::new(&folder), name, &path, samples, [&given, &expected])?;
        }
    }
    Ok(())
}

fn leave(folder: &Path, name: &str, model: &Path, samples: usize, tensors: [&[Tensor]; 2]) -> Result<()> {
    let folder = folder.join(name);
    std::fs::create_dir_all(&folder).expect("a folder");
    std::fs::copy(model, folder.join("model.onnx")).expect("a copy");
    for (kind, tensors) in ["input", "output"].into_iter().zip(tensors) {
        for (i, tensor) in tensors.iter().enumerate() {
            tensor.save_npy(folder.join(format!("{samples}_{kind}_{i}.npy")))?;
        }
    }
    Ok(())
}

/// Numbers between −2 and 2 that are not alike, the same in every run.
fn numbers(shape: &[usize]) -> Result<Tensor> {
    let count: usize = shape.iter().product();
    let value = |i: usize| ((i * 7919 + 13) % 1009) as f32 / 252.25 - 2.0;
    Tensor::from_slice(&(0..count).map(value).collect::<Vec<_>>(), shape, None)
}

/// A net of one input of these sizes for each sample.
fn net(name: &str, module: Sequential, sample: &[usize]) -> Result<()> {
    let inputs = |n: usize| Ok(vec![numbers(&[&[n], sample].concat())?]);
    check(name, &module, inputs, |net, x| Ok(vec![net.forward(&x[0])?]))
}

/// Functions of tensors without parameters.
fn functions(name: &str, sample: &[usize], f: impl Fn(&Tensor) -> Result<Vec<Tensor>>) -> Result<()> {
    let inputs = |n: usize| Ok(vec![numbers(&[&[n], sample].concat())?]);
    check(name, &Identity, inputs, |_, x| f(&x[0]))
}

fn of(module: impl Module) -> Sequential {
    Sequential::new().add("layer", module)
}

/// Gives batch norms statistics that are not 0 and 1.
fn trained<M: Module>(module: M, sample: &[usize]) -> Result<M> {
    module.train();
    no_grad(|| module.forward(&numbers(&[&[3], sample].concat())?.mul(1.5)?.add(0.5)?))?;
    Ok(module)
}

#[test]
fn nets() -> Result<()> {
    net("mlp", models::mlp(&[6, 5, 4])?, &[6])?;
    net("lenet", models::lenet()?, &[1, 28, 28])?;
    net("resnet18", trained(models::resnet18(3, 10)?, &[3, 32, 32])?, &[3, 32, 32])
}

#[test]
fn parameters_and_buffers_keep_their_names() -> Result<()> {
    let net = trained(models::resnet18(1, 10)?, &[1, 32, 32])?;
    net.train();
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("net.onnx");
    onnx::export(&net, &numbers(&[1, 1, 32, 32])?, &path)?;
    let file = std::fs::read(&path).expect("the file");
    let file: super::proto::Model = prost::Message::decode(&file[..]).expect("a model");
    let graph = file.graph.expect("a graph");
    for (name, value) in net.state_dict().iter() {
        let stored = graph.initializer.iter().find(|tensor| tensor.name == name);
        let stored = stored.unwrap_or_else(|| panic!("{name} is not in the file"));
        assert_eq!(stored.dims, value.shape().iter().map(|&size| size as i64).collect::<Vec<_>>(), "{name}");
    }
    assert_eq!(graph.node.iter().filter(|node| node.op_type == "BatchNormalization").count(), 20);
    assert_eq!(graph.node.iter().filter(|node| node.op_type == "Conv").count(), 20);
    assert_eq!(graph.node.iter().filter(|node| node.op_type == "Gemm").count(), 1);
    assert_eq!(graph.node.iter().filter(|node| node.op_type == "Cast").count(), 0);
    // The module is still in training mode: its statistics change.
    let before = net.named_buffers()[0].1.copy()?;
    net.forward(&numbers(&[2, 1, 32, 32])?.add(1.0)?)?;
    assert!(!before.equal(&net.named_buffers()[0].1)?);
    Ok(())
}

#[test]
fn convolutions() -> Result<()> {
    net("conv1d", of(Conv1d::new(3, 4, 3)?.stride(2).padding(1)), &[3, 11])?;
    net("conv_same", of(Conv2d::new(3, 4, 4)?.padding(ConvPadding::Same)), &[3, 9, 7])?;
    net("conv_groups", of(Conv2d::new(4, 6, [3, 2])?.groups(2)?.dilation([1, 2]).without_bias()), &[4, 9, 7])?;
    net("conv3d", of(Conv3d::new(2, 3, 2)?.padding(1)), &[2, 4, 5, 3])?;
    net("conv_transpose1d", of(ConvTranspose1d::new(3, 2, 3)?.stride(2).output_padding(1)), &[3, 5])?;
    let layer = ConvTranspose2d::new(4, 6, [3, 2])?.stride([2, 3]).padding([1, 0]).output_padding([1, 2]).groups(2)?;
    net("conv_transpose2d", of(layer), &[4, 5, 4])?;
    net("conv_transpose3d", of(ConvTranspose3d::new(2, 2, 2)?.stride(2)), &[2, 2, 3, 2])
}

#[test]
fn pools() -> Result<()> {
    net("max_pool", of(MaxPool2d::new([3, 2]).stride(2).padding([1, 0]).ceil_mode(true)), &[2, 6, 7])?;
    net("max_pool_dilated", of(MaxPool2d::new(2).stride(1).dilation(2)), &[2, 6, 7])?;
    net("avg_pool", of(AvgPool2d::new(3).stride(2).padding(1).ceil_mode(true)), &[2, 6, 8])?;
    net("avg_pool_inside", of(AvgPool2d::new(3).stride(2).padding(1).count_include_pad(false)), &[2, 6, 8])?;
    net("max_pool1d", of(MaxPool1d::new(2)), &[2, 7])?;
    net("avg_pool3d", of(AvgPool3d::new(2)), &[2, 4, 5, 6])?;
    net("adaptive", of(AdaptiveAvgPool2d::new([3, 1])), &[2, 7, 5])?;
    net("adaptive_max", of(AdaptiveMaxPool2d::new([3, 2])), &[2, 7, 4])?;
    functions("max_pool_positions", &[2, 6, 7], |x| {
        let (values, positions) = x.max_pool2d_with_indices(Pool::new(3).stride(2).padding(1))?;
        Ok(vec![values, positions])
    })
}

#[test]
fn normalisations() -> Result<()> {
    net("batch_norm1d", trained(of(BatchNorm1d::new(5)?), &[5])?, &[5])?;
    net("batch_norm_sequence", trained(of(BatchNorm1d::new(5)?), &[5, 3])?, &[5, 3])?;
    net("layer_norm", of(LayerNorm::new(&[4, 5])?), &[3, 4, 5])?;
    net("group_norm", of(GroupNorm::new(2, 4)?), &[4, 5, 3])?;
    net("rms_norm", of(RMSNorm::new(&[6])?), &[3, 6])?;
    functions("norms_without_parameters", &[4, 6], |x| {
        Ok(vec![x.layer_norm(&[6], None, None, 1e-5)?, x.group_norm(4, None, None, 1e-5)?, x.rms_norm(&[6], None, 1e-5)?])
    })
}

#[test]
fn attention_and_transformers() -> Result<()> {
    net("attention", of(MultiheadAttention::new(8, 2)?), &[5, 8])?;
    net("attention_causal", of(MultiheadAttention::new(8, 2)?.causal()), &[5, 8])?;
    let layer = TransformerEncoderLayer::new(8, 2)?.dim_feedforward(12)?.gelu().norm_first();
    net("encoder", of(TransformerEncoder::new(&layer, 2)?), &[5, 8])?;
    let mask = Tensor::try_from([[true, false, true], [true, true, false], [false, true, true]])?;
    functions("attention_mask", &[3, 4], |x| Ok(vec![x.attention(x, x, &Attention::new().mask(&mask))?]))
}

#[test]
fn recurrent_layers() -> Result<()> {
    net("lstm", of(LSTM::new(3, 4)?.num_layers(2)?.bidirectional()?.batch_first()), &[5, 3])?;
    net("gru", of(GRU::new(3, 4)?.batch_first()), &[5, 3])?;
    net("rnn", of(RNN::new(3, 4)?.batch_first().without_bias()), &[5, 3])
}

#[test]
fn ids_and_text() -> Result<()> {
    let net = Sequential::new().add("embed", Embedding::new(11, 6)?).add("out", Linear::new(6, 3)?);
    for (name, dtype) in [("embedding_i32", DType::I32), ("embedding_u32", DType::U32)] {
        let ids = |n: usize| {
            let ids: Vec<u32> = (0..n * 5).map(|i| (i * 7 % 11) as u32).collect();
            Ok(vec![Tensor::from_slice(&ids, [n, 5], None)?.to_dtype(dtype)?])
        };
        check(name, &net, ids, |net, x| Ok(vec![net.forward(&x[0])?]))?;
    }
    Ok(())
}

#[test]
fn functions_of_one_element() -> Result<()> {
    functions("activations", &[37], |x| {
        Ok(vec![
            x.relu()?, x.leaky_relu(0.1)?, x.elu(0.7)?, x.gelu()?, x.gelu_tanh()?, x.silu()?, x.softplus(1.0, 20.0)?,
            x.softplus(3.0, 2.0)?, x.log_sigmoid()?, x.mish()?, x.hardswish()?, x.hardsigmoid()?, x.softsign()?,
            x.hardtanh(-0.5, 1.0)?, x.sigmoid()?, x.tanh()?, x.softmax(-1)?, x.log_softmax(-1)?,
        ])
    })?;
    functions("functions", &[37], |x| {
        let (small, large) = (x.mul(0.4)?, x.abs()?.add(1.1)?);
        Ok(vec![
            x.neg()?, x.abs()?, x.sign()?, x.square()?, large.recip()?, x.exp()?, x.exp2()?, x.expm1()?, large.log()?,
            large.log2()?, large.log1p()?, large.sqrt()?, large.rsqrt()?, x.sin()?, x.cos()?, small.tan()?, small.asin()?,
            small.acos()?, x.atan()?, x.sinh()?, x.cosh()?, x.asinh()?, large.acosh()?, small.atanh()?, x.erf()?, x.floor()?,
            x.ceil()?, x.round()?, x.trunc()?, x.clamp(Some(-0.3), None)?, x.clamp(None, Some(0.4))?,
        ])
    })
}

#[test]
fn functions_of_two_elements() -> Result<()> {
    let inputs = |n: usize| Ok(vec![numbers(&[n, 1, 7])?, numbers(&[n, 3, 1])?.mul(1.3)?.add(0.05)?]);
    check("pairs", &Identity, inputs, |_, inputs| {
        let (a, b) = (&inputs[0], &inputs[1]);
        Ok(vec![
            a.add(b)?, a.sub(b)?, a.mul(b)?, a.div(b)?, a.abs()?.pow(b)?, a.maximum(b)?, a.minimum(b)?, a.rem(b)?,
            a.fmod(b)?, a.div_floor(b)?, a.sub(0.5)?, (2.0 / a)?, a.eq(a)?, a.ne(b)?, a.lt(b)?, a.le(b)?, a.gt(b)?,
            a.ge(0.0)?, a.gt(b)?.logical_and(&a.lt(1.0)?)?, a.gt(b)?.logical_or(&a.lt(1.0)?)?,
            a.gt(b)?.logical_xor(&a.lt(1.0)?)?, a.gt(b)?.logical_not()?, a.gt(b)?.to_dtype(DType::F32)?.mul(b)?,
            a.gt(b)?.where_cond(a, b)?, a.masked_fill(&a.gt(0.5)?, -7.0)?, a.gt(b)?.sum(1, false)?,
        ])
    })?;
    let inputs = |n: usize| {
        let ints = |shift| numbers(&[n, 9])?.mul(9.0)?.add(shift)?.to_dtype(DType::I32);
        Ok(vec![ints(0.0)?, ints(0.7)?])
    };
    check("integers", &Identity, inputs, |_, inputs| {
        let (a, b) = (&inputs[0], &inputs[1]);
        let (positive, unsigned) = (b.abs()?.add(1)?, a.abs()?.to_dtype(DType::U32)?);
        Ok(vec![
            a.add(b)?, a.sub(b)?, a.mul(b)?, a.neg()?, a.abs()?, a.sign()?, a.maximum(b)?, a.rem(&positive)?,
            a.bitwise_and(b)?, a.bitwise_or(b)?, a.bitwise_xor(b)?, a.lt(b)?, a.sum(-1, true)?, a.to_dtype(DType::F32)?,
            unsigned.add(&unsigned)?, unsigned.mul(3u32)?, unsigned.gt(4u32)?, a.cumsum(-1)?,
        ])
    })
}

#[test]
fn shapes_and_parts() -> Result<()> {
    functions("shapes", &[4, 6], |x| {
        let n = x.shape()[0];
        Ok(vec![
            x.reshape([n * 4, 6])?, x.reshape([n, 2, 12])?, x.flatten(1)?, x.permute(&[2, 0, 1])?, x.transpose(1, 2)?,
            x.unsqueeze(1)?.broadcast_to([n, 3, 4, 6])?, x.narrow(1, 1, 2)?, x.slice(2, 1, 6, 2)?, x.select(1, 3)?,
            x.flip(&[1, 2])?, x.roll(2, 2)?, x.repeat([1, 2, 1])?, Tensor::cat(&[x, &x.mul(2.0)?], 2)?,
            Tensor::stack(&[x, x], 1)?, x.chunk(3, 2)?[1].clone(), x.tril(1)?, x.triu(-1)?,
            x.reshape([n, 2, 2, 6])?.permute(&[0, 2, 1, 3])?.reshape([n * 2, 12])?,
        ])
    })?;
    functions("pads", &[2, 4, 5], |x| {
        let margins = [(0, 0), (0, 0), (1, 2), (2, 1)];
        let padded = |padding| x.pad(&margins, padding);
        Ok(vec![padded(Padding::Constant(1.5))?, padded(Padding::Reflect)?, padded(Padding::Replicate)?])
    })
}

#[test]
fn reductions_and_indices() -> Result<()> {
    functions("reductions", &[4, 6], |x| {
        Ok(vec![
            x.sum(1, false)?, x.mean(&[1, 2], true)?, x.max(2, false)?, x.min(1, true)?, x.prod(2, false)?,
            x.var(2, 1.0, false)?, x.std(&[1, 2], 0.0, true)?, x.norm(2.0, 2, false)?, x.logsumexp(2, false)?,
            x.argmax(2)?, x.argmin(1)?, x.cumsum(1)?, x.matmul(&x.t()?)?,
        ])
    })?;
    functions("indices", &[4, 6], |x| {
        let picks = Tensor::try_from([3u32, 0, 3])?;
        let (sorted, order) = x.sort(2, true)?;
        let (largest, places) = x.topk(2, 2, true, true)?;
        let base = Tensor::zeros([4, 6], None)?.mul(0.0)?.add(x)?;
        Ok(vec![
            x.index_select(1, &picks)?, x.gather(2, &order)?, sorted, largest, places,
            base.scatter(2, &order, x)?, base.scatter_add(2, &order, x)?, base.index_add(1, &picks, &x.narrow(1, 0, 3)?)?,
            base.scatter_reduce(2, &order, x, ScatterReduce::Amax, true)?,
        ])
    })
}

#[test]
fn images() -> Result<()> {
    functions("interpolation", &[2, 5, 7], |x| {
        Ok(vec![
            x.interpolate([10, 14], Interpolation::Nearest)?, x.interpolate([8, 3], Interpolation::NearestExact)?,
            x.interpolate([9, 4], Interpolation::Linear { align_corners: false })?,
            x.interpolate([9, 4], Interpolation::Linear { align_corners: true })?,
            x.interpolate([9, 4], Interpolation::Cubic { align_corners: false })?,
            x.resample(2, &Resample::new(9).filter(ResampleFilter::Cubic { a: -0.5 }))?,
        ])
    })?;
    functions("windows", &[2, 5, 6], |x| {
        let windows = Unfold::new([3, 2]).stride(1).padding([1, 0]);
        let columns = x.unfold(windows)?;
        let planes = columns.fold([5, 6], windows)?;
        Ok(vec![columns, planes])
    })
}

#[test]
fn halves() -> Result<()> {
    let net = Sequential::new().add("conv", Conv2d::new(2, 3, 3)?).add("relu", ReLU).add("flat", Flatten);
    let net = net.add("fc", Linear::new(12, 4)?);
    let mut halves = net.clone();
    halves.visit_mut(&mut |_, parameter| *parameter = parameter.to_dtype(DType::F16).expect("halves"));
    let inputs = |n: usize| Ok(vec![numbers(&[n, 2, 4, 4])?.to_dtype(DType::F16)?]);
    check("halves", &halves, inputs, |net, x| Ok(vec![net.forward(&x[0])?]))
}

#[test]
fn every_device_writes_the_same_graph() -> Result<()> {
    let net = Sequential::new().add("conv", Conv2d::new(1, 3, 3)?.padding(1)).add("norm", BatchNorm2d::new(3)?);
    let net = net.add("relu", ReLU).add("pool", MaxPool2d::new(2)).add("flat", Flatten).add("fc", Linear::new(48, 4)?);
    let folder = tempfile::tempdir().expect("a folder");
    let written = |device: &Device| -> Result<Vec<u8>> {
        let path = folder.path().join("net.onnx");
        let net = net.clone().to(device)?;
        onnx::export(&net, &numbers(&[1, 1, 8, 8])?.to(device)?, &path)?;
        let model = onnx::load(&path)?.to(device)?;
        let x = numbers(&[3, 1, 8, 8])?.to(device)?;
        net.eval();
        assert!(difference(&model.forward(&x)?, &net.forward(&x)?) < 1e-5, "{device}");
        Ok(std::fs::read(&path).expect("the file"))
    };
    let on_cpu = written(&Device::cpu())?;
    for device in devices() {
        assert!(written(&device)? == on_cpu, "{device} writes another file");
    }
    Ok(())
}

#[test]
fn a_fixed_batch_and_names() -> Result<()> {
    let net = models::mlp(&[4, 3])?;
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("net.onnx");
    let exporter = Exporter::new().inputs(&["pixels"]).outputs(&["scores"]).fixed_batch();
    exporter.export(&net, &numbers(&[7, 4])?, &path)?;
    let model = onnx::load(&path)?;
    assert_eq!(model.inputs()[0].to_string(), "'pixels': float [7, 4]");
    assert_eq!(model.outputs()[0].name, "scores");
    assert!(model.forward(&numbers(&[6, 4])?).is_err());
    let x = numbers(&[7, 4])?;
    assert!(difference(&model.forward(&x)?, &net.forward(&x)?) < 1e-6);
    Ok(())
}

/// Returns the error of exporting a function.
fn refused(f: impl Fn(&Tensor) -> Result<Tensor>) -> String {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("net.onnx");
    let example = numbers(&[2, 4]).expect("numbers");
    let result = Exporter::new().export_with(&Identity, &[&example], &path, |_, x| Ok(vec![f(&x[0])?]));
    assert!(!path.exists(), "a file was left");
    match result {
        Err(Error::InvalidArgument { op: "onnx", detail }) => detail,
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_cannot_be_exported_is_named() {
    let two = refused(|x| x.cumprod(1)?.add(&x.reshape([2, -1])?.diagonal(0, 0, 1)?.sum_all()?));
    assert!(two.contains("cumprod") || two.contains("depends"), "{two}");
    let error = refused(|x| x.cumprod(1)?.add(&x.select(1, 0)?.diag(0)?.sum_all()?));
    assert!(error.contains("prod"), "{error}");
    let error = refused(|x| x.mul(x.sum_all()?.item::<f32>()?));
    assert!(error.contains("read by the host"), "{error}");
    let error = refused(|x| {
        let y = x.mul(2.0)?;
        y.zero_()?;
        y.add(x)
    });
    assert!(error.contains("in place"), "{error}");
    let error = refused(|x| if x.shape()[0] == 2 { x.relu() } else { x.exp()?.relu() });
    assert!(error.contains("the size of the batch"), "{error}");
    let error = refused(|x| x.mean(0, true)?.add(x));
    assert!(error.contains("the size of the batch"), "{error}");
    let error = refused(|x| Tensor::dropout(x, 0.5, true));
    assert!(error.contains("dropout"), "{error}");
}

#[test]
fn wrong_settings_are_errors() -> Result<()> {
    let net = models::mlp(&[4, 3])?;
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("net.onnx");
    let x = numbers(&[1, 4])?;
    for exporter in [
        Exporter::new().inputs(&["a", "b"]),
        Exporter::new().outputs(&["input"]),
        Exporter::new().inputs(&[""]),
    ] {
        assert!(matches!(exporter.export(&net, &x, &path), Err(Error::InvalidArgument { .. })));
    }
    assert!(onnx::export(&net, &Tensor::zeros([0, 4], None)?, &path).is_err());
    assert!(onnx::export(&net, &x, folder.path().join("no/such/net.onnx")).is_err());
    Ok(())
}
