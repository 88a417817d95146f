//! Hundreds of damaged and malicious files. Each is an error, in bounded memory and time, and never a panic.

#[path = "../damaged/mod.rs"]
mod damaged;

use std::fs;
use std::path::Path;
use std::time::Duration;

use anygpu::checkpoint::{self, TrainingState};
use anygpu::nn::{Linear, Module, StateDict};
use anygpu::optim::Adam;
use anygpu::{DType, Device, Result, Tensor};
use damaged::{Case, archives, headers, pickles};

use crate::counting;

use crate::common::alone;

/// What reading a file of `bytes` bytes may take at once.
fn most_memory(bytes: usize) -> usize {
    (16 << 20) + 64 * bytes
}

const MOST_TIME: Duration = Duration::from_secs(5);

/// What a file gives, measured.
fn load(case: &Case, folder: &Path) -> Result<StateDict> {
    let path = folder.join(format!("case.{}", case.ending));
    fs::write(&path, &case.bytes).expect("a file");
    let (result, time, memory) = counting::measured(|| checkpoint::load(&path, Device::cpu()));
    let (name, size) = (&case.name, case.bytes.len());
    assert!(memory <= most_memory(size), "{name}: {memory} bytes for a file of {size}");
    assert!(time <= MOST_TIME, "{name}: {time:?} for a file of {size} bytes");
    result
}

#[track_caller]
fn assert_error(case: &Case, folder: &Path) {
    match load(case, folder) {
        Ok(state) => panic!("{}: no error, but {state:?}", case.name),
        Err(error) => {
            let text = error.to_string();
            assert!(text.contains(case.says) && text.contains("case."), "{}: {text}", case.name);
            assert!(text.len() < 2000, "{}: {} characters", case.name, text.len());
        }
    }
}

/// Files that are good: of every origin and format.
fn good(folder: &Path) -> Vec<Case> {
    let mut state = StateDict::new();
    for dtype in DType::ALL {
        state.insert(format!("layer.{dtype}"), Tensor::arange(0.0, 21.0, 1.0, None).unwrap().to_dtype(dtype).unwrap());
    }
    let path = folder.join("good.safetensors");
    checkpoint::save(&state, &path).unwrap();
    let ours = fs::read(&path).unwrap();
    let layer = Linear::new(3, 2).unwrap();
    let adam = Adam::new(layer.parameters(), 0.1);
    let run = TrainingState::new().module(&layer).optimizer(&adam).unwrap().number("epoch", 3.0).text("note", "hello");
    run.save(&path).unwrap();
    let run = fs::read(&path).unwrap();
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    let file = |name: &str| fs::read(data.join(name)).unwrap();
    let case = |name: &str, ending, bytes| damaged::case(name, ending, bytes, "");
    vec![
        case("ours", "safetensors", ours),
        case("a run", "safetensors", run),
        case("zip", "pt", file("pytorch_kinds.pt")),
        case("old", "pth", file("pytorch_old.pth")),
        case("zip by hand", "pt", pickles::good()),
        case("header by hand", "safetensors", headers::good()),
        case("old by hand", "pth", pickles::good_old()),
    ]
}

fn truncated(good: &Case) -> impl Iterator<Item = Case> + '_ {
    let step = (good.bytes.len() / 60).max(1);
    let lengths = (0..24).chain((24..good.bytes.len()).step_by(step)).chain([good.bytes.len() - 1]);
    lengths.filter(|&length| length < good.bytes.len()).map(move |length| {
        let name = format!("{}, {length} of {} bytes", good.name, good.bytes.len());
        damaged::case(&name, good.ending, good.bytes[..length].to_vec(), "")
    })
}

/// One bit of every `step`th byte.
fn flipped(good: &Case, step: usize) -> impl Iterator<Item = (usize, Case)> + '_ {
    (0..good.bytes.len()).step_by(step).map(move |at| {
        let (mut bytes, bit) = (good.bytes.clone(), at % 8);
        bytes[at] ^= 1 << bit;
        (at, damaged::case(&format!("{}, bit {bit} of byte {at}", good.name), good.ending, bytes, ""))
    })
}

fn same(a: &StateDict, b: &StateDict) -> bool {
    let bits = |t: &Tensor| t.to_dtype(DType::F32).unwrap().to_vec::<f32>().unwrap();
    a.len() == b.len() && a.iter().all(|(name, t)| b.get(name).is_some_and(|other| bits(other) == bits(t)))
}

/// The parts of a zip archive that a checksum covers.
fn covered(file: &[u8]) -> Vec<std::ops::Range<usize>> {
    let mut archive = zip::ZipArchive::new(std::io::Cursor::new(file)).unwrap();
    let count = archive.len();
    let entry = |i| {
        let entry = archive.by_index(i).unwrap();
        let start = entry.data_start().unwrap() as usize;
        start..start + entry.size() as usize
    };
    (0..count).map(entry).collect()
}

/// One test, so that nothing else allocates meanwhile.
#[test]
fn every_damaged_file_is_an_error_in_bounded_memory_and_time() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let good = good(folder);
    let whole: Vec<StateDict> = good.iter().map(|case| load(case, folder).unwrap()).collect();
    assert_eq!(whole[6].get("w").unwrap().to_vec::<f32>().unwrap(), [3.0, 4.0, 5.0], "a part of a storage");
    let honest = load(&damaged::case("many labels and numbers", "pt", pickles::repetitive(), ""), folder).unwrap();
    assert_eq!(honest.names().collect::<Vec<_>>(), ["w"]);
    for (ending, bytes) in [("pt", pickles::nothing()), ("safetensors", headers::nothing())] {
        // No elements, or an error: both are right, and neither a panic.
        if let Ok(state) = load(&damaged::case("nothing of huge sizes", ending, bytes, ""), folder) {
            assert!(state.iter().all(|(_, tensor)| tensor.elem_count() == 0), "{ending}");
        }
    }
    let mut errors = 0;
    for case in [pickles::all(), archives::all(), headers::all()].into_iter().flatten() {
        assert_error(&case, folder);
        errors += 1;
    }
    let by_hand = errors;
    for case in good.iter().flat_map(truncated) {
        assert_error(&case, folder);
        errors += 1;
    }
    for (good, whole) in good.iter().zip(&whole) {
        let covered = if good.ending == "pt" { covered(&good.bytes) } else { Vec::new() };
        let ours = ["ours", "a run"].contains(&good.name.as_str());
        for (at, case) in flipped(good, if ours { 1 } else { 3 }) {
            // Without a checksum over it, a changed byte may go unseen, or change a number; with one it may not.
            match load(&case, folder) {
                Err(_) => errors += 1,
                Ok(_) if ours || covered.iter().any(|part| part.contains(&at)) => panic!("{}: no error", case.name),
                Ok(state) => assert!(good.ending != "pt" || same(&state, whole), "{}: other values", case.name),
            }
        }
    }
    println!("{errors} files that are errors, {by_hand} of them made by hand");
    assert!(by_hand > 350 && errors > 1500, "{by_hand} {errors}");
    assert!(!Path::new("/tmp/anygpu-was-here").exists(), "a file ran a command");
}
