//! What the file holds, and what is refused.

use super::*;

#[test]
fn parameters_and_buffers_keep_their_names() -> Result<()> {
    let net = trained(models::resnet18(1, 10)?, &[1, 32, 32])?;
    net.train();
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("net.onnx");
    onnx::export(&net, &numbers(&[1, 1, 32, 32])?, &path)?;
    let file = std::fs::read(&path).expect("the file");
    let file: crate::proto::Model = prost::Message::decode(&file[..]).expect("a model");
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
fn what_cannot_be_exported_is_named() -> Result<()> {
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
    // Parts of one tensor: the same memory, other elements.
    let table = numbers(&[1, 16])?;
    let error = refused(|x| x.add(&table.narrow(1, x.shape()[0] - 1, 1)?));
    assert!(error.contains("the size of the batch"), "{error}");
    let error = refused(|x| x.mean(0, true)?.add(x));
    assert!(error.contains("the size of the batch"), "{error}");
    let error = refused(|x| Tensor::dropout(x, 0.5, true));
    assert!(error.contains("random") || error.contains("dropout"), "{error}");
    Ok(())
}

#[test]
fn what_no_step_records_is_refused() -> Result<()> {
    let error = refused(|x| x.add(&Tensor::rand([1, 4], None)?));
    assert!(error.contains("random"), "{error}");
    let error = refused(|x| x.add(&Tensor::randn([1, 4], None)?));
    assert!(error.contains("random"), "{error}");
    // Written before a step has read it.
    let error = refused(|x| {
        let y = Tensor::zeros(x.shape(), None)?;
        y.copy_(x)?;
        y.relu()
    });
    assert!(error.contains("in place by copy_"), "{error}");
    let error = refused(|x| {
        x.narrow(1, 0, 1)?.fill_(1.0)?;
        x.relu()
    });
    assert!(error.contains("in place"), "{error}");
    let error = refused(|x| {
        let sum = pollster::block_on(x.sum_all()?.to_vec_async::<f32>())?;
        x.mul(sum[0])
    });
    assert!(error.contains("read by the host"), "{error}");
    // A constant may be written before its use.
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("net.onnx");
    let example = numbers(&[2, 4])?;
    Exporter::new().export_with(&Identity, &[&example], &path, |_, x| {
        let y = Tensor::zeros([1, 4], None)?;
        y.copy_(&Tensor::try_from([0.0, 0.0, 3.0, 0.0])?)?;
        Ok(vec![x[0].add(&y)?])
    })?;
    let y = onnx::load(&path)?.forward(&Tensor::zeros([3, 4], None)?)?;
    assert_eq!(y.select(0, 2)?.to_vec::<f32>()?, [0.0, 0.0, 3.0, 0.0]);
    Ok(())
}

#[test]
fn kernels_of_the_user_are_refused() -> Result<()> {
    let double = anygpu::kernel::WgslKernel::new(
        "@group(0) @binding(0) var<storage, read> x: array<f32>;
         @group(0) @binding(1) var<storage, read_write> y: array<f32>;
         @compute @workgroup_size(64)
         fn double(@builtin(global_invocation_id) id: vec3<u32>) {
             if id.x < arrayLength(&x) { y[id.x] = 2 * x[id.x]; }
         }",
        "double",
    )?;
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("net.onnx");
    for device in devices() {
        if device.is_cpu() {
            continue;
        }
        let example = numbers(&[2, 4])?.to(&device)?;
        let result = Exporter::new().export_with(&Identity, &[&example], &path, |_, x| {
            let x = x[0].mul(2.0)?;
            let shape = x.shape().to_vec();
            double.run(&[&x], &[(shape, DType::F32)], &[], [1, 1, 1])
        });
        let error = result.expect_err("a kernel of the user").to_string();
        assert!(error.contains("kernel of the user"), "{device}: {error}");
    }
    Ok(())
}

#[test]
fn sizes_that_do_not_grow_evenly_are_refused() {
    let half = refused(|x| x.narrow(0, 0, x.shape()[0].div_ceil(2)));
    assert!(half.contains("for [2, 3, 11] samples"), "{half}");
    let most = refused(|x| x.unsqueeze(1)?.broadcast_to([x.shape()[0], x.shape()[0].max(3), 4]));
    assert!(most.contains("the size of the batch"), "{most}");
    let parts = refused(|x| Ok(x.chunk(4, 0)?[0].clone()));
    assert!(parts.contains("the size of the batch"), "{parts}");
    let few = refused(|x| x.narrow(0, 0, x.shape()[0].min(5)));
    assert!(few.contains("the size of the batch"), "{few}");
}

#[test]
fn wrong_settings_are_errors() -> Result<()> {
    let net = models::mlp(&[4, 3])?;
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("net.onnx");
    let x = numbers(&[1, 4])?;
    for exporter in
        [Exporter::new().inputs(&["a", "b"]), Exporter::new().outputs(&["input"]), Exporter::new().inputs(&[""])]
    {
        assert!(matches!(exporter.export(&net, &x, &path), Err(Error::InvalidArgument { .. })));
    }
    assert!(onnx::export(&net, &Tensor::zeros([0, 4], None)?, &path).is_err());
    assert!(onnx::export(&net, &x, folder.path().join("no/such/net.onnx")).is_err());
    Ok(())
}
