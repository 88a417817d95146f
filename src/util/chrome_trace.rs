//! Files of Chrome's trace format, which `ui.perfetto.dev` and `chrome://tracing` show.

use std::path::Path;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::util::atomic::write_atomically;
use crate::util::json::quoted;

/// Something that took time, in a row of a trace.
pub(crate) struct TraceEvent<'a> {
    /// The number of its row.
    pub row: usize,
    pub name: &'a str,
    /// Since the begin of the trace.
    pub start: Duration,
    pub duration: Duration,
    /// Further values by name, each as JSON.
    pub arguments: Vec<(&'static str, String)>,
}

/// Writes a trace with these names of rows.
///
/// # Errors
/// [`Error::Data`] if the file cannot be written. An existing file is then unchanged.
pub(crate) fn save<'a>(
    path: &Path,
    rows: impl Iterator<Item = &'a str>,
    events: impl Iterator<Item = TraceEvent<'a>>,
) -> Result<()> {
    let written = write_atomically(path, |file| {
        write!(file, "{{\"displayTimeUnit\":\"ms\",\"traceEvents\":[")?;
        let mut comma = "";
        for (row, name) in rows.enumerate() {
            let name = quoted(name);
            write!(
                file,
                "{comma}\n{{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":0,\"tid\":{row},\"args\":{{\"name\":{name}}}}}"
            )?;
            comma = ",";
        }
        for TraceEvent { row, name, start, duration, arguments } in events {
            let name = quoted(name);
            let [start, duration] = [start, duration].map(|time| time.as_secs_f64() * 1e6);
            let arguments: Vec<String> =
                arguments.iter().map(|(name, json)| format!("{}:{json}", quoted(name))).collect();
            let arguments = arguments.join(",");
            write!(
                file,
                "{comma}\n{{\"name\":{name},\"ph\":\"X\",\"pid\":0,\"tid\":{row},\"ts\":{start:.3},\"dur\":{duration:.3},\
                 \"args\":{{{arguments}}}}}"
            )?;
            comma = ",";
        }
        writeln!(file, "\n]}}")
    });
    written.map_err(|error| Error::Data { path: path.display().to_string(), detail: error.to_string() })
}
