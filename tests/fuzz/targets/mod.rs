//! What is fuzzed: each target takes any bytes. They are shared by the driver of the tests and by libFuzzer (`fuzz/`).
#![allow(dead_code, reason = "a target of libFuzzer uses one function")]

pub mod checkpoints;
pub mod data;
pub mod models;
pub mod names;
pub mod ops;
#[path = "../../onnx/proto.rs"]
mod proto;
pub mod text;
pub mod vectors;

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

pub struct Target {
    /// Its folder in `fuzz/corpus`.
    pub name: &'static str,
    pub run: fn(&[u8]),
    /// What is done once, and not counted.
    pub prepare: fn(),
    /// The bytes that an input may take beside 16 times its size.
    pub memory: usize,
    /// Beyond these bytes, blocks of 64 KiB and more are refused, as by a host that has no more: an input may ask for any memory, and
    /// has to take an error for it.
    pub host: usize,
    /// The longest input.
    pub longest: usize,
    /// Its part of the time: a parser reads thousands of inputs in a second, an adapter compiles kernels.
    pub share: u32,
}

/// Reads bytes: 64 MiB beside 16 times the input.
const fn parser(name: &'static str, run: fn(&[u8])) -> Target {
    Target { name, run, prepare: || (), memory: 64 << 20, host: usize::MAX, longest: 64 << 10, share: 1 }
}

pub const TARGETS: &[Target] = &[
    parser("idx", data::idx),
    parser("cifar", data::cifar),
    parser("image", data::image),
    parser("npy", data::npy),
    parser("safetensors", checkpoints::safetensors),
    parser("training", checkpoints::training),
    parser("pytorch", checkpoints::pytorch),
    parser("pickle", checkpoints::pickle),
    // Nothing of these is longer than a page, and a shader's validation may take time in the square of its length.
    Target { longest: 4 << 10, ..parser("wgsl", text::wgsl) },
    Target { longest: 1 << 10, ..parser("einsum", text::einsum) },
    Target { longest: 1 << 10, ..parser("index", text::index) },
    Target { longest: 1 << 10, prepare: || text::device_name(b"soft:0"), ..parser("device_name", text::device_name) },
    Target { longest: 1 << 10, ..parser("names", names::names) },
    Target { longest: 4 << 10, ..parser("status", names::status) },
    Target { longest: 4 << 10, ..parser("kernel_list", names::kernel_list) },
    Target { longest: 4 << 10, ..parser("tuned", names::tuned) },
    Target { longest: 4 << 10, prepare: models::prepare, ..parser("onnx", models::load) },
    Target { longest: 4 << 10, host: 64 << 20, memory: 128 << 20, share: 2, ..parser("onnx_run", models::run) },
    Target {
        longest: 15,
        prepare: vectors::prepare,
        host: 64 << 20,
        memory: 128 << 20,
        share: 2,
        ..parser("onnx_node", vectors::node)
    },
    Target { longest: 256, prepare: ops::prepare, memory: 256 << 20, share: 8, ..parser("ops", ops::run) },
];

/// A folder for the files of the targets, kept for the process.
static FOLDER: LazyLock<tempfile::TempDir> = LazyLock::new(|| tempfile::tempdir().expect("a folder"));

/// Writes a file of this name. Names are distinct between targets.
fn file(name: &str, bytes: &[u8]) -> PathBuf {
    let path = FOLDER.path().join(name);
    write(&path, bytes);
    path
}

/// Writes a file over what it was. A file that is truncated to nothing first takes milliseconds on ext4, which writes it to
/// the disk when it is closed.
pub fn write(path: &Path, bytes: &[u8]) {
    let open = File::options().write(true).create(true).truncate(false).open(path);
    let mut file = open.expect("a file in a folder of ours");
    file.write_all(bytes).expect("room for a small file");
    file.set_len(bytes.len() as u64).expect("room for a small file");
}
