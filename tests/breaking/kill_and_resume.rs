//! `kill -9` at any time: the checkpoint is complete, the resumed run has the same losses as an uninterrupted one, and
//! the temporary file of a killed writer goes with the next write. `ANYGPU_TEST_KILLS=40` kills more often.
//!
//! The child process is this binary, which trains like `examples/resume.rs` and prints each loss.

#[path = "../../examples/resume.rs"]
mod resume;

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use anygpu::Device;
use anygpu::checkpoint::TrainingState;

use crate::common::alone;

const FILE: &str = "ANYGPU_TEST_RESUME";
const STEPS: usize = 60;
const EVERY: usize = 2;
/// The kills of a test run, unless `ANYGPU_TEST_KILLS` has another number.
const KILLS: usize = 24;

/// The longest time to wait for a write.
const WAIT: Duration = Duration::from_millis(300);

type Losses = BTreeMap<usize, u32>;

/// What the child does; without its variable this is no child.
#[test]
fn child() {
    let _alone = alone();
    if let Ok(file) = std::env::var(FILE) {
        let print = |step, loss: f32| println!("\nloss {step} {}", loss.to_bits());
        resume::train(Path::new(&file), &Device::cpu(), (STEPS, EVERY), print).expect("it trains");
        println!("\nfinished");
    }
}

/// When a child is killed.
#[derive(Clone, Copy)]
enum Kill {
    After(Duration),
    /// While it writes a file, at the first time after this one.
    Writing(Duration),
    Never,
}

/// The temporary files in the folder of a file.
fn temporaries(file: &Path) -> Vec<PathBuf> {
    let all =
        std::fs::read_dir(file.parent().expect("a folder")).expect("a folder").flatten().map(|entry| entry.path());
    all.filter(|path| path.extension().is_some_and(|end| end == "tmp")).collect()
}

/// Runs a child, kills it, and gives its losses and whether it had finished.
fn run(file: &Path, kill: Kill) -> (Losses, bool) {
    let mut child = Command::new(std::env::current_exe().expect("this binary"));
    let child = child.args(["kill_and_resume::child", "--exact", "--nocapture", "--test-threads=1"]).env(FILE, file);
    let mut child = child.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("a child");
    let mut output = child.stdout.take().expect("its output");
    let reader = thread::spawn(move || {
        let mut text = Vec::new();
        output.read_to_end(&mut text).map(|_| String::from_utf8_lossy(&text).into_owned())
    });
    if let Kill::After(time) | Kill::Writing(time) = kill {
        thread::sleep(time);
        let before = temporaries(file);
        let start = Instant::now();
        while matches!(kill, Kill::Writing(_)) && temporaries(file) == before && start.elapsed() < WAIT {
            thread::yield_now();
        }
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

fn modified(file: &Path) -> Option<SystemTime> {
    file.metadata().and_then(|about| about.modified()).ok()
}

#[test]
fn killed_runs_end_as_if_they_had_not_been() {
    let _alone = alone();
    let folder = tempfile::tempdir().expect("a folder");
    let start = Instant::now();
    let (expected, finished) = run(&folder.path().join("whole.safetensors"), Kill::Never);
    assert!(finished && expected.len() == STEPS, "{} losses", expected.len());
    let whole = start.elapsed();

    let most = std::env::var("ANYGPU_TEST_KILLS").map_or(KILLS, |kills| kills.parse().expect("a number"));
    let (mut kills, mut round, mut amid, mut cut) = (0, 0, 0, 0);
    let mut random = 12345u64;
    while kills < most {
        let file = folder.path().join(format!("{round}.safetensors"));
        let (mut losses, mut finished) = (Losses::new(), false);
        while !finished {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            // From before the first step to after several files.
            let time = whole.mul_f64(0.02 + 0.6 * ((random >> 33) as f64 / 2f64.powi(31)));
            let kill = match kills {
                _ if kills >= most => Kill::Never,
                odd if odd % 2 == 1 => Kill::Writing(time),
                _ => Kill::After(time),
            };
            let (before, written) = (temporaries(&file), modified(&file));
            let (these, done) = run(&file, kill);
            let after = temporaries(&file);
            assert!(after.len() <= 1, "after {kills} kills, there is more than the last one: {after:?}");
            assert!(!done || after.is_empty(), "after {kills} kills and an end: {after:?}");
            let wrote = modified(&file) != written;
            assert!(!wrote || before.iter().all(|path| !path.exists()), "left after {kills} kills: {before:?}");
            cut += usize::from(!after.is_empty() && after != before);
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
    println!(
        "{kills} kills, {amid} of them after the first step, {cut} in the middle of a write, in {round} runs of {STEPS} \
         steps; temporary files left: {:?}",
        temporaries(&folder.path().join("all"))
    );
    assert!(
        kills >= most && amid >= most / 3 && cut >= 1,
        "{kills} kills, {amid} amid training: are the times still right?"
    );
}
