//! The pages: their links, their lengths, and their lists of what is in the code.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::source::{code, read, root, texts};

/// The pages of the repository, with their texts.
fn pages() -> Vec<(PathBuf, String)> {
    let mut pages: Vec<(PathBuf, String)> =
        ["README.md", "ARCHITECTURE.md", "CHANGELOG.md", "tests/README.md", "fuzz/README.md"]
            .into_iter()
            .map(|path| (root().join(path), read(path)))
            .collect();
    for folder in ["docs", "benches", "crates", "examples"] {
        pages.extend(texts(folder, &["md"]));
    }
    pages
}

/// The text of a page without its blocks of code.
fn prose(page: &str) -> String {
    let mut inside = false;
    let mut kept = String::new();
    for line in page.lines() {
        if line.trim_start().starts_with("```") {
            inside = !inside;
        } else if !inside {
            kept.push_str(line);
            kept.push('\n');
        }
    }
    kept
}

/// The anchors of the headings of a page, as GitHub and mdBook make them.
fn anchors(page: &str) -> BTreeSet<String> {
    let headings = page.lines().filter(|line| line.starts_with('#'));
    headings
        .map(|line| {
            let title = line.trim_start_matches('#').trim().to_lowercase();
            title.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c)).collect::<String>().replace(' ', "-")
        })
        .collect()
}

#[test]
fn links_of_pages_lead_somewhere() {
    let mut broken = Vec::new();
    for (path, text) in pages() {
        let text = prose(&text);
        for target in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if target.contains("://") || target.contains(' ') {
                continue;
            }
            let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
            let to = if file.is_empty() { path.clone() } else { path.parent().expect("a folder").join(file) };
            let found = to.exists()
                && (anchor.is_empty()
                    || std::fs::read_to_string(&to).is_ok_and(|page| anchors(&prose(&page)).contains(anchor)));
            if !found {
                broken.push(format!("{}: {target}", path.strip_prefix(root()).unwrap_or(Path::new("?")).display()));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}

#[test]
fn pages_that_are_read_whole_are_short() {
    for (page, most) in [("README.md", 170), ("docs/benchmarks.md", 150), ("ARCHITECTURE.md", 250)] {
        let lines = read(page).lines().count();
        assert!(lines <= most, "{page} has {lines} lines, and {most} are enough");
    }
}

#[test]
fn every_page_of_the_guide_is_in_its_summary() {
    let summary = read("docs/guide/src/SUMMARY.md");
    let folder = root().join("docs/guide/src");
    for (path, _) in texts("docs/guide/src", &["md"]) {
        let page = path.strip_prefix(&folder).expect("within the folder").to_string_lossy().replace('\\', "/");
        assert!(page == "SUMMARY.md" || summary.contains(&format!("({page})")), "SUMMARY.md lacks {page}");
    }
}

/// The names that begin with `ANYGPU_` in a text.
fn variables(text: &str) -> impl Iterator<Item = &str> {
    text.match_indices("ANYGPU_").map(|(at, _)| {
        let end = text[at..].find(|c: char| !(c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_'));
        &text[at..end.map_or(text.len(), |end| at + end)]
    })
}

#[test]
fn every_environment_variable_is_in_the_guide() {
    let page = read("docs/guide/src/environment.md");
    let listed: BTreeSet<&str> = variables(&page).collect();
    let mut used = BTreeSet::new();
    for folder in ["src", "cli", "crates", "scripts", "tests", "tools", "amd", "translate", "examples", "fuzz"] {
        for (_, text) in texts(folder, &["rs", "sh", "py", "mjs"]) {
            used.extend(variables(&text).filter(|name| *name != "ANYGPU_").map(str::to_owned));
        }
    }
    assert_eq!(used, listed.into_iter().map(str::to_owned).collect());
}

#[test]
fn every_method_of_tensor_is_under_a_subject() {
    let page = read("src/tensor/mod.rs");
    let (_, subjects) = page.split_once("/// # Methods by subject").expect("the list");
    let (subjects, _) = subjects.split_once("#[derive").expect("the type");
    let items = read("docs/public-api.txt");
    let methods = items.lines().filter(|line| line.starts_with("pub "));
    let methods = methods.filter_map(|line| line.split_once("fn Tensor::")?.1.split(['(', '<']).next());
    let left: BTreeSet<&str> = methods.filter(|method| !subjects.contains(&format!("`{method}`"))).collect();
    assert!(left.is_empty(), "src/tensor/mod.rs: {left:?}");
}

/// Every file of the library and of the command that can delete, replace or truncate a file has a row in `docs/files.md`.
#[test]
fn what_changes_files_is_in_the_docs() {
    let docs = read("docs/files.md");
    let calls = [
        "remove_file(",
        "remove_dir",
        "rename(",
        "File::create",
        "OpenOptions",
        "File::options",
        "set_len(",
        "fs::write(",
        "fs::copy(",
        "hard_link(",
        "truncate(true",
    ];
    // Of a vector, and what the Rust of other files is.
    let other = ["src/device/cpu/copy.rs", "src/checkpoint/power_loss.rs", "src/util/atomic/faults.rs"];
    let mut found = BTreeSet::new();
    for (path, text) in [code("src"), code("cli/src")].concat() {
        if !other.contains(&path.as_str()) && calls.iter().any(|call| text.contains(call)) {
            found.insert(path);
        }
    }
    let rows: BTreeSet<String> = docs
        .lines()
        .filter_map(|line| line.strip_prefix("| `"))
        .map(|row| row.split('`').next().unwrap_or_default().to_owned())
        .collect();
    // These write by `src/util/atomic.rs`, and have rows since the files are ours, not the user's.
    let by_atomic = ["src/data/download.rs", "src/device/gpu/tuned.rs"].map(str::to_owned);
    assert_eq!(found.iter().chain(&by_atomic).cloned().collect::<BTreeSet<_>>(), rows);
}
