//! The program in a window of a virtual screen. Skipped where there is no `xvfb-run`.

use std::path::PathBuf;
use std::process::{Command, Output};

/// Runs the program on a virtual screen. Returns `None`, and says so, where there is none.
fn run(arguments: &[&str]) -> Option<Output> {
    if !cfg!(target_os = "linux") || Command::new("xvfb-run").arg("--help").output().is_err() {
        println!("skipped: there is no xvfb-run (on Debian: apt install xvfb)");
        return None;
    }
    let screen = ["-a", "-s", "-screen 0 1280x800x24"];
    let program = env!("CARGO_BIN_EXE_anygpu-desktop");
    let output = Command::new("xvfb-run").args(screen).arg(program).args(arguments).output().expect("it starts");
    let text = String::from_utf8_lossy(&output.stderr);
    // Without drivers, and without the client libraries of X11.
    let missing = ["Failed to create surface", "no adapter that can draw", "EventLoopError"];
    if missing.iter().any(|message| text.contains(message)) {
        println!("skipped: no window can be drawn here (see the example's README.md): {text}");
        return None;
    }
    assert!(output.status.success(), "{}: {text}", output.status);
    Some(output)
}

/// Returns the number before a word of the report.
fn number(report: &str, word: &str) -> usize {
    let before = report.split(word).next().unwrap_or_default();
    before.split_whitespace().last().and_then(|number| number.parse().ok()).unwrap_or_default()
}

#[test]
fn frames_are_drawn_while_a_net_is_trained() {
    let file: PathBuf = [env!("CARGO_TARGET_TMPDIR"), "window.png"].iter().collect();
    let path = file.to_str().expect("a path in UTF-8");
    let arguments = ["--train", "cpu", "--classify", "cpu", "--draw", "7", "--seconds", "5", "--screenshot", path];
    let Some(output) = run(&arguments) else { return };
    let report = String::from_utf8_lossy(&output.stdout);
    println!("{report}");
    // Not how many: a busy machine without a GPU draws two in a second.
    assert!(number(&report, " frames in") >= 1, "{report}");
    assert!(number(&report, " steps on cpu") >= 1, "{report}");

    let picture = image::open(&file).expect("a PNG").to_rgb8();
    assert_eq!(picture.dimensions(), (960, 600));
    // Each panel has more than one colour.
    for panel in 0..3 {
        let mut colours: Vec<_> = (0..320 * 600).map(|i| *picture.get_pixel(panel * 320 + i % 320, i / 320)).collect();
        colours.sort_by_key(|colour| colour.0);
        colours.dedup();
        assert!(colours.len() > 20, "panel {panel} has {} colours", colours.len());
    }
}

#[test]
fn mistakes_on_the_command_line_are_messages() {
    let program = env!("CARGO_BIN_EXE_anygpu-desktop");
    for (arguments, status, text) in [
        (&["--help"][..], 0, ""),
        (&["--nonsense"], 2, "unknown argument '--nonsense'"),
        (&["--train", "tpu:0"], 1, "unknown device 'tpu:0'"),
    ] {
        let output = Command::new(program).args(arguments).output().expect("it starts");
        let message = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(status) && message.contains(text), "{arguments:?}: {message}");
    }
}
