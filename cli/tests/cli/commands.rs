//! Runs the `anygpu` command as a script would: exit status, JSON lines, messages, the plot.

use std::path::Path;
use std::process::Stdio;

use anygpu::testing::device;
use serde_json::Value;

use crate::common::{anygpu, fails, json_lines, output, stderr, stdout};

#[test]
fn devices_json_is_one_object_per_device_with_cpu_last() {
    let devices = json_lines(&output(&["devices", "--json"]));
    for device in &devices {
        for key in ["name", "kind", "vendor", "adapter", "api", "driver"] {
            assert!(device[key].is_string(), "{key} in {device}");
        }
        assert!(device["memory_total"].is_u64() || device["memory_total"].is_null(), "{device}");
        assert!(device["features"].is_array() && device["quirks"].is_array(), "{device}");
    }
    let cpu = devices.last().expect("at least one device");
    assert_eq!(
        (cpu["name"].as_str(), cpu["kind"].as_str(), cpu["api"].as_str()),
        (Some("cpu"), Some("cpu"), Some("native"))
    );
}

/// Mesa's layers and Wayland's library write to standard error on a machine without XDG_RUNTIME_DIR, as most servers are.
#[test]
fn devices_are_a_table_of_80_columns_and_nothing_else() {
    let mut command = anygpu(&["devices"]);
    let result = command.env_remove("XDG_RUNTIME_DIR").env_remove("WAYLAND_DISPLAY").output().expect("it starts");
    assert!(result.status.success(), "{}", stderr(&result));
    assert_eq!(stderr(&result), "");
    let table = stdout(&result);
    assert!(table.lines().any(|line| line.trim_start().starts_with("cpu ")), "{table}");
    let devices = json_lines(&output(&["devices", "--json"]));
    let widest = devices.iter().filter_map(|device| device["adapter"].as_str()).map(|name| name.chars().count()).max();
    let width = table.lines().map(|line| line.chars().count()).max();
    // An adapter whose name alone takes half of the line has a longer one.
    assert!(width <= Some(80) || widest > Some(38), "{table}");
}

#[test]
fn devices_long_has_everything() {
    let result = output(&["devices", "--long"]);
    assert!(result.status.success(), "{}", stderr(&result));
    let text = stdout(&result);
    let (_, cpu) = text.split_once("cpu\n").expect("the device cpu");
    for label in
        ["adapter", "vendor", "kind", "API", "driver", "conformant", "memory", "features", "quirks", "not used"]
    {
        assert!(cpu.lines().any(|line| line.starts_with(&format!("  {label}"))), "{label}: {text}");
    }
}

#[test]
fn a_machine_without_any_driver_has_cpu() {
    let none = "/nonexistent/driver.json";
    let result = anygpu(&["devices", "--json"])
        .envs([("VK_DRIVER_FILES", none), ("VK_ICD_FILENAMES", none), ("__EGL_VENDOR_LIBRARY_FILENAMES", none)])
        .env_remove("VK_ADD_DRIVER_FILES")
        .output()
        .expect("the command starts");
    let lines = json_lines(&result);
    assert!(lines.iter().any(|device| device["name"] == "cpu"), "{lines:?}");
}

#[test]
fn usage_errors_exit_with_2_and_say_what_is_wrong() {
    let wrong: &[(&[&str], &[&str])] = &[
        (&[], &["Usage"]),
        (&["fly"], &["fly", "--help"]),
        (&["devices", "--lang"], &["--lang", "--long"]),
        (&["train", "--epochs", "0"], &["--epochs", "at least 1"]),
        (&["train", "--epochs", "-2"], &["'-2' for '--epochs", "at least 1"]),
        (&["train", "--batch-size", "many"], &["--batch-size", "whole number"]),
        (&["train", "--limit", "1.5"], &["--limit", "whole number"]),
        (&["train", "--resize", "0"], &["--resize", "at least 1"]),
        (&["train", "--max-pixels", "0"], &["--max-pixels", "at least 1"]),
        (&["train", "--max-bytes", "1 MB"], &["--max-bytes", "whole number"]),
        (&["train", "--lr", "nan"], &["--lr", "above 0"]),
        (&["train", "--lr", "-1"], &["'-1' for '--lr", "above 0"]),
        (&["train", "--lr", "1,5"], &["--lr", "above 0"]),
        (&["train", "--seed", "-1"], &["--seed", "from 0 to"]),
        (&["train", "--scheduler", "cos"], &["cos", "cosine", "onecycle"]),
        (&["train", "--devices", "cpu", "--batch-size", "1", "--devices", "cpu"], &["--devices", "multiple times"]),
        (&["train", "--devices", "cpu", "--plot", "out.jpg"], &["out.jpg", ".png"]),
        (&["train", "--devices", "cpu", "--save", "net"], &["--save net", ".safetensors"]),
        (&["train", "--devices", "cpu", "--checkpoint", "run.pt"], &["--checkpoint run.pt", ".safetensors"]),
        (&["train", "--checkpoint-steps", "5"], &["--checkpoint <"]),
        (&["train", "--devices", "cpu", "--data", "no-such-thing"], &["no-such-thing", "fashion-mnist"]),
        (&["train", "--devices", "cpu", "--data", "Cargo.toml"], &["Cargo.toml", "a file", "folder"]),
        (&["train", "--devices", "cpu,cpu"], &["twice", "write cpu/0,cpu/1"]),
        (&["train", "--devices", "cpu/1,cpu/1"], &["twice", "write cpu/0,cpu/1"]),
        (&["train", "--devices", ","], &["no device"]),
        (&["predict", "net.safetensors"], &["IMAGES"]),
        (&["predict", "net.safetensors", "x.png", "--top", "0"], &["--top", "at least 1"]),
        (&["predict", "net.safetensors", "x.png", "--mean", "grey"], &["--mean", "a number"]),
        (&["predict", "net.safetensors", "x.png", "--std", "0.5,-1"], &["--std", "above 0"]),
        (&["bench", "fly"], &["fly", "matmul"]),
        (&["bench", "matmul", "--size", "3x4"], &["MxKxN"]),
        (&["bench", "matmul", "--repeats", "0"], &["--repeats", "at least 1"]),
        (&["bench", "matmul", "--warm-up", "-1"], &["--warm-up", "from 0 to"]),
        (&["bench", "elementwise", "--elements", "1000"], &["--elements", "multiple of 1024"]),
        (&["bench", "lenet,chain", "--plot", "out.png"], &["--plot", "matmul", "elementwise"]),
        (&["bench", "matmul", "--plot", "out.pdf"], &["--plot out.pdf", ".png"]),
        (&["check", "--quick", "--thorough"], &["--quick", "--thorough"]),
    ];
    for (args, words) in wrong {
        fails(&output(args), 2, words);
    }
}

#[test]
fn devices_that_do_not_fit_the_work_are_refused() {
    if device("soft:0").is_none() {
        return;
    }
    let two = ["--devices", "cpu,soft:0"];
    fails(&output(&[&["train", "--batch-size", "1"], &two[..]].concat()), 2, &["--batch-size 1", "2 devices"]);
    let predict = output(&[&["predict", "net.safetensors", "x.png"], &two[..]].concat());
    fails(&predict, 2, &["--devices cpu,soft:0", "one device"]);
}

#[test]
fn devices_are_chosen_by_one_option_and_its_older_name() {
    for option in ["--devices", "--device"] {
        for command in ["train", "bench", "check"] {
            fails(&output(&[command, option, "gpu:99"]), 2, &["unknown device", "cpu"]);
        }
        fails(&output(&["predict", "net.safetensors", "x.png", option, "gpu:99"]), 2, &["unknown device"]);
    }
}

#[test]
fn an_unknown_device_exits_with_2_and_lists_what_there_is() {
    for command in
        [["train", "--devices", "gpu:99"], ["train", "--devices", "cpu,tpu"], ["bench", "--devices", "gpu:99"]]
    {
        fails(&output(&command), 2, &["unknown device", "cpu"]);
    }
}

#[test]
fn train_prints_an_object_per_epoch_and_a_summary() {
    let result = output(&["train", "--devices", "cpu", "--epochs", "2", "--seed", "1", "--json"]);
    let lines = json_lines(&result);
    assert_eq!(lines.len(), 3);
    for (i, epoch) in lines[..2].iter().enumerate() {
        assert_eq!(epoch["epoch"], i + 1);
        for key in ["train_loss", "test_loss", "test_acc", "seconds", "images_per_s"] {
            assert!(epoch[key].is_f64(), "{key} in {epoch}");
        }
    }
    let summary = &lines[2];
    assert_eq!((&summary["model"], &summary["devices"]), (&Value::from("lenet"), &Value::from(vec!["cpu"])));
    assert_eq!(summary["test_acc"], lines[1]["test_acc"]);
    assert!(summary["test_acc"].as_f64().is_some_and(|acc| acc > 0.8 && acc <= 1.0), "{summary}");
    assert!(summary["sec_per_epoch"].as_f64().is_some_and(|s| s > 0.0), "{summary}");
    assert!(summary["images_per_s"].as_f64().is_some_and(|s| s > 0.0), "{summary}");
    let losses = summary["step_losses"].as_array().expect("an array");
    assert_eq!(losses.len(), 10);
    // Ten classes and small first weights: the first loss is near ln 10.
    assert!(losses[0].as_f64().is_some_and(|loss| (loss - 10f64.ln()).abs() < 0.3), "{summary}");
}

#[test]
fn one_seed_gives_one_run() {
    let losses = |seed: &str| {
        let lines = json_lines(&output(&["train", "--devices", "cpu", "--epochs", "1", "--seed", seed, "--json"]));
        lines[1]["step_losses"].clone()
    };
    let first = losses("7");
    assert_eq!(first, losses("7"));
    assert_ne!(first, losses("8"));
}

#[test]
fn train_ends_with_one_line_and_a_plot() {
    let dir = tempfile::tempdir().expect("a folder");
    let plot = dir.path().join("out.png");
    let result = output(&["train", "--devices", "cpu", "--epochs", "1", "--plot", plot.to_str().expect("UTF-8")]);
    assert!(result.status.success(), "{}", stderr(&result));
    let line = stdout(&result);
    assert!(line.starts_with("test acc 0.") && line.ends_with(" s/epoch on [cpu]\n"), "{line}");
    assert_eq!(line.lines().count(), 1);
    assert!(stderr(&result).contains("epoch 1/1"), "{}", stderr(&result));
    let png = std::fs::read(&plot).expect("the plot");
    assert_eq!(&png[..8], b"\x89PNG\r\n\x1a\n");
    assert_eq!(&png[12..16], b"IHDR");
    let side = |at: usize| u32::from_be_bytes([png[at], png[at + 1], png[at + 2], png[at + 3]]);
    assert_eq!((side(16), side(20)), (1120, 480));
}

#[test]
fn a_plot_that_cannot_be_written_fails_before_training() {
    let result = output(&["train", "--devices", "cpu", "--plot", "/no/such/folder/out.png"]);
    fails(&result, 1, &["/no/such/folder"]);
    assert!(!stderr(&result).contains("epoch"), "{}", stderr(&result));
    if cfg!(target_os = "linux") {
        // Nobody can create a file there, not even root.
        let result = output(&["train", "--devices", "cpu", "--plot", "/proc/out.png"]);
        fails(&result, 1, &["--plot /proc/out.png", "cannot be written", "a folder that you can write to"]);
    }
}

#[test]
fn damaged_data_exits_with_1_and_names_the_file() {
    let dir = tempfile::tempdir().expect("a folder");
    let folder = dir.path().to_str().expect("UTF-8");
    let empty = output(&["train", "--devices", "cpu", "--data", folder]);
    fails(
        &empty,
        1,
        &[folder, "the folder is empty", "train-images-idx3-ubyte", "a folder of PNG or JPEG images for each class"],
    );

    let assets = Path::new(env!("CARGO_MANIFEST_DIR")).join("../assets/mnist-5k");
    for part in ["train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"] {
        let name = format!("{part}-ubyte.gz");
        std::fs::copy(assets.join(&name), dir.path().join(&name)).expect("the built-in files");
    }
    let images = dir.path().join("t10k-images-idx3-ubyte.gz");
    let whole = std::fs::read(&images).expect("just copied");
    // A new file, since the built-in one may be read-only.
    std::fs::remove_file(&images).expect("our file");
    std::fs::write(&images, &whole[..whole.len() / 2]).expect("our folder");
    fails(&output(&["train", "--devices", "cpu", "--data", folder]), 1, &["t10k-images-idx3-ubyte.gz", "damaged"]);
}

#[test]
fn divergence_is_a_failure_that_says_what_to_do() {
    let result = output(&["train", "--devices", "cpu", "--epochs", "1", "--lr", "1e9"]);
    fails(&result, 1, &["diverged", "--lr"]);
}

#[test]
fn check_prints_an_object_per_op_and_a_summary() {
    let lines = json_lines(&output(&["check", "--devices", "cpu", "--op", "softmax", "--quick", "--json"]));
    let (summary, rows) = lines.split_last().expect("a summary");
    let ops: Vec<_> = rows.iter().map(|row| row["op"].as_str().unwrap_or_default()).collect();
    assert_eq!(ops, ["softmax", "log_softmax"]);
    for row in rows {
        assert_eq!(
            (&row["device"], &row["ok"], &row["failures"]),
            (&"cpu".into(), &true.into(), &Value::Array(vec![]))
        );
        let number = |key: &str| row[key].as_f64().expect("a number");
        assert!(number("cases") > 5.0 && number("seconds") > 0.0, "{row}");
        assert!(number("worst_error") <= number("tolerance") && number("ratio") <= 1.0, "{row}");
    }
    assert_eq!((&summary["devices"], &summary["ok"]), (&Value::from(vec!["cpu"]), &true.into()));
}

#[test]
fn check_prints_a_table() {
    let result = output(&["check", "--devices", "cpu", "--op", "transpose", "--quick"]);
    assert!(result.status.success(), "{}", stderr(&result));
    let text = stdout(&result);
    assert!(text.lines().any(|line| line.contains("transpose") && line.contains(" ok ")), "{text}");
    assert!(text.contains("cpu: 0 of ") && text.contains("within their tolerance"), "{text}");
}

#[test]
fn check_refuses_what_is_not_there() {
    fails(&output(&["check", "--devices", "gpu:99"]), 2, &["unknown device", "cpu"]);
    fails(&output(&["check", "--devices", "cpu", "--op", "fly"]), 2, &["no op", "fly"]);
}

#[test]
fn a_closed_pipe_is_no_panic() {
    let mut child =
        anygpu(&["bench", "matmul", "--devices", "cpu", "--size", "16,17,18,19", "--repeats", "1", "--json"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the command starts");
    drop(child.stdout.take());
    let result = child.wait_with_output().expect("the command ends");
    assert_ne!(result.status.code(), Some(0));
    assert!(!stderr(&result).contains("panicked"), "{}", stderr(&result));
}

#[test]
fn a_closed_standard_error_is_no_panic() {
    for (args, status) in [
        (&["train", "--devices", "cpu", "--limit", "64", "--epochs", "1"][..], 0),
        (&["train", "--data", "nowhere"], 2),
    ] {
        let mut child = anygpu(args).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("the command starts");
        drop(child.stderr.take());
        assert_eq!(child.wait().expect("the command ends").code(), Some(status), "{args:?}");
    }
}
