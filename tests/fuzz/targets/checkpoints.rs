//! Files of tensors.

use std::io::{Cursor, Write};
use std::path::Path;

use anygpu::checkpoint::{self, TrainingState};
use anygpu::nn::{Linear, Module, StateDict};
use anygpu::optim::Adam;
use anygpu::{DType, Device};
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

/// All elements of what was accepted can be read.
fn check(state: &StateDict) {
    for (name, tensor) in state.iter() {
        let values = tensor.to_dtype(DType::F32).and_then(|x| x.to_vec::<f32>());
        assert_eq!(values.map(|values| values.len()), Ok(tensor.elem_count()), "{name}");
    }
}

pub fn safetensors(bytes: &[u8]) {
    let path = super::file("state.safetensors", bytes);
    if let Ok((state, _)) = checkpoint::load_with_metadata(path, Device::cpu()) {
        check(&state);
    }
}

/// A run of training, restored into a small net.
pub fn training(bytes: &[u8]) {
    let path = super::file("run.safetensors", bytes);
    let Ok(run) = TrainingState::load(path) else { return };
    let net = Linear::new(3, 2).expect("a small layer");
    let mut adam = Adam::new(net.parameters(), 0.1);
    let _ = (run.restore_module(&net).is_ok(), run.restore_optimizer(&mut adam).is_ok());
    let _ = (run.get("epoch"), run.get_numbers("metrics"), run.get_text("note"), run.loader_state());
    if let Ok(state) = run.get_tensors("ema") {
        check(&state);
    }
    assert!(net.parameters().iter().all(|x| x.elem_count() == 6 || x.elem_count() == 2));
}

fn read(path: &Path) {
    if let Ok(state) = checkpoint::load(path, Device::cpu()) {
        check(&state);
    }
    if let Ok(value) = checkpoint::load_pickle(path, Device::cpu()) {
        let _ = (value.skipped(), value.get("state_dict").is_some(), value.items().is_some());
        for state in [value.state_dict(), value.flatten()].into_iter().flatten() {
            check(&state);
        }
    }
}

/// A file of `torch.save`, of either format.
pub fn pytorch(bytes: &[u8]) {
    read(&super::file("file.pt", bytes));
}

/// The pickle of a file whose archive is right: a changed pickle is read instead of being refused for its checksum.
pub fn pickle(bytes: &[u8]) {
    let mut archive = ZipWriter::new(Cursor::new(Vec::new()));
    for (name, data) in [("x/data.pkl", bytes), ("x/byteorder", b"little"), ("x/data/0", &[1; 64])] {
        let options = SimpleFileOptions::default().compression_method(CompressionMethod::Stored);
        archive.start_file(name, options).expect("an entry");
        archive.write_all(data).expect("memory");
    }
    read(&super::file("pickle.pt", archive.finish().expect("memory").get_ref()));
}
