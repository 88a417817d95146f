//! A checkpoint is written while the process ends or the power fails, at every system call of the writer.

use std::fs;
use std::path::{Path, PathBuf};

use super::TrainingState;
use crate::nn::StateDict;
use crate::tensor::Tensor;
use crate::util::atomic::Call;
use crate::util::atomic::faults::{self, Fault};

/// A run whose tensors are larger than the writer's buffer, so that there are several writes.
fn run(step: f64) -> TrainingState {
    let weights = Tensor::full([300_000], step as f32, None).unwrap();
    let tensors: StateDict = [("w".to_string(), weights)].into_iter().collect();
    TrainingState::new().tensors("net", &tensors).number("step", step)
}

/// Returns the step of a file, which must be whole.
fn step_of(path: &Path) -> f64 {
    let read = TrainingState::load(path).unwrap_or_else(|error| panic!("{error}"));
    let weights = read.get_tensors("net").unwrap().get("w").unwrap().to_vec::<f32>().unwrap();
    let step = read.get("step").unwrap();
    assert!(weights.len() == 300_000 && weights.iter().all(|w| f64::from(*w) == step));
    step
}

fn files(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect()
}

/// What is on the disk after the process ended, of the changes that were not synchronised.
#[derive(Clone, Copy, Debug)]
enum Loss {
    /// Everything: only the process ended.
    Nothing,
    /// The second half of the new contents is lost.
    Half,
    /// All of the new contents are lost.
    Contents,
    /// The rename is lost.
    Rename,
    /// The new file is lost.
    File,
}

/// Changes a folder to what a power failure may leave of it after these calls. `old` is the file before them.
fn lose_power(path: &Path, old: &[u8], done: &[Call], loss: Loss) {
    let was = |call| done.contains(&call);
    let folder = path.parent().unwrap();
    let temporary = files(folder).into_iter().find(|file| file != path);
    let newest = if was(Call::Rename) { Some(path.to_path_buf()) } else { temporary };
    let Some(newest) = newest.filter(|_| was(Call::Create)) else { return };
    match loss {
        Loss::Half | Loss::Contents if !was(Call::SyncFile) => {
            let file = fs::File::options().write(true).open(newest).unwrap();
            let kept = if matches!(loss, Loss::Half) { file.metadata().unwrap().len() / 2 } else { 0 };
            file.set_len(kept).unwrap();
        }
        Loss::Rename if was(Call::Rename) && !was(Call::SyncFolder) => {
            fs::rename(path, folder.join(".run.safetensors.0123456789abcdef.tmp")).unwrap();
            fs::write(path, old).unwrap();
        }
        Loss::File if !was(Call::Rename) => fs::remove_file(newest).unwrap(),
        _ => {}
    }
}

#[test]
fn the_old_or_the_new_file_survives_an_end_at_every_call() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.safetensors");
    let (_, calls) = faults::with(Fault::Fails, usize::MAX, || run(1.0).save(&path).unwrap());
    assert!(calls.iter().filter(|call| **call == Call::Write).count() >= 2, "{calls:?}");
    let mut survivors = [0; 2];
    for at in 0..=calls.len() {
        for loss in [Loss::Nothing, Loss::Half, Loss::Contents, Loss::Rename, Loss::File] {
            run(1.0).save(&path).unwrap();
            let old = fs::read(&path).unwrap();
            let (saved, done) = faults::with(Fault::Ends, at, || run(2.0).save(&path));
            assert_eq!(done, calls[..at], "the same calls every time");
            assert_eq!(saved.is_ok(), at == calls.len(), "at {at}");
            lose_power(&path, &old, &done, loss);
            let step = step_of(&path);
            assert!(step == 1.0 || step == 2.0, "{step} at {at}, {loss:?}");
            assert!(saved.is_err() || step == 2.0, "a save that returned Ok is lost at {at}, {loss:?}");
            survivors[step as usize - 1] += 1;
            run(3.0).save(&path).unwrap();
            assert_eq!((step_of(&path), files(folder.path())), (3.0, vec![path.clone()]), "at {at}, {loss:?}");
        }
    }
    assert!(survivors.iter().all(|count| *count >= 5), "{survivors:?}");
}

#[test]
fn a_call_that_fails_is_an_error_and_leaves_the_old_or_the_new_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.safetensors");
    let (_, calls) = faults::with(Fault::Fails, usize::MAX, || run(1.0).save(&path).unwrap());
    for (at, call) in calls.iter().enumerate() {
        run(1.0).save(&path).unwrap();
        let (saved, _) = faults::with(Fault::Fails, at, || run(2.0).save(&path));
        // Without a lock, a file is written nevertheless.
        assert_eq!(saved.is_ok(), *call == Call::Lock, "{call:?}");
        let renamed = matches!(call, Call::Lock | Call::SyncFolder);
        assert_eq!(step_of(&path), if renamed { 2.0 } else { 1.0 }, "{call:?}");
        assert_eq!(files(folder.path()), vec![path.clone()], "{call:?}");
    }
}
