//! Builds the book: `cargo run --release -p anygpu-guide`. What mdBook warns of is an error.

use std::fmt;
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};

use mdbook_driver::MDBook;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

static WARNINGS: AtomicUsize = AtomicUsize::new(0);

/// Prints what mdBook logs, and counts its warnings.
struct Log;

struct Line<'a>(&'a Metadata<'a>);

impl Visit for Line<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            eprintln!("{}: {value:?}", self.0.level());
        }
    }
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::INFO && metadata.target().starts_with("mdbook")
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        if *event.metadata().level() <= Level::WARN {
            WARNINGS.fetch_add(1, Ordering::Relaxed);
        }
        event.record(&mut Line(event.metadata()));
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

fn main() -> ExitCode {
    tracing::subscriber::set_global_default(Log).expect("nothing else logs");
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    if let Err(error) = MDBook::load(root).and_then(|book| book.build()) {
        eprintln!("{error:#}");
        return ExitCode::FAILURE;
    }
    match WARNINGS.load(Ordering::Relaxed) {
        0 => {
            println!("the book is in target/guide");
            ExitCode::SUCCESS
        }
        count => {
            eprintln!("{count} warnings");
            ExitCode::FAILURE
        }
    }
}
