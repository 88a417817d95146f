//! `anygpu train` on several devices: what it tells of them.

use crate::common::{fails, json_lines, output, stderr, stdout};

const TRAIN: [&str; 7] = ["train", "--devices", "cpu/0,cpu/1", "--epochs", "1", "--limit", "256"];

#[test]
fn a_report_has_a_line_for_each_device() {
    let result = output(&[&TRAIN[..], &["--report"]].concat());
    assert!(result.status.success(), "{}", stderr(&result));
    let text = stdout(&result);
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].starts_with("device  share  compute, s"), "{text}");
    assert!(lines[1].starts_with("cpu ") && lines[2].starts_with("cpu/1 "), "{text}");
    assert!(lines[3].contains("4 steps, 256 samples") && lines[3].contains("times the fastest device alone"), "{text}");
}

#[test]
fn a_report_is_in_the_json_and_a_trace_in_its_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("run.json");
    let path = path.to_str().expect("a path in UTF-8");
    let result = output(&[&TRAIN[..], &["--report", "--json", "--trace", path]].concat());
    assert!(result.status.success(), "{}", stderr(&result));
    let lines = json_lines(&result);
    let report = &lines.last().expect("a summary")["report"];
    assert_eq!((report["steps"].as_u64(), report["samples"].as_u64()), (Some(4), Some(256)), "{report}");
    let devices = report["devices"].as_array().expect("a list");
    let sum: u64 = devices.iter().filter_map(|device| device["samples"].as_u64()).sum();
    assert!(devices.len() == 2 && sum == 256 && devices[0]["compute"].as_f64() > Some(0.0), "{report}");
    let trace: serde_json::Value = serde_json::from_slice(&std::fs::read(path).expect("the trace")).expect("JSON");
    assert!(trace["traceEvents"].as_array().is_some_and(|events| events.len() > 4 * 4), "{trace}");
}

#[test]
fn one_device_has_no_report() {
    for option in [&["--report"][..], &["--trace", "x.json"]] {
        let result = output(&[&["train", "--devices", "cpu"], option].concat());
        fails(&result, 2, &[option[0], "bench --profile"]);
    }
}
