//! Prints the public items of a crate, one on each line, in the order of their paths: `anygpu-public-api anygpu.json`.
//!
//! Impls of auto traits and blanket impls, which every type has, are left out. So are the functions of derived impls, whose
//! line for the impl says as much, and the second line of an item that is public by two paths.

use std::collections::HashSet;
use std::process::ExitCode;

/// The functions of the traits that are derived.
const DERIVED: [&str; 6] =
    ["::clone(&self)", "::fmt(&self", "::eq(&self", "::hash<", "::cmp(&self", "::partial_cmp(&self"];

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
                if !DERIVED.iter().any(|function| line.contains(function)) && seen.insert(line.to_string()) {
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
