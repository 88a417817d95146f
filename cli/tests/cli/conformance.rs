//! A Vulkan driver that says that it is not conformant: `tests/data/not_conformant.c`, in front of one of the machine's.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::common::{anygpu, json_lines, stderr, stdout};

/// The drivers in `VK_ADD_DRIVER_FILES` of `scripts/software-adapters.sh`: paths of manifests and of libraries.
fn drivers() -> Vec<(String, String)> {
    let manifests = std::env::var("VK_ADD_DRIVER_FILES").unwrap_or_default();
    let library = |path: &str| {
        let manifest: Value = serde_json::from_str(&std::fs::read_to_string(path).ok()?).ok()?;
        Some((path.to_string(), manifest["ICD"]["library_path"].as_str()?.to_string()))
    };
    manifests.split(':').filter_map(library).collect()
}

#[test]
fn drivers_that_are_not_conformant_are_listed_last_and_told() {
    let Some(((_, wrapped), others)) = drivers().split_first().map(|(first, others)| (first.clone(), others.to_vec()))
    else {
        assert!(std::env::var_os("ANYGPU_REQUIRE_DEVICES").is_none(), "VK_ADD_DRIVER_FILES names no driver");
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let (driver, manifest) = (folder.path().join("driver.so"), folder.path().join("icd.json"));
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/not_conformant.c");
    // Rust links by the same command.
    let compiled = Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([&driver, &source]).arg("-ldl").status();
    assert!(compiled.expect("cc").success());
    let text = json!({"file_format_version": "1.0.0", "ICD": {"library_path": driver, "api_version": "1.3.0"}});
    std::fs::write(&manifest, text.to_string()).expect("the manifest is written");
    let manifests: Vec<&str> = manifest.to_str().into_iter().chain(others.iter().map(|(path, _)| &**path)).collect();
    let run = |args: &[&str]| {
        let mut command = anygpu(args);
        command.env("VK_DRIVER_FILES", manifests.join(":")).env("ANYGPU_TEST_DRIVER", &wrapped);
        command.output().expect("the command starts")
    };

    let devices = json_lines(&run(&["devices", "--json"]));
    let software: Vec<&Value> = devices.iter().filter(|device| device["kind"] == "software").collect();
    let (last, before) = software.split_last().expect("software adapters");
    assert_eq!(last["conformant"], false, "{software:?}");
    assert!(before.len() >= others.len() && before.iter().all(|device| device["conformant"] == true), "{software:?}");
    let name = last["name"].as_str().expect("a name");

    let listed = run(&["devices"]);
    let line = stdout(&listed).lines().find(|line| line.contains("not conformant")).unwrap_or_default();
    assert!(line.starts_with(name) && line.contains(&format!("anygpu check --devices {name}")), "{listed:?}");
    let long = run(&["devices", "--long"]);
    let of_it = stdout(&long).split("\n\n").find(|device| device.starts_with(name)).unwrap_or_default();
    assert!(of_it.contains("  conformant  no\n"), "{}", stdout(&long));

    let checked = run(&["check", "--devices", name, "--op", "relu", "--quick"]);
    assert!(checked.status.success(), "{}", stderr(&checked));
    assert!(stdout(&checked).contains("which says that it is not conformant"), "{}", stdout(&checked));
}
