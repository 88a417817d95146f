//! Names that users choose or write, and the files in which processes write what they do.

use std::fs;
use std::sync::LazyLock;

use anygpu::checkpoint::{self, TrainingState};
use anygpu::device::{kernels_to_compile, tuned_variants};
use anygpu::nn::{Linear, Module, ReLU, Sequential, StateDict};
use anygpu::optim::{Adam, Optimizer};
use anygpu::watch::processes_in;
use anygpu::{DType, Device, DeviceKind, Error, KernelList, Tensor, Vendor, npy};

/// What is parsed of a text is parsed of its own text again.
fn parsed<T: std::str::FromStr<Err = Error> + ToString + PartialEq + std::fmt::Debug>(text: &str) {
    match text.parse::<T>() {
        Ok(value) => assert_eq!(value.to_string().parse::<T>(), Ok(value)),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// Lines with a name each: of types and vendors, of tensors in a state and its files, of layers, and of a run's entries.
pub fn names(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let lines: Vec<&str> = text.split('\n').take(6).collect();
    for line in &lines {
        parsed::<DType>(line);
        parsed::<Vendor>(line);
        parsed::<DeviceKind>(line);
    }
    let tensor = |i: usize| Tensor::full([1 + i % 3], i as f32, None).expect("small");
    let state: StateDict = lines.iter().enumerate().map(|(i, line)| (line.to_string(), tensor(i))).collect();
    renamed(&state, lines[0]);
    state_in_files(&state);
    layers(&lines, &state);
    entries(&lines);
}

fn renamed(state: &StateDict, prefix: &str) {
    let names = |state: &StateDict| state.names().map(str::to_owned).collect::<Vec<_>>();
    let longer = state.add_prefix(prefix);
    assert_eq!(names(&longer.under(prefix)), names(state));
    assert_eq!(longer.strip_prefix(prefix).as_ref().map(names), Ok(names(state)));
    let under = state.under(prefix);
    match state.strip_prefix(prefix) {
        Ok(stripped) => assert!(under.names().all(|name| stripped.get(name).is_some())),
        Err(error) => assert!(error.to_string().contains("prefix"), "{error}"),
    }
}

/// What is written has the same names when it is read.
fn state_in_files(state: &StateDict) {
    let path = super::file("names.safetensors", b"");
    if checkpoint::save(state, &path).is_ok() {
        let read = checkpoint::load(&path, Device::cpu()).expect("what was written");
        assert_eq!(read.len(), state.len());
        for (name, tensor) in state.iter() {
            assert_eq!(read.get(name).map(|read| read.to_vec::<f32>()), Some(tensor.to_vec::<f32>()), "{name}");
        }
    }
    let path = super::file("names.npz", b"");
    let tensors: Vec<(&str, &Tensor)> = state.iter().collect();
    if npy::save_npz(&path, &tensors).is_ok() {
        let read = npy::load_npz(&path, Device::cpu()).expect("what was written");
        let names = |pairs: &[(String, Tensor)]| pairs.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
        assert_eq!(names(&read), state.names().collect::<Vec<_>>());
    }
}

fn layers(lines: &[&str], state: &StateDict) {
    let mut net = Sequential::new();
    for (i, line) in lines.iter().enumerate() {
        let before = net.len();
        let added = match i % 2 {
            0 => net.add_module(*line, ReLU),
            _ => net.add_module(*line, Linear::new(1, 1).expect("small")),
        };
        assert_eq!(net.len() - before, usize::from(added.is_ok()));
    }
    for line in lines {
        let _ = (net.get(line).is_some(), net.set(line, ReLU).is_ok());
        assert_eq!(net.get_submodule(line).is_some(), net.named_modules().iter().any(|(name, _)| name == line));
    }
    let _ = (net.load_state_dict(state, false).is_ok(), net.load_state_dict(state, true).is_ok());
    let layer = Linear::new(1, 1).expect("small");
    let mut adam = Adam::new(layer.parameters(), 0.1);
    let _ = adam.load_state_dict(state).is_ok();
}

fn entries(lines: &[&str]) {
    let [name, value] = [lines[0], lines[lines.len() - 1]];
    let pairs = lines.iter().enumerate().map(|(i, line)| (*line, i as f64));
    let run = TrainingState::new().number(name, 0.1).text(name, value).numbers(name, pairs);
    let path = super::file("names-run.safetensors", b"");
    if run.save(&path).is_ok() {
        let read = TrainingState::load(&path).expect("what was written");
        assert_eq!(read.get(name), run.get(name));
        assert_eq!(read.get_text(name), run.get_text(name));
        assert_eq!(read.get_numbers(name), run.get_numbers(name));
    }
}

/// A file of what a process does on its devices, under the name that its first line states.
pub fn status(bytes: &[u8]) {
    static FOLDER: LazyLock<tempfile::TempDir> = LazyLock::new(|| tempfile::tempdir().expect("a folder"));
    let path = FOLDER.path().join("7-1");
    super::write(&path, bytes);
    for process in processes_in(FOLDER.path()) {
        assert_eq!(process.pid, 7);
        let texts = process.devices.iter().flat_map(|device| [&device.name, &device.adapter, &device.pci_bus_id]);
        let texts: Vec<&String> = texts.chain([&process.title]).collect();
        assert!(texts.iter().all(|text| !text.contains('\n') && !text.contains('\u{1b}')), "{texts:?}");
        assert!(process.devices.len() + texts.iter().map(|text| text.len()).sum::<usize>() <= bytes.len());
        assert!(
            process.devices.iter().all(|device| !device.is_of(&Device::cpu()) || device.adapter.contains(" through "))
        );
    }
    assert!(fs::exists(path).expect("a folder"), "a file of now is old");
}

/// A list of kernels to compile, as `--kernels` reads it.
pub fn kernel_list(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    for text in [text.to_string(), format!("# kernels of anygpu\n{text}")] {
        let count = kernels_to_compile(&text, 8);
        assert!(count <= text.lines().count());
        if let Ok(list) = text.parse::<KernelList>() {
            assert!(count <= list.len() && list.to_string().parse::<KernelList>().as_ref() == Ok(&list));
        }
    }
}

/// A file of tuned variants, after the lines that say whose it is.
pub fn tuned(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    assert!(tuned_variants(&text, true) <= text.lines().count());
    assert!(tuned_variants(&text, false) <= text.lines().count());
}
