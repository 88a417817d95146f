//! Fashion-MNIST in the user's cache folder, downloaded with a bar for each file.

use std::path::PathBuf;

use anygpu::data;
use indicatif::ProgressBar;

use crate::failure::Failure;
use crate::progress;

/// Returns the folder of Fashion-MNIST, after downloading the files that are missing or damaged there.
///
/// # Errors
/// If a file cannot be downloaded. The message lists the four files and the folder to put them into.
pub fn fashion_mnist() -> Result<PathBuf, Failure> {
    let mut shown: Option<(String, ProgressBar)> = None;
    let result = data::download_fashion_mnist_with(|name, arrived, length| {
        let next = shown.as_ref().is_none_or(|(file, _)| file != name);
        if next && let Some((_, before)) = shown.replace((name.to_string(), progress::bytes(name, length))) {
            before.finish_and_clear();
        }
        if let Some((_, bar)) = &shown {
            bar.set_position(arrived);
        }
    });
    if let Some((_, bar)) = shown {
        bar.finish_and_clear();
    }
    Ok(result?)
}
