//! Files of torch.save, written by scripts/pytorch_checkpoints.py: what they hold, and the logits of a net that PyTorch
//! trained.

mod common;

use std::path::{Path, PathBuf};

use anygpu::checkpoint::{self, PickleValue};
use anygpu::nn::models::lenet;
use anygpu::nn::{Linear, Module};
use anygpu::{DType, Device, Result, Tensor, data, no_grad};
use common::{devices, values};

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
    let extras = checkpoint::load_pickle(file("lenet.pt"), &Device::cpu())?;
    let (images, expected) = (tensor(&extras, &["images"]), values(tensor(&extras, &["logits"]))?);
    for device in devices() {
        let mut net = lenet()?;
        net.to(&device)?;
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
    let expected = checkpoint::load_pickle(file("lenet.pt"), &Device::cpu())?.get("accuracy").and_then(|a| a.as_f64());
    let net = lenet()?;
    net.load_state_dict(&checkpoint::load(file("lenet.pt"), &Device::cpu())?, true)?;
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
        let all = checkpoint::load_pickle(file(name), &Device::cpu())?;
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
        let all = checkpoint::load_pickle(file(name), &Device::cpu())?;
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
            layer.to(&device)?;
            layer.load_state_dict(&state, true)?;
            assert_eq!(values(&layer.parameters()[0])?, values(state.get("module.weight").expect("a weight"))?);
        }
    }
    Ok(())
}
