//! ResNet-18 by the command: one device, or a mix that shares each batch, takes the same steps.

use anygpu::testing::device;
use serde_json::Value;

use crate::common::{json_lines, output};

/// The first losses of a short run.
fn losses(devices: &str) -> Vec<f64> {
    let size = ["--limit", "48", "--resize", "32", "--batch-size", "16", "--epochs", "1", "--lr", "0.001"];
    let run = output(&[&["--json", "train", "resnet18", "--devices", devices], &size[..]].concat());
    let lines = json_lines(&run);
    let steps = lines.last().and_then(|summary| summary["step_losses"].as_array().cloned()).unwrap_or_default();
    steps.iter().filter_map(Value::as_f64).collect()
}

#[test]
fn a_mix_takes_the_steps_of_one_device() {
    let expected = losses("cpu");
    assert_eq!(expected.len(), 3);
    if device("soft:0").is_none() {
        return;
    }
    for devices in ["soft:0", "cpu,soft:0"] {
        let got = losses(devices);
        // The first loss is rounded alone; later ones amplify what the steps before rounded.
        let close = |i: usize| (got[i] - expected[i]).abs() <= if i == 0 { 1e-5 } else { 2e-2 } * expected[i];
        assert!(got.len() == 3 && (0..3).all(close), "{devices}: {got:?}, on cpu {expected:?}");
    }
}
