//! `kill -9` at any time: the checkpoint is complete, and the resumed run has the same losses as an uninterrupted one.
//!
//! The child process is this binary, which trains like `examples/resume.rs` and prints each loss.
#![cfg(unix)]

#[path = "../examples/resume.rs"]
mod resume;

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anygpu::Device;
use anygpu::checkpoint::TrainingState;

const FILE: &str = "ANYGPU_TEST_RESUME";
const STEPS: usize = 60;
const EVERY: usize = 2;
const KILLS: usize = 24;

type Losses = BTreeMap<usize, u32>;

/// What the child does; without its variable this is no child.
#[test]
fn child() {
    if let Ok(file) = std::env::var(FILE) {
        let print = |step, loss: f32| println!("\nloss {step} {}", loss.to_bits());
        resume::train(Path::new(&file), &Device::cpu(), (STEPS, EVERY), print).expect("it trains");
        println!("\nfinished");
    }
}

/// Runs a child, kills it after some time, and gives its losses and whether it had finished.
fn run(file: &Path, until: Option<Duration>) -> (Losses, bool) {
    let mut child = Command::new(std::env::current_exe().expect("this binary"));
    let child = child.args(["child", "--exact", "--nocapture", "--test-threads=1"]).env(FILE, file);
    let mut child = child.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("a child");
    let mut output = child.stdout.take().expect("its output");
    let reader = thread::spawn(move || {
        let mut text = Vec::new();
        output.read_to_end(&mut text).map(|_| String::from_utf8_lossy(&text).into_owned())
    });
    if let Some(time) = until {
        thread::sleep(time);
        child.kill().expect("SIGKILL"); // nothing if it ended by itself
    }
    child.wait().expect("its end");
    let text = reader.join().expect("a reader").expect("a text");
    let finished = text.lines().any(|line| line == "finished");
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole); // the last line may be cut
    let loss = |line: &str| {
        let (step, bits) = line.strip_prefix("loss ")?.split_once(' ')?;
        Some((step.parse().ok()?, bits.parse().ok()?))
    };
    (whole.lines().filter_map(loss).collect(), finished)
}

#[test]
fn killed_runs_end_as_if_they_had_not_been() {
    let folder = tempfile::tempdir().expect("a folder");
    let start = Instant::now();
    let (expected, finished) = run(&folder.path().join("whole.safetensors"), None);
    assert!(finished && expected.len() == STEPS, "{} losses", expected.len());
    let whole = start.elapsed();

    let (mut kills, mut round, mut amid) = (0, 0, 0);
    let mut random = 12345u64;
    while kills < KILLS {
        let file = folder.path().join(format!("{round}.safetensors"));
        let (mut losses, mut finished) = (Losses::new(), false);
        while !finished {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            // From before the first step to after several files.
            let time = whole.mul_f64(0.02 + 0.6 * ((random >> 33) as f64 / 2f64.powi(31)));
            let enough = kills >= KILLS;
            let (these, done) = run(&file, (!enough).then_some(time));
            for (step, loss) in &these {
                assert_eq!(expected.get(step), Some(loss), "step {step} after {kills} kills");
            }
            losses.extend(these);
            finished = done;
            kills += usize::from(!done);
            amid += usize::from(!done && !losses.is_empty());
            if file.exists() {
                let state = TrainingState::load(&file).unwrap_or_else(|error| panic!("after {kills} kills: {error}"));
                let step = state.get("step").expect("its step") as usize;
                assert!(step.is_multiple_of(EVERY) && step <= STEPS);
            }
        }
        assert_eq!(losses, expected, "round {round}: every step was seen, with its loss");
        round += 1;
    }
    println!("{kills} kills, {amid} of them after the first step, in {round} runs of {STEPS} steps");
    assert!(kills >= 20 && amid >= 8, "{kills} kills, {amid} amid training: are the times still right?");
}
