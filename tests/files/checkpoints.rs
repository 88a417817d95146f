//! States of modules: taken, loaded, saved and read back, on every device and between devices.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use anygpu::checkpoint::TrainingState;
use anygpu::data::LoaderState;
use anygpu::nn::{BatchNorm2d, Conv2d, KeyReport, Linear, Module, Sequential, StateDict, WeightNorm};
use anygpu::optim::SGD;
use anygpu::{DType, DataParallel, Device, Error, Result, Tensor, checkpoint, narrow_64_bits};
use tempfile::TempDir;

use crate::common::{devices_in_turn, values};

fn net() -> Result<Sequential> {
    let net = Sequential::new().add("conv", Conv2d::new(1, 3, 3)?).add("norm", BatchNorm2d::new(3)?);
    Ok(net.add("fc", Linear::new(5, 2)?))
}

/// A place for a file, in a folder that goes when the first is dropped.
fn place(name: &str) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join(name);
    (folder, path)
}

fn all_values(state: &StateDict) -> Vec<(String, DType, Vec<usize>, Vec<f64>)> {
    let entry = |(name, t): (&str, &Tensor)| (name.to_string(), t.dtype(), t.shape().to_vec(), values(t).unwrap());
    state.iter().map(entry).collect()
}

/// A tensor of every type, of odd sizes, one empty, one of rank 0, one a view.
fn mixed(device: &Device) -> Result<StateDict> {
    let numbers = Tensor::from_slice(&[0.0f32, 1.0, 1.5, 2.25, 250.0, 7.0, 3.0], 7, device)?;
    let mut state = StateDict::new();
    for dtype in DType::ALL.into_iter().filter(|&dtype| dtype != DType::F64) {
        state.insert(format!("a.{dtype}"), numbers.to_dtype(dtype)?);
    }
    state.insert("large", Tensor::from_slice(&[i32::MIN, i32::MAX, -1], [3, 1], device)?);
    state.insert("larger", Tensor::from_slice(&[u32::MAX], 1, device)?);
    state.insert("empty", Tensor::zeros([0, 5], device)?);
    state.insert("scalar \"π\" \\ \n", Tensor::scalar(f32::MIN_POSITIVE, device)?);
    state.insert("view", Tensor::rand([4, 6], device)?.t()?.narrow(0, 1, 3)?);
    state.insert("packed view", numbers.to_dtype(DType::U8)?.narrow(0, 1, 5)?);
    Ok(state)
}

#[test]
fn every_type_survives_from_every_device_to_every_device() -> Result<()> {
    for from in devices_in_turn() {
        let (_folder, path) = place("all.safetensors");
        let state = mixed(&from)?;
        checkpoint::save(&state, &path)?;
        for to in devices_in_turn() {
            let mut read = checkpoint::load(&path, &to)?;
            assert_eq!(read.len(), state.len());
            assert!(read.iter().all(|(_, tensor)| tensor.device() == &to));
            let in_order: StateDict =
                state.names().map(|n| (n.to_string(), read.remove(n).expect("every name"))).collect();
            assert_eq!(all_values(&in_order), all_values(&state), "{from} to {to}");
        }
    }
    Ok(())
}

/// The `safetensors` crate's own reader agrees to the byte, and every tensor begins where its type may.
#[test]
fn another_reader_sees_the_same_bytes() -> Result<()> {
    let (_folder, path) = place("all.safetensors");
    let state = mixed(&Device::cpu())?;
    checkpoint::save(&state, &path)?;
    let bytes = fs::read(&path).unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(file.len(), state.len());
    let floats = |name: &str| -> Vec<f32> {
        let data = file.tensor(name).unwrap().data().to_vec();
        data.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
    };
    assert_eq!(floats("a.f32"), state.get("a.f32").unwrap().to_vec::<f32>()?);
    assert_eq!(floats("view"), state.get("view").unwrap().to_vec::<f32>()?);
    assert_eq!(file.tensor("a.bool").unwrap().data(), [0, 1, 1, 1, 1, 1, 1]);
    assert_eq!(file.tensor("packed view").unwrap().data(), [1, 1, 2, 250, 7]);
    let (_, header) = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
    for (name, info) in header.tensors() {
        assert_eq!(info.data_offsets.0 % (info.dtype.bitsize() / 8), 0, "{name}");
    }
    assert_eq!(header.metadata().as_ref().unwrap()["format"], "pt");
    checkpoint::save(&state, &path)?;
    assert_eq!(fs::read(&path).unwrap(), bytes, "the same state gives the same file");
    Ok(())
}

#[test]
fn files_of_others_have_no_checksum_and_wider_types() -> Result<()> {
    use safetensors::tensor::{Dtype, TensorView, serialize};
    let (_folder, path) = place("other.safetensors");
    let write = |dtype, data: &[u8], count| {
        let view = TensorView::new(dtype, vec![count], data).unwrap();
        fs::write(&path, serialize([("x", view)], None).unwrap()).unwrap();
    };
    let read = || narrow_64_bits(|| checkpoint::load(&path, Device::cpu()));
    write(Dtype::F64, &[0.1f64.to_le_bytes(), (-2.5f64).to_le_bytes()].concat(), 2);
    assert_eq!(checkpoint::load(&path, Device::cpu())?.get("x").unwrap().to_vec_f64()?, [0.1, -2.5]);
    assert_eq!(read()?.get("x").unwrap().to_vec::<f32>()?, [0.1, -2.5]);
    write(Dtype::I64, &[(-7i64).to_le_bytes(), 9i64.to_le_bytes()].concat(), 2);
    assert_eq!(read()?.get("x").unwrap().to_vec::<i32>()?, [-7, 9]);
    write(Dtype::I8, &[0xff, 3], 2);
    assert_eq!(read()?.get("x").unwrap().to_vec::<i32>()?, [-1, 3]);
    write(Dtype::I64, &(1i64 << 31).to_le_bytes(), 1);
    assert_eq!(read()?.get("x").unwrap().to_vec::<u32>()?, [1 << 31]);
    write(Dtype::I64, &[-1i64, 1 << 31].map(i64::to_le_bytes).concat(), 2);
    let error = read().unwrap_err().to_string();
    assert!(error.contains("'x': the integer -1 does not fit"), "{error}");
    write(Dtype::F64, &1e300f64.to_le_bytes(), 1);
    let error = read().unwrap_err().to_string();
    assert!(error.contains("'x': the value 1e300 does not fit f32"), "{error}");
    write(Dtype::F8_E4M3, &[1], 1);
    let error = read().unwrap_err().to_string();
    assert!(error.contains("'x': elements of F8_E4M3"), "{error}");
    // Beside another tensor, it is skipped.
    let [bytes, floats] = [(Dtype::F8_E4M3, 1, vec![1]), (Dtype::F32, 1, vec![0; 4])]
        .map(|(dtype, count, data)| (dtype, vec![count], data));
    let views = [("x", &bytes), ("y", &floats)]
        .map(|(name, (dtype, shape, data))| (name, TensorView::new(*dtype, shape.clone(), data).unwrap()));
    fs::write(&path, serialize(views, None).unwrap()).unwrap();
    assert_eq!(read()?.names().collect::<Vec<_>>(), ["y"]);
    Ok(())
}

#[test]
fn values_go_from_any_device_to_any_device_in_place() -> Result<()> {
    for from in devices_in_turn() {
        let mut source = net()?;
        source.to_(&from)?;
        source.state_dict().get("norm.running_mean").unwrap().fill_(0.25)?;
        for to in devices_in_turn() {
            let mut target = net()?;
            target.to_(&to)?;
            let (parameters, buffers) = (target.parameters(), target.named_buffers());
            target.load_state_dict(&source.state_dict(), true)?;
            assert_eq!(all_values(&target.state_dict()), all_values(&source.state_dict()), "{from} to {to}");
            // The very tensors, so that an optimiser that was made before moves what is used.
            assert!(parameters.iter().zip(target.parameters()).all(|(old, new)| old.is_same(&new)));
            assert!(buffers.iter().zip(target.named_buffers()).all(|((_, old), (_, new))| old.is_same(&new)));
            assert!(parameters.iter().all(|p| p.is_tracked() && p.device() == &to));
        }
    }
    Ok(())
}

#[test]
fn an_optimiser_and_a_state_taken_before_see_the_new_values() -> Result<()> {
    for device in devices_in_turn() {
        let mut layer = Linear::new(3, 2)?;
        layer.to_(&device)?;
        let mut sgd = SGD::new(layer.parameters(), 1.0);
        let (kept, shared) = (layer.state_dict().copied()?, layer.state_dict());
        let ones: StateDict = [("weight", vec![2, 3]), ("bias", vec![2])]
            .map(|(name, shape)| (name.to_string(), Tensor::ones(shape, None).unwrap()))
            .into_iter()
            .collect();
        layer.load_state_dict(&ones, true)?;
        layer.forward(&Tensor::ones([1, 3], &device)?)?.sum_all()?.backward()?;
        sgd.step()?;
        assert_eq!(layer.parameters()[0].to_vec::<f32>()?, [0.0; 6]);
        assert_eq!(shared.get("weight").unwrap().to_vec::<f32>()?, [0.0; 6]);
        layer.load_state_dict(&kept, true)?;
        assert_eq!(all_values(&shared), all_values(&kept));
        layer.load_state_dict(&layer.state_dict(), true)?; // its own
        assert_eq!(all_values(&shared), all_values(&kept));
    }
    Ok(())
}

#[test]
fn types_are_converted() -> Result<()> {
    let layer = Linear::new(2, 2)?;
    let half = |(name, t): (String, Tensor)| Ok((name, t.to_dtype(DType::F16)?));
    let state = layer.state_dict().into_iter().map(half).collect::<Result<StateDict>>()?;
    let other = Linear::new(2, 2)?;
    other.load_state_dict(&state, true)?;
    assert_eq!(other.parameters()[0].dtype(), DType::F32);
    assert_eq!(values(&other.parameters()[0])?, values(state.get("weight").unwrap())?);
    Ok(())
}

#[test]
fn an_error_lists_everything_and_changes_nothing() -> Result<()> {
    let net = net()?;
    let before = all_values(&net.state_dict().copied()?);
    let mut state: StateDict = net.state_dict().copied()?;
    state.remove("fc.weight");
    state.remove("norm.running_var");
    state.insert("head.weight", Tensor::zeros([1], None)?);
    state.insert("head.bias", Tensor::zeros([1], None)?);
    state.insert("conv.bias", Tensor::zeros([3], None)?);
    let report = KeyReport {
        missing: vec!["fc.weight".into(), "norm.running_var".into()],
        unexpected: vec!["head.weight".into(), "head.bias".into()],
    };
    let error = net.load_state_dict(&state, true).unwrap_err().to_string();
    for name in report.missing.iter().chain(&report.unexpected) {
        assert!(error.contains(name), "{name}: {error}");
    }
    assert_eq!(net.load_state_dict(&state, false)?, report);
    assert_eq!(net.state_dict().get("conv.bias").unwrap().to_vec::<f32>()?, [0.0; 3]);

    let changed = all_values(&net.state_dict().copied()?);
    assert_ne!(changed, before);
    state.insert("conv.weight", Tensor::zeros([3, 1, 2, 2], None)?);
    state.insert("conv.bias", Tensor::ones([4], None)?);
    state.insert("fc.bias", Tensor::ones([2], None)?);
    for strict in [true, false] {
        let error = net.load_state_dict(&state, strict).unwrap_err().to_string();
        assert!(error.contains("conv.weight: [3, 1, 3, 3] in the module, [3, 1, 2, 2] in the state"), "{error}");
        assert!(error.contains("conv.bias") && error.contains("unchanged"), "{error}");
        assert_eq!(error.contains("head.weight"), strict, "{error}");
        assert_eq!(all_values(&net.state_dict()), changed);
    }
    Ok(())
}

#[test]
fn the_prefix_of_replicas_and_counters_of_batches_do_not_matter() -> Result<()> {
    let source = net()?;
    let mut state = source.state_dict();
    state.insert("norm.num_batches_tracked", Tensor::scalar(7i32, None)?);
    let expected = all_values(&source.state_dict());
    let plain = net()?;
    plain.load_state_dict(&state.add_prefix("module."), true)?;
    assert_eq!(all_values(&plain.state_dict()), expected);
    let wrapped = Sequential::new().add("module", net()?);
    wrapped.load_state_dict(&state, true)?;
    assert_eq!(all_values(&wrapped.state_dict().strip_prefix("module.")?), expected);
    wrapped.load_state_dict(&state.add_prefix("module."), true)?;
    Ok(())
}

#[test]
fn names_of_pytorchs_wrappers_are_read_and_other_prefixes_named() -> Result<()> {
    let source = net()?;
    let state = source.state_dict();
    let expected = all_values(&state);
    for (prefix, place) in
        [("_orig_mod.", ""), ("module._orig_mod.", ""), ("_orig_mod.module.", ""), ("", "_orig_mod.")]
    {
        let within = |name: &str| format!("{prefix}{}", name.replacen('.', &format!(".{place}"), 1));
        let compiled: StateDict = state.iter().map(|(name, t)| (within(name), t.clone())).collect();
        let plain = net()?;
        plain.load_state_dict(&compiled, true)?;
        assert_eq!(all_values(&plain.state_dict()), expected, "{prefix} {place}");
    }
    let own = Sequential::new().add("_orig_mod", net()?);
    own.load_state_dict(&state.add_prefix("_orig_mod."), true)?; // a module with that name keeps it
    assert_eq!(all_values(&own.state_dict().under("_orig_mod.")), expected);

    // Lightning's checkpoints, with a loss beside the model.
    let other = net()?;
    let before = all_values(&other.state_dict().copied()?);
    let mut lightning = state.add_prefix("model.");
    lightning.insert("loss.weight", Tensor::zeros([2], None)?);
    for strict in [true, false] {
        let error = other.load_state_dict(&lightning, strict).unwrap_err().to_string();
        assert!(error.contains("missing in the state (8): conv.weight"), "{error}");
        assert!(error.ends_with("Load state.under(\"model.\"): its names are the module's names"), "{error}");
        let error = other.load_state_dict(&lightning.under("model.").under("fc."), strict).unwrap_err().to_string();
        assert!(error.ends_with("Load state.add_prefix(\"fc.\"): the module has all of its names"), "{error}");
        // No prefix is right, or several are.
        let error = other.load_state_dict(&StateDict::from([("x", Tensor::zeros([1], None)?)]), strict).unwrap_err();
        assert!(error.to_string().ends_with("unexpected in the state (1): x"), "{error}");
        let twice = Sequential::new().add("a", Linear::new(2, 2)?).add("b", Linear::new(2, 2)?).state_dict();
        let error = Linear::new(2, 2)?.load_state_dict(&twice, strict).unwrap_err().to_string();
        assert!(error.contains("unexpected in the state (4): a.weight") && !error.contains("Load"), "{error}");
    }
    assert_eq!(all_values(&other.state_dict()), before);
    other.load_state_dict(&lightning.under("model."), true)?;
    assert_eq!(all_values(&other.state_dict()), expected);
    assert_eq!(other.load_state_dict(&StateDict::new(), false)?.missing.len(), 8); // nothing was to be loaded

    let normed = || Ok::<_, Error>(Sequential::new().add("fc", WeightNorm::new(Linear::new(3, 2)?)?));
    let from = normed()?.state_dict();
    let parametrized = |prefix: &str| {
        let name = |name: &str| match name.rsplit_once('_') {
            Some(("fc.weight", "g")) => format!("{prefix}fc.parametrizations.weight.original0"),
            Some(("fc.weight", "v")) => format!("{prefix}fc.parametrizations.weight.original1"),
            _ => format!("{prefix}{name}"),
        };
        from.iter().map(|(own, t)| (name(own), t.clone())).collect::<StateDict>()
    };
    for prefix in ["", "module.", "_orig_mod."] {
        let to = normed()?;
        to.load_state_dict(&parametrized(prefix), true)?;
        assert_eq!(all_values(&to.state_dict()), all_values(&from), "{prefix}");
    }
    let error = normed()?.load_state_dict(&parametrized("model."), true).unwrap_err().to_string();
    assert!(error.contains("Load state.under(\"model.\")"), "{error}");
    Ok(())
}

#[test]
fn every_replica_gets_the_values() -> Result<()> {
    let all = devices_in_turn();
    let net = DataParallel::new(net()?, &all[..all.len().min(3)])?;
    let state: StateDict = net
        .state_dict()
        .names()
        .map(str::to_string)
        .zip(net.state_dict())
        .map(|(n, (_, t))| (n, Tensor::full(t.shape(), 0.125f32, None).unwrap()))
        .collect();
    net.load_state_dict(&state, true)?;
    assert!(net.parameters().iter().all(|p| values(p).unwrap().iter().all(|&v| v == 0.125)));
    assert_eq!(all_values(&net.state_dict()), all_values(&state));
    assert!(net.load_state_dict(&StateDict::new(), true).is_err());
    Ok(())
}

/// Two names for one weight.
#[derive(Clone)]
struct Tied {
    encode: Tensor,
    decode: Tensor,
}

impl Module for Tied {
    anygpu::children!(encode, decode);

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        x.matmul(&self.encode)?.matmul(&self.decode.t()?)
    }
}

#[test]
fn tied_weights_need_one_of_their_names() -> Result<()> {
    let weight = Tensor::rand([3, 2], None)?.requires_grad();
    let tied = Tied { encode: weight.clone(), decode: weight };
    assert_eq!(tied.state_dict().names().collect::<Vec<_>>(), ["encode", "decode"]);
    for name in ["encode", "decode"] {
        let state: StateDict = [(name.to_string(), Tensor::full([3, 2], 2.0f32, None)?)].into_iter().collect();
        tied.encode.detach().fill_(0.0)?;
        tied.load_state_dict(&state, true)?;
        assert_eq!(tied.decode.to_vec::<f32>()?, [2.0; 6]);
    }
    let missing = tied.load_state_dict(&StateDict::new(), true).unwrap_err().to_string();
    assert!(missing.contains("encode") && missing.contains("decode"), "{missing}");
    Ok(())
}

#[test]
fn other_endings_are_refused_with_the_remedy() -> Result<()> {
    let (_folder, path) = place("state.pt");
    let error = checkpoint::save(&StateDict::new(), &path).unwrap_err().to_string();
    assert!(error.contains("save as .safetensors"), "{error}");
    assert!(checkpoint::save(&StateDict::new(), path.with_extension("txt")).is_err());
    assert!(checkpoint::load(path.with_extension("txt"), Device::cpu()).is_err());
    assert!(!path.exists());
    Ok(())
}

#[test]
fn what_is_no_file_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    for path in [folder.path().join("missing.pt"), folder.path().join("missing.safetensors")] {
        let error = checkpoint::load(&path, Device::cpu()).unwrap_err().to_string();
        assert!(error.contains("missing") && error.contains("cannot be read"), "{error}");
    }
    let named_so = folder.path().join("folder.safetensors");
    fs::create_dir(&named_so).unwrap();
    assert!(checkpoint::load(&named_so, Device::cpu()).is_err());
    assert!(checkpoint::load_pickle("/dev/zero", Device::cpu()).is_err());
    let value = checkpoint::load_pickle(folder.path().join("x"), Device::cpu());
    assert!(matches!(value, Err(Error::Data { .. })));
    assert!(checkpoint::PickleValue::None.state_dict().is_err());
}

#[test]
fn reserved_keys_are_refused_before_anything_is_written() -> Result<()> {
    let (_folder, path) = place("state.safetensors");
    let state = Linear::new(2, 2)?.state_dict();
    let save = |key: &str, value: &str| {
        checkpoint::save_with_metadata(&state, &BTreeMap::from([(key.to_string(), value.to_string())]), &path)
    };
    for (key, value) in [("anygpu.crc32", "x"), ("anygpu.training", "1"), ("anygpu.new", ""), ("anygpu", "2")] {
        let error = save(key, value).unwrap_err().to_string();
        assert!(error.contains(&format!("{key:?}")) && error.contains("reserved"), "{error}");
        assert!(!path.exists(), "{key}");
    }
    save("anygpu.card", "{}")?; // the command's
    save("anygpus", "1")?;
    let error = TrainingState::new().text("anygpu.loader", "0 1").save(&path).unwrap_err().to_string();
    assert!(error.contains("anygpu.loader") && error.contains("reserved"), "{error}");
    assert_eq!(checkpoint::load(&path, Device::cpu())?.len(), 2);
    Ok(())
}

#[test]
fn metadata_that_was_read_can_be_written_again() -> Result<()> {
    let (_folder, path) = place("state.safetensors");
    let layer = Linear::new(2, 2)?;
    let note = BTreeMap::from([("note".to_string(), "first".to_string())]);
    let training = TrainingState::new()
        .module(&layer)
        .text("note", "first")
        .text("anygpu.card", "{}")
        .loader(LoaderState::default());
    for write in [
        Box::new(|| checkpoint::save_with_metadata(&layer.state_dict(), &note, &path)) as Box<dyn Fn() -> Result<()>>,
        Box::new(|| training.save(&path)),
    ] {
        write()?;
        let (state, metadata) = checkpoint::load_with_metadata(&path, Device::cpu())?;
        checkpoint::save_with_metadata(&state, &metadata, &path)?;
        let (again, same) = checkpoint::load_with_metadata(&path, Device::cpu())?;
        assert_eq!((all_values(&again), &same["note"]), (all_values(&state), &note["note"]));
    }
    Ok(())
}

/// Opening a pipe waits for a writer, which never comes.
#[cfg(unix)]
#[test]
fn a_pipe_is_an_error_and_a_link_to_a_file_is_not() -> Result<()> {
    use std::time::Duration;
    let (folder, path) = place("state.safetensors");
    let pipe = folder.path().join("pipe.safetensors");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status().expect("mkfifo");
    assert!(made.success());
    let (send, answer) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let results = [
            checkpoint::load(&pipe, Device::cpu()).map(drop),
            TrainingState::load(&pipe).map(drop),
            checkpoint::load_pickle(&pipe, Device::cpu()).map(drop),
        ];
        let _ = send.send(results);
    });
    for result in answer.recv_timeout(Duration::from_secs(20)).expect("an answer: it must not wait for the pipe") {
        let error = result.unwrap_err().to_string();
        assert!(error.contains("it is a named pipe, not a regular file"), "{error}");
    }
    let error = checkpoint::load_pickle("/dev/zero", Device::cpu()).unwrap_err().to_string();
    assert!(error.contains("it is a device"), "{error}");
    checkpoint::save(&Linear::new(2, 2)?.state_dict(), &path)?;
    let link = folder.path().join("link.safetensors");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    assert_eq!(checkpoint::load(&link, Device::cpu())?.len(), 2);
    Ok(())
}
