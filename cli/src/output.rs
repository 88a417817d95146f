//! Standard output: the result, for people or (`--json`) as JSON lines. Progress and logs go to standard error.

use std::io::{IsTerminal, Write};

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
