//! Prints the public items of a crate, one on each line, in the order of their paths: `anygpu-public-api anygpu.json`.
//!
//! Left out is what follows from other lines: impls of auto traits and blanket impls, which every type has; the functions of an
//! impl of a trait, whose signatures are those of the trait; `StructuralPartialEq`; and the second line of an item that is public by
//! two paths. Traits without parameters that one type has are one line. Paths are short: those of the crate begin at its root, and
//! of the standard library's only the name is left, with its module for `Result` and `Error`.

use std::collections::HashSet;
use std::process::ExitCode;

/// Returns whether the line is for an item within a module of the prelude, which has a line under the module's own path.
fn is_repeated(line: &str) -> bool {
    let name = |c: char| c.is_alphanumeric() || c == '_';
    line.split("anygpu::prelude::").nth(1).is_some_and(|item| item.trim_start_matches(name).starts_with("::"))
}

/// Returns the trait and the type of an impl of a trait without parameters for a type without parameters.
fn plain_impl(line: &str) -> Option<(&str, &str)> {
    let (name, of) = line.strip_prefix("impl ")?.split_once(" for ")?;
    let plain = |text: &str| text.chars().all(|c| c.is_alphanumeric() || c == '_' || c == ':');
    (plain(name) && plain(of)).then_some((name, of))
}

/// Returns the type of an impl of a trait.
fn implementor(line: &str) -> Option<&str> {
    let (_, of) = line.rsplit_once(" for ")?;
    Some(of.split(" where ").next().unwrap_or(of))
}

/// Returns the lines without those that follow from others.
fn essential(text: &str) -> Vec<&str> {
    let (mut lines, mut seen) = (Vec::new(), HashSet::new());
    // The type of the impl of a trait whose items come next.
    let mut of: Option<&str> = None;
    for line in text.lines() {
        if line.starts_with("impl") || line.starts_with("unsafe impl") {
            of = implementor(line);
        } else if let Some(name) = of {
            let rest = line.split_once(name).map_or("", |(before, rest)| if before == "pub fn " { rest } else { "" });
            if rest.starts_with("::") {
                continue;
            }
            of = of.filter(|name| line.contains(&format!(" {name}::")));
        }
        if !line.contains("::StructuralPartialEq for ") && !is_repeated(line) && seen.insert(line) {
            lines.push(line);
        }
    }
    lines
}

/// Returns a path as it is printed.
fn short(path: &str) -> String {
    let parts: Vec<&str> = path.split("::").collect();
    match parts[..] {
        ["core" | "alloc" | "std", ..] => {
            let first = parts.iter().position(|part| part.starts_with(char::is_uppercase)).unwrap_or(0);
            let with_module = matches!(parts[first], "Result" | "Error");
            parts[first.saturating_sub(usize::from(with_module))..].join("::")
        }
        ["anygpu", "tensor", "Tensor", ..] | ["anygpu", "device", "Device", ..] => parts[2..].join("::"),
        ["anygpu", _, ..] => parts[1..].join("::"),
        _ => path.to_string(),
    }
}

/// Returns a line with short paths.
fn shortened(line: &str) -> String {
    let mut out = String::new();
    let mut rest = line;
    while let Some(c) = rest.chars().next() {
        if !(c.is_alphanumeric() || c == '_') {
            out.push(c);
            rest = &rest[c.len_utf8()..];
            continue;
        }
        let mut end = 0;
        loop {
            let word = rest[end..].find(|c: char| !(c.is_alphanumeric() || c == '_')).map_or(rest.len(), |n| end + n);
            let next = rest[word..].strip_prefix("::").and_then(|next| next.chars().next());
            end = word;
            if !next.is_some_and(|c| c.is_alphanumeric() || c == '_') {
                break;
            }
            end += 2;
        }
        out += &short(&rest[..end]);
        rest = &rest[end..];
    }
    out
}

fn main() -> ExitCode {
    let Some(json) = std::env::args().nth(1) else {
        eprintln!("usage: anygpu-public-api FILE.json");
        return ExitCode::from(2);
    };
    let builder = public_api::Builder::from_rustdoc_json(json).omit_blanket_impls(true).omit_auto_trait_impls(true);
    let api = match builder.omit_auto_derived_impls(false).build() {
        Ok(api) => api.to_string(),
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::from(1);
        }
    };
    let lines: Vec<String> = essential(&api).into_iter().map(shortened).collect();
    let mut at = 0;
    while at < lines.len() {
        let line = &lines[at];
        at += 1;
        let Some((first, of)) = plain_impl(line) else {
            println!("{line}");
            continue;
        };
        let mut names = vec![first];
        while let Some((name, _)) = lines.get(at).and_then(|line| plain_impl(line)).filter(|(_, other)| *other == of) {
            names.push(name);
            at += 1;
        }
        println!("impl {} for {of}", names.join(", "));
    }
    ExitCode::SUCCESS
}
