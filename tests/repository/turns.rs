//! Tests that other tests would disturb take turns.

use crate::source::{files, root};

/// The programs in which a test may not run beside another one.
const PROGRAMS: [&str; 4] = ["allocations", "alone", "breaking", "train"];

#[test]
fn every_test_of_these_programs_begins_with_the_lock() {
    let (mut tests, mut without) = (0, Vec::new());
    for program in PROGRAMS {
        for (path, text) in files(&format!("tests/{program}")) {
            for (at, _) in text.match_indices("#[test]\n") {
                let (head, body) = text[at..].split_once("{\n").expect("a function");
                let name = head.split("fn ").nth(1).and_then(|rest| rest.split('(').next()).expect("a name");
                tests += 1;
                if body.lines().next().map(str::trim) != Some("let _alone = alone();") {
                    without.push(format!("{}: {name}", path.strip_prefix(root()).expect("a file of it").display()));
                }
            }
        }
    }
    assert!(without.is_empty(), "begin these with `let _alone = alone();`:\n{}", without.join("\n"));
    assert!(tests > 100, "only {tests} tests were found: does this test still read them?");
}
