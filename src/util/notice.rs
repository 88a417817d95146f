//! Warnings that a user must see, with a logger or without one.

use std::io::Write;

/// Logs a warning. Writes it to standard error if warnings are not logged: without a logger, or with one that shows errors only, which
/// is the default of `env_logger`.
pub(crate) fn warn(text: &str) {
    if log::log_enabled!(log::Level::Warn) {
        log::warn!("{text}");
    } else {
        _ = writeln!(std::io::stderr(), "warning: {text}"); // standard error may be closed
    }
}
