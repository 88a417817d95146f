//! Standard output: the result, for people or (`--json`) as JSON lines. Progress and logs go to standard error. Also
//! the check of the files that options name.

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};

use anygpu::checkpoint;
use comfy_table::{ContentArrangement, LineStyle, Table, presets};
use serde::Serialize;

use crate::failure::Failure;

/// Writes one line and flushes it, so that a script that reads the pipe gets it at once.
///
/// # Errors
/// [`Failure::ClosedPipe`] if the reader has closed the pipe.
pub fn line(text: impl std::fmt::Display) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{text}")?;
    out.flush()?;
    Ok(())
}

/// Writes one value as one line of JSON. A number that is not finite becomes `null`.
///
/// # Errors
/// As [`line`].
pub fn json(value: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string(value).map_err(|e| Failure::Run(format!("JSON output: {e}")))?;
    line(text)
}

/// Returns an empty table with this header: fitted to the terminal, or one line per row when written to a file or a
/// pipe.
pub fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_HORIZONTAL_ONLY.row_separator(LineStyle::none())).set_header(header.to_vec());
    if std::io::stdout().is_terminal() {
        table.set_content_arrangement(ContentArrangement::Dynamic);
    }
    table
}

/// Tries to write a file, which needs one of these extensions. Returns its absolute path, without links.
///
/// # Errors
/// [`Failure::Usage`] for another extension, [`Failure::Run`] for a file that cannot be written.
pub fn writable(option: &str, path: &Path, kinds: &[&str]) -> Result<PathBuf, Failure> {
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
