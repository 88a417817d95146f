//! Progress on standard error: a bar on a terminal, and one line per epoch.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use anygpu::watch::ProgressLine;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// The bar of one epoch of training.
pub struct EpochBar {
    bar: ProgressBar,
    /// Whether nothing is printed.
    quiet: bool,
}

impl EpochBar {
    /// Creates a bar over `images` images. If it is `quiet`, nothing is printed.
    pub fn new(epoch: usize, epochs: usize, images: usize, quiet: bool) -> Self {
        let template = "{prefix} [{bar:30}] {pos}/{len}  {msg}";
        let bar = if quiet { ProgressBar::hidden() } else { draw(images as u64, template) };
        bar.set_prefix(format!("epoch {epoch}/{epochs}"));
        EpochBar { bar, quiet }
    }

    /// Advances the bar by `images`.
    pub fn advance(&self, images: usize) {
        self.bar.inc(images as u64);
    }

    /// Shows these figures beside the bar, and the curves below it; an empty text for none.
    pub fn show(&self, figures: &ProgressLine, curves: &str) {
        let gap = if curves.is_empty() { "" } else { "\n" };
        self.bar.set_message(format!("{figures}{gap}{curves}"));
    }

    /// Returns whether the bar is visible. If not, no loss needs to be read.
    pub fn is_visible(&self) -> bool {
        !self.bar.is_hidden()
    }

    /// Replaces the bar by this line.
    pub fn finish(self, line: &str) {
        self.bar.finish_and_clear();
        if !self.quiet {
            say(line);
        }
    }
}

impl Drop for EpochBar {
    /// Leaves no half bar before the message of an error.
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// Writes a line to standard error, which may be closed.
pub fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Returns a bar over the bytes of a download.
pub fn bytes(name: &str, total: Option<u64>) -> ProgressBar {
    let template = match total {
        Some(_) => "{prefix} [{bar:30}] {bytes}/{total_bytes}  {bytes_per_sec}",
        None => "{prefix} {bytes}  {bytes_per_sec}",
    };
    let bar = draw(total.unwrap_or(0), template);
    bar.set_prefix(name.to_string());
    bar
}

/// Returns a bar over the steps of some work.
pub fn steps(name: &str) -> ProgressBar {
    let bar = draw(0, "{prefix} [{bar:30}] {pos}/{len}");
    bar.set_prefix(name.to_string());
    bar
}

/// Returns a spinner with this message.
pub fn spinner(message: String) -> ProgressBar {
    let bar = draw(0, "{spinner} {msg}");
    bar.set_message(message);
    bar.enable_steady_tick(Duration::from_millis(120));
    bar
}

fn draw(total: u64, template: &str) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr_with_hz(10));
    bar.set_style(style.progress_chars("=> "));
    bar
}
