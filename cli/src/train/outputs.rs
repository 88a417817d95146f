//! Checks of the options before the first epoch, so that a run does not fail after the last one.

use std::path::{Path, PathBuf};

use anygpu::Device;

use super::Args;
use super::options::OnDeviceLoss;
use super::ranks::Ranks;
use crate::failure::Failure;
use crate::output::writable;

/// Checks that each device gets an image per step, and that the outputs of the run can be written. Of several
/// processes, the first one writes them.
///
/// # Errors
/// [`Failure::Usage`] for options that contradict each other, [`Failure::Run`] for a file that cannot be written.
pub fn check(args: &Args, devices: &[Device], ranks: &Ranks) -> Result<(), Failure> {
    if args.batch_size() < devices.len() {
        return Err(Failure::Usage(format!(
            "--batch-size {} is too small for {} devices: each needs at least one image per step",
            args.batch_size(),
            devices.len()
        )));
    }
    if ranks.are_several() && args.on_device_loss == OnDeviceLoss::Resume {
        let advice = "a rank whose devices are all lost ends the job: start it again with --resume";
        return Err(Failure::Usage(format!("--on-device-loss resume: not with several ranks: {advice}")));
    }
    for (option, given) in [("--report", args.report), ("--trace", args.trace.is_some())] {
        if given && devices.len() < 2 && !ranks.are_several() {
            let instead = "on one device, `anygpu bench --profile` shows where the time goes";
            return Err(Failure::Usage(format!(
                "{option} is about several devices, and --devices names one: {instead}"
            )));
        }
    }
    if !ranks.is_first() {
        return Ok(());
    }
    if let Some(path) = args.checkpoint.as_deref().filter(|path| path.exists() && !args.resume) {
        let path = path.display();
        return Err(Failure::Usage(format!(
            "--checkpoint {path}: the file exists: continue it with --resume, or remove it"
        )));
    }
    let outputs = [
        ("--save", &args.save, &["safetensors"][..]),
        ("--export", &args.export, &["onnx"]),
        ("--checkpoint", &args.checkpoint, &["safetensors"]),
        ("--plot", &args.plot, &["png", "svg"]),
        ("--trace", &args.trace, &["json"]),
        ("--kernels", &args.kernels, &["txt"]),
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

/// Returns whether two paths of [`writable`] name one file. On macOS and Windows, names usually have no case.
fn is_same(a: &Path, b: &Path) -> bool {
    let lower = |path: &Path| path.to_string_lossy().to_lowercase();
    a == b || cfg!(any(windows, target_os = "macos")) && lower(a) == lower(b)
}
