//! Running the command, and what its runs must be.
#![allow(dead_code, reason = "every test binary compiles this file and uses its own part of it")]

use std::process::{Command, Output};

use serde_json::Value;

/// The command with these words; standard output and error are kept.
pub fn anygpu(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_anygpu"));
    command.args(args).env_remove("ANYGPU_VISIBLE_DEVICES").env_remove("RUST_LOG");
    command
}

pub fn output(args: &[&str]) -> Output {
    anygpu(args).output().expect("the command starts")
}

pub fn stdout(output: &Output) -> &str {
    std::str::from_utf8(&output.stdout).expect("UTF-8")
}

pub fn stderr(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).expect("UTF-8")
}

/// The JSON lines of a run that must succeed.
pub fn json_lines(output: &Output) -> Vec<Value> {
    assert!(output.status.success(), "{:?}: {}", output.status, stderr(output));
    stdout(output).lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"))).collect()
}

/// The run must end with this status, nothing on standard output, and each of `words` on standard error.
pub fn fails(output: &Output, status: i32, words: &[&str]) {
    let message = stderr(output);
    assert_eq!(output.status.code(), Some(status), "{message}");
    assert_eq!(stdout(output), "", "errors belong on standard error");
    for word in words {
        assert!(message.contains(word), "'{word}' is missing in: {message}");
    }
    assert!(!message.contains("panicked"), "{message}");
}
