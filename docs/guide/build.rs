//! Copies each page with what rustdoc needs and readers do not: a Rust block without `fn main` gets a last line that gives `?` its type.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

fn main() -> io::Result<()> {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    println!("cargo::rerun-if-changed=src");
    println!("cargo::rerun-if-changed=../../README.md");
    let mut modules = String::new();
    for page in pages(Path::new("src"))?.into_iter().chain([PathBuf::from("../../README.md")]) {
        let stem = page.file_stem().expect("a file").to_string_lossy();
        let name = stem.to_lowercase().replace('-', "_");
        fs::write(out.join(format!("{name}.md")), with_results(&fs::read_to_string(&page)?))?;
        writeln!(modules, "#[doc = include_str!(concat!(env!(\"OUT_DIR\"), \"/{name}.md\"))]\npub mod {name} {{}}")
            .expect("a string takes everything");
    }
    fs::write(out.join("pages.rs"), modules)
}

fn pages(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            found.extend(pages(&path)?);
        } else if path.extension().is_some_and(|ending| ending == "md") && !path.ends_with("SUMMARY.md") {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

fn with_results(page: &str) -> String {
    let mut text = String::new();
    // Within a Rust block, whether it has had `fn main`.
    let mut block: Option<bool> = None;
    for line in page.lines() {
        match &mut block {
            None if line.starts_with("```rust") => block = Some(false),
            Some(main) if line == "```" => {
                if !*main {
                    text.push_str("# Ok::<(), anygpu::Error>(())\n");
                }
                block = None;
            }
            Some(main) => *main |= line.contains("fn main"),
            None => {}
        }
        text.push_str(line);
        text.push('\n');
    }
    text
}
