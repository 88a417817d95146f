//! Files of torch.save, written by scripts/pytorch_checkpoints.py: their contents, and the logits of a net that PyTorch
//! trained.

mod common;
#[allow(dead_code, reason = "only the builders of pickles are used here")]
mod damaged;

use std::path::{Path, PathBuf};

use anygpu::checkpoint::{self, PickleValue};
use anygpu::nn::models::lenet;
use anygpu::nn::{Linear, Module};
use anygpu::{DType, Device, Result, Tensor, data, no_grad};
use common::{devices, values};
use damaged::archives::archive;
use damaged::pickles::{Code, call, global, pickle, rebuilt, storage, text, tuple};

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

#[track_caller]
fn tensor<'a>(value: &'a PickleValue, path: &[&str]) -> &'a Tensor {
    let inner = path.iter().try_fold(value, |value, key| value.get(key));
    inner.and_then(PickleValue::as_tensor).unwrap_or_else(|| panic!("no tensor at {path:?}"))
}

#[test]
fn a_lenet_that_pytorch_trained_gives_its_logits_on_every_device() -> Result<()> {
    let extras = checkpoint::load_pickle(file("lenet.pt"), Device::cpu())?;
    let (images, expected) = (tensor(&extras, &["images"]), values(tensor(&extras, &["logits"]))?);
    for device in devices() {
        let mut net = lenet()?;
        net.to_(&device)?;
        // The state is found in the dict, is f16, and goes where it is asked for.
        let state = checkpoint::load(file("lenet.pt"), &device)?;
        assert!(state.iter().all(|(_, t)| t.dtype() == DType::F16 && t.device() == &device));
        net.load_state_dict(&state, true)?;
        net.eval();
        let logits = values(&no_grad(|| net.forward(&images.to(&device)?))?)?;
        let worst = logits.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        println!("{device}: {worst:.2e}");
        assert!(worst < 1e-4, "{device}: {worst}");
    }
    Ok(())
}

#[test]
fn its_accuracy_is_what_pytorch_measured() -> Result<()> {
    let expected = checkpoint::load_pickle(file("lenet.pt"), Device::cpu())?.get("accuracy").and_then(|a| a.as_f64());
    let net = lenet()?;
    net.load_state_dict(&checkpoint::load(file("lenet.pt"), Device::cpu())?, true)?;
    let (_, test) = data::mnist_5k()?.loaders(250, 0)?;
    let right = no_grad(|| {
        test.epoch(0).try_fold(0, |right, batch| {
            let (images, labels) = batch?;
            Ok::<_, anygpu::Error>(right + anygpu::nn::correct(&net.forward(&images)?, &labels)?)
        })
    })?;
    let accuracy = right as f64 / 1000.0;
    assert!((accuracy - expected.expect("a number")).abs() < 0.0015, "{accuracy}, {expected:?}");
    Ok(())
}

#[test]
fn every_kind_of_tensor_is_read_from_both_formats() -> Result<()> {
    for name in ["pytorch_kinds.pt", "pytorch_old.pth"] {
        let all = checkpoint::load_pickle(file(name), Device::cpu())?;
        let types = [
            (DType::F32, &["float64", "float32"][..]),
            (DType::F16, &["float16"]),
            (DType::BF16, &["bfloat16"]),
            (DType::I32, &["int64", "int32", "int16", "int8"]),
            (DType::U32, &["uint16", "uint32", "uint64"]),
            (DType::U8, &["uint8"]),
        ];
        for (dtype, kinds) in types {
            for kind in kinds {
                let tensor = tensor(&all, &["typed", kind]);
                assert_eq!((tensor.dtype(), values(tensor)?), (dtype, vec![0.0, 1.0, 2.0, 100.0]), "{name}: {kind}");
            }
        }
        assert_eq!(tensor(&all, &["typed", "bool"]).to_vec::<bool>()?, [false, true, true, true]);

        let base = Tensor::arange(0.0, 24.0, 1.0, None)?;
        let matrix = base.reshape([4, 6])?;
        let views = [
            ("whole", base.clone()),
            ("transposed", matrix.t()?),
            ("sliced", matrix.i(anygpu::s![1..3, ..;2])?),
            ("expanded", Tensor::try_from([[3.0, 3.0, 3.0], [4.0, 4.0, 4.0]])?),
            ("scalar", Tensor::scalar(7.0f32, None)?),
            ("empty", Tensor::zeros([0, 5], None)?),
        ];
        for (view, expected) in views {
            let got = tensor(&all, &["views", view]);
            assert_eq!((got.shape(), values(got)?), (expected.shape(), values(&expected)?), "{name}: {view}");
        }
        assert_eq!(tensor(&all, &["parameter"]).to_vec::<f32>()?, [1.0; 2]);
        let noted = all.get("noted").and_then(PickleValue::items).expect("two tensors");
        let noted = noted.iter().map(|t| values(t.as_tensor().expect("a tensor"))).collect::<Result<Vec<_>>>()?;
        assert_eq!(noted, [[3.0; 2], [4.0; 2]]);
    }
    Ok(())
}

#[test]
fn numbers_text_and_collections_are_read() -> Result<()> {
    for name in ["pytorch_kinds.pt", "pytorch_old.pth"] {
        let all = checkpoint::load_pickle(file(name), Device::cpu())?;
        let numbers = all.get("numbers").and_then(PickleValue::items).expect("a list");
        let whole: Vec<_> = numbers.iter().map(PickleValue::as_i64).collect();
        assert_eq!(whole[..4], [Some(1), Some(-1), Some(1 << 40), None]);
        assert_eq!(numbers[3].as_f64(), Some(0.5));
        assert!(matches!(numbers[4..6], [PickleValue::Bool(true), PickleValue::None]));
        assert_eq!(numbers[6].items().map(<[_]>::len), Some(2));
        assert_eq!(numbers[7].items().expect("a set")[0].as_i64(), Some(3));
        let text = |key| all.get(key).and_then(PickleValue::as_str);
        assert_eq!((text("text"), text("device"), text("dtype")), (Some("π"), Some("cpu"), Some("torch.float32")));
        assert!(matches!(all.get("bytes"), Some(PickleValue::Bytes(bytes)) if bytes == &[0, 255]));
        assert_eq!(all.get("size").and_then(PickleValue::items).expect("a size")[1].as_i64(), Some(3));
        assert!(matches!(all.get("counts"), Some(PickleValue::Dict(entries)) if entries.len() == 1));
        assert!(all.get("default").and_then(|default| default.get("a")).is_some());
    }
    Ok(())
}

#[test]
fn a_model_inside_a_dict_is_found_and_its_prefix_dropped() -> Result<()> {
    for device in devices() {
        for name in ["pytorch_kinds.pt", "pytorch_old.pth"] {
            let state = checkpoint::load(file(name), &device)?;
            assert_eq!(state.names().collect::<Vec<_>>(), ["module.weight", "module.bias"]);
            let mut layer = Linear::new(3, 2)?;
            layer.to_(&device)?;
            layer.load_state_dict(&state, true)?;
            assert_eq!(values(&layer.parameters()[0])?, values(state.get("module.weight").expect("a weight"))?);
        }
    }
    Ok(())
}

/// `numpy.<name>(…)` as NumPy 2 pickles it: `scalar(dtype(kind), bytes)`.
fn numpy_number(kind: &str, order: &str, bytes: &[u8]) -> Code {
    let none = || b"N".to_vec();
    let state = tuple(&[b"K\x03".to_vec(), text(order), none(), none(), none()]);
    let dtype = [call(global("numpy", "dtype"), &[text(kind), vec![0x89], vec![0x88]]), state, b"b".to_vec()].concat();
    let latin: String = bytes.iter().map(|&byte| char::from(byte)).collect();
    let bytes = call(global("_codecs", "encode"), &[text(&latin), text("latin1")]);
    call(global("numpy._core.multiarray", "scalar"), &[dtype, bytes])
}

/// `numpy.array([1.0])` as NumPy 1 pickles it.
fn numpy_array() -> Code {
    let made = call(global("numpy.core.multiarray", "_reconstruct"), &[global("numpy", "ndarray"), tuple(&[])]);
    [made, tuple(&[b"K\x01".to_vec(), tuple(&[b"K\x01".to_vec()])]), b"b".to_vec()].concat()
}

fn dict(entries: &[(&str, Code)]) -> Code {
    let entries: Vec<Code> = entries.iter().map(|(name, value)| [text(name), value.clone()].concat()).collect();
    [b"}(".to_vec(), entries.concat(), b"u".to_vec()].concat()
}

#[test]
fn a_value_without_a_type_here_is_skipped_by_its_name() -> Result<()> {
    let tensor = |class: &str, key: &str, count: i64| rebuilt(storage(class, key, count), 0, &[count], &[1]);
    let storages: [(&str, &[u8]); 6] = [
        ("data/f32", &[1f32.to_le_bytes(), 2f32.to_le_bytes()].concat()),
        ("data/f64", &[0.1f64.to_le_bytes(), f64::INFINITY.to_le_bytes()].concat()),
        ("data/large", &[1e300f64.to_le_bytes(), 0f64.to_le_bytes()].concat()),
        ("data/u32", &[0i64.to_le_bytes(), (1i64 << 31).to_le_bytes()].concat()),
        ("data/i64", &[(-1i64).to_le_bytes(), (1i64 << 31).to_le_bytes()].concat()),
        ("data/complex", &[0; 16]),
    ];
    let model = dict(&[
        ("weight", tensor("FloatStorage", "f32", 2)),
        ("double", tensor("DoubleStorage", "f64", 2)),
        ("too_large", tensor("DoubleStorage", "large", 2)),
        ("hash", tensor("LongStorage", "u32", 2)),
        ("id", tensor("LongStorage", "i64", 2)),
        ("spectrum", tensor("ComplexFloatStorage", "complex", 2)),
        ("scale", numpy_number("f8", "<", &0.5f64.to_le_bytes())),
    ]);
    let file = dict(&[
        ("model", model),
        ("best", numpy_number("f8", "<", &0.9375f64.to_le_bytes())),
        ("half", numpy_number("f2", "<", &half::f16::from_f32(-1.5).to_le_bytes())),
        ("epoch", numpy_number("i8", "<", &(-7i64).to_le_bytes())),
        ("steps", numpy_number("u4", "<", &u32::MAX.to_le_bytes())),
        ("done", numpy_number("b1", "|", &[1])),
        ("swapped", numpy_number("i4", ">", &[0, 0, 0, 1])),
        ("losses", numpy_array()),
        ("seed", [vec![0x8a, 9], (1i128 << 70).to_le_bytes()[..9].to_vec()].concat()),
    ]);
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("model.pt");
    std::fs::write(&path, archive(&pickle(file), &storages)).expect("a file");

    let state = checkpoint::load(&path, Device::cpu())?;
    assert_eq!(state.names().collect::<Vec<_>>(), ["weight", "double", "hash"]);
    assert_eq!(state.get("double").expect("f64").to_vec::<f32>()?, [0.1, f32::INFINITY]);
    assert_eq!(state.get("hash").expect("i64").to_vec::<u32>()?, [0, 1 << 31]);
    let exact = anygpu::keep_64_bits(|| checkpoint::load(&path, Device::cpu()))?;
    assert_eq!(exact.names().collect::<Vec<_>>(), ["weight", "double", "too_large", "hash", "id"]);
    assert_eq!(exact.get("double").expect("f64").to_vec_f64()?, [0.1, f64::INFINITY]);
    assert_eq!(exact.get("too_large").expect("f64").to_vec_f64()?, [1e300, 0.0]);
    assert_eq!(exact.get("id").expect("i64").to_vec::<i64>()?, [-1, 1 << 31]);
    let all = checkpoint::load_pickle(&path, Device::cpu())?;
    let number = |name| all.get(name).and_then(PickleValue::as_f64);
    assert_eq!((number("best"), number("half")), (Some(0.9375), Some(-1.5)));
    assert_eq!((number("epoch"), number("steps")), (Some(-7.0), Some(f64::from(u32::MAX))));
    assert!(matches!(all.get("done"), Some(PickleValue::Bool(true))));
    let skipped = all.skipped();
    let names: Vec<&str> = skipped.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["model.too_large", "model.id", "model.spectrum", "swapped", "losses", "seed"]);
    for (i, reason) in ["1e300", "-1", "complex", "NumPy", "NumPy array", "64 bits"].into_iter().enumerate() {
        assert!(skipped[i].1.contains(reason), "{:?}", skipped[i]);
    }
    Ok(())
}
