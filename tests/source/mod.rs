//! The repository's own texts, for the tests that read them.
#![allow(dead_code, reason = "every test binary compiles this file and uses its own part of it")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// A file of the repository.
pub fn read(path: &str) -> String {
    let path = root().join(path);
    fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The Rust and WGSL files under a folder of the repository, with their texts.
pub fn files(folder: &str) -> Vec<(PathBuf, String)> {
    let all = texts(folder, &["rs", "wgsl"]);
    assert!(!all.is_empty(), "{folder} has no code");
    all
}

/// The files under a folder of the repository whose names have one of these endings, with their texts.
pub fn texts(folder: &str, endings: &[&str]) -> Vec<(PathBuf, String)> {
    walk(&root().join(folder), endings)
}

fn walk(folder: &Path, endings: &[&str]) -> Vec<(PathBuf, String)> {
    let mut all = Vec::new();
    for entry in fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display())) {
        let path = entry.expect("a folder that can be read").path();
        if path.is_dir() {
            all.extend(walk(&path, endings));
        } else if path.extension().is_some_and(|kind| endings.iter().any(|ending| kind == *ending)) {
            let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
            all.push((path, text));
        }
    }
    all.sort();
    all
}

/// The Rust files under a folder without comments and tests, by their paths from the root.
pub fn code(folder: &str) -> Vec<(String, String)> {
    let rust = files(folder).into_iter().filter(|(path, _)| path.extension().is_some_and(|kind| kind == "rs"));
    let named = rust.map(|(path, text)| {
        let path = path.strip_prefix(root()).expect("a file of the repository").to_string_lossy().replace('\\', "/");
        (path, without_tests(&text))
    });
    named.filter(|(path, _)| !path.ends_with("tests.rs")).collect()
}

/// The lines of a file as rustfmt leaves them, without comments and without items that are `#[cfg(test)]`.
///
/// What follows `//` within a string goes too.
fn without_tests(text: &str) -> String {
    let mut kept = String::new();
    let mut lines = text.lines().map(|line| line.split("//").next().unwrap_or_default());
    while let Some(line) = lines.next() {
        if line.trim() != "#[cfg(test)]" {
            kept.push_str(line.trim_end());
            kept.push('\n');
            continue;
        }
        let indent = line.len() - line.trim_start().len();
        let item = lines.by_ref().find(|line| !line.trim_start().starts_with("#["));
        if item.is_some_and(|item| item.trim_end().ends_with('{')) {
            let end = format!("{}}}", " ".repeat(indent));
            lines.by_ref().find(|line| line.trim_end() == end);
        }
    }
    kept
}

/// What a bracket at the start of `text` encloses, for `{`, `(` or `[`.
pub fn enclosed(text: &str) -> &str {
    let mut depth = 0usize;
    for (at, c) in text.char_indices() {
        match c {
            '{' | '(' | '[' => depth += 1,
            '}' | ')' | ']' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return text.get(1..at).unwrap_or_default();
        }
    }
    panic!("a bracket is not closed: {}", text.lines().next().unwrap_or_default());
}

/// The identifier at the start of `text`; empty where there is none.
pub fn identifier(text: &str) -> &str {
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
    &text[..end]
}

/// Identifiers in which an op's name may be a literal of the sources.
pub fn is_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_lowercase()) && identifier(text) == text
}

/// The public methods of `Tensor` under a folder, those that macros write included.
pub fn methods(folder: &str) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for (_, text) in code(folder) {
        for (at, _) in text.match_indices("impl Tensor {") {
            let body = enclosed(&text[at + "impl Tensor ".len()..]);
            all.extend(
                body.match_indices("pub fn ").map(|(at, start)| identifier(&body[at + start.len()..]).to_owned()),
            );
        }
        if !text.contains("pub fn $") {
            continue;
        }
        // The rows of the macros' calls: `name => …;`, `name(x, …) => …;`, `name = …;`.
        for line in text.lines().filter(|line| line.starts_with("    ") && !line.starts_with("     ")) {
            let name = identifier(line.trim_start());
            let rest = &line.trim_start()[name.len()..];
            let rest = rest.strip_prefix("(x").and_then(|rest| rest.split_once(')')).map_or(rest, |(_, rest)| rest);
            if is_name(name) && (rest.starts_with(" => ") || rest.starts_with(" = ")) {
                all.insert(name.to_owned());
            }
        }
    }
    all.remove("");
    all
}
