//! Files of torch.save, written by scripts/pytorch_checkpoints.py: their contents, and the logits of a net that PyTorch
//! trained.

#[path = "../damaged/mod.rs"]
#[allow(dead_code, reason = "only the builders of pickles are used here")]
mod damaged;

use std::path::{Path, PathBuf};

use anygpu::checkpoint::{self, PickleValue};
use anygpu::nn::models::lenet;
use anygpu::nn::{Linear, Module, StateDict};
use anygpu::{DType, Device, Result, Tensor, data, narrow_64_bits, no_grad};
use damaged::archives::archive;
use damaged::pickles::{Code, call, global, pickle, rebuilt, storage, text, tuple};

use crate::common::{devices_in_turn, values};

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
    for device in devices_in_turn() {
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
            (DType::F64, &["float64"][..]),
            (DType::I64, &["int64"]),
            (DType::F32, &["float32"]),
            (DType::F16, &["float16"]),
            (DType::BF16, &["bfloat16"]),
            (DType::I32, &["int32", "int16", "int8"]),
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
    for device in devices_in_turn() {
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

    let state = narrow_64_bits(|| checkpoint::load(&path, Device::cpu()))?;
    assert_eq!(state.names().collect::<Vec<_>>(), ["weight", "double", "hash"]);
    let skipped = ["too_large", "id", "spectrum", "scale"];
    assert_eq!(state.skipped().map(|(name, _)| name).collect::<Vec<_>>(), skipped);
    assert_eq!(state.get("double").expect("f64").to_vec::<f32>()?, [0.1, f32::INFINITY]);
    assert_eq!(state.get("hash").expect("i64").to_vec::<u32>()?, [0, 1 << 31]);
    let exact = checkpoint::load(&path, Device::cpu())?;
    assert_eq!(exact.names().collect::<Vec<_>>(), ["weight", "double", "too_large", "hash", "id"]);
    assert_eq!(exact.get("double").expect("f64").to_vec_f64()?, [0.1, f64::INFINITY]);
    assert_eq!(exact.get("too_large").expect("f64").to_vec_f64()?, [1e300, 0.0]);
    assert_eq!(exact.get("id").expect("i64").to_vec::<i64>()?, [-1, 1 << 31]);
    assert_eq!(exact.skipped().map(|(name, _)| name).collect::<Vec<_>>(), ["spectrum", "scale"]);
    let all = narrow_64_bits(|| checkpoint::load_pickle(&path, Device::cpu()))?;
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

fn torch(name: &str) -> PathBuf {
    file("torch").join(name)
}

#[test]
fn numbers_of_64_bits_are_read_exactly_and_converted_where_they_go() -> Result<()> {
    let (longs, doubles) = ([1i64 << 40, -(1 << 35) - 1], [1e300, 0.1]);
    for name in ["wide.pt", "wide.safetensors"] {
        let state = checkpoint::load(torch(name), Device::cpu())?;
        assert_eq!(state.get("long").expect("long").to_vec::<i64>()?, longs, "{name}");
        assert_eq!(state.get("double").expect("double").to_vec_f64()?, doubles, "{name}");
        let narrow = narrow_64_bits(|| checkpoint::load(torch(name), Device::cpu()));
        let error = narrow.expect_err("nothing fits").to_string();
        assert!(error.contains("'long': the integer") && error.contains("'double': the value 1e300"), "{error}");
        for device in devices_in_turn().iter().filter(|device| !device.is_cpu()) {
            let error = checkpoint::load(torch(name), device).expect_err("f64").to_string();
            assert!(["f64", device.name(), "narrow_64_bits", name].iter().all(|word| error.contains(word)), "{error}");
        }
    }
    assert_eq!(Tensor::from_npy(torch("wide_int64.npy"), None)?.to_vec::<i64>()?, longs);
    assert_eq!(Tensor::from_npy(torch("wide_f64.npy"), None)?.to_vec_f64()?, doubles);
    let state = checkpoint::load(torch("u64.pt"), Device::cpu())?;
    assert_eq!(state.get("u16").expect("u16").to_vec::<u32>()?, [1, 2]);
    assert_eq!(state.get("u64").expect("u64").to_vec::<i64>()?, [1, i64::MAX]);
    // Into parameters of f32, as by PyTorch's copy_: 1e300 becomes infinity, and counters do not matter.
    for device in devices_in_turn() {
        let mut layer = Linear::new(2, 1)?;
        layer.to_(&device)?;
        let mut state = StateDict::new();
        state.insert("weight", Tensor::from_f64(&doubles, [1, 2], None)?);
        state.insert("bias", Tensor::from_slice(&[(1i64 << 40) + 1], 1, None)?);
        state.insert("num_batches_tracked", Tensor::scalar(7i64, None)?);
        layer.load_state_dict(&state, true)?;
        assert_eq!(layer.parameters()[0].to_vec::<f32>()?, [f32::INFINITY, 0.1], "{device}");
        assert_eq!(layer.parameters()[1].to_vec::<f32>()?, [(1u64 << 40) as f32], "{device}");
    }
    Ok(())
}

#[test]
fn views_with_the_other_sign_have_it() -> Result<()> {
    let floats = |file: &str, name: &str| -> Result<Vec<f32>> {
        checkpoint::load(torch(file), Device::cpu())?.get(name).expect("a tensor").to_dtype(DType::F32)?.to_vec()
    };
    let bits = |values: Vec<f32>| values.into_iter().map(f32::to_bits).collect::<Vec<_>>();
    for file in ["negative_bit.pt", "neg_old.pt"] {
        assert_eq!(bits(floats(file, "neg")?), bits(vec![-0.0, -1.0, -2.0, -3.0]), "{file}");
    }
    assert_eq!(floats("conj_imag.pt", "imag")?, [-1.0, -2.0, -3.0, -4.0]);
    let all = checkpoint::load(torch("neg_more.pt"), Device::cpu())?;
    assert_eq!(all.get("p").expect("p").to_vec::<f32>()?, [0.0, 1.0, 2.0, 3.0]);
    assert_eq!(all.get("i").expect("i").to_vec::<i32>()?, [-1, 2, i32::MIN]);
    assert_eq!(all.get("l").expect("l").to_vec::<i64>()?, [1 << 31, -5]);
    assert_eq!(floats("neg_more.pt", "h")?, [-1.0, -2.0]);
    let narrow = narrow_64_bits(|| checkpoint::load(torch("neg_more.pt"), Device::cpu()))?;
    assert!(
        narrow.get("l").is_none() && narrow.skipped().any(|(name, why)| name == "l" && why.contains("does not fit"))
    );
    Ok(())
}

#[test]
fn tensors_of_other_kinds_are_skipped_by_name_and_the_rest_is_read() -> Result<()> {
    for (file, name, reason) in [
        ("float8.pt", "small", "float8_e4m3fn"),
        ("u64.pt", "e", "float8_e5m2"),
        ("sparse.pt", "sparse", "to_dense"),
        ("sparse_old.pt", "sparse", "to_dense"),
        ("csr.pt", "csr", "to_dense"),
        ("quant.pt", "q", "dequantize"),
        ("quantc.pt", "q", "dequantize"),
        ("nested.pt", "n", "nested"),
        ("meta.pt", "m", "no elements"),
        ("neg_u8.pt", "u", "sign"),
        ("neg_u8.pt", "c", "complex numbers of 64 bits"),
    ] {
        let state = checkpoint::load(torch(file), Device::cpu())?;
        let skipped = state.skipped().find(|(skipped, _)| *skipped == name);
        assert!(
            skipped.is_some_and(|(_, why)| why.contains(reason)),
            "{file}: {:?}",
            state.skipped().collect::<Vec<_>>()
        );
        if file != "u64.pt" {
            assert_eq!(state.get("plain").expect("plain").to_vec::<f32>()?, [1.0; 2], "{file}");
        }
        // Under other names, they are still told.
        let renamed = state.add_prefix("net.").to(Device::cpu())?;
        assert!(renamed.skipped().any(|(skipped, _)| skipped == format!("net.{name}")), "{file}");
        assert_eq!(renamed.under("net.").skipped().len(), state.skipped().len());
    }
    let mut state = checkpoint::load(torch("sparse.pt"), Device::cpu())?.add_prefix("x.");
    state.insert("x.bias", Tensor::zeros([1], None)?);
    let error = anygpu::nn::Sequential::new().add("x", Linear::new(1, 1)?).load_state_dict(&state, true);
    assert!(error.expect_err("no weight").to_string().contains("missing in the state (1): x.weight"));
    Ok(())
}

#[test]
fn a_file_is_what_its_first_bytes_say() -> Result<()> {
    let folder = tempfile::tempdir().expect("a folder");
    for (source, name) in [
        ("negative_bit.pt", "run.ckpt"),
        ("negative_bit.pt", "run"),
        ("neg_old.pt", "run.model"),
        ("wide.safetensors", "weights.bin"),
        ("wide.safetensors", "weights"),
        ("wide.pt", "weights.safetensors"),
    ] {
        let path = folder.path().join(name);
        std::fs::copy(torch(source), &path).expect("a copy");
        assert_eq!(
            checkpoint::load(&path, Device::cpu())?.len(),
            checkpoint::load(torch(source), Device::cpu())?.len()
        );
    }
    for (name, bytes, expected) in [
        ("a.txt", &b"Dear"[..], "no file of tensors"),
        ("a.ckpt", b"Dear", "not a file of torch.save"),
        ("a.safetensors", b"Dear", "not a safetensors file"),
        ("a.safetensors", &[0; 16], "safetensors"),
        ("empty", b"", "no file of tensors"),
    ] {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).expect("a file");
        let error = checkpoint::load(&path, Device::cpu()).expect_err("no tensors").to_string();
        assert!(error.contains(expected) && error.contains(name), "{error}");
    }
    Ok(())
}

#[test]
fn arguments_that_change_a_tensor_are_not_ignored() -> Result<()> {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("x.pt");
    let load = |requires_grad: Code, hooks: Code, metadata: Code| {
        let (count, offset) = (b"K\x01".to_vec(), b"K\x00".to_vec());
        let arguments = [storage("FloatStorage", "x", 1), offset, tuple(std::slice::from_ref(&count)), tuple(&[count])];
        let function = global("torch._utils", "_rebuild_tensor_v2");
        let tensor = call(function, &[&arguments[..], &[requires_grad, hooks, metadata]].concat());
        let bytes = archive(&pickle(dict(&[("x", tensor)])), &[("data/x", &2f32.to_le_bytes())]);
        std::fs::write(&path, bytes).expect("a file");
        checkpoint::load(&path, Device::cpu())
    };
    let (no, yes, none, empty) = (vec![0x89], vec![0x88], b"N".to_vec(), b"}".to_vec());
    let got = load(no.clone(), empty.clone(), dict(&[("neg", yes.clone()), ("conj", no.clone())]))?;
    assert_eq!(got.get("x").expect("x").to_vec::<f32>()?, [-2.0]);
    assert_eq!(load(yes.clone(), none.clone(), none.clone())?.get("x").expect("x").to_vec::<f32>()?, [2.0]);
    for (arguments, expected) in [
        ([none.clone(), empty.clone(), empty.clone()], "requires_grad"),
        ([no.clone(), dict(&[("1", yes.clone())]), empty.clone()], "backward_hooks"),
        ([no.clone(), empty.clone(), dict(&[("zero\u{202e}\u{1b}", yes.clone())])], "metadata 'zero??'"),
        ([no, empty, dict(&[("neg", none)])], "metadata 'neg'"),
    ] {
        let [requires_grad, hooks, metadata] = arguments;
        let error = load(requires_grad, hooks, metadata).expect_err("an argument").to_string();
        assert!(error.contains(expected), "{error}");
    }
    Ok(())
}
