//! `anygpu tune`: its lines, the file that it stores, and what becomes of a file that is damaged.

use anygpu::testing::adapter;
use serde_json::Value;

use crate::common::{anygpu, fails, json_lines, output, stderr, stdout};

#[test]
fn the_cpu_has_nothing_to_tune() {
    let lines = json_lines(&output(&["tune", "--devices", "cpu", "--json"]));
    let [line] = &lines[..] else { panic!("{lines:?}") };
    assert_eq!((&line["device"], &line["classes"], &line["file"]), (&"cpu".into(), &0.into(), &Value::Null));
    let result = output(&["tune", "--device", "cpu", "--dry-run"]);
    assert!(stdout(&result).starts_with("cpu: it has no variants"), "{}", stdout(&result));
    fails(&output(&["tune", "--devices", "gpu:77"]), 2, &["gpu:77"]);
}

#[test]
fn choices_are_stored_for_the_next_run() {
    let Some(device) = adapter() else { return };
    let cache = tempfile::tempdir().expect("a folder");
    let run = |args: &[&str]| anygpu(args).env("XDG_CACHE_HOME", cache.path()).output().expect("it starts");
    let lines = json_lines(&run(&["tune", "--devices", device.name(), "--json"]));
    let (summary, classes) = lines.split_last().expect("a summary");
    assert!(classes.len() >= 8 && summary["classes"] == classes.len(), "{summary}");
    for line in classes {
        let number = |key: &str| line[key].as_f64().unwrap_or_else(|| panic!("{key} in {line}"));
        assert!(number("ratio") >= 1.0 && number("default_seconds") >= number("tuned_seconds"), "{line}");
        assert!(line["times"].as_array().is_some_and(|times| times.len() > 1), "{line}");
    }
    let file = std::path::PathBuf::from(summary["file"].as_str().expect("a file"));
    assert!(file.starts_with(cache.path()), "{summary}");
    let whole = std::fs::read(&file).expect("the stored choices");

    // Quiet when whole, a warning when damaged, and none of it when it is turned off.
    let train = ["train", "--limit", "8", "--batch-size", "8", "--epochs", "1", "--devices", device.name(), "--json"];
    let result = run(&train);
    assert!(result.status.success() && !stderr(&result).contains("tuned"), "{}", stderr(&result));
    std::fs::write(&file, &whole[..whole.len() - 3]).expect("a file");
    let result = run(&train);
    assert!(result.status.success() && stderr(&result).contains("tuned variants are ignored"), "{}", stderr(&result));
    let mut off = anygpu(&train);
    let result = off.envs([("ANYGPU_TUNED", "0")]).env("XDG_CACHE_HOME", cache.path()).output().expect("it starts");
    assert!(result.status.success() && !stderr(&result).contains("tuned"), "{}", stderr(&result));
}
