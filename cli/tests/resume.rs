//! A training run that is killed goes on as if nothing had been.

mod common;

use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use common::{anygpu, fails, json_lines, output, stderr};
use serde_json::Value;

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
    fails(&other, 1, &["run.safetensors is of another run", "seed=0", "seed=1"]);
    fails(&output(&args[..args.len() - 1]), 2, &["run.safetensors", "--resume"]);
    let whole = std::fs::read(&file).expect("our file");
    std::fs::write(&file, &whole[..whole.len() / 2]).expect("our file");
    fails(&output(&args), 1, &["run.safetensors"]);
    let alone = output(&["train", "--resume"]);
    assert!(alone.status.code() == Some(2) && stderr(&alone).contains("--checkpoint"), "{}", stderr(&alone));
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
