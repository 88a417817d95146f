//! Prints the public items of a crate, one on each line, in the order of their paths: `anygpu-public-api anygpu.json`.
//!
//! Impls of auto traits and blanket impls, which every type has, are left out. So are the functions of derived impls, whose
//! line for the impl says as much, and the second line of an item that is public by two paths.

use std::collections::HashSet;
use std::process::ExitCode;

/// The functions of the traits that are derived.
const DERIVED: [&str; 6] =
    ["::clone(&self)", "::fmt(&self", "::eq(&self", "::hash<", "::cmp(&self", "::partial_cmp(&self"];

/// Returns whether the line is for an item within a module of the prelude, which has a line under the module's own path.
fn is_repeated(line: &str) -> bool {
    let name = |c: char| c.is_alphanumeric() || c == '_';
    line.split("anygpu::prelude::").nth(1).is_some_and(|item| item.trim_start_matches(name).starts_with("::"))
}

fn main() -> ExitCode {
    let Some(json) = std::env::args().nth(1) else {
        eprintln!("usage: anygpu-public-api FILE.json");
        return ExitCode::from(2);
    };
    let builder = public_api::Builder::from_rustdoc_json(json).omit_blanket_impls(true).omit_auto_trait_impls(true);
    match builder.omit_auto_derived_impls(false).build() {
        Ok(api) => {
            let mut seen = HashSet::new();
            for line in api.to_string().lines() {
                let derived = DERIVED.iter().any(|function| line.contains(function));
                if !derived && !is_repeated(line) && seen.insert(line.to_string()) {
                    println!("{line}");
                }
            }
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(1)
        }
    }
}
