//! `mpirun -n 2 anygpu train`: the numbers of one process, and what happens when a rank dies.

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use anygpu::testing::device;
use serde_json::Value;

use crate::common::{json_lines, output, stderr, stdout};

const RUN: [&str; 8] = ["train", "--limit", "700", "--epochs", "2", "--scheduler", "cosine", "--json"];
const EXE: &str = env!("CARGO_BIN_EXE_anygpu");

/// The command on one rank for each name of devices, each with these words. Of two jobs that start at the same time, one may fail
/// to make the folder of their files: it is in `folder`.
fn mpirun(folder: &Path, devices: &[&str], words: &[&str]) -> Command {
    let mut command = Command::new("mpirun");
    command.args(["--oversubscribe", "--bind-to", "none", "--timeout", "150"]).env_remove("ANYGPU_VISIBLE_DEVICES");
    command.env("TMPDIR", folder).env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    for (i, devices) in devices.iter().enumerate() {
        command.args([":"].iter().take(i.min(1))).args(["-n", "1", EXE]).args(words).args(["--devices", devices]);
    }
    command
}

fn run(folder: &Path, devices: &[&str], words: &[&str]) -> Output {
    mpirun(folder, devices, words).output().expect("mpirun starts: Debian has it in openmpi-bin")
}

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

/// The epochs and the losses of the first steps are the same but for rounding.
#[track_caller]
fn same(got: &[Value], expected: &[Value]) {
    let near = |a: &Value, b: &Value, limit: f64| {
        let (a, b) = (a.as_f64().expect("a number"), b.as_f64().expect("a number"));
        assert!((a - b).abs() <= limit * b.abs(), "{a}, expected {b}: {got:?}");
    };
    assert_eq!(got.len(), expected.len());
    let (summary, expected_summary) = (&got[got.len() - 1], &expected[expected.len() - 1]);
    for (got, expected) in got.iter().zip(expected).filter(|(got, _)| got.get("epoch").is_some()) {
        near(&got["train_loss"], &expected["train_loss"], 1e-4);
        near(&got["test_loss"], &expected["test_loss"], 1e-3);
    }
    let losses = |summary: &Value| summary["step_losses"].as_array().expect("losses").clone();
    let (losses, expected) = (losses(summary), losses(expected_summary));
    assert_eq!(losses.len(), expected.len());
    losses.iter().zip(&expected).for_each(|(got, expected)| near(got, expected, 1e-4));
}

#[test]
fn ranks_have_the_losses_of_one_process_and_a_killed_rank_leaves_a_checkpoint() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("run.safetensors");
    let net = folder.path().join("net.safetensors");
    let expected = json_lines(&output(&[&RUN[..], &["--devices", "cpu"]].concat()));

    let joint = json_lines(&run(folder.path(), &["cpu", "cpu,cpu/1"], &[&RUN[..], &["--save", text(&net)]].concat()));
    same(&joint, &expected);
    assert_eq!(joint[joint.len() - 1]["ranks"][1]["devices"], serde_json::json!(["cpu", "cpu/1"]));
    assert!(net.exists());

    // A rank dies after some steps of the first epoch.
    let words = [&RUN[..], &["--checkpoint", text(&file), "--checkpoint-steps", "2", "--resume"]].concat();
    let mut job = mpirun(folder.path(), &["cpu", "cpu"], &words);
    let job = job.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("mpirun starts");
    let start = Instant::now();
    while !file.exists() && start.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(Duration::from_millis(2));
    }
    let children = format!("/proc/{0}/task/{0}/children", job.id());
    let ranks = std::fs::read_to_string(children).expect("the ranks of the job");
    let last = ranks.split_whitespace().last().expect("a rank").to_string();
    assert!(Command::new("kill").args(["-KILL", &last]).status().expect("kill").success());
    let ended = job.wait_with_output().expect("mpirun ends");
    let message = stderr(&ended);
    assert!(!ended.status.success() && file.exists(), "{message}");
    for word in ["rank 1", "signal 9", "holds step", "--resume continues there"] {
        assert!(message.contains(word), "'{word}' is missing in: {message}");
    }

    // It goes on as if nothing had been, also with other ranks.
    let resumed = json_lines(&run(folder.path(), &["cpu/1", "cpu", "cpu"], &words));
    same(&resumed, &expected);
}

/// One rank in each of two network namespaces, between which there is a veth link only.
#[test]
fn two_machines_have_the_losses_of_one() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/mpi-two-hosts.sh");
    let second = if device("soft:0").is_some() { "cpu,soft:0" } else { "cpu,cpu/1" };
    let mut command = Command::new(script);
    command.arg(EXE).args(RUN).args(["--devices", "cpu", ":", EXE]).args(RUN).args(["--devices", second]);
    let joint = command.env_remove("ANYGPU_VISIBLE_DEVICES").output().expect("the script starts");
    if joint.status.code() == Some(3) {
        println!("{}", stdout(&joint).trim());
        return;
    }
    let joint = json_lines(&joint);
    let ranks = &joint[joint.len() - 1]["ranks"];
    assert_eq!((&ranks[0]["host"], &ranks[1]["host"]), (&"machine-1".into(), &"machine-2".into()));
    same(&joint, &json_lines(&output(&[&RUN[..], &["--devices", "cpu"]].concat())));
}

#[test]
fn ranks_with_other_options_or_a_failure_end_with_a_message() {
    let folder = tempfile::tempdir().expect("a folder");
    let two = |first: &[&str], second: &[&str]| {
        let mut command = mpirun(folder.path(), &["cpu"], first);
        command.args([":", "-n", "1", EXE]).args(second).args(["--devices", "cpu"]);
        command.output().expect("mpirun starts")
    };
    let seeds = two(&["train", "--seed", "1"], &["train", "--seed", "2"]);
    let missing = two(&["train"], &["train", "--data", "/nonexistent"]);
    let device = run(folder.path(), &["cpu", "gpu:99"], &["train"]);
    for (output, words) in [
        (seeds, ["all ranks need the same options", "\"--seed\":\"2\""]),
        (missing, ["error: rank 1 on ", "/nonexistent"]),
        (device, ["error: rank 1 on ", "unknown device 'gpu:99'"]),
    ] {
        assert!(!output.status.success());
        assert_eq!(stdout(&output), "");
        assert!(words.iter().all(|word| stderr(&output).contains(word)), "{}", stderr(&output));
    }
}
