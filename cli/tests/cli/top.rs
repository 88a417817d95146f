//! `anygpu top`: devices, and the processes that use them.

use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use crate::common::{anygpu, fails, json_lines, output, stdout};

#[test]
fn devices_have_their_load_and_memory() {
    let lines = json_lines(&output(&["top", "--devices", "cpu", "--interval", "0.2", "--json"]));
    let cpu = lines.iter().find(|line| line["device"] == "cpu" && line["adapter"].is_string()).expect("a row for cpu");
    if cfg!(target_os = "linux") {
        assert!(cpu["load"].as_f64().is_some_and(|load| (0.0..=1.0).contains(&load)), "{cpu}");
        let (used, total) = (cpu["memory_used"].as_u64(), cpu["memory_total"].as_u64());
        assert!(used > Some(0) && used < total, "{cpu}");
    }
    let text = output(&["top", "--once", "--interval", "0.1"]);
    assert!(stdout(&text).contains("temperature") && !stdout(&text).contains('\x1b'), "{}", stdout(&text));
    fails(&output(&["top", "--interval", "0"]), 2, &["--interval", "0.1"]);
}

/// A process that ends with the test, however that ends.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
    }
}

#[test]
fn a_process_is_shown_while_it_runs() {
    let cache = tempfile::tempdir().expect("a folder");
    let command = |args: &[&str]| {
        let mut command = anygpu(args);
        command.env("XDG_CACHE_HOME", cache.path());
        command
    };
    let work = ["bench", "matmul", "--size", "512", "--devices", "cpu", "--repeats", "100000"];
    let process = command(&work).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts");
    let mut process = Killed(process);
    let begin = Instant::now();
    let row = loop {
        let top = command(&["top", "--devices", "cpu", "--interval", "0.2", "--json"]).output().expect("it starts");
        let row = json_lines(&top).into_iter().find(|line| line["pid"] == process.0.id());
        if let Some(row) = row.filter(|row| row["live"].as_u64() >= Some(3 * 4 * 512 * 512)) {
            break row;
        }
        assert!(begin.elapsed() < Duration::from_secs(60), "it is not shown");
    };
    assert_eq!((&row["device"], &row["process"]), (&"cpu".into(), &format!("anygpu {}", work.join(" ")).into()));
    process.0.kill().expect("it runs");
    process.0.wait().expect("it ends");
    // Its file is there still, and too old after a while.
    std::thread::sleep(Duration::from_secs(6));
    let top = command(&["top", "--once", "--interval", "0.1"]).output().expect("it starts");
    assert!(stdout(&top).contains("no process of anygpu"), "{}", stdout(&top));
}
