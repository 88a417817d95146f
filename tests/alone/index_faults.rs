//! Indices that are out of range: an error on every device, at once on `cpu`, and at the next wait on an adapter,
//! which a wait of another test could be.

use anygpu::metrics::ConfusionMatrix;
use anygpu::nn::{self, CrossEntropyLoss, Reduction};
use anygpu::{DType, Device, Error, Result, Tensor};

use crate::common::{alone, devices, devices_in_turn};

/// Runs `f` and waits. Returns the op and the message of the error that one of them must be.
fn fault<T>(device: &Device, f: impl FnOnce() -> Result<T>) -> (&'static str, String) {
    match f().and_then(|_| device.synchronize()) {
        Err(Error::InvalidArgument { op, detail }) => (op, detail),
        other => panic!("{device}: {other:?}"),
    }
}

// One test, since each wait takes the error of its device.
#[test]
fn an_index_that_is_out_of_range_is_an_error() -> Result<()> {
    let _alone = alone();
    for device in devices() {
        let x = Tensor::arange(0.0, 12.0, 1.0, &device)?.reshape([4, 3])?;
        let rows = |index: &[i32]| Tensor::from_slice(index, index.len(), &device);
        let like = |index: [i32; 3]| Tensor::from_slice(&index, [1, 3], &device);
        let same = |got: (&str, String), op: &str, index: i32, size: usize| {
            let expected = format!("index {index} is not within a dimension of {size}");
            assert!(got.0 == op && got.1.starts_with(&expected), "{device}: {got:?}, not {op}: {expected}");
        };
        // The first product on an adapter waits for it, since it tries the kernels. The error keeps its name there.
        let product = || x.embedding(&rows(&[9])?).and_then(|_| x.mv(&Tensor::ones(3, &device)?));
        same(fault(&device, product), "embedding", 9, 4);
        same(fault(&device, || x.gather(0, &like([0, 4, 1])?)), "gather", 4, 4);
        same(fault(&device, || x.index_select(1, &rows(&[2, -1])?)), "index_select", -1, 3);
        same(fault(&device, || x.embedding(&rows(&[0, 1 << 30])?)), "embedding", 1 << 30, 4);
        same(fault(&device, || x.scatter(0, &like([0, 9, 1])?, &x)), "scatter", 9, 4);
        same(fault(&device, || x.scatter_add(0, &like([7, 0, 1])?, &x)), "scatter_add", 7, 4);
        same(fault(&device, || x.index_add(0, &rows(&[5])?, &x.narrow(0, 0, 1)?)), "index_add", 5, 4);
        same(fault(&device, || x.index_copy(0, &rows(&[5])?, &x.narrow(0, 0, 1)?)), "index_copy", 5, 4);
        same(fault(&device, || x.index(&[&rows(&[1, 6])?])), "index", 6, 4);
        same(fault(&device, || x.index(&[&rows(&[1, 2])?, &rows(&[0, 3])?])), "index", 3, 3);
        same(fault(&device, || x.index(&[&rows(&[-5, 2])?, &rows(&[0, 2])?])), "index", -5, 4);
        same(fault(&device, || x.index(&[&rows(&[0, -7])?.to_dtype(DType::I64)?])), "index", -7, 4);
        let long = |index: i64| Tensor::from_slice(&[index], 1, &device);
        for index in [1 << 31, u32::MAX.into(), 1 << 32, i64::MAX, i64::MIN] {
            let (op, detail) = fault(&device, || x.index(&[&long(index)?]));
            assert!(op == "index" && detail.starts_with("index "), "{device}: {op}: {detail}");
        }
        let one = Tensor::ones(1, &device)?;
        same(fault(&device, || x.index_put(&[&rows(&[4])?, &rows(&[0])?], &one, true)), "index_put", 4, 4);
        same(fault(&device, || rows(&[0, 3])?.one_hot(3)), "one_hot", 3, 3);
        let mut matrix = ConfusionMatrix::new(3);
        same(fault(&device, || matrix.add(&x, &rows(&[0, 1, 2, 3])?)), "one_hot", 3, 3);
        let labels = rows(&[0, 1, -1, 2])?;
        let (op, detail) = fault(&device, || x.cross_entropy(&labels));
        assert!(op == "cross_entropy" && detail.contains("label -1"), "{device}: {op}: {detail}");
        // A label is told as it was given, with what to do where it marks positions without one.
        let row = if device.is_cpu() { " of row 1" } else { "" };
        let told = |labels: Result<Tensor>, expected: &str| {
            let (op, detail) = fault(&device, || CrossEntropyLoss::new().forward(&x.narrow(0, 0, 2)?, &labels?));
            let expected = format!("label {expected}").replace("ROW", row);
            assert!(op == "cross_entropy" && detail.starts_with(&expected), "{device}: {op}: {detail}, not {expected}");
        };
        let advice = "ROW is not one of the 3 classes, which are numbered from 0: CrossEntropyLoss::new().ignore_index(-100) \
            leaves out such positions, as PyTorch does without being told";
        told(Tensor::from_slice(&[2i32, -100], 2, &device), &format!("-100{advice}"));
        told(Tensor::from_slice(&[2i64, -100], 2, &device), &format!("-100{advice}"));
        told(Tensor::from_slice(&[2u32, u32::MAX - 99], 2, &device), "4294967196ROW is not one of the 3 classes");
        told(
            Tensor::from_slice(&[0u8, 255], 2, &device),
            "255ROW is not one of the 3 classes, which are numbered from 0: Cross",
        );
        let far = Tensor::from_slice(&[0i64, 1 << 40], 2, &device);
        let (_, detail) = fault(&device, || x.narrow(0, 0, 2)?.cross_entropy(&far?));
        let number = if device.is_cpu() { "label 1099511627776 of row 1 is" } else { "a label beyond 32 bits is" };
        assert!(detail.starts_with(number) && detail.contains("one of the 3 classes"), "{device}: {detail}");
        let planes = Tensor::zeros([2, 3, 4], &device)?;
        let many = Tensor::from_slice(&[0i32, 1, 2, 0, 0, 0, 3, 0], [2, 4], &device)?;
        let (_, detail) = fault(&device, || planes.cross_entropy(&many));
        let place = if device.is_cpu() { " of row 1, position 2" } else { "" };
        let expected = format!("label 3{place} is not one of the 3 classes, which are numbered from 0");
        assert!(detail.starts_with(&expected) && !detail.contains("ignore_index"), "{device}: {detail}");
        let (op, detail) = fault(&device, || nn::nll_loss(&x, &labels, Reduction::Mean));
        assert!(op == "nll_loss", "{device}: {op}: {detail}");

        // Nothing is left of it: the device works, and indices that are right are no error.
        let taken = x.index_select(0, &rows(&[3, 0, 3])?)?;
        assert_eq!(taken.narrow(1, 0, 1)?.to_vec::<f32>()?, [9.0, 0.0, 9.0], "{device}");
        let ignoring = CrossEntropyLoss::new().ignore_index(-1).forward(&x.narrow(1, 0, 3)?, &labels)?.item::<f32>()?;
        assert!(ignoring.is_finite(), "{device}: {ignoring}");
        #[cfg(feature = "onnx")]
        tuples_of_a_model(&device)?;
        if !device.is_cpu() {
            elements_of_wrong_indices(&device)?;
        }
    }
    Ok(())
}

/// Element (0, 4) of two rows of three is none, though there are five elements after the first.
#[cfg(feature = "onnx")]
fn tuples_of_a_model(device: &Device) -> Result<()> {
    use crate::proto::{Dim, Graph, Kind, Model, Node, Opset, Shape, TensorKind, TensorProto, ValueInfo};
    use anygpu::nn::Module;
    use prost::Message;

    let floats = |name: &str, dims: &[i64]| {
        let dim = dims.iter().map(|&size| Dim { dim_value: Some(size), dim_param: None }).collect();
        let tensor_type = Some(TensorKind { elem_type: 1, shape: Some(Shape { dim }) });
        ValueInfo { name: name.into(), r#type: Some(Kind { tensor_type }) }
    };
    let tuple = TensorProto {
        name: "i".into(),
        dims: vec![1, 2],
        data_type: 7,
        int64_data: vec![0, 4],
        ..TensorProto::default()
    };
    let node = Node {
        input: vec!["x".into(), "i".into()],
        output: vec!["y".into()],
        op_type: "GatherND".into(),
        ..Node::default()
    };
    let graph = Graph {
        node: vec![node],
        initializer: vec![tuple],
        input: vec![floats("x", &[2, 3])],
        output: vec![floats("y", &[1])],
        ..Graph::default()
    };
    let opset_import = vec![Opset { domain: String::new(), version: 17 }];
    let file = Model { graph: Some(graph), opset_import, ..Model::default() }.encode_to_vec();
    let x = Tensor::ones([2, 3], device)?;
    let y = anygpu::onnx::load_bytes(&file)?.forward(&x).and_then(|y| y.to_vec::<f32>());
    assert!(y.is_err(), "{y:?} on {device}");
    Ok(())
}

/// An adapter reads 0 and writes nothing; a loss is NaN. The first read says that an index was wrong, and only that one.
fn elements_of_wrong_indices(device: &Device) -> Result<()> {
    let x = Tensor::arange(1.0, 7.0, 1.0, device)?.reshape([3, 2])?;
    let far = Tensor::from_slice(&[1i32, -1, 3], [3], device)?;
    let wide = far.unsqueeze(1)?;
    let src = Tensor::ones([3, 1], device)?;
    let results = [
        (x.index_select(0, &far)?, vec![3.0, 4.0, 0.0, 0.0, 0.0, 0.0]),
        (x.narrow(1, 0, 1)?.gather(0, &wide)?, vec![3.0, 0.0, 0.0]),
        (x.scatter_add(0, &wide, &src)?, vec![1.0, 2.0, 4.0, 4.0, 5.0, 6.0]),
        (x.scatter(0, &wide, &src)?, vec![1.0, 2.0, 1.0, 4.0, 5.0, 6.0]),
        (far.one_hot(2)?.to_dtype(DType::F32)?, vec![0.0, 1.0, 0.0, 0.0, 0.0, 0.0]),
    ];
    let loss = Tensor::zeros([2, 4], device)?.cross_entropy(&Tensor::from_slice(&[0u32, 4], 2, device)?)?;
    let error = results[4].0.to_vec::<f32>().unwrap_err();
    assert!(matches!(error, Error::InvalidArgument { op: "index_select", .. }), "{device}: the first one: {error}");
    for (i, (result, expected)) in results.into_iter().enumerate() {
        assert_eq!(result.to_vec::<f32>()?, expected, "{i} on {device}");
    }
    assert!(loss.item::<f32>()?.is_nan(), "{device}");
    Ok(())
}

/// What kernels find in their inputs is an error of the read, as of any other.
#[test]
fn faults_of_kernels_are_errors_of_the_read() -> Result<()> {
    let _alone = alone();
    for device in devices_in_turn().iter().filter(|device| !device.is_cpu()) {
        let table = Tensor::ones([4, 2], device)?;
        let rows = table.index_select(0, &Tensor::from_slice(&[1u32, 9], 2, device)?)?;
        let error = pollster::block_on(rows.to_vec_async::<f32>()).unwrap_err();
        assert!(error.to_string().contains('9'), "{error} on {device}");
        assert_eq!(pollster::block_on(table.to_vec_async::<f32>())?, [1.0; 8]);
    }
    Ok(())
}
