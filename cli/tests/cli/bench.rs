//! `anygpu bench`: its lines, shares of the device's limits, and its plot.

use std::path::Path;

use anygpu::testing::device;
use serde_json::Value;

use crate::common::{fails, json_lines, output, stderr, stdout};

/// The two probes of one device, and the lines after them.
fn split(lines: &[Value]) -> (&[Value], &[Value]) {
    let (probes, rows) = lines.split_at(2);
    let units = probes.iter().map(|probe| (&probe["workload"], &probe["unit"])).collect::<Vec<_>>();
    assert_eq!(units, [(&"probe".into(), &"GFLOP/s".into()), (&"probe".into(), &"GB/s".into())]);
    (probes, rows)
}

fn number(line: &Value, key: &str) -> f64 {
    line[key].as_f64().unwrap_or_else(|| panic!("{key} in {line}"))
}

#[test]
fn bench_prints_one_object_per_workload() {
    let args = ["bench", "matmul", "--size", "64,32x48x16", "--devices", "cpu", "--repeats", "3", "--json"];
    let lines = json_lines(&output(&args));
    let (probes, rows) = split(&lines);
    let shapes: Vec<_> = rows.iter().map(|line| line["shape"].as_str().unwrap_or_default()).collect();
    assert_eq!(shapes, ["64x64x64", "32x48x16"]);
    for line in probes.iter().chain(rows) {
        let (min, median, max) = (number(line, "min"), number(line, "median"), number(line, "max"));
        assert!(0.0 < min && min <= median && median <= max, "{line}");
        assert_eq!(line["device"], "cpu");
    }
    for line in rows {
        assert_eq!((&line["workload"], &line["unit"]), (&"matmul".into(), &"GFLOP/s".into()));
    }
    let line = &rows[1];
    assert_eq!(number(line, "flops"), f64::from(2 * 32 * 48 * 16));
    assert_eq!(number(line, "bytes"), f64::from(4 * (32 * 48 + 48 * 16 + 32 * 16)));
    assert_eq!(number(line, "size"), f64::from(32 * 48));
    // The roofline, with the best of each probe.
    let intensity = number(line, "flops") / number(line, "bytes");
    let limit = number(&probes[0], "max").min(number(&probes[1], "max") * intensity);
    assert!((number(line, "limit") / limit - 1.0).abs() < 1e-6, "{limit} {line}");
    assert!((number(line, "share") * limit / number(line, "median") - 1.0).abs() < 1e-6, "{line}");
    assert!(line["dispatches"].is_null(), "cpu has no kernels: {line}");
}

#[test]
fn bench_runs_every_workload() {
    let sizes = ["--size", "32", "--elements", "1048576"];
    let few = ["bench", "--devices", "cpu", "--repeats", "1", "--warm-up", "0", "--json"];
    let lines = json_lines(&output(&[&few[..], &sizes].concat()));
    let (_, rows) = split(&lines);
    let names: Vec<_> = rows.iter().map(|line| line["workload"].as_str().unwrap_or_default()).collect();
    let elementwise = ["copy", "relu", "add", "sum", "sum rows", "softmax", "layer_norm", "attention", "chain"];
    let nets = ["lenet", "lenet", "resnet18", "resnet18", "transformer", "transformer"];
    let all = ["matmul"].into_iter().chain(["conv2d"; 4]).chain(elementwise).chain(nets).chain(["transfer"; 4]);
    let all: Vec<_> = all.collect();
    assert_eq!(names, all);
    for line in rows {
        assert!(line["peak_memory"].as_u64().is_some_and(|bytes| bytes >= 2 * 4 * 4), "{line}");
        assert!(number(line, "median") > 0.0, "{line}");
        let unlimited = ["chain", "transfer"].iter().any(|name| line["workload"] == *name);
        assert_eq!(line["share"].is_null(), unlimited, "{line}");
        assert!(unlimited || number(line, "share") > 0.0, "{line}");
    }
}

#[test]
fn sizes_without_a_workload_that_takes_them_are_usage_errors() {
    let cases = [
        (["lenet", "--size", "64"], ["--size", "matmul"]),
        (["matmul", "--elements", "2048"], ["--elements", "elementwise"]),
        (["chain,elementwise", "--size", "64"], ["--size", "matmul"]),
    ];
    for (args, named) in cases {
        let result = output(&[&["bench", "--devices", "cpu", "--json"], &args[..]].concat());
        fails(&result, 2, &named);
        assert_eq!(stdout(&result), "", "nothing is measured");
    }
}

#[test]
fn an_adapter_has_limits_and_counts_its_kernels() {
    if device("soft:0").is_none() {
        return;
    }
    let args = ["bench", "chain,softmax", "--devices", "soft:0", "--repeats", "1", "--warm-up", "0", "--json"];
    let result = output(&args);
    assert_eq!(stderr(&result), "", "no warning about the loops of the probes");
    let lines = json_lines(&result);
    let (probes, rows) = split(&lines);
    // Several additions are one kernel.
    assert!((1.0..100.0).contains(&number(&rows[0], "dispatches")), "{}", rows[0]);
    let softmax = &rows[1];
    assert!(number(softmax, "dispatches") >= 1.0, "{softmax}");
    let reached = number(softmax, "median") / number(&probes[1], "max");
    assert!((number(softmax, "share") / reached - 1.0).abs() < 1e-6, "{softmax}");
}

#[test]
fn the_table_has_the_shares() {
    let args = ["bench", "chain,matmul", "--size", "64", "--devices", "cpu", "--repeats", "1"];
    let result = output(&args);
    assert!(result.status.success(), "{}", stderr(&result));
    let table = stdout(&result);
    let row = |name: &str| table.lines().find(|line| line.contains(name)).unwrap_or_else(|| panic!("{name}: {table}"));
    assert!(row("workload").contains("of limit") && row("workload").contains("kernels"), "{table}");
    assert!(row("64x64x64").contains(" % "), "{table}");
    assert!(!row("additions").contains('%'), "{table}");
}

#[test]
fn a_plot_shows_throughput_against_size() {
    let dir = tempfile::tempdir().expect("a folder");
    let bench = |file: &Path, options: &[&str]| {
        let plot = ["--plot", file.to_str().expect("UTF-8"), "--devices", "cpu", "--repeats", "1", "--warm-up", "0"];
        let result = output(&[&["bench", "matmul,elementwise", "--json"], options, &plot[..]].concat());
        json_lines(&result)
    };
    let png = dir.path().join("out.png");
    let lines = bench(&png, &["--elements", "1024,4096"]);
    let sizes: Vec<_> = split(&lines).1.iter().map(|line| number(line, "size")).collect();
    let squares = [64, 128, 256, 512, 1024].map(|side: u32| f64::from(side * side));
    assert_eq!(sizes, [&squares[..], &[1024.0; 5], &[4096.0; 5]].concat(), "several sides without --size");
    let bytes = std::fs::read(&png).expect("the plot");
    assert_eq!((&bytes[..8], &bytes[12..16]), (&b"\x89PNG\r\n\x1a\n"[..], &b"IHDR"[..]));
    let side = |at: usize| u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    assert_eq!((side(16), side(20)), (1400, 520));

    let svg = dir.path().join("out.svg");
    bench(&svg, &["--size", "32,64", "--elements", "1024,4096"]);
    let text = std::fs::read_to_string(&svg).expect("the plot");
    for label in ["matmul on cpu", "relu on cpu", "sum rows on cpu", "GFLOP/s", "GB/s", "log2 of the elements"] {
        assert!(text.contains(label), "{label}");
    }
}

#[test]
fn a_plot_that_cannot_be_written_fails_before_anything_is_measured() {
    let args = ["bench", "matmul", "--size", "64", "--devices", "cpu", "--json"];
    let result = output(&[&args[..], &["--plot", "/no/such/folder/out.png"]].concat());
    fails(&result, 1, &["--plot /no/such/folder/out.png", "there is no folder"]);
    if cfg!(target_os = "linux") {
        let result = output(&[&args[..], &["--plot", "/proc/out.png"]].concat());
        fails(&result, 1, &["--plot /proc/out.png", "cannot be written"]);
    }
}

#[test]
fn a_profile_is_printed_and_written() {
    let folder = tempfile::tempdir().expect("a folder");
    let traces = folder.path().join("new/traces");
    let mut args = vec!["bench", "matmul", "--size", "64", "--devices", "cpu", "--repeats", "1", "--warm-up", "0"];
    args.extend(["--profile", traces.to_str().expect("UTF-8")]);
    let result = output(&args);
    assert!(result.status.success(), "{}", stderr(&result));
    assert!(stdout(&result).contains("\nmatmul 64x64x64 cpu\ndevice  op      kernel  calls"), "{}", stdout(&result));
    let text = std::fs::read(traces.join("matmul-64x64x64-cpu.json")).expect("the trace");
    let trace: Value = serde_json::from_slice(&text).expect("JSON");
    assert_eq!(trace["traceEvents"][1]["name"], "matmul");
    args.push("--json");
    let lines = json_lines(&output(&args));
    let [_, _, product, kernel] = &lines[..] else { panic!("{lines:?}") };
    assert_eq!((&product["workload"], &kernel["workload"]), (&"matmul".into(), &"matmul".into()));
    assert_eq!((&kernel["shape"], &kernel["calls"]), (&product["shape"], &1.into()), "{kernel}");
    assert!(kernel["micros"].as_f64() > Some(0.0), "{kernel}");
    std::fs::write(folder.path().join("file"), "").expect("a file");
    let file = folder.path().join("file");
    let args = ["bench", "matmul", "--devices", "cpu", "--profile", file.to_str().expect("UTF-8")];
    fails(&output(&args), 2, &["--profile", "file"]);
}
