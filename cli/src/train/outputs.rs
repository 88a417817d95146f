//! Checks of the options before the first epoch, so that a run does not fail after the last one.

use std::path::{Path, PathBuf};

use anygpu::{Device, checkpoint};

use super::Args;
use crate::failure::Failure;

/// Checks that each device gets an image per step, and that the outputs of the run can be written.
///
/// # Errors
/// [`Failure::Usage`] for options that contradict each other, [`Failure::Run`] for a file that cannot be written.
pub fn check(args: &Args, devices: &[Device]) -> Result<(), Failure> {
    if args.batch_size() < devices.len() {
        return Err(Failure::Usage(format!(
            "--batch-size {} is too small for {} devices: each needs at least one image per step",
            args.batch_size(),
            devices.len()
        )));
    }
    if let Some(path) = args.checkpoint.as_deref().filter(|path| path.exists() && !args.resume) {
        let path = path.display();
        return Err(Failure::Usage(format!(
            "--checkpoint {path}: the file exists: continue it with --resume, or remove it"
        )));
    }
    let outputs = [
        ("--save", &args.save, &["safetensors"][..]),
        ("--checkpoint", &args.checkpoint, &["safetensors"]),
        ("--plot", &args.plot, &["png", "svg"]),
    ];
    let mut files: Vec<(&str, PathBuf)> = Vec::new();
    for (option, path, kinds) in outputs {
        let Some(path) = path else { continue };
        let file = writable(option, path, kinds)?;
        if let Some((other, _)) = files.iter().find(|(_, other)| is_same(other, &file)) {
            return Err(Failure::Usage(format!("{other} and {option} name the same file: each needs its own")));
        }
        files.push((option, file));
    }
    Ok(())
}

/// Tries to write a file, which needs one of these extensions. Returns its absolute path, without links.
fn writable(option: &str, path: &Path, kinds: &[&str]) -> Result<PathBuf, Failure> {
    if !path.extension().is_some_and(|end| kinds.iter().any(|kind| end.eq_ignore_ascii_case(kind))) {
        let ends = kinds.iter().map(|kind| format!(".{kind}")).collect::<Vec<_>>().join(" or ");
        return Err(Failure::Usage(format!("{option} {}: name a file that ends in {ends}", path.display())));
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if !folder.is_dir() {
        return Err(Failure::Run(format!("{option} {}: there is no folder {}", path.display(), folder.display())));
    }
    checkpoint::check_writable(path).map_err(|error| {
        let advice = "name a file in a folder that you can write to";
        Failure::Run(format!(
            "{option} {}: it cannot be written: a file that was tried in {} failed with \"{error}\": {advice}",
            path.display(),
            folder.display()
        ))
    })
}

/// Returns whether two paths of [`writable`] name one file. On macOS and Windows, names usually have no case.
fn is_same(a: &Path, b: &Path) -> bool {
    let lower = |path: &Path| path.to_string_lossy().to_lowercase();
    a == b || cfg!(any(windows, target_os = "macos")) && lower(a) == lower(b)
}
