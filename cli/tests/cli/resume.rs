//! A training run that is killed goes on as if nothing had been.

use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anygpu::testing::device;
use serde_json::Value;

use crate::common::{anygpu, fails, json_lines, output, stderr};

const RUN: [&str; 10] =
    ["train", "--devices", "cpu", "--limit", "1500", "--epochs", "3", "--scheduler", "cosine", "--json"];

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

/// Kills a run as soon as it has written its checkpoint anew since `before`; false if it ended by itself.
fn killed(args: &[&str], file: &Path, wait: Duration) -> bool {
    let written = || std::fs::metadata(file).and_then(|about| about.modified()).ok();
    let before = written();
    let mut child = anygpu(args).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the command starts");
    let start = Instant::now();
    while written() == before && start.elapsed() < Duration::from_secs(120) {
        if child.try_wait().expect("a child").is_some() {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    std::thread::sleep(wait);
    child.kill().expect("a child"); // SIGKILL
    child.wait().expect("a child");
    true
}

fn close(a: &Value, b: &Value) -> bool {
    a.as_f64().zip(b.as_f64()).is_some_and(|(a, b)| (a - b).abs() <= 1e-6 * b.abs())
}

#[test]
fn a_killed_run_ends_with_the_losses_of_one_that_was_not() {
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("run.safetensors");
    let expected = json_lines(&output(&RUN));
    let checkpoint = ["--checkpoint", text(&file), "--checkpoint-steps", "5", "--resume"];
    let args = [&RUN[..], &checkpoint[..]].concat();
    let mut kills = 0;
    for wait in [0, 20, 1, 150, 7] {
        kills += usize::from(killed(&args, &file, Duration::from_millis(wait)));
    }
    assert!(kills >= 2, "only {kills} runs lived long enough to be killed");
    let lines = json_lines(&output(&args));
    let (last, summary) = (&lines[lines.len() - 2], &lines[lines.len() - 1]);
    assert_eq!(last["epoch"], 3);
    for key in ["train_loss", "test_loss", "test_acc"] {
        assert!(close(&last[key], &expected[2][key]), "{key}: {last}, without a kill {}", expected[2]);
    }
    assert_eq!(summary["step_losses"], expected[3]["step_losses"]);

    let (net, plot) = (dir.path().join("net.safetensors"), dir.path().join("curves.svg"));
    let again = json_lines(&output(&[&args[..], &["--save", text(&net), "--plot", text(&plot)]].concat()));
    assert_eq!((again.len(), &again[0]["test_acc"]), (1, &summary["test_acc"]), "a finished run is only measured");
    assert!(net.is_file());
    let curves = std::fs::read_to_string(&plot).expect("the plot");
    assert_eq!(curves.matches("<circle").count(), 9, "three curves of three epochs: {curves}");
    fails(&output(&[&args[..], &["--save", text(&file)]].concat()), 2, &["--save and --checkpoint"]);
    let other = output(&[&args[..], &["--seed", "1"]].concat());
    fails(&other, 2, &["run.safetensors is of a run with other options", "--seed 0, but here --seed 1"]);
    assert!(!stderr(&other).contains("--lr"), "only what differs: {}", stderr(&other));
    let other = output(&[&args[..], &["--lr", "0.5"]].concat());
    fails(&other, 2, &["--lr 0.05, but here --lr 0.5"]);
    let (model, rest) = (["train", "resnet18"], &args[1..]);
    fails(&output(&[&model[..], rest].concat()), 2, &["train lenet, but here train resnet18"]);
    fails(&output(&args[..args.len() - 1]), 2, &["run.safetensors", "--resume"]);
    let whole = std::fs::read(&file).expect("our file");
    std::fs::write(&file, &whole[..whole.len() / 2]).expect("our file");
    fails(&output(&args), 1, &["run.safetensors"]);
    let alone = output(&["train", "--resume"]);
    assert!(alone.status.code() == Some(2) && stderr(&alone).contains("--checkpoint"), "{}", stderr(&alone));
}

/// Ctrl-C ends a run after its step, and the file that it names continues there.
#[cfg(unix)]
#[test]
fn an_interrupted_run_says_which_step_its_file_holds() {
    use std::io::{BufRead, BufReader};
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("run.safetensors");
    let expected = json_lines(&output(&RUN));
    let args = [&RUN[..], &["--checkpoint", text(&file), "--resume"]].concat();
    let interrupted = |args: &[&str], signal: &str| {
        let mut child = anygpu(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the command starts");
        // The first epoch is over, and two are to come.
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("a pipe")).read_line(&mut line).expect("a line");
        let sent = std::process::Command::new("kill").args([signal, &child.id().to_string()]).status();
        assert!(sent.expect("kill").success());
        child.wait_with_output().expect("the command ends")
    };
    let result = interrupted(&args, "-INT");
    let message = stderr(&result);
    assert_eq!(result.status.code(), Some(130), "{message}");
    let steps = message.split("interrupted in epoch ").nth(1).and_then(|rest| rest.split("after step ").nth(1));
    let step = steps.and_then(|rest| rest.split(':').next()).expect(message);
    assert!(message.contains(&format!("run.safetensors holds step {step}: --resume continues there")), "{message}");
    let lines = json_lines(&output(&args));
    let last = &lines[lines.len() - 2];
    for key in ["train_loss", "test_loss", "test_acc"] {
        assert!(close(&last[key], &expected[2][key]), "{key}: {last}, uninterrupted {}", expected[2]);
    }

    let result = interrupted(&RUN, "-TERM");
    assert_eq!(result.status.code(), Some(143), "{}", stderr(&result));
    assert!(stderr(&result).contains("nothing is saved: a run with --checkpoint"), "{}", stderr(&result));
}

/// The test loss never falls: the rate is so small that no weight changes.
#[test]
fn early_stopping_counts_the_epochs_before_a_resumption() {
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("run.safetensors");
    let run = |patience: &str, epochs: &str, more: &[&str]| {
        let args = ["train", "--devices", "cpu", "--limit", "64", "--lr", "1e-30", "--json", "--early-stopping"];
        output(&[&args[..], &[patience, "--epochs", epochs], more].concat())
    };
    let whole = run("2", "9", &[]);
    assert_eq!(json_lines(&whole).len(), 4, "the first epoch, two that are no better, and the summary");
    assert!(stderr(&whole).contains("--early-stopping: 2 epochs without a test loss below"), "{}", stderr(&whole));
    let saved = ["--checkpoint", text(&file), "--resume"];
    assert_eq!(json_lines(&run("2", "2", &saved)).len(), 3);
    let lines = json_lines(&run("2", "9", &saved));
    assert_eq!((lines.len(), &lines[0]["epoch"]), (2, &3.into()));
    assert_eq!(json_lines(&run("2", "9", &saved)).len(), 1, "a run that has ended is only measured");
    // With more patience, it goes on.
    assert_eq!(json_lines(&run("3", "4", &saved)).len(), 2);
    fails(&run("0", "9", &[]), 2, &["--early-stopping", "at least 1"]);
}

/// Products of halves have other losses, close to those of f32, and a run with them goes on as if it had not ended.
#[test]
fn mixed_precision_trains_and_goes_on() {
    let run = |devices: &str, epochs: &str, more: &[&str]| {
        let args = ["train", "--limit", "128", "--json", "--devices", devices, "--epochs", epochs];
        json_lines(&output(&[&args[..], more].concat()))
    };
    let number = |value: &Value| value.as_f64().expect("a number");
    let full = run("cpu", "2", &[]);
    let all = ["cpu", "soft:0", "cpu,soft:0"];
    for devices in all.into_iter().filter(|names| names.split(',').all(|name| device(name).is_some())) {
        for half in ["f16", "bf16"] {
            let dir = tempfile::tempdir().expect("a folder");
            let file = dir.path().join("run.safetensors");
            let halves = ["--mixed-precision", half];
            let expected = run(devices, "2", &halves);
            for (line, wide) in expected[..2].iter().zip(&full) {
                let (loss, wide) = (number(&line["train_loss"]), number(&wide["train_loss"]));
                assert!(loss != wide && (loss - wide).abs() < 0.03, "{half} on {devices}: {loss}, f32 {wide}");
            }
            if devices != "cpu" {
                continue;
            }
            let saved = [&halves[..], &["--checkpoint", text(&file), "--resume"]].concat();
            run(devices, "1", &saved);
            let state = anygpu::checkpoint::TrainingState::load(&file).expect("a checkpoint");
            assert_eq!(state.get_numbers("scaler").len(), if half == "f16" { 2 } else { 0 });
            let later = run(devices, "2", &saved);
            for key in ["train_loss", "test_loss", "test_acc"] {
                assert_eq!(later[0][key], expected[1][key], "{half}: {key}");
            }
            let other =
                output(&["train", "--devices", "cpu", "--limit", "128", "--checkpoint", text(&file), "--resume"]);
            fails(&other, 2, &[&format!("--mixed-precision {half}, but here no --mixed-precision")]);
        }
    }
    fails(&output(&["train", "--mixed-precision", "f32"]), 2, &["--mixed-precision", "bf16"]);
}

#[test]
fn a_diverged_run_leaves_its_last_good_checkpoint() {
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("run.safetensors");
    let args = ["train", "--devices", "cpu", "--limit", "640", "--epochs", "1", "--checkpoint", text(&file)];
    let diverged = output(&[&args[..], &["--lr", "1e9", "--checkpoint-steps", "9"]].concat());
    fails(&diverged, 1, &["diverged", "--lr"]);
    assert!(!file.exists(), "no number of it is any good");
}

/// Nothing is trained if the result could not be written, or would take the place of the checkpoint.
#[cfg(unix)]
#[test]
fn outputs_are_tried_and_compared_before_training() {
    use std::os::unix::fs::symlink;
    let dir = tempfile::tempdir().expect("a folder");
    std::fs::create_dir(dir.path().join("sub")).expect("our folder");
    symlink("run.safetensors", dir.path().join("link.safetensors")).expect("a link");
    let absolute = dir.path().join("run.safetensors");
    let train = |save: &str, more: &[&str]| {
        let args = ["train", "--devices", "cpu", "--limit", "64", "--epochs", "1", "--save", save];
        anygpu(&[&args[..], more].concat()).current_dir(dir.path()).output().expect("the command starts")
    };
    let spellings =
        ["run.safetensors", "./run.safetensors", "sub/../run.safetensors", "link.safetensors", text(&absolute)];
    for save in spellings {
        fails(&train(save, &["--checkpoint", "run.safetensors"]), 2, &["--save and --checkpoint name the same file"]);
    }
    // A folder stands where the file should go; as root, every folder can be written.
    std::fs::create_dir(dir.path().join("net.safetensors")).expect("our folder");
    fails(&train("net.safetensors", &[]), 1, &["--save net.safetensors", "a folder"]);
    fails(&train("no/net.safetensors", &[]), 1, &["--save no/net.safetensors", "no folder"]);
    let left: Vec<_> =
        std::fs::read_dir(dir.path()).expect("our folder").map(|e| e.expect("a file").file_name()).collect();
    assert_eq!(left.len(), 3, "{left:?}");
}

/// The log cannot be created, or the disk is full after a part of it.
#[cfg(unix)]
#[test]
fn a_log_that_fails_does_not_end_training() {
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("file");
    std::fs::write(&file, "").expect("our file");
    let args =
        ["train", "--devices", "cpu", "--limit", "640", "--batch-size", "4", "--epochs", "1", "--json", "--log-dir"];
    let warned = |result: &std::process::Output| {
        assert_eq!(json_lines(result).len(), 2);
        let warning = "training goes on without a log";
        assert!(
            stderr(result).contains("--log-dir") && stderr(result).matches(warning).count() == 1,
            "{}",
            stderr(result)
        );
    };
    warned(&output(&[&args[..], &[text(&file.join("sub"))]].concat()));
    // No file may be larger than 1 KiB, and a larger write is an error.
    let limited = std::process::Command::new("bash")
        .args(["-c", "trap '' XFSZ; ulimit -f 1; exec \"$@\"", "bash", env!("CARGO_BIN_EXE_anygpu")])
        .args(args)
        .arg(dir.path().join("logs"))
        .output();
    warned(&limited.expect("bash"));
    let events = std::fs::read_dir(dir.path().join("logs")).expect("the log").next().expect("a file").expect("a file");
    assert!((1..=1024).contains(&events.metadata().expect("a file").len()));
}

/// The disk is full when the picture is written.
#[cfg(unix)]
#[test]
fn a_plot_that_fails_does_not_end_training() {
    let dir = tempfile::tempdir().expect("a folder");
    let result = std::process::Command::new("bash")
        .args(["-c", "trap '' XFSZ; ulimit -f 1; exec \"$@\"", "bash", env!("CARGO_BIN_EXE_anygpu")])
        .args(["train", "--devices", "cpu", "--limit", "64", "--epochs", "3", "--json", "--plot"])
        .arg(dir.path().join("curves.png"))
        .output()
        .expect("bash");
    assert_eq!(json_lines(&result).len(), 4);
    let warning = "training goes on without the picture";
    assert!(stderr(&result).contains("--plot: "), "{}", stderr(&result));
    assert_eq!(stderr(&result).matches(warning).count(), 1, "{}", stderr(&result));
    assert_eq!(std::fs::read_dir(dir.path()).expect("our folder").count(), 0, "no part of a picture is left");
}

const LIVE: [&str; 8] = ["train", "--devices", "cpu", "--limit", "640", "--epochs", "2", "--live"];

#[test]
fn live_curves_without_a_terminal_are_lines() {
    let result = output(&LIVE);
    assert!(result.status.success(), "{}", stderr(&result));
    let text = stderr(&result);
    assert!(text.contains("--live: standard error is not a terminal"), "{text}");
    assert!(text.contains("epoch 1/2  loss") && text.contains("epoch 2/2  loss"), "{text}");
    assert!(!text.contains('━') && !text.contains('\u{1b}'), "{text}");
}

/// Within `script`, standard error is a terminal.
#[cfg(target_os = "linux")]
#[test]
fn live_curves_are_drawn_in_a_terminal() {
    let command = format!("{} {}", env!("CARGO_BIN_EXE_anygpu"), LIVE.join(" "));
    let mut script = std::process::Command::new("script");
    script.args(["-qec", &command, "/dev/null"]).env("TERM", "xterm-256color").stdin(Stdio::null());
    let Ok(result) = script.output() else {
        eprintln!("NOT TESTED: no script(1) here");
        return;
    };
    let text = std::str::from_utf8(&result.stdout).expect("UTF-8");
    assert!(result.status.success(), "{text}");
    for part in ["━ training", "━ test", "accuracy", "2 epochs", "epoch 2/2  loss", "test acc "] {
        assert!(text.contains(part), "'{part}' is missing in: {text}");
    }
    assert!(text.chars().filter(|c| ('\u{2801}'..='\u{28ff}').contains(c)).count() > 20, "{text}");
}

/// A run whose device is lost in the middle of an epoch ends with the losses of one whose device is not.
#[test]
fn a_run_goes_on_after_the_loss_of_a_device() {
    if device("soft:0").is_none() {
        return;
    }
    let dir = tempfile::tempdir().expect("a folder");
    let run = |devices: &str, more: &[&str]| {
        let args = ["train", "--limit", "80", "--batch-size", "16", "--epochs", "2", "--json", "--devices", devices];
        output(&[&args[..], more].concat())
    };
    let expected = json_lines(&run("soft:0", &[]));
    let expected = expected.last().expect("a summary");
    // A step takes about twenty kernels, so this is in the first epoch, and the second time after a checkpoint of it.
    for (faults, every) in [("lose=100", "100"), ("lose=150", "2")] {
        let file = dir.path().join(faults);
        let file = file.with_extension("safetensors");
        let resume = ["--checkpoint", text(&file), "--checkpoint-steps", every, "--on-device-loss", "resume"];
        let device = format!("chaos:soft:0?{faults}");
        let done = run(&device, &resume);
        assert!(stderr(&done).contains("is lost") && stderr(&done).contains("the run continues"), "{}", stderr(&done));
        let lines = json_lines(&done);
        let summary = lines.last().expect("a summary");
        assert_eq!((lines.len(), &summary["devices"][0]), (3, &Value::from(&*device)));
        let losses = |summary: &Value| summary["step_losses"].as_array().expect("losses").clone();
        let (got, wanted) = (losses(summary), losses(expected));
        assert_eq!(got.len(), wanted.len());
        assert!(got.iter().zip(&wanted).all(|(a, b)| close(a, b)), "{faults}: {got:?}, without a loss {wanted:?}");

        let stopped = dir.path().join("stopped.safetensors");
        let lost = run(&device, &["--checkpoint", text(&stopped)]);
        assert_eq!(lost.status.code(), Some(1), "{}", stderr(&lost));
        assert!(stderr(&lost).contains(&format!("device {device} is lost")), "{}", stderr(&lost));
    }
    // Without a checkpoint, it begins again: in the first epoch, or in the second, whose first one is not printed again.
    for faults in ["lose=60", "lose=300"] {
        let device = format!("chaos:soft:0?{faults}");
        let done = run(&device, &["--on-device-loss", "resume"]);
        let lines = json_lines(&done);
        assert!(stderr(&done).contains("the run continues from its start"), "{faults}: {}", stderr(&done));
        assert!(!stderr(&done).contains("alidation"), "a loss is one line: {}", stderr(&done));
        let epochs: Vec<&Value> = lines[..lines.len() - 1].iter().map(|line| &line["epoch"]).collect();
        assert_eq!(epochs, [1, 2]);
        let losses = lines.last().expect("a summary")["step_losses"].as_array().expect("losses").clone();
        let wanted = expected["step_losses"].as_array().expect("losses");
        assert!(losses.iter().zip(wanted).all(|(a, b)| close(a, b)), "{faults}: {losses:?}, without a loss {wanted:?}");
    }
}

/// A run goes on without a device that is lost in a step, in an evaluation or between them, as long as another one is left.
#[test]
fn a_run_goes_on_without_one_of_several_devices() {
    if device("soft:0").is_none() {
        return;
    }
    let dir = tempfile::tempdir().expect("a folder");
    let run = |devices: &str, more: &[&str]| {
        let args = ["train", "--limit", "128", "--epochs", "2", "--json", "--devices", devices];
        output(&[&args[..], more].concat())
    };
    let number = |value: &Value| value.as_f64().expect("a number");
    let expected = json_lines(&run("cpu", &[]));
    // Two steps of about twenty kernels, and an evaluation of two batches.
    for (kernels, first) in [(20, true), (48, true), (56, false), (64, true)] {
        let name = format!("chaos:soft:0?lose={kernels}");
        let devices = if first { format!("{name},cpu") } else { format!("cpu,{name}") };
        let file = dir.path().join(format!("{kernels}.onnx"));
        let done = run(&devices, &["--export", text(&file), "--report"]);
        let lines = json_lines(&done);
        assert_eq!(lines.len(), 3, "{devices}");
        for (line, expected) in lines.iter().zip(&expected[..2]) {
            for key in ["train_loss", "test_loss"] {
                let (got, wanted) = (number(&line[key]), number(&expected[key]));
                assert!((got - wanted).abs() < 1e-2 * wanted, "{devices}: {key} {got}, on cpu {wanted}");
            }
        }
        let message = stderr(&done);
        assert!(message.contains("the call is repeated without this device"), "{devices}: {message}");
        assert!(!message.contains("alidation"), "a loss is one line: {message}");
        assert!(file.is_file());
    }
}
