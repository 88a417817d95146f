//! The structure of the library: the direction of imports, and the one folder that uses wgpu.

use std::collections::{BTreeMap, BTreeSet};

use crate::source::{code, enclosed, files, identifier, root};

/// Imports against the direction: from, to, and the reason. Each must be needed.
const EXCEPTIONS: &[(&str, &str, &str)] = &[];

/// The rooms: the files and folders directly under src, in groups. A group imports from itself and from those before it.
const ROOMS: &[&[&str]] = &[
    &["error", "dtype", "shape", "philox", "context", "util"],
    &["device"],
    &["tensor", "ops", "autograd", "process_group"],
    &["kernel", "nn", "interop"],
    &["data", "npy", "metrics", "watch", "optim", "check", "tune", "profiler", "testing", "onnx"],
    &["parallel"],
    &["checkpoint"],
    &["prelude"],
];

/// Returns each room with the number of its group.
fn order() -> BTreeMap<&'static str, usize> {
    let mut rooms = BTreeMap::new();
    for (number, group) in ROOMS.iter().enumerate() {
        for room in *group {
            assert!(rooms.insert(*room, number).is_none(), "ROOMS has {room} twice");
        }
    }
    rooms
}

/// The room that a file of src belongs to: the folder or file directly under src.
fn room(path: &str) -> &str {
    let path = path.strip_prefix("src/").unwrap_or(path);
    path.split('/').next().unwrap_or(path).trim_end_matches(".rs")
}

/// The rooms of what the crate's root re-exports and of its macros, which can be imported without naming a room.
fn reexports(code: &[(String, String)]) -> BTreeMap<String, String> {
    let mut rooms = BTreeMap::new();
    for (path, text) in code {
        for (at, _) in text.match_indices("#[macro_export]") {
            let (_, rest) = text[at..].split_once("macro_rules! ").expect("an exported macro");
            rooms.insert(identifier(rest).to_owned(), room(path).to_owned());
        }
        if path != "src/lib.rs" {
            continue;
        }
        for (at, start) in text.match_indices("pub use ") {
            let (import, _) = text[at + start.len()..].split_once(';').expect("an import ends");
            let (from, names) = import.split_once("::").expect("a path");
            names.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|name| !name.is_empty()).for_each(|name| {
                rooms.insert(name.to_owned(), from.to_owned());
            });
        }
    }
    rooms
}

/// The first names of the paths in a text that start at the crate's root.
fn imports(path: &str, text: &str) -> Vec<String> {
    // `super` leaves a file's own modules as often as the file is deep.
    let depth = path.matches('/').count() - usize::from(path.ends_with("/mod.rs"));
    let out = "super::".repeat(depth);
    let mut names = Vec::new();
    for prefix in ["crate::", out.as_str()] {
        for (at, _) in text.match_indices(prefix) {
            if text[..at].ends_with("super::") || text[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_') {
                continue;
            }
            let rest = &text[at + prefix.len()..];
            match rest.starts_with('{') {
                true => names.extend(outer_names(enclosed(rest))),
                false => names.push(identifier(rest).to_owned()),
            }
        }
    }
    names.retain(|name| !name.is_empty() && name != "super");
    names
}

/// The first name of each path in a braced list.
fn outer_names(list: &str) -> Vec<String> {
    let (mut names, mut rest) = (Vec::new(), list.trim());
    while !rest.is_empty() {
        let name = identifier(rest);
        names.push(name.to_owned());
        rest = &rest[name.len()..];
        while let Some(c) = rest.chars().next() {
            if c == ',' {
                rest = rest[1..].trim_start();
                break;
            }
            rest = if c == '{' { &rest[enclosed(rest).len() + 2..] } else { &rest[c.len_utf8()..] };
        }
    }
    names
}

#[test]
fn imports_run_one_way() {
    let (order, code) = (order(), code("src"));
    let reexports = reexports(&code);
    let rooms: BTreeSet<&str> = code.iter().map(|(path, _)| room(path)).filter(|room| *room != "lib").collect();
    let mut wrong: Vec<String> = Vec::new();
    for room in &rooms {
        if !order.contains_key(*room) {
            wrong.push(format!("src has {room}, which ROOMS (tests/structure.rs) does not have"));
        }
    }
    for room in order.keys().filter(|room| !rooms.contains(*room)) {
        wrong.push(format!("ROOMS has {room}, which src does not have"));
    }
    let (mut used, mut count) = (BTreeSet::new(), 0);
    for (path, text) in code.iter().filter(|(path, _)| path != "src/lib.rs") {
        for name in imports(path, text) {
            let to = reexports.get(&name).unwrap_or(&name).as_str();
            let (Some(here), Some(there)) = (order.get(room(path)), order.get(to)) else {
                // By `super`, it may be a name of a module within the file.
                if text.contains(&format!("crate::{name}")) && !rooms.contains(to) {
                    wrong.push(format!("{path} imports crate::{name}: which room is that?"));
                }
                continue;
            };
            count += 1;
            if there <= here {
                continue;
            }
            match EXCEPTIONS.iter().find(|(a, b, _)| (*a, *b) == (room(path), to)) {
                Some(exception) => _ = used.insert(exception),
                None => wrong.push(format!("{path} imports from {to}, which stands above {}", room(path))),
            }
        }
    }
    let stale = EXCEPTIONS.iter().filter(|exception| !used.contains(exception));
    wrong.extend(stale.map(|(from, to, _)| format!("no import of {from} from {to} needs an exception any more")));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(count > 500, "only {count} imports were found: does this test still read them?");
}

#[test]
fn imports_are_found() {
    let text =
        "use crate::{dtype::{DType, Element}, error::Result, s};\nfn f() -> crate::Tensor { $crate::ops::g() }\n";
    assert_eq!(imports("src/nn/mod.rs", text), ["dtype", "error", "s", "Tensor", "ops"]);
    assert_eq!(imports("src/nn/mod.rs", "use super::optim::Sgd;"), ["optim"]);
    assert_eq!(imports("src/nn/linear.rs", "use super::init;\nuse super::super::optim::Sgd;"), ["optim"]);
    assert_eq!(imports("src/units.rs", "use super::data;"), ["data"]);
    assert_eq!(imports("src/units.rs", "my_crate::x(); mod inner { use super::super::data; }"), Vec::<String>::new());
}

/// One folder knows wgpu; the rest of the crate knows devices. What programs exchange with them has its types.
#[test]
fn wgpu_stays_in_its_room() {
    let rooms = ["src/device/gpu", "src/interop.rs"].map(|path| root().join(path));
    for (path, text) in files("src") {
        assert!(
            rooms.iter().any(|room| path.starts_with(room)) || !text.contains("wgpu::"),
            "{} names wgpu::",
            path.display()
        );
    }
}

/// Ops share their tasks with the team of the host: a loop of rayon would wake threads that sleep, beside those that are awake.
#[test]
fn ops_share_tasks_in_one_way() {
    let rayon: Vec<_> = code("src/ops").into_iter().filter(|(_, text)| text.contains("rayon::prelude")).collect();
    let paths: Vec<&str> = rayon.iter().map(|(path, _)| path.as_str()).collect();
    assert_eq!(paths, ["src/ops/index/sort.rs"], "use anygpu_host::tasks");
}
